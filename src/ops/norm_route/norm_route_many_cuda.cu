// norm_route on a GPU for many tokens: the norm, the router's product on tensor cores, and, above
// 1,024 choices, the sort, each in a launch of its own.
//   x, d    [T, H] f32, in      y [T, H] f32, h [T, H] bf16, out
//   norm    [H] bf16            router [E, H] bf16 and bias [E] bf16, in
//   routing ids, p, slot [T, K]; counts [E]; offsets [E + 1]; token [T * K], out
// Needs H % 32 == 0, H <= 9,216, E <= 512 beside a shared expert, K <= 32.
// Bytes: 2 E H and, a token, 16 H: at T = 8,192 of gpt-oss-120b 378 MB, 84 us of an H200's 4.5
// TB/s, nearly all of it the norm's. Idea: a block takes a tile of experts and tokens; its 8 warps
// share H, each with fragments straight from global memory (the order of H inside a product is
// free, so 16-byte loads are fragments), and their sums are added in the warps' order through
// shared memory. Of small tiles the router's fragments are copied to shared memory before the wait,
// by the lanes that will read them. The last block of a tile of tokens chooses for them.
// Reached on one H200, chained in graphs, 2026-11-21: T = 2,048 61 us, 8,192 209; 2026-11-22: T = 8
// 9.3 us, 32 10.3, 128 12.2 (14.4 with tiles of 16 tokens), 256 13.4 (15.1 with h a unit at a
// time, 18.6 with a sort in rounds, too).
#include "cuda/async_copy.cuh"
#include "cuda/bf16.cuh"
#include "cuda/bulk_copy.cuh"
#include "cuda/launch.cuh"
#include "cuda/mma_bf16.cuh"
#include "cuda/mma_digits.cuh"
#include "ops/norm/add_norm.h"
#include "ops/norm_route/norm_route.h"
#include "ops/norm_route/route.cuh"
#include "ops/norm_route/route_scratch.h"
#include "ops/norm_route/sort_choices.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kUnit = 32;         // columns that 16-byte loads of a quad cover
constexpr int kTinyTokens = 256;  // tiles of 8 tokens up to here: a warp chooses for one
constexpr int kFewTokens = 1024;  // of 16 up to here, then 32
// Units of a warp fetched before the wait, of 1 KB. sm_121 has 99 KB a block.
constexpr int kEarly = NIBBLE_CUDA_SM == 121 ? 8 : 12;
constexpr int kMaxChoicesInBlock = 1024;  // the last block sorts these; more take a launch
constexpr int kSortThreads = kSortedChoices;
constexpr int kSortWarps = kSortThreads / 32;

struct Params {
  const uint16_t* h;
  const uint16_t* router;
  const uint16_t* bias;  // or none
  float* logits;         // [T, E]
  int32_t* tile_counts;  // [tiles of tokens, all experts] their choices, for the sort; or none
  uint32_t* counters;    // [1 + tiles of tokens], zero
  Routing routing;
  int32_t hidden;
  int32_t experts;  // E, a shared one left out
};

// A tile: 16 kM experts, 8 kN tokens.
template <int kM, int kN>
struct Tile {
  static constexpr int kExperts = 16 * kM, kTokens = 8 * kN, kPitch = kExperts + 4;
  float parts[kWarps][kTokens][kPitch];
};
template <int kM, int kN>
union Shared {
  Tile<kM, kN> tile;
  BlockSort<kWarps> sort;
  int32_t counts[kMaxListed];
};

// Where a warp's early units lie behind the rest of the shared memory; of kWarps: its end.
template <int kM, int kN>
__host__ __device__ constexpr uint32_t early_bytes(int warp) {
  return static_cast<uint32_t>((sizeof(Shared<kM, kN>) + 127) / 128 * 128) +
         (kM == 1 ? warp * kEarly * 1024 : 0);
}

// The columns that a warp multiplies, and where its lanes' pieces of the router lie.
template <int kM>
struct Columns {
  int begin, end;  // units
  const uint16_t* router[kM][2];

  __device__ __forceinline__ Columns(const Params& a, int expert) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, p = threadIdx.x % 4;
    const int units = a.hidden / kUnit;
    begin = units * warp / kWarps, end = units * (warp + 1) / kWarps;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t row = min(expert + 16 * m + 8 * i + g, a.experts - 1);
        router[m][i] = a.router + row * a.hidden + 8 * p;
      }
  }
};

// kM = 1: a warp's first units of the router, every lane its own pieces, at `slots`.
__device__ __forceinline__ void fetch_early(const Columns<1>& columns, uint32_t slots) {
  for (int i = 0; i < min(kEarly, columns.end - columns.begin); ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      cuda::async_copy_16(slots + i * 1024 + half * 512,
                          columns.router[0][half] + (columns.begin + i) * kUnit);
  cuda::async_copy_commit();
}

// This warp's part of the tile's logits: columns of its units. Of small tiles kAtOnce units of h
// are on their way together: all that a warp has of 8 tokens of 2,880 columns.
template <int kM, int kN>
__device__ __forceinline__ void multiply(float (&sum)[kM][kN][4], const Params& a,
                                         const Columns<kM>& columns, int token, uint32_t slots) {
  constexpr int kAtOnce = kM == 1 ? kEarly / kN : 1;
  const int g = threadIdx.x % 32 / 4, p = threadIdx.x % 4, begin = columns.begin, end = columns.end;
  const uint16_t* h[kN];
#pragma unroll
  for (int n = 0; n < kN; ++n)
    h[n] = a.h + int64_t{min(token + 8 * n + g, a.routing.num_tokens - 1)} * a.hidden + 8 * p;
#pragma unroll 1
  for (int first = begin; first < end; first += kAtOnce) {
    uint4 hu[kAtOnce][kN];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
      for (int n = 0; n < kN; ++n) hu[i][n] = cuda::load16(h[n] + min(first + i, end - 1) * kUnit);
    if (kM == 1 && first == begin) cuda::async_copy_wait<0>();
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int unit = first + i, early = unit - begin;
      if (unit >= end) break;
      uint4 wu[kM][2];
      if (kM == 1 && early < kEarly) {
        wu[0][0] = cuda::load_shared_16(slots + early * 1024);
        wu[0][1] = cuda::load_shared_16(slots + early * 1024 + 512);
      } else {
#pragma unroll
        for (int m = 0; m < kM; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            wu[m][half] = cuda::load16(columns.router[m][half] + unit * kUnit);
      }
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          const uint4 &u = wu[m][0], &v = wu[m][1], &x = hu[i][n];
          cuda::mma_bf16(sum[m][n], u.x, v.x, u.y, v.y, x.x, x.y);
          cuda::mma_bf16(sum[m][n], u.z, v.z, u.w, v.w, x.z, x.w);
        }
    }
  }
}

// Adds the warps' parts, in their order, and the bias.
template <int kM, int kN>
__device__ __forceinline__ void store_logits(const float (&sum)[kM][kN][4], Tile<kM, kN>& tile,
                                             const Params& a, int expert, int token) {
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, p = threadIdx.x % 4;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        tile.parts[warp][8 * n + 2 * p + i % 2][16 * m + 8 * (i / 2) + g] = sum[m][n][i];
  __syncthreads();
  for (int i = threadIdx.x; i < tile.kExperts * tile.kTokens; i += kThreads) {
    const int t = i / tile.kExperts, e = i % tile.kExperts;
    if (token + t >= a.routing.num_tokens || expert + e >= a.experts) continue;
    float logit = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) logit += tile.parts[w][t][e];
    if (a.bias != nullptr) logit += cuda::bf16_value(a.bias[expert + e]);
    a.logits[int64_t{token + t} * a.experts + expert + e] = logit;
  }
}

// Grid (tiles of experts, tiles of tokens).
template <int kM, int kN>
__global__ void __launch_bounds__(kThreads) route_many(const __grid_constant__ Params a) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ bool flag;
  auto& shared = *reinterpret_cast<Shared<kM, kN>*>(memory);
  cuda::griddep_launch_dependents();
  using Tile = Tile<kM, kN>;
  const Routing& r = a.routing;
  const int token = blockIdx.y * Tile::kTokens, end = min(token + Tile::kTokens, r.num_tokens);
  const Columns<kM> columns(a, blockIdx.x * Tile::kExperts);
  const uint32_t slots =
      cuda::shared_address(memory) + early_bytes<kM, kN>(threadIdx.x / 32) + threadIdx.x % 32 * 16;
  if constexpr (kM == 1) fetch_early(columns, slots);
  cuda::griddep_wait();
  float sum[kM][kN][4] = {};
  multiply(sum, a, columns, token, slots);
  store_logits(sum, shared.tile, a, blockIdx.x * Tile::kExperts, token);
  if (!is_last_block(flag, a.counters + 1 + blockIdx.y, gridDim.x)) return;
  if (a.tile_counts != nullptr)
    for (int e = threadIdx.x; e < r.num_experts; e += kThreads) shared.counts[e] = 0;
  __syncthreads();
  for (int t = token + threadIdx.x / 32; t < end; t += kWarps) {
    const Choice mine = choose_of<kWarps>(a.logits + int64_t{t} * a.experts, r,
                                          shared_logit(a.h + int64_t{t} * a.hidden, r, a.hidden));
    const int lane = threadIdx.x % 32;
    if (lane >= r.top_k) continue;
    r.ids[t * r.top_k + lane] = mine.id;
    r.p[t * r.top_k + lane] = mine.p;
    if (a.tile_counts != nullptr) atomicAdd(&shared.counts[mine.id], 1);
  }
  if (a.tile_counts != nullptr) {
    __syncthreads();
    for (int e = threadIdx.x; e < r.num_experts; e += kThreads)
      a.tile_counts[blockIdx.y * r.num_experts + e] = shared.counts[e];
  } else if (gridDim.y == 1 || is_last_block(flag, a.counters, gridDim.y)) {
    __syncthreads();
    shared.sort.run(r);
  }
}

// The sort of kSortThreads choices a block: those before them are counted by tiles of tokens, of
// which a block takes a whole number.
__global__ void __launch_bounds__(kSortThreads)
    sort_tiles(const Routing r, const int32_t* tile_counts, int tile_choices, int block_tiles) {
  __shared__ BlockSort<kSortWarps> sort;
  __shared__ int32_t before[kMaxListed];
  const int choices = r.num_tokens * r.top_k, tiles = (choices + tile_choices - 1) / tile_choices;
  const int first_tile = static_cast<int>(blockIdx.x) * block_tiles;
  for (int e = threadIdx.x; e < r.num_experts; e += kSortThreads) sort.next[e] = before[e] = 0;
  __syncthreads();
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int groups = max(1, kSortThreads / r.num_experts), group = threadIdx.x / r.num_experts;
  for (int e = threadIdx.x % r.num_experts; group < groups && e < r.num_experts;
       e += kSortThreads) {
    int all = 0, early = 0;
#pragma unroll 8
    for (int tile = group; tile < tiles; tile += groups) {
      const int n = tile_counts[tile * r.num_experts + e];
      all += n;
      if (tile < first_tile) early += n;
    }
    atomicAdd(&sort.next[e], all);
    atomicAdd(&before[e], early);
  }
  __syncthreads();
  if (threadIdx.x < 32) sort.make_offsets(r, /*is_kept=*/blockIdx.x == 0);
  __syncthreads();
  for (int e = threadIdx.x; e < r.num_experts; e += kSortThreads) sort.next[e] += before[e];
  __syncthreads();
  sort.place(r, first_tile * tile_choices, block_tiles * tile_choices);
}

template <int kM, int kN>
void launch_route(Ctx& cx, Params a) {
  using Tile = Tile<kM, kN>;
  const Routing& r = a.routing;
  const dim3 grid((a.experts + Tile::kExperts - 1) / Tile::kExperts,
                  (r.num_tokens + Tile::kTokens - 1) / Tile::kTokens);
  CHECK(1 + grid.y <= Ctx::kNumCounters);
  const int tile_choices = Tile::kTokens * r.top_k;
  static_assert(Tile::kTokens * kMaxTopK <= kSortedChoices);
  const bool sorts_apart = r.num_tokens * r.top_k > kMaxChoicesInBlock;
  if (!sorts_apart) a.tile_counts = nullptr;
  cuda::launch(cx.stream, route_many<kM, kN>,
               {.grid = grid, .block = dim3(kThreads), .smem_bytes = early_bytes<kM, kN>(kWarps)},
               a);
  if (sorts_apart) sort_choices(cx, r, a.tile_counts, tile_choices);
}

}  // namespace

void sort_choices(Ctx& cx, const Routing& r, const int32_t* tile_counts, int tile_choices) {
  CHECK(tile_choices <= kSortThreads);
  const int block_tiles = kSortThreads / tile_choices, block_choices = block_tiles * tile_choices;
  const int choices = r.num_tokens * r.top_k;
  cuda::launch(cx.stream, sort_tiles,
               {.grid = dim3((choices + block_choices - 1) / block_choices),
                .block = dim3(kSortThreads),
                .release = cuda::Release::kAfterWait},
               r, tile_counts, tile_choices, block_tiles);
}

void norm_route_many(Ctx& cx, const Tensor& y, const Tensor& h, Routing& routing, const Tensor& x,
                     const Tensor& d, const Norm& norm, const Weight& router) {
  add_norm(cx, {.y = y.as<float>(),
                .h = h.as<uint16_t>(),
                .x = x.as<float>(),
                .d = d.as<float>(),
                .norm = norm,
                .tokens = routing.num_tokens,
                .hidden = router.cols});
  routing.logits = nullptr;
  const RouteScratch scratch(Scratch(cx.scratch), routing.num_tokens, routing.num_experts);
  const Params a{.h = h.as<uint16_t>(),
                 .router = reinterpret_cast<const uint16_t*>(router.codes),
                 .bias = router.bias,
                 .logits = scratch.logits,
                 .tile_counts = scratch.tile_counts,
                 .counters = cx.counters,
                 .routing = routing,
                 .hidden = static_cast<int32_t>(router.cols),
                 .experts = static_cast<int32_t>(router.rows)};
  if (routing.num_tokens <= kTinyTokens)
    launch_route<1, 1>(cx, a);
  else if (routing.num_tokens <= kFewTokens)
    launch_route<1, 2>(cx, a);
  else
    launch_route<4, 4>(cx, a);
}

}  // namespace nibble::ops::gpu
