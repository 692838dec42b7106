// Launches of gemm_split_sm90.cuh and gemm_stream_sm90.cuh for dense NVFP4 and FP8 weights.
#include "ops/gpu_matmul/gemm_stream_sm90.cuh"
#include "ops/gpu_matmul/unit_products.h"

namespace nibble::ops::gpu {
namespace {

struct StoreRows {
  static constexpr bool kHeadHalves = false, kHasPlaces = false;
  float* y;  // [T, rows]
  int rows;

  struct Turn {};
  __device__ Turn turn(int, int) const { return {}; }
  __device__ void store(int token, int row, float2 v) const {
    *reinterpret_cast<float2*>(y + int64_t{token} * rows + row) = v;
  }
};

struct StoreSwiglu {
  static constexpr bool kHeadHalves = false, kHasPlaces = false;
  uint16_t* u;  // [T, rows / 2]
  int rows;
  Swiglu act;

  struct Turn {};
  __device__ Turn turn(int, int) const { return {}; }
  __device__ void store(int token, int row, float2 v) const {
    u[int64_t{token} * (rows / 2) + row / 2] = cuda::bf16_bits(sm90::swiglu(v.x, v.y, act));
  }
};

}  // namespace

void multiply_split(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, float* y) {
  with_unit_format(w, [&]<Format kFormat>() {
    sm90::launch_split<StoreRows, Unit<kFormat>>(cx, w, x, static_cast<int>(tokens),
                                                 StoreRows{y, static_cast<int>(w.rows)});
  });
}

void swiglu_split(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, const Swiglu& act,
                  uint16_t* u) {
  with_unit_format(w, [&]<Format kFormat>() {
    sm90::launch_split<StoreSwiglu, Unit<kFormat>>(cx, w, x, static_cast<int>(tokens),
                                                   StoreSwiglu{u, static_cast<int>(w.rows), act});
  });
}

void multiply_stream(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int64_t tokens,
                     float* y) {
  sm90::launch_stream(cx, scratch, w, x, static_cast<int>(tokens),
                      StoreRows{y, static_cast<int>(w.rows)});
}

void swiglu_stream(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int64_t tokens,
                   const Swiglu& act, uint16_t* u) {
  sm90::launch_stream(cx, scratch, w, x, static_cast<int>(tokens),
                      StoreSwiglu{u, static_cast<int>(w.rows), act});
}

}  // namespace nibble::ops::gpu
