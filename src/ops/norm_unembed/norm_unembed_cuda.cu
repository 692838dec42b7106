// norm_unembed for few rows: add_norm, then MXFP4 weights in kTiles16x64 by int8 digits or BF16
// rows by mma (ops/linear/tiles_gemv.cuh, rows_gemv.cuh). logits [R, V] f32, h [R, H] bf16, out; x,
// d [T, H] f32; unembed [V, H] without bias. Needs V % 16 == 0, H % 64 == 0, H <= 4608. Bytes: the
// weights; gpt-oss-120b: 308 MB in MXFP4, 1,158 in BF16: 68 and 255 us of an H200's 4.55 TB/s, 1.3
// and 5.0 ms of a GB10's 233 GB/s.
#include "ops/linear/gemv.cuh"
#include "ops/norm/add_norm.h"
#include "ops/norm_unembed/norm_unembed.h"

namespace nibble::ops::gpu {
namespace {

// Behind add_norm: h is ready, a row for each row of logits.
struct Unembed {
  float* logits;      // [R, V]
  const uint16_t* h;  // [R, H]
  int tokens, hidden;
  int64_t vocab;

  __device__ uint4 load(int row, int k) const {
    return __ldcg(reinterpret_cast<const uint4*>(h + int64_t{row} * hidden + k));
  }
  __device__ void store(int token, int row, float a, float b) const {
    *reinterpret_cast<float2*>(logits + token * vocab + row) = {a, b};
  }
};

Unembed normed(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x, const Tensor& d,
               const Norm& norm, const Weight& unembed, const Step& s) {
  add_norm(cx, {.y = nullptr,
                .h = h.as<uint16_t>(),
                .x = x.as<float>(),
                .d = d.as<float>(),
                .norm = norm,
                .tokens = s.num_out,
                .hidden = unembed.cols,
                .rows = s.out_rows});
  return {.logits = logits.as<float>(),
          .h = h.as<uint16_t>(),
          .tokens = s.num_out,
          .hidden = static_cast<int>(unembed.cols),
          .vocab = unembed.rows};
}

}  // namespace

void norm_unembed_tiles(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                        const Tensor& d, const Norm& norm, const Weight& unembed, const Step& s) {
  if (s.num_out == 0) return;
  const Unembed op = normed(cx, logits, h, x, d, norm, unembed, s);
  if (s.num_out == 1)
    launch_one<Items::kTiles>(cx, unembed, op, 1, 1);
  else
    launch_few<Items::kTiles>(cx, unembed, op, unembed.rows / 16,
                              (s.num_out + kFewTokens - 1) / kFewTokens);
}

void norm_unembed_rows(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                       const Tensor& d, const Norm& norm, const Weight& unembed, const Step& s) {
  if (s.num_out == 0) return;
  launch_rows<Items::kTiles>(cx, unembed, normed(cx, logits, h, x, d, norm, unembed, s));
}

}  // namespace nibble::ops::gpu
