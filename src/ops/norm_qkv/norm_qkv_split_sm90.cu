// norm_qkv for up to 256 tokens: the norm, then the product with K shared out to clusters, whose
// blocks turn and store what they have added up.
#include "ops/gpu_matmul/gemm_split_sm90.cuh"
#include "ops/norm/add_norm.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/norm_qkv/store_qkv.cuh"

namespace nibble::ops::gpu {
namespace {

struct Turned {
  static constexpr bool kHeadHalves = true, kHasPlaces = true;
  QkvStore out;

  __device__ int64_t place_of(int token) const { return kv_row(out, token); }
  using Turn = PairsTurn;
  __device__ Turn turn(int token, int row) const {
    return turn_of_pairs(out, token, row / 64, row % 64);
  }
  // Rows row and row + 1, and those 32 below.
  __device__ void store(int token, int row, float2 a, float2 b, const Turn& turn,
                        int64_t place) const {
    store_pairs(out, place, token, row / 64, row % 64, a, b, turn);
  }
};

}  // namespace

void norm_qkv_split(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                    const Tensor& d, const QkvNorms& norms, const Weight& qkv,
                    const Tensor& cos_sin, const Step& s) {
  add_norm(cx, {.y = out.y.as<float>(),
                .h = out.h.as<uint16_t>(),
                .x = x.as<float>(),
                .d = d.as<float>(),
                .norm = norms.input,
                .tokens = s.num_tokens,
                .hidden = qkv.cols});
  sm90::launch_split(cx, qkv, out.h.as<uint16_t>(), s.num_tokens,
                     Turned{qkv_store(out.q, kv, cos_sin, s)});
}

}  // namespace nibble::ops::gpu
