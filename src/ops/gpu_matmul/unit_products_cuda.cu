// Launches of unit_gemv.cuh for dense weights.
#include "ops/gpu_matmul/unit_gemv.cuh"
#include "ops/gpu_matmul/unit_products.h"
#include "ops/moe_up/swiglu.cuh"

namespace nibble::ops::gpu {
namespace {

struct Inputs {
  const uint16_t* x;  // [T, cols]
  int tokens, rows, cols;

  __device__ uint4 load(int row, int k) const {
    return __ldcg(reinterpret_cast<const uint4*>(x + int64_t{row} * cols + k));
  }
};

struct StoreRows : Inputs {
  float* y;  // [T, rows]

  __device__ void store(int token, int row, float a, float b) const {
    *reinterpret_cast<float2*>(y + int64_t{token} * rows + row) = {a, b};
  }
};

struct StoreSwiglu : Inputs {
  uint16_t* u;  // [T, rows / 2]
  Swiglu act;

  __device__ void store(int token, int row, float gate, float up) const {
    u[int64_t{token} * (rows / 2) + row / 2] = cuda::bf16_bits(swiglu(gate, up, act));
  }
};

Inputs inputs_of(const Weight& w, const uint16_t* x, int64_t tokens) {
  return {x, static_cast<int>(tokens), static_cast<int>(w.rows), static_cast<int>(w.cols)};
}

template <class Op>
void launch(Ctx& cx, const Weight& w, const Op& op) {
  if (op.tokens == 0) return;
  CHECK(w.experts == 1);
  with_unit_format(w, [&]<Format kFormat>() {
    using U = Unit<kFormat>;
    if constexpr (U::kScalesColumns) {
      if (op.tokens == 1 && !cx.kernels.exact)
        return launch_unit_gemv<U, 1, false, true>(cx, w, op, 1);
    }
    if (op.tokens <= 8) return launch_unit_gemv<U, 1, false>(cx, w, op, op.tokens);
    if constexpr (!HasNorm<Op>) launch_unit_gemv<U, 2, false>(cx, w, op, op.tokens);
  });
}

template <class Store>
struct Normed : Store {
  NormInput norm;
};

// The norm, then the product: together for one token.
template <class Store>
void launch_normed(Ctx& cx, const Weight& w, const AddNorm& norm, const Store& store) {
  if (NIBBLE_CUDA_SM == 121 || norm.tokens != 1) {  // whose blocks have 8 warps
    if (norm.tokens == 0) return;
    add_norm(cx, norm);
    return launch(cx, w, store);
  }
  launch(cx, w,
         Normed<Store>{store,
                       {.x = norm.x,
                        .d = norm.d,
                        .y = norm.rows == nullptr ? norm.y : nullptr,
                        .h = norm.h,
                        .weight = norm.norm.weight,
                        .eps = norm.norm.eps,
                        .hidden = static_cast<int>(norm.hidden),
                        .row = norm.rows,
                        .is_x_old = false}});
}

}  // namespace

void multiply_few(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, float* y) {
  launch(cx, w, StoreRows{inputs_of(w, x, tokens), y});
}

void norm_multiply_few(Ctx& cx, const AddNorm& norm, const Weight& w, float* y) {
  launch_normed(cx, w, norm, StoreRows{inputs_of(w, norm.h, norm.tokens), y});
}

void norm_swiglu_few(Ctx& cx, const AddNorm& norm, const Weight& w, const Swiglu& act,
                     uint16_t* u) {
  launch_normed(cx, w, norm, StoreSwiglu{inputs_of(w, norm.h, norm.tokens), u, act});
}

}  // namespace nibble::ops::gpu
