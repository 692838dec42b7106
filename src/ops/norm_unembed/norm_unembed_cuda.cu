// norm_unembed for few rows: add_norm, then MXFP4 weights in kTiles16x64 by int8 digits or BF16
// rows by mma (ops/gpu_matmul/tiles.cuh, rows_gemv.cuh). logits [R, V] f32, h [R, H] bf16, out; x,
// d [T, H] f32; unembed [V, H] without bias. Needs V % 16 == 0, H % 64 == 0, H <= 4608. Bytes: the
// weights; gpt-oss-120b: 308 MB in MXFP4, 1,158 in BF16: 68 and 255 us of an H200's 4.55 TB/s, 1.3
// and 5.0 ms of a GB10's 233 GB/s.
#include "ops/gpu_matmul/gemv.cuh"
#include "ops/norm_unembed/norm_rows.h"

namespace nibble::ops::gpu {
namespace {

struct Store {
  float* logits;  // [R, V]
  int64_t vocab;

  __device__ void store(int token, int row, float a, float b) const {
    *reinterpret_cast<float2*>(logits + token * vocab + row) = {a, b};
  }
};

// One row: the norm in front of the product.
struct UnembedOne : Store {
  NormInput norm;
  static constexpr int tokens = 1;
};

// Behind add_norm: h is ready, a row for each row of logits.
struct UnembedFew : Store {
  const uint16_t* h;  // [R, H]
  int tokens, hidden;

  __device__ uint4 load(int row, int k) const {
    return __ldcg(reinterpret_cast<const uint4*>(h + int64_t{row} * hidden + k));
  }
};

// run(op) with one of them: the first for one row that `fits` and is not too long for it.
template <typename Run>
void with_norm(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x, const Tensor& d,
               const Norm& norm, const Weight& unembed, const Step& s, bool fits, const Run& run) {
  if (s.num_out == 0) return;
  const Store store{logits.as<float>(), unembed.rows};
  if (s.num_out == 1 && fits && unembed.cols <= kNormColumns) {
    run(UnembedOne{store,
                   {.x = x.as<float>(),
                    .d = d.as<float>(),
                    .y = nullptr,
                    .h = h.as<uint16_t>(),
                    .weight = norm.weight,
                    .eps = norm.eps,
                    .offset = norm.offset,
                    .hidden = static_cast<int>(unembed.cols),
                    .row = s.out_rows,
                    .is_x_old = false}});
    return;
  }
  add_norm(cx, norm_rows(h, x, d, norm, s));
  run(UnembedFew{store, h.as<uint16_t>(), s.num_out, static_cast<int>(unembed.cols)});
}

}  // namespace

void norm_unembed_tiles(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                        const Tensor& d, const Norm& norm, const Weight& unembed, const Step& s) {
  with_norm(cx, logits, h, x, d, norm, unembed, s, fits_one(unembed), [&](const auto& op) {
    if constexpr (HasNorm<decltype(op)>)
      launch_one<Items::kTiles, false>(cx, unembed, op);
    else
      launch_experts<Items::kTiles, true>(cx, unembed, op, op.tokens);
  });
}

void norm_unembed_rows(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                       const Tensor& d, const Norm& norm, const Weight& unembed, const Step& s) {
  with_norm(cx, logits, h, x, d, norm, unembed, s, true, [&](const auto& op) {
    launch_rows<HasNorm<decltype(op)> ? 1 : kFewTokens, Items::kTiles>(cx, unembed, op);
  });
}

}  // namespace nibble::ops::gpu
