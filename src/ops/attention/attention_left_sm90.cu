// attention of few tokens, each of a sequence of its own, to heads of 128 dims that norm_qkv has
// left as products (norm_qkv/left_heads.h): it norms and turns the queries and the new key, and
// appends that and the value to the pages, by what store_qkv_cuda.cu would do, to the bit.
//   products [T, (Q + 2 G) * 128] f32, cos_sin [T, R] f32, in; R a power of two
//   k, v     [pages, G, P, 128] bf16 or E4M3, in, and position `context` of each span, out
// All else as attention_decode_cuda.cu's, whose splits of one token these are.
// Bytes: as there, and 4 (Q + 2 G) 128 a token. Idea: keys of steps before are on their way before
// the wait, as many as registers take; behind it a warp makes a head, one barrier, and attention
// reads queries from shared memory. 128 registers a thread: blocks stand on an SM beside those of
// the product in front, whose weights take the other half, and of that behind. Against store_qkv
// and attention one after the other, on one H200, 2026-11-28, a layer of Qwen3-8B: of one token at
// 512 keys 1.9 us less, of 8 at 150 3.3. What was tried: docs/lab/attention.md.
#include "cuda/fp8.cuh"
#include "cuda/mbarrier.cuh"
#include "cuda/mma_digits.cuh"
#include "ops/attention/attention_splits.cuh"
#include "ops/norm_qkv/lane_heads.cuh"

namespace nibble::ops::gpu {
namespace {

using namespace split_keys;  // NOLINT

constexpr int kDim = 128;

struct LeftParams {
  const float* products = nullptr;
  const float* cos_sin = nullptr;
  Norm q_norm, k_norm;
  void *k = nullptr, *v = nullptr;
  float by_k = 1, by_v = 1;  // times which keys and values are stored
  int32_t rotary = 0;
  bool is_turn_old = false;  // cos_sin may be read before the wait
};

// A block's queries, and its token's key and value, rounded as attention reads them.
template <bool kFp8>
struct NewRows {
  using Element = std::conditional_t<kFp8, uint8_t, uint16_t>;
  // Rows of q lie 64 bytes apart for the banks' sake; f16 where pages are E4M3.
  alignas(16) uint16_t q[kHeads][kDim + 32];
  alignas(16) Element k[kDim];
  alignas(16) Element v[kDim];
};

// The queries of the block, as multiply() takes them.
template <bool kFp8>
struct SharedQuery {
  uint32_t from;  // shared address of what the lane has of its head

  __device__ __forceinline__ SharedQuery(const NewRows<kFp8>& rows, const Heads& heads) {
    const int lane = threadIdx.x % 32;
    from =
        cuda::shared_address(rows.q[min(lane / 4, heads.count - 1)]) + lane % 4 * (kFp8 ? 32 : 16);
  }
  __device__ __forceinline__ uint4 part(int c, int i) const {
    return cuda::load_shared_16(from + 128 * c + (kFp8 ? 16 : 64) * i);
  }
};

// What a block does: a split of a token and a part of a KV head's query heads. Little of it stays
// in registers.
struct LeftItem {
  int32_t context, slot;  // of the sequence
  int32_t first, end;     // as Item's

  static __device__ __forceinline__ int32_t column() { return blockIdx.x; }
  static __device__ __forceinline__ int32_t split() { return blockIdx.y; }
  static __device__ __forceinline__ int32_t t() { return blockIdx.z; }
  static __device__ __forceinline__ int32_t row(const Params& a) {
    return t() * a.columns + column();
  }
  static __device__ __forceinline__ int32_t kv_head_of(const Params& a) {
    return a.head_parts.kv_head(column());
  }
  static __device__ __forceinline__ Heads heads(const Params& a) {
    if (a.head_parts.count == 1) return {column() * a.group, a.group};
    return Heads::of(a, a.head_parts, column());
  }
  __device__ __forceinline__ Visible seen(const Params& a) const {
    return {a.window > 0 ? max(0, context - a.window + 1) : 0, context};
  }
  __device__ __forceinline__ int32_t page_of(const Params& a, int32_t tile) const {
    return a.page_table[int64_t{slot} * a.max_pages + (tile * kTile >> a.page_shift)];
  }
  // Element 0 of the first key of a tile.
  __device__ __forceinline__ int64_t address(const Params& a, int32_t tile) const {
    const int64_t page = tile < end ? page_of(a, tile) : 0;
    return (((page * a.kv_heads + kv_head_of(a)) << a.page_shift) +
            (tile * kTile & ((1 << a.page_shift) - 1))) *
           kDim;
  }
};

// What makes a block's heads; a warp one or two of them.
template <bool kFp8>
class HeadMaker {
 public:
  // Before the wait.
  __device__ __forceinline__ HeadMaker(const Params& a, const LeftParams& left,
                                       const LeftItem& item, bool has_new)
      : q_(left.q_norm), k_(left.k_norm), count_(item.heads(a).count + (has_new ? 2 : 0)) {
    const int32_t q_heads = a.kv_heads * a.group;
    products_ = left.products + int64_t{item.t()} * (q_heads + 2 * a.kv_heads) * kDim + lane() * 4;
    if (left.q_norm.weight != nullptr) q_.load(left.q_norm);
    if (left.k_norm.weight != nullptr) k_.load(left.k_norm);
    if (left.is_turn_old) load_turn(left, item.t());
    page_ = item.page_of(a, item.context / kTile);
  }
  __device__ __forceinline__ void run(const Params& a, const LeftParams& left, const LeftItem& item,
                                      NewRows<kFp8>& rows) {
    const Heads heads = item.heads(a);
    const auto load = [&](int at) {
      const int32_t kv = a.kv_heads * (a.group + at - heads.count) + item.kv_head_of(a);
      const int32_t row = at < heads.count ? heads.first + at : kv;
      return at < count_ ? __ldcg(reinterpret_cast<const float4*>(products_ + row * kDim))
                         : float4{};
    };
    float4 v[1] = {load(warp())}, next = load(warp() + kWarps);
    if (!left.is_turn_old) load_turn(left, item.t());
      // Little code: a step of one token must bring it from L2 in every layer.
#pragma unroll 1
    for (int at = warp(); at < count_; at += kWarps, v[0] = next) {
      const bool is_q = at < heads.count, is_v = at == heads.count + 1;
      if (!is_v) {
        if ((is_q ? left.q_norm.weight : left.k_norm.weight) != nullptr) norm_head(v, q_, k_, is_q);
        v[0] = turn_(v[0], left.rotary / 8);
      }
      if (is_q)
        put_query(v[0], rows.q[at]);
      else
        put_new(a, left, item, v[0], is_v, is_v ? rows.v : rows.k);
    }
  }

 private:
  using Element = typename NewRows<kFp8>::Element;
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x % 32); }
  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x / 32); }
  __device__ __forceinline__ void load_turn(const LeftParams& left, int32_t t) {
    turn_.load(left.cos_sin + int64_t{t} * left.rotary, left.rotary);
  }
  static __device__ __forceinline__ void put_query(const float4& v, uint16_t* q) {
    uint2 both = {pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)};
    if constexpr (kFp8) both = {cuda::f16_of_bf16(both.x), cuda::f16_of_bf16(both.y)};
    *reinterpret_cast<uint2*>(q + 4 * lane()) = both;
  }
  __device__ __forceinline__ void put_new(const Params& a, const LeftParams& left,
                                          const LeftItem& item, const float4& v, bool is_v,
                                          Element* row) const {
    const int32_t in_page = item.context & ((1 << a.page_shift) - 1);
    const int64_t at =
        ((((int64_t{page_} * a.kv_heads + item.kv_head_of(a)) << a.page_shift) + in_page) * kDim) +
        4 * lane();
    Element* const to = static_cast<Element*>(is_v ? left.v : left.k) + at;
    if constexpr (kFp8) {
      const float by = is_v ? left.by_v : left.by_k;
      const uint32_t low = cuda::e4m3_pair(v.x * by, v.y * by);
      const uint32_t codes = low | cuda::e4m3_pair(v.z * by, v.w * by) << 16;
      *reinterpret_cast<uint32_t*>(to) = codes;
      *reinterpret_cast<uint32_t*>(row + 4 * lane()) = codes;
    } else {
      const uint2 both = {pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)};
      *reinterpret_cast<uint2*>(to) = both;
      *reinterpret_cast<uint2*>(row + 4 * lane()) = both;
    }
  }

  const float* products_;
  LaneNorm<1> q_, k_;
  LaneTurn turn_;
  int32_t page_;
  int count_;  // heads of q, and k and v
};

// The new key and value to their places in a tile that was read before they were there.
__device__ __forceinline__ void put_in_tile(Tile<kDim, false>& tile, int32_t key,
                                            const NewRows<false>& rows) {
  const int g = threadIdx.x % 32 / 4, p = threadIdx.x % 4;
  const auto *k = reinterpret_cast<const uint4*>(rows.k),
             *v = reinterpret_cast<const uint4*>(rows.v);
#pragma unroll
  for (int c = 0; c < kDim / 64; ++c) {
    if (g == key % 8) {
      const uint4 near = k[8 * c + p], far = k[8 * c + p + 4];
      if (key < 8)
        tile.k[4 * c] = near, tile.k[4 * c + 1] = far;
      else
        tile.k[4 * c + 2] = near, tile.k[4 * c + 3] = far;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (2 * p + i % 2 + 8 * (i / 2) == key) tile.v[4 * c + i] = v[8 * c + g];
  }
}
__device__ __forceinline__ void put_in_tile(Tile<kDim, true>& tile, int32_t key,
                                            const NewRows<true>& rows) {
  const int g = threadIdx.x % 32 / 4, p = threadIdx.x % 4;
  const auto* k = reinterpret_cast<const uint4*>(rows.k);
  const auto* v = reinterpret_cast<const uint2*>(rows.v);
#pragma unroll
  for (int c = 0; c < kDim / 64; ++c) {
    if (g == key % 8) {
      if (key < 8)
        tile.k[2 * c] = k[4 * c + p];
      else
        tile.k[2 * c + 1] = k[4 * c + p];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (2 * p + i % 2 + 8 * (i / 2) == key) tile.v[4 * c + i] = v[8 * c + g];
  }
}

// As attend_item(), with fewer registers: a tile's place is worked out when it is needed.
template <bool kFp8>
__device__ __forceinline__ State<kDim> attend_tiles(const Params& a, const LeftItem& item,
                                                    Tile<kDim, kFp8>& tile,
                                                    const SharedQuery<kFp8>& q) {
  State<kDim> state;
  for (int32_t index = item.first; index < item.end; index += kWarps) {
    const int32_t next = index + kWarps;
    float s[4];
    score(s, tile, q, index, item.seen(a), a.scale);
    const int64_t at = item.address(a, next);
    if (next < item.end) load_keys(tile, a.k, at);
    weigh(state, s);
    clear_unseen(tile, index, item.seen(a));
    add_values(state, tile, s);
    if (next < item.end) load_values(tile, a.v, at);
  }
  return state;
}

// Grid (columns, splits, T), a block an item.
template <bool kFp8>
__global__ void __launch_bounds__(kWarps * 32, 2)
    attend_left(const __grid_constant__ Params a, const __grid_constant__ LeftParams left) {
  extern __shared__ __align__(16) uint8_t raw[];
  __shared__ NewRows<kFp8> rows;
  Parts<kDim>& shared = *reinterpret_cast<Parts<kDim>*>(raw);
  cuda::griddep_launch_dependents();
  LeftItem item;
  {
    const Span span = a.spans[item.t()];
    item.context = span.context, item.slot = span.slot;
    const Range range = Range::of(a, item.context, a.split_tiles);
    if (item.split() >= range.splits.count) return cuda::griddep_wait();
    item.first = range.first + range.splits.begin(item.split()) + threadIdx.x / 32;
    item.end = min(range.first + range.splits.begin(item.split() + 1), range.end);
    shared.note({item.row(a), item.t(), item.split(), range.splits.count, item.heads(a)});
  }
  Tile<kDim, kFp8> tile;
  const int64_t at = item.address(a, item.first);
  if (item.first < item.end) load_keys(tile, a.k, at), load_values(tile, a.v, at);
#pragma unroll 1
  for (int i = 1; i <= kPrefetchTiles; ++i) {
    const int32_t tile = item.first + i * kWarps;
    if (tile >= item.end) break;
    prefetch_tile<kDim, kFp8>(a.k, a.v, item.address(a, tile));
  }
  HeadMaker<kFp8> maker(a, left, item, item.end == item.context / kTile + 1);
  cuda::touch_parameters(a, left);
  cuda::griddep_wait();
  maker.run(a, left, item, rows);
  __syncthreads();
  if (item.first == item.context / kTile) put_in_tile(tile, item.context % kTile, rows);
  publish(shared, attend_tiles(a, item, tile, SharedQuery<kFp8>(rows, item.heads(a))));
  __syncthreads();
  finish_only_item(a, shared, shared.to, sink_of(a, shared.to.heads));
}

}  // namespace

void attend_left_heads(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                       const AttentionParams& params, const Step& s) {
  const LeftHeads& heads = cx.left_heads;
  CHECK(heads.are_left && kv.k.dim(3) == kDim && s.num_spans == s.num_tokens);
  CHECK(s.num_tokens <= kMostLeftHeads && turns_by_lanes(heads.rotary));
  Params a = split_params(cx, att, q, kv, params, s, /*by_span=*/true, s.num_tokens);
  CHECK(int64_t{s.num_tokens} * a.columns * kHeads <= Ctx::kNumCounters);
  const int32_t tiles = most_tiles(kv, params, s);
  if (s.num_tokens > 1)
    a.split_tiles = tiles_of_split(tiles, cx.kernels.gpu.num_sms / (s.num_tokens * a.columns));
  const LeftParams left{.products = heads.products,
                        .cos_sin = heads.cos_sin,
                        .q_norm = heads.q,
                        .k_norm = heads.k,
                        .k = kv.k.data,
                        .v = kv.v.data,
                        .by_k = 1 / kv.k_scale,
                        .by_v = 1 / kv.v_scale,
                        .rotary = heads.rotary,
                        .is_turn_old = cx.stream.order.is_complete(heads.cos_sin)};
  const bool fp8 = kv.k.dtype == DType::kF8E4M3;
  cuda::launch(
      cx.stream, fp8 ? attend_left<true> : attend_left<false>,
      {.grid = dim3(static_cast<unsigned>(a.columns), static_cast<unsigned>(most_splits(a, tiles)),
                    static_cast<unsigned>(s.num_tokens)),
       .block = dim3(kWarps * 32),
       .smem_bytes = sizeof(Parts<kDim>),
       .reads_inputs = true},
      a, left);
}

}  // namespace nibble::ops::gpu
