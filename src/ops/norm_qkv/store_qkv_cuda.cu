// The store of norm_qkv (see store_qkv.cuh) as a kernel of its own, for rows [T, (Q + 2 G) * D] f32
// that a matrix product left, with or without a norm of each head of q and k before it is turned.
// Bytes: 6 (Q + 2 G) D a token. A block a token, or for few of them 8 heads.
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
  const auto first = static_cast<int32_t>(blockIdx.y * kThreads + threadIdx.x);
  for (int32_t pair = first; pair < heads * half;
       pair += static_cast<int32_t>(gridDim.y * kThreads)) {
    const int32_t head = pair / half, i = pair % half;
    store_pair(s, row, t, head, i, from[head * s.dim + i], from[head * s.dim + half + i]);
  }
}

// A warp a head. Its values are read twice: the second time from the cache.
__global__ void __launch_bounds__(kThreads)
    store_normed_rows(const __grid_constant__ QkvStore s, const float* products, const Norm q_norm,
                      const Norm k_norm) {
  const auto t = static_cast<int32_t>(blockIdx.x);
  const int lane = threadIdx.x % 32;
  const int64_t row = kv_row(s, t);
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int32_t heads = s.q_heads + 2 * s.kv_heads, half = s.dim / 2;
  constexpr int32_t kWarps = kThreads / 32;
  const auto first = static_cast<int32_t>(blockIdx.y * kWarps + threadIdx.x / 32);
  for (int32_t head = first; head < heads; head += static_cast<int32_t>(gridDim.y) * kWarps) {
    const float* from = products + (int64_t{t} * heads + head) * s.dim;
    const bool is_normed = head < s.q_heads + s.kv_heads;
    const Norm& norm = head < s.q_heads ? q_norm : k_norm;
    float squares = 0;
    if (is_normed)
      for (int32_t i = lane; i < s.dim; i += 32) squares = fmaf(from[i], from[i], squares);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffff, squares, step);
    const float inverse = rsqrtf(squares / static_cast<float>(s.dim) + norm.eps);
    const auto value = [&](int32_t i) {
      return is_normed ? from[i] * inverse * cuda::bf16_value(norm.weight[i]) : from[i];
    };
    for (int32_t i = lane; i < half; i += 32)
      store_pair(s, row, t, head, i, value(i), value(half + i));
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
          .fp8 = fp8,
          .by_k = 1 / kv.k_scale,
          .by_v = 1 / kv.v_scale};
}

void store_qkv(Ctx& cx, const QkvStore& s, const QkvNorms& norms, const float* products) {
  constexpr int32_t kFew = 64;  // tokens whose heads are shared out to blocks
  const int32_t heads = s.q_heads + 2 * s.kv_heads;
  const int32_t parts = s.num_tokens < kFew ? (heads + 7) / 8 : 1;
  const cuda::LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(s.num_tokens), static_cast<unsigned>(parts)),
      .block = dim3(kThreads),
      .release = cuda::Release::kAfterWait,
      .reads_inputs = true};
  if (norms.q.weight == nullptr)
    cuda::launch(cx.stream, store_rows, shape, s, products);
  else
    cuda::launch(cx.stream, store_normed_rows, shape, s, products, norms.q, norms.k);
}

}  // namespace nibble::ops::gpu
