// A draft head's own ops on a GPU (see draft_head.h).
//   join_rows: a block a token; its rows are read once for each norm and once to be written, from
//   the caches but the first time. Bytes: 4 W (8 with d) and 2 W a part, at three parts of W =
//   2,880 and one token 52 KB: latency. put_rows_by: a block a token and part, 8 W bytes.
//   store_heads: store_qkv.cuh. translate_ids, copy_ids: one thread an id.
#include "cuda/launch.cuh"
#include "ops/draft_head/draft_head.h"
#include "ops/norm/add_norm.cuh"
#include "ops/norm_qkv/store_qkv.cuh"

namespace nibble::ops::gpu {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = 32 * kWarps;

struct Part {
  const float* x;
  const float* d;
  const int32_t* rows;
  Norm first, norm;
};
struct Args {
  Part parts[kMostParts];
  Norm all;
  uint16_t* joined;
  float* y;
  int num_parts, width;
  bool y_is_normed;
};

__device__ __forceinline__ float weighted(float v, float inverse, const Norm& by, int column) {
  return by.weight == nullptr ? v : v * inverse * (by.offset + cuda::bf16_value(by.weight[column]));
}

__global__ void __launch_bounds__(kThreads) join_kernel(const __grid_constant__ Args a) {
  __shared__ float squares[kWarps];
  const int64_t t = blockIdx.x;
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  float inverse_first[kMostParts] = {}, inverse[kMostParts] = {};
  const auto sum_at = [&](int p, int column) {
    const Part& part = a.parts[p];
    const int64_t at = int64_t{part.rows == nullptr ? t : part.rows[t]} * a.width + column;
    return __ldcg(part.x + at) + (part.d == nullptr ? 0.f : __ldcg(part.d + at));
  };
  // 1 / rms of n values, each a thread's at(i).
  const auto inverse_of = [&](const Norm& by, int n, auto at) {
    if (by.weight == nullptr) return 1.f;
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += kThreads) {
      const float v = at(i);
      sum = fmaf(v, v, sum);
    }
    __syncthreads();  // the sums of the norm before have been read
    return inverse_rms<kWarps>(sum, squares, n, by.eps);
  };
  const auto first_at = [&](int p, int i) {
    return weighted(sum_at(p, i), inverse_first[p], a.parts[p].first, i);
  };
  const auto normed_at = [&](int p, int i) {
    return weighted(first_at(p, i), inverse[p], a.parts[p].norm, i);
  };
#pragma unroll
  for (int p = 0; p < static_cast<int>(kMostParts); ++p) {
    if (p >= a.num_parts) break;
    inverse_first[p] = inverse_of(a.parts[p].first, a.width, [&](int i) { return sum_at(p, i); });
    inverse[p] = inverse_of(a.parts[p].norm, a.width, [&](int i) { return first_at(p, i); });
  }
  float sum = 0;
#pragma unroll
  for (int p = 0; p < static_cast<int>(kMostParts); ++p) {
    if (p >= a.num_parts || a.all.weight == nullptr) break;
    for (int i = threadIdx.x; i < a.width; i += kThreads) {
      const float v = normed_at(p, i);
      sum = fmaf(v, v, sum);
    }
  }
  __syncthreads();
  const float inverse_all = inverse_rms<kWarps>(sum, squares, a.num_parts * a.width, a.all.eps);
#pragma unroll
  for (int p = 0; p < static_cast<int>(kMostParts); ++p) {
    if (p >= a.num_parts) break;
    for (int i = threadIdx.x; i < a.width; i += kThreads) {
      const float v = normed_at(p, i);
      if (a.y != nullptr && p == a.num_parts - 1)
        a.y[t * a.width + i] = a.y_is_normed ? v : first_at(p, i);
      if (a.joined == nullptr) continue;
      const int column = p * a.width + i;
      a.joined[t * a.num_parts * a.width + column] =
          cuda::bf16_bits(weighted(v, inverse_all, a.all, column));
    }
  }
}

struct PutByArgs {
  float* to[kMostParts];
  const float* from[kMostParts];
  const Span* spans;
  int num_spans, length, width;
};

__global__ void put_by_kernel(const __grid_constant__ PutByArgs a) {
  __shared__ int64_t row;
  const int t = blockIdx.x, p = blockIdx.y;
  if (threadIdx.x == 0) row = -1;
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  __syncthreads();
  for (int i = threadIdx.x; i < a.num_spans; i += blockDim.x) {
    const Span s = a.spans[i];
    const int at = t - s.q_start;
    if (at >= 0 && at < s.q_len && at >= s.q_len - a.length)
      row = int64_t{s.slot} * a.length + (s.context + at) % a.length;
  }
  __syncthreads();
  if (row < 0) return;
  const float* const from = a.from[p] + int64_t{t} * a.width;
  float* const to = a.to[p] + row * a.width;
  for (int i = threadIdx.x; i < a.width; i += blockDim.x) to[i] = __ldcg(from + i);
}

__global__ void translate_kernel(int32_t* ids, int64_t n, const int32_t* table) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) ids[i] = table[ids[i]];
}

__global__ void copy_kernel(int32_t* to, const int32_t* from, const IdCopy* copies, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) to[copies[i].to] = from[copies[i].from];
}

// They wait for all before them, as all behind them do for them.
cuda::LaunchShape ids_shape(int64_t n) {
  constexpr unsigned kIds = 128;
  return {
      .grid = dim3(static_cast<unsigned>(n + kIds - 1) / kIds), .block = dim3(kIds), .pdl = false};
}

}  // namespace

void join_rows(Ctx& cx, const JoinOut& out, std::span<const RowPart> parts, const Norm& all) {
  const int64_t tokens = out.y.data == nullptr ? out.joined.dim(0) : out.y.dim(0);
  if (tokens == 0) return;
  CHECK(out.joined.data == nullptr || out.joined.dtype == DType::kBF16);
  Args a{.parts = {},
         .all = all,
         .joined = out.joined.data == nullptr ? nullptr : out.joined.as<uint16_t>(),
         .y = out.y.data == nullptr ? nullptr : out.y.as<float>(),
         .num_parts = static_cast<int>(parts.size()),
         .width = static_cast<int>(parts[0].x.dim(1)),
         .y_is_normed = out.y_is_normed};
  for (size_t p = 0; p < parts.size(); ++p) {
    const RowPart& part = parts[p];
    a.parts[p] = {.x = part.x.as<float>(),
                  .d = part.d.data == nullptr ? nullptr : part.d.as<float>(),
                  .rows = part.rows,
                  .first = part.first,
                  .norm = part.norm};
  }
  cuda::launch(cx.stream, join_kernel,
               {.grid = dim3(static_cast<unsigned>(tokens)),
                .block = dim3(kThreads),
                .release = cuda::Release::kAfterWait},
               a);
}

void store_heads(Ctx& cx, const Tensor& q, const KvLayer& kv, const Tensor& qkv,
                 const Tensor& cos_sin, const Step& s) {
  if (s.num_tokens > 0) store_qkv(cx, qkv_store(q, kv, cos_sin, s), {}, qkv.as<float>());
}

void put_rows_by(Ctx& cx, std::span<const Tensor> to, std::span<const Tensor> from, int32_t length,
                 const Step& s) {
  if (s.num_tokens == 0) return;
  PutByArgs a{.to = {},
              .from = {},
              .spans = s.spans,
              .num_spans = s.num_spans,
              .length = length,
              .width = static_cast<int>(to[0].dim(1))};
  for (size_t p = 0; p < to.size(); ++p)
    a.to[p] = to[p].as<float>(), a.from[p] = from[p].as<float>();
  cuda::launch(cx.stream, put_by_kernel,
               {.grid = dim3(static_cast<unsigned>(s.num_tokens), static_cast<unsigned>(to.size())),
                .block = dim3(kThreads),
                .release = cuda::Release::kAfterWait},
               a);
}

void translate_ids(Ctx& cx, int32_t* ids, int64_t n, const int32_t* table) {
  if (n > 0) cuda::launch(cx.stream, translate_kernel, ids_shape(n), ids, n, table);
}

void copy_ids(Ctx& cx, int32_t* to, const int32_t* from, const IdCopy* copies, int64_t n) {
  if (n > 0) cuda::launch(cx.stream, copy_kernel, ids_shape(n), to, from, copies, n);
}

}  // namespace nibble::ops::gpu
