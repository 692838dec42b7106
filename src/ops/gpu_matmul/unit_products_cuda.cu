// Launches of unit_gemv.cuh and unit_one.cuh for dense weights.
#include "ops/gpu_matmul/slices.h"
#include "ops/gpu_matmul/unit_gemv.cuh"
#include "ops/gpu_matmul/unit_one.cuh"
#include "ops/gpu_matmul/unit_products.h"
#include "ops/moe_up/swiglu.cuh"
#include "ops/scratch.h"

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

struct StoreRelu2 : Inputs {
  uint16_t* u;  // [T, rows]

  __device__ void store(int token, int row, float a, float b) const {
    *reinterpret_cast<uint32_t*>(u + int64_t{token} * rows + row) =
        cuda::pack_bf16(relu2(a), relu2(b));
  }
};

// Of a slice of K: row = slice * tokens + token.
struct StoreSlices {
  const uint16_t* x;  // [T, cols]
  int tokens, rows, cols;
  int slices;
  float* parts;  // [slices, T, rows]

  __device__ uint4 load(int row, int k) const {
    const int slice = row / tokens, token = row - slice * tokens;
    return __ldcg(
        reinterpret_cast<const uint4*>(x + int64_t{token} * cols + slice * (cols / slices) + k));
  }
  __device__ void store(int row, int weight_row, float a, float b) const {
    *reinterpret_cast<float2*>(parts + int64_t{row} * rows + weight_row) = {a, b};
  }
};

// Slices of K where the rows of all tokens do not stand in shared memory beside the rings; then
// such that they take little of it, as every block brings them.
int slices_of(const Weight& w, int64_t tokens) {
  constexpr int kMost = 8, kRoom = (NIBBLE_CUDA_SM == 121 ? 40 : 140) * 1024;
  const auto bytes = [&](int slices) { return tokens * (2 * w.cols / slices + 16); };
  if (bytes(1) <= kRoom) return 1;
  for (int slices = 2; slices <= kMost; ++slices)
    if (w.cols / 64 % slices == 0 && bytes(slices) <= kRoom / 2) return slices;
  return 1;
}

Inputs inputs_of(const Weight& w, const uint16_t* x, int64_t tokens) {
  return {x, static_cast<int>(tokens), static_cast<int>(w.rows), static_cast<int>(w.cols)};
}

template <class Op>
void launch(Ctx& cx, const Weight& w, const Op& op) {
  if (op.tokens == 0) return;
  CHECK(w.experts == 1);
  with_unit_format(w, [&]<Format kFormat>() {
    using U = Unit<kFormat>;
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
                        .offset = norm.norm.offset,
                        .hidden = static_cast<int>(norm.hidden),
                        .row = norm.rows,
                        .is_x_old = false}});
}

NormInput norm_input(Ctx& cx, const AddNorm& norm) {
  return {.x = norm.x,
          .d = norm.d,
          .y = norm.rows == nullptr ? norm.y : nullptr,
          .h = norm.h,
          .weight = norm.norm.weight,
          .eps = norm.norm.eps,
          .offset = norm.norm.offset,
          .hidden = static_cast<int>(norm.hidden),
          .row = norm.rows,
          .is_x_old = norm.rows == nullptr && cx.stream.order.is_complete(norm.x)};
}

template <class Store>
void launch_normed_one(Ctx& cx, const Weight& w, const AddNorm& norm, const Store& store) {
  CHECK(norm.tokens == 1);
  if (plan_unit_one({OneWork::kDense, w.rows, w.cols, 1, true}, cx.kernels.gpu))
    return launch_unit_one<OneWork::kDense>(cx, w, Normed<Store>{store, norm_input(cx, norm)},
                                            false);
  add_norm(cx, norm);
  launch_unit_one<OneWork::kDense>(cx, w, store, false);
}

}  // namespace

void multiply_one(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, float* y) {
  CHECK(tokens == 1);
  launch_unit_one<OneWork::kDense>(cx, w, StoreRows{inputs_of(w, x, 1), y}, true);
}

void norm_multiply_one(Ctx& cx, const AddNorm& norm, const Weight& w, float* y) {
  launch_normed_one(cx, w, norm, StoreRows{inputs_of(w, norm.h, 1), y});
}

void norm_swiglu_one(Ctx& cx, const AddNorm& norm, const Weight& w, const Swiglu& act,
                     uint16_t* u) {
  launch_normed_one(cx, w, norm, StoreSwiglu{inputs_of(w, norm.h, 1), u, act});
}

void relu2_one(Ctx& cx, const Weight& w, const uint16_t* x, uint16_t* u) {
  launch_unit_one<OneWork::kDense>(cx, w, StoreRelu2{inputs_of(w, x, 1), u}, true);
}

void relu2_few(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, uint16_t* u) {
  launch(cx, w, StoreRelu2{inputs_of(w, x, tokens), u});
}

void multiply_few(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, float* y) {
  const int slices = cx.kernels.exact || tokens <= 1 || tokens > 16 ? 1 : slices_of(w, tokens);
  if (slices == 1) return launch(cx, w, StoreRows{inputs_of(w, x, tokens), y});
  CHECK(w.experts == 1);
  auto* const parts = Scratch(cx.scratch).take<float>(slices * tokens * w.rows);
  const StoreSlices op{
      x,    static_cast<int>(tokens), static_cast<int>(w.rows), static_cast<int>(w.cols), slices,
      parts};
  with_unit_format(w, [&]<Format kFormat>() {
    using U = Unit<kFormat>;
    if (tokens <= 8) return launch_unit_gemv<U, 1, false>(cx, w, op, tokens, slices);
    launch_unit_gemv<U, 2, false>(cx, w, op, tokens, slices);
  });
  add_slices(cx, y, parts, slices, tokens * w.rows);
}

void norm_multiply_few(Ctx& cx, const AddNorm& norm, const Weight& w, float* y) {
  launch_normed(cx, w, norm, StoreRows{inputs_of(w, norm.h, norm.tokens), y});
}

void norm_swiglu_few(Ctx& cx, const AddNorm& norm, const Weight& w, const Swiglu& act,
                     uint16_t* u) {
  launch_normed(cx, w, norm, StoreSwiglu{inputs_of(w, norm.h, norm.tokens), u, act});
}

}  // namespace nibble::ops::gpu
