// out_proj for few tokens: MXFP4 weights in kTiles16x64 by int8 digits or BF16 rows by mma
// (ops/gpu_matmul/tiles.cuh, rows_gemv.cuh).
// d [T, H] f32, out; att [T, Q * D] bf16; out [H, Q * D] with bias.
// Needs H % 16 == 0, Q * D % 64 == 0, Q * D <= 4608.
// Bytes: the weights; gpt-oss-120b: 6.3 MB in MXFP4, 23.6 in BF16: 1.4 and 5.2 us of an H200's 4.55
// TB/s, 27 and 101 us of a GB10's 233 GB/s.
#include "ops/gpu_matmul/gemv.cuh"
#include "ops/gpu_matmul/rows_products.h"
#include "ops/out_proj/out_proj.h"

namespace nibble::ops::gpu {
namespace {

struct Out {
  float* d;             // [T, H]
  const uint16_t* att;  // [T, Q * D]
  int tokens, hidden, width;

  __device__ uint4 load(int row, int k) const {
    return __ldcg(reinterpret_cast<const uint4*>(att + int64_t{row} * width + k));
  }
  __device__ void store(int token, int row, float a, float b) const {
    *reinterpret_cast<float2*>(d + int64_t{token} * hidden + row) = {a, b};
  }
};

Out op_of(const Tensor& d, const Tensor& att, const Weight& out, const Step& s) {
  return {.d = d.as<float>(),
          .att = att.as<uint16_t>(),
          .tokens = s.num_tokens,
          .hidden = static_cast<int>(out.rows),
          .width = static_cast<int>(out.cols)};
}

}  // namespace

void out_proj_tiles(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out, const Step& s) {
  const Out op = op_of(d, att, out, s);
  if (s.num_tokens == 1 && fits_one(out))
    launch_one<Items::kTiles, true>(cx, out, op);
  else
    launch_few<Items::kTiles>(cx, out, op);
}

void out_proj_rows(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out, const Step& s) {
  multiply_rows(cx, out, att.as<uint16_t>(), s.num_tokens, d.as<float>());
}

}  // namespace nibble::ops::gpu
