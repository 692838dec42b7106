// out_proj for up to 256 tokens: K shared out to clusters, or of NVFP4 to blocks that meet in L2.
#include "ops/gpu_matmul/gemm_split_sm90.cuh"
#include "ops/gpu_matmul/unit_products.h"
#include "ops/out_proj/out_proj.h"

namespace nibble::ops::gpu {
namespace {

struct Rows {
  static constexpr bool kHeadHalves = false, kHasPlaces = false;
  float* d;  // [T, H]
  int hidden;

  struct Turn {};
  __device__ Turn turn(int, int) const { return {}; }
  __device__ void store(int token, int row, float2 v) const {
    *reinterpret_cast<float2*>(d + int64_t{token} * hidden + row) = v;
  }
};

}  // namespace

void out_proj_split(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out, const Step& s) {
  sm90::launch_split(cx, out, att.as<uint16_t>(), s.num_tokens,
                     Rows{d.as<float>(), static_cast<int>(out.rows)});
}

void out_proj_unit_split(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out,
                         const Step& s) {
  multiply_split(cx, out, att.as<uint16_t>(), s.num_tokens, d.as<float>());
}

void out_proj_unit_stream(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out,
                          const Step& s) {
  Scratch scratch(cx.scratch);
  multiply_stream(cx, scratch, out, att.as<uint16_t>(), s.num_tokens, d.as<float>());
}

}  // namespace nibble::ops::gpu
