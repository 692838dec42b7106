// The store of norm_qkv (see store_qkv.cuh) as a kernel of its own, for rows [T, (Q + 2 G) * D] f32
// that a matrix product left, with or without a norm of each head of q and k before it is turned.
// Bytes: 6 (Q + 2 G) D a token. A block a token, or for few of them 8 heads. Heads of 128 or 256
// dims are read and written 16 bytes a lane, several at a time; what turns together meets by
// shuffles. Others go by pairs.
#include "cuda/fp8.cuh"
#include "cuda/launch.cuh"
#include "ops/norm_qkv/lane_heads.cuh"
#include "ops/norm_qkv/store_qkv.cuh"
#include "ops/site.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kThreads = 256;

// Brings a line into L1.
__device__ __forceinline__ void touch_line(const void* p) {
  asm volatile("{\n.reg .u16 ignored;\nld.global.u16 ignored, [%0];\n}" ::"l"(p));
}

// Of the heads in `products`: each of q may be followed by its gate.
__device__ __forceinline__ int32_t heads_of(const QkvStore& s) {
  return (s.gate == nullptr ? 1 : 2) * s.q_heads + 2 * s.kv_heads;
}
struct Head {
  int32_t index;  // of q, k, v
  bool is_gate;
};
__device__ __forceinline__ Head head_at(const QkvStore& s, int32_t i) {
  if (s.gate == nullptr) return {i, false};
  return i < 2 * s.q_heads ? Head{i / 2, i % 2 != 0} : Head{i - s.q_heads, false};
}

// The pair-th two dims of a head: first those that turn together.
__device__ __forceinline__ int2 dims_of(const QkvStore& s, int32_t pair) {
  const int32_t half = s.rotary / 2;
  if (pair < half) return {pair, pair + half};
  return {2 * pair, 2 * pair + 1};
}

__device__ __forceinline__ void store_dims(const QkvStore& s, int64_t row, int32_t t,
                                           const Head& head, int2 dims, float a, float b) {
  if (head.is_gate) {
    float* const to = s.gate + (int64_t{t} * s.q_heads + head.index) * s.dim;
    to[dims.x] = a, to[dims.y] = b;
    return;
  }
  if (dims.x < s.rotary && head.index < s.q_heads + s.kv_heads) {
    const float c = s.cos_sin[int64_t{t} * s.rotary + dims.x];
    const float n = s.cos_sin[int64_t{t} * s.rotary + dims.y];
    const float turned = a * c - b * n;
    b = b * c + a * n;
    a = turned;
  }
  put_pair(s, row, t, head.index, dims, a, b);
}

__global__ void __launch_bounds__(kThreads)
    store_rows(const __grid_constant__ QkvStore s, const float* products) {
  const auto t = static_cast<int32_t>(blockIdx.x);
  const int64_t row = kv_row(s, t);
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int32_t heads = heads_of(s), half = s.dim / 2;
  const float* from = products + int64_t{t} * heads * s.dim;
  const auto first = static_cast<int32_t>(blockIdx.y * kThreads + threadIdx.x);
  for (int32_t pair = first; pair < heads * half;
       pair += static_cast<int32_t>(gridDim.y * kThreads)) {
    const int32_t head = pair / half;
    const int2 dims = dims_of(s, pair % half);
    store_dims(s, row, t, head_at(s, head), dims, from[head * s.dim + dims.x],
               from[head * s.dim + dims.y]);
  }
}

// A warp a head, a lane every 32nd pair of it, of kPairs at most. What does not come from the
// product is on its way before the wait; is_turn_old: so are the angles.
template <int kPairs>
__global__ void __launch_bounds__(kThreads)
    store_normed_rows(const __grid_constant__ QkvStore s, const float* products, const Norm q_norm,
                      const Norm k_norm, bool is_turn_old) {
  const auto t = static_cast<int32_t>(blockIdx.x), lane = static_cast<int32_t>(threadIdx.x % 32);
  const int64_t row = kv_row(s, t);
  const int32_t heads = heads_of(s), half = s.dim / 2;
  for (int32_t i = 32 * threadIdx.x; i < s.dim; i += 32 * kThreads) {
    if (i % 64 == 0) touch_line(q_norm.weight + i), touch_line(k_norm.weight + i);
    if (is_turn_old && i < s.rotary) touch_line(s.cos_sin + int64_t{t} * s.rotary + i);
  }
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  constexpr int32_t kWarps = kThreads / 32;
  const auto first = static_cast<int32_t>(blockIdx.y * kWarps + threadIdx.x / 32);
  for (int32_t at = first; at < heads; at += static_cast<int32_t>(gridDim.y) * kWarps) {
    const float* from = products + (int64_t{t} * heads + at) * s.dim;
    const Head head = head_at(s, at);
    const bool is_normed = !head.is_gate && head.index < s.q_heads + s.kv_heads;
    const bool is_q = head.index < s.q_heads;
    const uint16_t* const weight = is_q ? q_norm.weight : k_norm.weight;
    const float eps = is_q ? q_norm.eps : k_norm.eps;
    const float offset = is_q ? q_norm.offset : k_norm.offset;
    float a[kPairs], b[kPairs], squares = 0;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int32_t i = lane + 32 * j;
      const int2 dims = dims_of(s, i);
      a[j] = i < half ? from[dims.x] : 0, b[j] = i < half ? from[dims.y] : 0;
    }
    if (is_normed) {
#pragma unroll
      for (int j = 0; j < kPairs; ++j) squares = fmaf(a[j], a[j], fmaf(b[j], b[j], squares));
#pragma unroll
      for (int step = 16; step > 0; step /= 2)
        squares += __shfl_xor_sync(0xffffffff, squares, step);
      const float inverse = rsqrtf(squares / static_cast<float>(s.dim) + eps);
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const int32_t i = lane + 32 * j;
        if (i >= half) continue;
        const int2 dims = dims_of(s, i);
        a[j] *= inverse * (offset + cuda::bf16_value(weight[dims.x]));
        b[j] *= inverse * (offset + cuda::bf16_value(weight[dims.y]));
      }
    }
#pragma unroll
    for (int j = 0; j < kPairs; ++j)
      if (const int32_t i = lane + 32 * j; i < half)
        store_dims(s, row, t, head, dims_of(s, i), a[j], b[j]);
  }
}

// Whether store_wide_heads() takes them.
bool has_wide_heads(const QkvStore& s) {
  return (s.dim == 128 || s.dim == 256) && turns_by_lanes(s.rotary);
}

// Dims i to i + 3 of a head, to where they belong.
__device__ __forceinline__ void put_four(const QkvStore& s, int64_t row, int32_t t,
                                         const Head& head, int32_t i, const float4& v) {
  const auto bf16s = [](const float4& x) {
    return uint2{cuda::pack_bf16(x.x, x.y), cuda::pack_bf16(x.z, x.w)};
  };
  const int64_t in_q = (int64_t{t} * s.q_heads + head.index) * s.dim + i;
  if (head.is_gate) {
    *reinterpret_cast<float4*>(s.gate + in_q) = v;
  } else if (head.index < s.q_heads) {
    *reinterpret_cast<uint2*>(s.q + in_q) = bf16s(v);
  } else {
    const int32_t g = head.index - s.q_heads;
    const bool is_k = g < s.kv_heads;
    void* const pages = is_k ? s.k : s.v;
    const int64_t at = row + int64_t{is_k ? g : g - s.kv_heads} * s.page_size * s.dim + i;
    if (s.fp8) {
      const float by = is_k ? s.by_k : s.by_v;
      const uint32_t low = cuda::e4m3_pair(v.x * by, v.y * by);
      const uint32_t high = cuda::e4m3_pair(v.z * by, v.w * by);
      *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(pages) + at) = low | high << 16;
    } else {
      *reinterpret_cast<uint2*>(static_cast<uint16_t*>(pages) + at) = bf16s(v);
    }
  }
}

// A warp a head of 128 kFours dims, kAtOnce of them on their way together. What does not come from
// the product is on its way before the wait; is_turn_old: so are the angles. releases_first:
// attention starts before the wait, and brings its keys while the product still runs.
template <int kFours, bool kNormed>
__global__ void __launch_bounds__(kThreads, kFours == 1 ? 4 : 3)
    store_wide_heads(const __grid_constant__ QkvStore s, const float* products, const Norm q_norm,
                     const Norm k_norm, bool is_turn_old, bool releases_first) {
  constexpr int32_t kWarps = kThreads / 32, kAtOnce = 6 / kFours;
  const auto t = static_cast<int32_t>(blockIdx.x), lane = static_cast<int32_t>(threadIdx.x % 32);
  if (releases_first) cuda::griddep_launch_dependents();
  const int64_t row = kv_row(s, t);
  const int32_t heads = heads_of(s), stride = static_cast<int32_t>(gridDim.y) * kWarps;
  LaneNorm<kFours> q(q_norm), k(k_norm);
  if constexpr (kNormed) q.load(q_norm), k.load(k_norm);
  const float* const angles = s.cos_sin + int64_t{t} * s.rotary;
  LaneTurn turn;
  if (is_turn_old) turn.load(angles, s.rotary);
  cuda::griddep_wait();
  if (!releases_first) cuda::griddep_launch_dependents();
  if (!is_turn_old) turn.load(angles, s.rotary);
  const float* const from = products + int64_t{t} * heads * s.dim + 4 * lane;
  const auto first = static_cast<int32_t>(blockIdx.y * kWarps + threadIdx.x / 32);
  for (int32_t some = first; some < heads; some += kAtOnce * stride) {
    float4 v[kAtOnce][kFours];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
      for (int j = 0; j < kFours; ++j)
        if (some + i * stride < heads)
          v[i][j] = *reinterpret_cast<const float4*>(from + (some + i * stride) * s.dim + 128 * j);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (some + i * stride >= heads) break;
      const Head head = head_at(s, some + i * stride);
      if (!head.is_gate && head.index < s.q_heads + s.kv_heads) {
        if constexpr (kNormed) norm_head(v[i], q, k, head.index < s.q_heads);
        v[i][0] = turn(v[i][0], s.rotary / 8);
      }
#pragma unroll
      for (int j = 0; j < kFours; ++j) put_four(s, row, t, head, 128 * j + 4 * lane, v[i][j]);
    }
  }
}

}  // namespace

QkvStore qkv_store(const Tensor& q, const KvLayer& kv, const Tensor& cos_sin, const Step& s,
                   const Tensor& gate) {
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
          .rotary = static_cast<int32_t>(cos_sin.dim(1)),
          .gate = gate.as<float>(),
          .fp8 = fp8,
          .by_k = 1 / kv.k_scale,
          .by_v = 1 / kv.v_scale};
}

float* products_of(Ctx& cx, Scratch& scratch, const Step& s, int64_t rows) {
  const bool leaves = cx.site != nullptr && s.num_tokens <= cx.site->readers_take &&
                      s.num_spans == s.num_tokens && !cx.tap;
  if (!leaves) return scratch.take<float>(s.num_tokens * rows);
  CHECK(cx.left_heads.products != nullptr);
  return cx.left_heads.products;
}

void store_qkv(Ctx& cx, const QkvStore& s, const QkvNorms& norms, const float* products) {
  if (products == cx.left_heads.products) {
    cx.left_heads.are_left = true;
    cx.left_heads.cos_sin = s.cos_sin, cx.left_heads.rotary = s.rotary;
    cx.left_heads.q = norms.q, cx.left_heads.k = norms.k;
    return;
  }
  constexpr int32_t kFew = 64, kFewWide = 256;  // tokens whose heads are shared out to blocks
  const bool is_wide = has_wide_heads(s), is_normed = norms.q.weight != nullptr;
  const int32_t heads = (s.gate == nullptr ? 1 : 2) * s.q_heads + 2 * s.kv_heads;
  const int32_t parts = s.num_tokens < (is_wide ? kFewWide : kFew) ? (heads + 7) / 8 : 1;
  const bool releases_first = is_wide && s.num_tokens == 1;
  const cuda::LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(s.num_tokens), static_cast<unsigned>(parts)),
      .block = dim3(kThreads),
      .release = releases_first ? cuda::Release::kBeforeWait : cuda::Release::kAfterWait,
      .reads_inputs = true};
  if (!is_wide && !is_normed) return cuda::launch(cx.stream, store_rows, shape, s, products);
  CHECK(s.dim <= 1024);
  const auto wide = s.dim == 128
                        ? (is_normed ? store_wide_heads<1, true> : store_wide_heads<1, false>)
                        : (is_normed ? store_wide_heads<2, true> : store_wide_heads<2, false>);
  if (is_wide)
    return cuda::launch(cx.stream, wide, shape, s, products, norms.q, norms.k,
                        cx.stream.order.is_complete(s.cos_sin), releases_first);
  const auto kernel = s.dim <= 128   ? store_normed_rows<2>
                      : s.dim <= 256 ? store_normed_rows<4>
                                     : store_normed_rows<16>;
  cuda::launch(cx.stream, kernel, shape, s, products, norms.q, norms.k,
               cx.stream.order.is_complete(s.cos_sin));
}

}  // namespace nibble::ops::gpu
