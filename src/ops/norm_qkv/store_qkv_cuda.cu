// The store of norm_qkv (see store_qkv.cuh) as a kernel of its own, for rows [T, (Q + 2 G) * D] f32
// that a matrix product left. Bytes: 6 (Q + 2 G) D a token. One block a token.
#include "cuda/launch.cuh"
#include "ops/norm_qkv/store_qkv.cuh"

namespace nibble::ops::gpu {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    store_rows(const __grid_constant__ QkvStore s, const float* products) {
  const auto t = static_cast<int32_t>(blockIdx.x);
  const int64_t row = kv_row(s, t);
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int32_t heads = s.q_heads + 2 * s.kv_heads, half = s.dim / 2;
  const float* from = products + int64_t{t} * heads * s.dim;
  for (int32_t pair = threadIdx.x; pair < heads * half; pair += kThreads) {
    const int32_t head = pair / half, i = pair % half;
    store_pair(s, row, t, head, i, from[head * s.dim + i], from[head * s.dim + half + i]);
  }
}

}  // namespace

QkvStore qkv_store(const Tensor& q, const KvLayer& kv, const Tensor& cos_sin, const Step& s) {
  const bool fp8 = kv.k.dtype == DType::kF8E4M3;
  CHECK(fp8 || kv.k.dtype == DType::kBF16);
  const auto kv_heads = static_cast<int32_t>(kv.k.dim(1)), dim = static_cast<int32_t>(kv.k.dim(3));
  return {.q = q.as<uint16_t>(),
          .k = kv.k.data,
          .v = kv.v.data,
          .page_table = kv.page_table,
          .cos_sin = cos_sin.as<float>(),
          .positions = s.positions,
          .spans = s.spans,
          .num_tokens = s.num_tokens,
          .num_spans = s.num_spans,
          .max_pages = kv.max_pages,
          .page_size = kv.page_size,
          .q_heads = static_cast<int32_t>(q.dim(1)) / dim,
          .kv_heads = kv_heads,
          .dim = dim,
          .fp8 = fp8};
}

void store_qkv(Ctx& cx, const QkvStore& s, const float* products) {
  cuda::launch(cx.stream, store_rows,
               {.grid = dim3(s.num_tokens),
                .block = dim3(kThreads),
                .release = cuda::Release::kAfterWait,
                .reads_inputs = true},
               s, products);
}

}  // namespace nibble::ops::gpu
