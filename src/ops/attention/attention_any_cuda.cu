// attention of any shape (cuda_any): any even head dim up to 512, any heads, windows and pages.
//   q       [T, Q * D] bf16, in      att [T, Q * D] bf16, out
//   k, v    [pages, G, P, D] bf16 or E4M3, in
//   page_table [slots, max_pages] i32, in      sinks [Q] bf16 or none, in
// Bytes: 4 D G a key that is seen (E4M3: half), once for every 16 rows of a KV head.
// Flash attention by mma m16n8k16: a block takes 16 (token, head) rows that share a KV head, and
// its warps meet at every block of keys: they share the keys of a score and the dims of the values,
// so that 512 dims fit in registers. Few tokens of many keys: each split of the keys (KeySplits)
// has a block of its own, and a second launch adds them up; else one block goes through them, and
// adds up alike. Blocks of keys and splits begin at absolute positions, and what a row does not see
// adds nothing, so a token's bits depend neither on the batch nor on how a prompt is cut.
#include <algorithm>

#include "cuda/bulk_copy.cuh"
#include "cuda/find_tile.cuh"
#include "cuda/launch.cuh"
#include "cuda/mma_bf16.cuh"
#include "ops/attention/attention_any.h"
#include "ops/attention/attention_arguments.cuh"
#include "ops/gpu_matmul/decode.cuh"
#include "ops/norm_qkv/store_qkv.cuh"

namespace nibble::ops::gpu {
namespace {

using attention_kernel::exp2_fast;
using attention_kernel::kAll;
using attention_kernel::kLog2e;

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kRows = 16;  // (token, head) rows of a block; a warp weighs two of them
static_assert(kRows == 2 * kWarps);
constexpr float kNothing = -1e30f;  // below any score; finite, so that differences are numbers

struct Params {
  uint16_t* att;
  const uint16_t* q;
  const void* k;
  const void* v;
  const int32_t* page_table;
  const Span* spans;
  const uint16_t* sinks;
  int32_t num_tokens, num_spans, max_pages, page_size, kv_heads, group, dim, window;
  float scale;    // of scores, in powers of two
  float v_scale;  // of values
  bool is_wide;   // heads are aligned to 8 elements
  // Where each split has a block: the launch's tokens from first_token on, at most `splits` each.
  float* parts;
  float2* part_sums;
  int32_t first_token, splits;
};

// Rows first .. first + count - 1 of a span's tokens times the heads of a KV head.
struct Rows {
  Span span;
  int32_t first, count, kv_head;
  int32_t begin, last;  // keys that any of them sees

  __device__ __forceinline__ Rows(const Params& a, const Span& of, int32_t row, int32_t most,
                                  int32_t head)
      : span(of), first(row), count(min(kRows, most - row)), kv_head(head) {
    begin = first_key(a, 0);
    last = position(a, count - 1);
  }
  __device__ __forceinline__ int32_t position(const Params& a, int32_t row) const {
    return span.context + (first + row) / a.group;
  }
  __device__ __forceinline__ int32_t first_key(const Params& a, int32_t row) const {
    return a.window > 0 ? max(0, position(a, row) - a.window + 1) : 0;
  }
  __device__ __forceinline__ int32_t token(const Params& a, int32_t row) const {
    return span.q_start + (first + row) / a.group;
  }
  __device__ __forceinline__ int32_t head(const Params& a, int32_t row) const {
    return kv_head * a.group + (first + row) % a.group;
  }
  // Element 0 of a row in q and att.
  __device__ __forceinline__ int64_t at(const Params& a, int32_t row) const {
    return (int64_t{token(a, row)} * (a.kv_heads * a.group) + head(a, row)) * a.dim;
  }
};

// kTiles: of 8 dims, a warp.
template <int kTiles>
struct Shared {
  static constexpr int kDims = 8 * kWarps * kTiles, kPitch = kDims + 8;
  static constexpr int kKeys = kTiles <= 4 ? 64 : 32;  // of a block of keys
  static constexpr int kHalves = 64 / kKeys;           // of the dims of a score
  uint16_t q[kRows][kPitch], k[kKeys][kPitch], v[kKeys][kPitch], p[kRows][kKeys + 8];
  float scores[kHalves][kRows][kKeys + 4];
  float factors[2][kRows];
};

// Dims of a head, rounded up to what a product takes; those beyond D are zero.
__device__ __forceinline__ int padded(int dim) { return (dim + 31) / 32 * 32; }

// Eight elements of a key or value as bf16; zeros beyond `n`.
template <bool kFp8>
__device__ __forceinline__ uint4 load_8(const void* side, int64_t at, int n, bool is_wide) {
  if constexpr (!kFp8) {
    return load_bf16(static_cast<const uint16_t*>(side) + at, n, is_wide);
  } else {
    if (n <= 0) return {};
    const auto* const from = static_cast<const uint8_t*>(side) + at;
    uint2 codes{};
    if (is_wide) {
      codes = cuda::load8(from);
    } else {
      uint32_t words[2] = {};
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (i < n) words[i / 4] |= static_cast<uint32_t>(__ldcg(from + i)) << 8 * (i % 4);
      codes = {words[0], words[1]};
    }
    return {cuda::bf16_of_e4m3_lo(codes.x), cuda::bf16_of_e4m3_hi(codes.x),
            cuda::bf16_of_e4m3_lo(codes.y), cuda::bf16_of_e4m3_hi(codes.y)};
  }
}

template <int kTiles>
__device__ __forceinline__ void load_queries(Shared<kTiles>& shared, const Params& a,
                                             const Rows& rows) {
  const int per_row = padded(a.dim) / 8;
  for (int i = threadIdx.x; i < kRows * per_row; i += kThreads) {
    const int row = i / per_row, d = i % per_row * 8;
    *reinterpret_cast<uint4*>(&shared.q[row][d]) =
        row < rows.count ? load_bf16(a.q + rows.at(a, row) + d, a.dim - d, a.is_wide) : uint4{};
  }
}

// Keys and values from `first` on; zeros where no row sees them.
template <int kTiles, bool kFp8>
__device__ __forceinline__ void load_keys(Shared<kTiles>& shared, const Params& a, const Rows& rows,
                                          int32_t first) {
  constexpr int kAtOnce = 4;
  const int per_key = padded(a.dim) / 8, pieces = Shared<kTiles>::kKeys * per_key;
  for (int start = threadIdx.x; start < pieces; start += kAtOnce * kThreads) {
    uint4 k[kAtOnce], v[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = start + j * kThreads, d = i % per_key * 8;
      const int32_t key = first + i / per_key;
      k[j] = v[j] = {};
      if (i >= pieces || key < rows.begin || key > rows.last) continue;
      const int64_t page = a.page_table[int64_t{rows.span.slot} * a.max_pages + key / a.page_size];
      const int64_t at =
          ((page * a.kv_heads + rows.kv_head) * a.page_size + key % a.page_size) * a.dim + d;
      k[j] = load_8<kFp8>(a.k, at, a.dim - d, a.is_wide);
      v[j] = load_8<kFp8>(a.v, at, a.dim - d, a.is_wide);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = start + j * kThreads, d = i % per_key * 8;
      if (i >= pieces) break;
      *reinterpret_cast<uint4*>(&shared.k[i / per_key][d]) = k[j];
      *reinterpret_cast<uint4*>(&shared.v[i / per_key][d]) = v[j];
    }
  }
}

// Products of all rows with this warp's 8 keys, over its part of the dims.
template <int kTiles>
__device__ __forceinline__ void score(Shared<kTiles>& shared, int dims) {
  using S = Shared<kTiles>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int key = warp % (S::kKeys / 8) * 8, half = warp / (S::kKeys / 8);
  const int units = dims / 32, end = units * (half + 1) / S::kHalves;
  float sum[4] = {};
#pragma unroll 2
  for (int unit = units * half / S::kHalves; unit < end; ++unit) {
    uint32_t a[2][4], b[4];
    const auto* const q = &shared.q[lane % 16][unit * 32 + lane / 16 * 8];
    cuda::load_matrices(a[0], cuda::shared_address(q));
    cuda::load_matrices(a[1], cuda::shared_address(q + 16));
    cuda::load_matrices(b,
                        cuda::shared_address(&shared.k[key + lane % 8][unit * 32 + lane / 8 * 8]));
    cuda::mma_bf16(sum, a[0][0], a[0][1], a[0][2], a[0][3], b[0], b[1]);
    cuda::mma_bf16(sum, a[1][0], a[1][1], a[1][2], a[1][3], b[2], b[3]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    shared.scores[half][lane / 4 + i / 2 * 8][key + lane % 4 * 2 + i % 2] = sum[i];
}

// Largest score and sum of weights of a row.
struct RowSums {
  float top = kNothing, sum = 0;

  // Adds what another part of the keys came to; by what both are multiplied: this, the other.
  __device__ __forceinline__ float2 add(const RowSums& other) {
    const float most = fmaxf(top, other.top);
    const float2 by = {exp2_fast(top - most), exp2_fast(other.top - most)};
    sum = fmaf(other.sum, by.y, sum * by.x);
    top = most;
    return by;
  }
  // What the sum of values is multiplied by; the sink has its share.
  __device__ __forceinline__ float share(const Params& a, int32_t head) const {
    if (a.sinks == nullptr) return a.v_scale / sum;
    const float sink = cuda::bf16_value(a.sinks[head]) * kLog2e;
    const float most = fmaxf(top, sink), shrink = exp2_fast(top - most);
    return shrink * a.v_scale / (sum * shrink + exp2_fast(sink - most));
  }
};

// Scores of one of the warp's rows become weights; factors[0]: what its sums so far shrink by.
template <int kTiles>
__device__ __forceinline__ void weigh(Shared<kTiles>& shared, RowSums& sums, const Params& a,
                                      const Rows& rows, int row, int32_t first) {
  using S = Shared<kTiles>;
  constexpr int kMine = S::kKeys / 32;
  const int lane = threadIdx.x % 32;
  const bool is_there = row < rows.count;
  const int32_t begin = is_there ? rows.first_key(a, row) : 0;
  const int32_t last = is_there ? rows.position(a, row) : -1;
  float s[kMine], most = kNothing;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int32_t key = first + lane + 32 * i;
    float product = shared.scores[0][row][lane + 32 * i];
    if constexpr (S::kHalves == 2) product += shared.scores[1][row][lane + 32 * i];
    s[i] = key >= begin && key <= last ? product * a.scale : -INFINITY;
    most = fmaxf(most, s[i]);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(kAll, most, step));
  most = fmaxf(most, sums.top);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const uint16_t weight = cuda::bf16_bits(exp2_fast(s[i] - most));
    shared.p[row][lane + 32 * i] = weight;
    sum += cuda::bf16_value(weight);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAll, sum, step);
  const float shrink = exp2_fast(sums.top - most);
  sums = {most, fmaf(sums.sum, shrink, sum)};
  if (lane == 0) shared.factors[0][row] = shrink;
}

// o = o * factors[0] + weights * values, for this warp's dims of all rows.
template <int kTiles>
__device__ __forceinline__ void add_values(float (&o)[kTiles][4], Shared<kTiles>& shared,
                                           int dims) {
  using S = Shared<kTiles>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float shrink[2] = {shared.factors[0][lane / 4], shared.factors[0][lane / 4 + 8]};
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) o[n][i] *= shrink[i / 2];
#pragma unroll
  for (int k = 0; k < S::kKeys; k += 32) {
    uint32_t a[2][4];
    const auto* const p = &shared.p[lane % 16][k + lane / 16 * 8];
    cuda::load_matrices(a[0], cuda::shared_address(p));
    cuda::load_matrices(a[1], cuda::shared_address(p + 16));
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int d = (n * kWarps + warp) * 8;
      if (d >= dims) break;
      uint32_t b[4];
      cuda::load_matrices_transposed(b, cuda::shared_address(&shared.v[k + lane][d]));
      cuda::mma_bf16(o[n], a[0][0], a[0][1], a[0][2], a[0][3], b[0], b[1]);
      cuda::mma_bf16(o[n], a[1][0], a[1][1], a[1][2], a[1][3], b[2], b[3]);
    }
  }
}

// One split of the keys.
template <int kTiles, bool kFp8>
__device__ __forceinline__ void run_split(float (&o)[kTiles][4], RowSums (&sums)[2],
                                          Shared<kTiles>& shared, const Params& a, const Rows& rows,
                                          int32_t split) {
  constexpr int kKeys = Shared<kTiles>::kKeys;
  static_assert(KeySplits::kShort % kKeys == 0);
  const int warp = threadIdx.x / 32, dims = padded(a.dim);
  const int32_t begin = max(KeySplits::begin(split), rows.begin / kKeys * kKeys);
  const int32_t last = min(KeySplits::begin(split + 1) - 1, rows.last);
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) o[n][i] = 0;
  sums[0] = sums[1] = {};
#pragma unroll 1
  for (int32_t first = begin; first <= last; first += kKeys) {
    load_keys<kTiles, kFp8>(shared, a, rows, first);
    __syncthreads();
    score(shared, dims);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) weigh(shared, sums[i], a, rows, 2 * warp + i, first);
    __syncthreads();
    add_values(o, shared, dims);
    __syncthreads();
  }
}

// put(row, dim, value, value of dim + 1) for what this thread has of `o`; `dim` is even.
template <int kTiles, typename Put>
__device__ __forceinline__ void each_pair(const float (&o)[kTiles][4], const Params& a,
                                          const Rows& rows, const Put& put) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int d = (n * kWarps + warp) * 8 + lane % 4 * 2, row = lane / 4 + 8 * i;
      if (d < a.dim && row < rows.count) put(row, d, o[n][2 * i], o[n][2 * i + 1]);
    }
}

// Grid (tiles of rows, G).
template <int kTiles, bool kFp8>
__global__ void __launch_bounds__(kThreads, 1) attend_any(const __grid_constant__ Params a) {
  extern __shared__ __align__(16) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<kTiles>*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const cuda::TilePlace place = cuda::find_tile<kThreads>(
      static_cast<int>(blockIdx.x), a.num_spans,
      [&](int i) { return (a.spans[i].q_len * a.group + kRows - 1) / kRows; });
  if (place.thing < 0) return;
  const Span span = a.spans[place.thing];
  const Rows rows(a, span, place.tile * kRows, span.q_len * a.group, blockIdx.y);
  load_queries(shared, a, rows);
  float all[kTiles][4] = {};
  RowSums sums[2];
#pragma unroll 1
  for (int32_t split = KeySplits::of(rows.begin); split <= KeySplits::of(rows.last); ++split) {
    float o[kTiles][4];
    RowSums part[2];
    run_split<kTiles, kFp8>(o, part, shared, a, rows, split);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 by = sums[i].add(part[i]);
      if (lane == 0) shared.factors[0][2 * warp + i] = by.x, shared.factors[1][2 * warp + i] = by.y;
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8;
        all[n][i] = fmaf(o[n][i], shared.factors[1][row], all[n][i] * shared.factors[0][row]);
      }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * warp + i;
    if (lane == 0 && row < rows.count) shared.factors[0][row] = sums[i].share(a, rows.head(a, row));
  }
  __syncthreads();
  each_pair(all, a, rows, [&](int row, int d, float x, float y) {
    const float by = shared.factors[0][row];
    *reinterpret_cast<uint32_t*>(a.att + rows.at(a, row) + d) = cuda::pack_bf16(x * by, y * by);
  });
}

// Grid (splits, G * tiles of a token, tokens): a token's rows, and the splits that it sees.
template <int kTiles, bool kFp8>
__global__ void __launch_bounds__(kThreads, 1) attend_splits(const __grid_constant__ Params a) {
  extern __shared__ __align__(16) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<kTiles>*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const auto t = a.first_token + static_cast<int32_t>(blockIdx.z);
  const Span span = span_of_token(a.spans, a.num_spans, a.num_tokens, t);
  const auto head = static_cast<int32_t>(blockIdx.y % a.kv_heads);
  const auto tile = static_cast<int32_t>(blockIdx.y / a.kv_heads);
  const int32_t token_row = (t - span.q_start) * a.group;
  const Rows rows(a, span, token_row + tile * kRows, token_row + a.group, head);
  const int32_t split = KeySplits::of(rows.begin) + static_cast<int32_t>(blockIdx.x);
  if (split > KeySplits::of(rows.last)) return;
  load_queries(shared, a, rows);
  float o[kTiles][4];
  RowSums part[2];
  run_split<kTiles, kFp8>(o, part, shared, a, rows, split);
  const auto place = [&](int row) {
    return (int64_t{blockIdx.z} * (a.kv_heads * a.group) + rows.head(a, row)) * a.splits +
           blockIdx.x;
  };
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * warp + i;
    if (lane == 0 && row < rows.count) a.part_sums[place(row)] = {part[i].top, part[i].sum};
  }
  each_pair(o, a, rows, [&](int row, int d, float x, float y) {
    *reinterpret_cast<float2*>(a.parts + place(row) * a.dim + d) = {x, y};
  });
}

// Adds the splits of a token and head up, as attend_any() does. Grid (Q, tokens).
__global__ void __launch_bounds__(kThreads) add_splits(const __grid_constant__ Params a) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const auto head = static_cast<int32_t>(blockIdx.x);
  const auto t = a.first_token + static_cast<int32_t>(blockIdx.y);
  const Span span = span_of_token(a.spans, a.num_spans, a.num_tokens, t);
  const int32_t pos = span.context + t - span.q_start;
  const int32_t begin = a.window > 0 ? max(0, pos - a.window + 1) : 0;
  const int32_t count = KeySplits::of(pos) - KeySplits::of(begin) + 1;
  const int64_t first = (int64_t{blockIdx.y} * gridDim.x + head) * a.splits;
  for (int d = threadIdx.x; d < a.dim; d += kThreads) {
    RowSums sums;
    float all = 0;
    for (int i = 0; i < count; ++i) {
      const float2 part = __ldcg(a.part_sums + first + i);
      const float2 by = sums.add({part.x, part.y});
      all = fmaf(__ldcg(a.parts + (first + i) * a.dim + d), by.y, all * by.x);
    }
    a.att[(int64_t{t} * gridDim.x + head) * a.dim + d] = cuda::bf16_bits(all * sums.share(a, head));
  }
}

// The most splits that a token sees, of sequences of up to `keys`.
int32_t most_splits(int32_t keys, int32_t window) {
  const int32_t all = KeySplits::of(std::max(0, keys - 1)) + 1;
  return window > 0 ? std::min(all, (window - 1) / KeySplits::kShort + 2) : all;
}

template <int kTiles, bool kFp8>
void run(Ctx& cx, Params a, const Step& s, const AnyAttentionScratch& scratch) {
  const size_t smem = sizeof(Shared<kTiles>);
  static_assert(sizeof(Shared<kTiles>) <= 98 * 1024);
  const int32_t longest = a.max_pages * a.page_size;
  a.splits = most_splits(s.max_context > 0 ? std::min(s.max_context, longest) : longest, a.window);
  const int32_t token_tiles = a.kv_heads * ((a.group + kRows - 1) / kRows);
  if (a.splits == 1 || int64_t{s.num_tokens} * token_tiles > 4 * cx.kernels.gpu.num_sms) {
    const int64_t rows = int64_t{s.num_tokens} * a.group;
    const auto tiles = static_cast<unsigned>(rows / kRows + std::min<int64_t>(rows, s.num_spans));
    cuda::launch(cx.stream, attend_any<kTiles, kFp8>,
                 {.grid = dim3(tiles, a.kv_heads), .block = dim3(kThreads), .smem_bytes = smem}, a);
    return;
  }
  const auto slab = static_cast<int32_t>(scratch.tokens);
  for (; a.first_token < s.num_tokens; a.first_token += slab) {
    const auto tokens = static_cast<unsigned>(std::min(slab, s.num_tokens - a.first_token));
    cuda::launch(
        cx.stream, attend_splits<kTiles, kFp8>,
        {.grid = dim3(a.splits, token_tiles, tokens), .block = dim3(kThreads), .smem_bytes = smem},
        a);
    cuda::launch(cx.stream, add_splits,
                 {.grid = dim3(a.kv_heads * a.group, tokens), .block = dim3(kThreads)}, a);
  }
}

}  // namespace

void attend_any(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                const AttentionParams& params, const Step& s) {
  if (s.num_tokens == 0) return;
  const auto kv_heads = static_cast<int32_t>(kv.k.dim(1)), dim = static_cast<int32_t>(kv.k.dim(3));
  const auto q_heads = static_cast<int32_t>(q.dim(1) / dim);
  const bool fp8 = kv.k.dtype == DType::kF8E4M3;
  CHECK(fp8 || kv.k.dtype == DType::kBF16);
  CHECK(dim % 2 == 0 && dim <= 512 && q_heads % kv_heads == 0);
  const AnyAttentionScratch scratch(Scratch(cx.scratch), s.num_tokens, q_heads, dim);
  const auto is_aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  const Params a{.att = att.as<uint16_t>(),
                 .q = q.as<uint16_t>(),
                 .k = kv.k.data,
                 .v = kv.v.data,
                 .page_table = kv.page_table,
                 .spans = s.spans,
                 .sinks = params.sinks,
                 .num_tokens = s.num_tokens,
                 .num_spans = s.num_spans,
                 .max_pages = kv.max_pages,
                 .page_size = kv.page_size,
                 .kv_heads = kv_heads,
                 .group = q_heads / kv_heads,
                 .dim = dim,
                 .window = params.window,
                 .scale = params.scale * kv.k_scale * kLog2e,
                 .v_scale = kv.v_scale,
                 .is_wide = dim % 8 == 0 && is_aligned(q.data) && is_aligned(kv.k.data) &&
                            is_aligned(kv.v.data),
                 .parts = scratch.parts,
                 .part_sums = reinterpret_cast<float2*>(scratch.part_sums)};
  const auto by_dims = [&]<bool kFp8>() {
    if (dim <= 64) return run<1, kFp8>(cx, a, s, scratch);
    if (dim <= 128) return run<2, kFp8>(cx, a, s, scratch);
    if (dim <= 256) return run<4, kFp8>(cx, a, s, scratch);
    run<8, kFp8>(cx, a, s, scratch);
  };
  fp8 ? by_dims.operator()<true>() : by_dims.operator()<false>();
}

}  // namespace nibble::ops::gpu
