// norm_route on a GPU for many tokens: the norm, the router's product on tensor cores, and, of more
// tokens, the choices and the sort, each in a launch of its own.
//   x, d    [T, H] f32, in      y [T, H] f32, h [T, H] bf16, out
//   norm    [H] bf16            router [E, H] bf16 and bias [E] bf16, in
//   routing ids, p, slot [T, K]; counts [E]; offsets [E + 1]; token [T * K], out
// Needs H % 32 == 0, H <= 9,216, E <= 512 beside shared experts, K <= 32.
// Bytes: 2 E H and, a token, 16 H: at T = 8,192 of gpt-oss-120b 378 MB, 84 us of an H200's 4.5
// TB/s, nearly all of it the norm's. Idea: a block takes a tile of experts and tokens; its 8 warps
// share H, each with fragments straight from global memory (the order of H inside a product is
// free, so 16-byte loads are fragments), and their sums are added in the warps' order through
// shared memory. Of small tiles the router's fragments are copied to shared memory before the wait,
// by the lanes that will read them, and the last block of a tile of tokens chooses for them. Of
// large ones and of many experts a kernel chooses, a warp for a token. A shared expert's logit
// comes with the norm, whose block has the token's h in registers.
// Reached on one H200, chained in graphs, 2026-11-23 (T = 8 / 64 / 512): gpt-oss-120b 7.9 / 10.4 /
// 21.9 us; Qwen3-30B-A3B (128 experts, K = 8) 7.6 / 10.0 / 20.3. docs/lab/delta-net.md: of 512.
#include <algorithm>

#include "cuda/async_copy.cuh"
#include "cuda/bf16.cuh"
#include "cuda/bulk_copy.cuh"
#include "cuda/launch.cuh"
#include "cuda/mma_bf16.cuh"
#include "cuda/mma_digits.cuh"
#include "ops/norm/add_norm.h"
#include "ops/norm_route/choose_and_sort.h"
#include "ops/norm_route/norm_route.h"
#include "ops/norm_route/route.cuh"
#include "ops/norm_route/route_scratch.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kFewExperts = 256;
constexpr int kUnit = 32;  // columns that 16-byte loads of a quad cover
// Units of a warp fetched before the wait, of 1 KB, at most. sm_121 has 99 KB a block.
constexpr int kEarly = NIBBLE_CUDA_SM == 121 ? 8 : 12;
constexpr int kSortWarps = 32, kSortedTokens = 64;  // of a block of the sort: whole tiles
constexpr int kChooseWarps = 32;                    // each chooses for a token after the other

struct Params {
  const uint16_t* h;
  const uint16_t* router;
  const uint16_t* bias;   // or none
  float* logits;          // [T, stride]
  float* gate_logits;     // [T], of a shared expert
  uint16_t* tile_counts;  // [tiles of tokens, pitch] for the sort; or none
  uint32_t* counters;     // [1 + tiles of tokens], zero
  Routing routing;
  int32_t hidden;
  int32_t experts;  // E, a shared one left out
  int32_t stride;   // of logits
  bool is_left;     // the choice, to those who read the routing
  int32_t pitch;    // tile_pitch() of all experts
  int32_t early;    // units of a warp fetched before the wait
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

// Where the early units lie: behind the tile, and in the way of the sort alone.
template <int kM, int kN>
inline constexpr uint32_t kEarlyAt = (sizeof(Tile<kM, kN>) + 127) / 128 * 128;

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
__device__ __forceinline__ void fetch_early(const Columns<1>& columns, int early, uint32_t slots) {
  for (int i = 0; i < min(early, columns.end - columns.begin); ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      cuda::async_copy_16(slots + i * 1024 + half * 512,
                          columns.router[0][half] + (columns.begin + i) * kUnit);
  cuda::async_copy_commit();
}

template <int kM>
__device__ __forceinline__ void load_router(uint4 (&w)[kM][2], const Columns<kM>& columns,
                                            int unit) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      w[m][half] = cuda::load16(columns.router[m][half] + unit * kUnit);
}

// This warp's part of the tile's logits: columns of its units. Of small tiles kAtOnce units of h
// are on their way together: all that a warp has of 8 tokens of 2,880 columns.
template <int kM, int kN>
__device__ __forceinline__ void multiply(float (&sum)[kM][kN][4], const Params& a,
                                         const Columns<kM>& columns, int token, uint32_t slots) {
  constexpr int kAtOnce = kM == 1 ? kEarly / kN : kM == 2 ? 2 : 1;
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
    uint4 wu[kM == 1 ? 1 : kAtOnce][kM][2];
#pragma unroll
    for (int i = 0; kM > 1 && i < kAtOnce; ++i)
      load_router(wu[i], columns, min(first + i, end - 1));
    if (kM == 1 && first == begin) cuda::async_copy_wait<0>();
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int unit = first + i, early = unit - begin;
      if (unit >= end) break;
      uint4(&w)[kM][2] = wu[kM == 1 ? 0 : i];
      if (kM == 1 && early < a.early) {
        w[0][0] = cuda::load_shared_16(slots + early * 1024);
        w[0][1] = cuda::load_shared_16(slots + early * 1024 + 512);
      } else if (kM == 1) {
        load_router(w, columns, unit);
      }
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          const uint4 &u = w[m][0], &v = w[m][1], &x = hu[i][n];
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
    a.logits[int64_t{token + t} * a.stride + expert + e] = logit;
  }
}

// Grid (tiles of experts, tiles of tokens).
template <int kM, int kN>
__global__ void __launch_bounds__(kThreads, kM == 4 ? 1 : 2)
    route_many(const __grid_constant__ Params a) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ bool flag;
  auto& shared = *reinterpret_cast<Shared<kM, kN>*>(memory);
  cuda::griddep_launch_dependents();
  using Tile = Tile<kM, kN>;
  const Routing& r = a.routing;
  const int token = blockIdx.y * Tile::kTokens, end = min(token + Tile::kTokens, r.num_tokens);
  const Columns<kM> columns(a, blockIdx.x * Tile::kExperts);
  const uint32_t slots = cuda::shared_address(memory) + kEarlyAt<kM, kN> +
                         threadIdx.x / 32 * a.early * 1024 + threadIdx.x % 32 * 16;
  if constexpr (kM == 1) fetch_early(columns, a.early, slots);
  cuda::griddep_wait();
  float sum[kM][kN][4] = {};
  multiply(sum, a, columns, token, slots);
  store_logits(sum, shared.tile, a, blockIdx.x * Tile::kExperts, token);
  if (kM > 1 || a.is_left) return;  // others choose
  if (!is_last_block(flag, a.counters + 1 + blockIdx.y, gridDim.x)) return;
  if (a.tile_counts != nullptr)
    for (int e = threadIdx.x; e < r.num_experts; e += kThreads) shared.counts[e] = 0;
  __syncthreads();
  for (int t = token + threadIdx.x / 32; t < end; t += kWarps) {
    const float gate = r.shared_gate == nullptr ? 0 : __ldcg(a.gate_logits + t);
    const Choice mine = choose_of<kWarps>(a.logits + int64_t{t} * a.stride, r, gate);
    const int lane = threadIdx.x % 32;
    if (lane >= r.top_k) continue;
    r.ids[t * r.top_k + lane] = mine.id;
    r.p[t * r.top_k + lane] = mine.p;
    if (a.tile_counts != nullptr)
      atomicAdd(&shared.counts[mine.id], 1);
    else if (gridDim.y == 1)
      shared.sort.ids[t * r.top_k + lane] = static_cast<uint16_t>(mine.id);
  }
  if (a.tile_counts != nullptr) {
    __syncthreads();
    for (int e = threadIdx.x; e < r.num_experts; e += kThreads)
      a.tile_counts[blockIdx.y * a.pitch + e] = static_cast<uint16_t>(shared.counts[e]);
  } else if (gridDim.y == 1 || is_last_block(flag, a.counters, gridDim.y)) {
    if (gridDim.y > 1) shared.sort.list(r, 0, r.num_tokens);
    shared.sort.run_listed(r, 0, r.num_tokens, /*are_all=*/true);
  }
}

// Logits [T, experts] f32 and a shared expert's [T], in; routing.ids, p and tile_counts [tiles of
// tile_tokens, pitch], out.
__global__ void __launch_bounds__(kChooseWarps * 32)
    choose_tiles(const __grid_constant__ Routing r, const float* logits, const float* gate_logits,
                 int experts, int tile_tokens, uint16_t* tile_counts, int pitch) {
  __shared__ int32_t counts[kMaxListed];
  for (int e = threadIdx.x; e < r.num_experts; e += kChooseWarps * 32) counts[e] = 0;
  __syncthreads();
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int lane = threadIdx.x % 32, first = static_cast<int>(blockIdx.x) * tile_tokens;
  const int end = min(first + tile_tokens, r.num_tokens);
  for (int t = first + threadIdx.x / 32; t < end; t += kChooseWarps) {
    const float gate = r.shared_gate == nullptr ? 0 : __ldcg(gate_logits + t);
    const Choice mine = choose_of<kChooseWarps>(logits + int64_t{t} * experts, r, gate);
    if (lane >= r.top_k) continue;
    r.ids[t * r.top_k + lane] = mine.id;
    r.p[t * r.top_k + lane] = mine.p;
    atomicAdd(&counts[mine.id], 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < r.num_experts; e += kChooseWarps * 32)
    tile_counts[int64_t{blockIdx.x} * pitch + e] = static_cast<uint16_t>(counts[e]);
}

// The sort, a block kSortedTokens: choices are counted by tiles of tokens.
__global__ void __launch_bounds__(kSortWarps * 32)
    sort_tiles(const Routing r, const uint16_t* tile_counts, int tile_tokens, int pitch) {
  constexpr int kThreads = kSortWarps * 32;
  __shared__ BlockSort<kSortWarps> sort;
  __shared__ int32_t before[kMaxListed];
  const int tiles = (r.num_tokens + tile_tokens - 1) / tile_tokens;
  const int first = static_cast<int>(blockIdx.x) * kSortedTokens;
  for (int e = threadIdx.x; e < r.num_experts; e += kThreads) sort.next[e] = before[e] = 0;
  __syncthreads();
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  // A thread has four experts of some of the tiles.
  const int fours = pitch / 4, groups = kThreads / fours;
  const int group = threadIdx.x / fours, e = threadIdx.x % fours * 4;
  int all[4] = {}, early[4] = {};
#pragma unroll 8
  for (int tile = group; tile < (group < groups ? tiles : 0); tile += groups) {
    const auto n = __ldcg(reinterpret_cast<const ushort4*>(tile_counts) + tile * fours + e / 4);
    const bool is_early = tile * tile_tokens < first;
    const int of_experts[4] = {n.x, n.y, n.z, n.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) all[i] += of_experts[i], early[i] += is_early ? of_experts[i] : 0;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (group < groups && e + i < r.num_experts) {
      atomicAdd(&sort.next[e + i], all[i]);
      atomicAdd(&before[e + i], early[i]);
    }
  sort.make_offsets(r, /*is_kept=*/blockIdx.x == 0);
  for (int i = threadIdx.x; i < r.num_experts; i += kThreads) sort.next[i] += before[i];
  const int tokens = min(kSortedTokens, r.num_tokens - first);
  sort.list(r, first, tokens);
  sort.run_listed(r, first, tokens, /*are_all=*/false);
}

void sort_choices(Ctx& cx, const Routing& r, const uint16_t* tile_counts, int tile_tokens) {
  cuda::launch(cx.stream, sort_tiles,
               {.grid = dim3((r.num_tokens + kSortedTokens - 1) / kSortedTokens),
                .block = dim3(kSortWarps * 32),
                .release = cuda::Release::kAfterWait},
               r, tile_counts, tile_tokens, tile_pitch(r.num_experts));
}

template <int kM, int kN>
void launch_route(Ctx& cx, Params a) {
  using Tile = Tile<kM, kN>;
  const Routing& r = a.routing;
  const dim3 grid((a.experts + Tile::kExperts - 1) / Tile::kExperts,
                  (r.num_tokens + Tile::kTokens - 1) / Tile::kTokens);
  CHECK(1 + grid.y <= Ctx::kNumCounters);
  const bool sorts_apart = r.num_tokens > BlockSort<kWarps>::kTokens;
  CHECK(!sorts_apart || Tile::kTokens >= RouteScratch::kMinTileTokens);
  if (!sorts_apart) a.tile_counts = nullptr;
  const int units = a.hidden / kUnit;
  a.early = kM == 1 ? std::min(kEarly, (units + kWarps - 1) / kWarps) : 0;
  const size_t early_end = kEarlyAt<kM, kN> + a.early * kWarps * 1024;
  cuda::launch(cx.stream, route_many<kM, kN>,
               {.grid = grid,
                .block = dim3(kThreads),
                .smem_bytes = std::max(early_end, sizeof(Shared<kM, kN>))},
               a);
  if (kM == 1 && sorts_apart) sort_choices(cx, r, a.tile_counts, Tile::kTokens);
}

}  // namespace

void choose_and_sort(Ctx& cx, const Routing& r, const RouteScratch& scratch, int experts) {
  // The sort adds up every tile's counts in each of its blocks.
  const int tile_tokens = r.num_tokens <= 4096 ? 32 : kSortedTokens;
  cuda::launch(cx.stream, choose_tiles,
               {.grid = dim3((r.num_tokens + tile_tokens - 1) / tile_tokens),
                .block = dim3(kChooseWarps * 32),
                .release = cuda::Release::kAfterWait},
               r, scratch.logits, scratch.gate_logits, experts, tile_tokens, scratch.tile_counts,
               tile_pitch(r.num_experts));
  sort_choices(cx, r, scratch.tile_counts, tile_tokens);
}

void norm_route_many(Ctx& cx, const Tensor& y, const Tensor& h, Routing& routing, const Tensor& x,
                     const Tensor& d, const Norm& norm, const Weight& router) {
  const RouteScratch scratch(Scratch(cx.scratch), routing.num_tokens, routing.num_experts);
  const auto experts = static_cast<int32_t>(router.rows);
  const bool is_left = readers_choose(cx, routing);
  routing.logits = is_left ? routing.room : nullptr;
  // Left, a shared expert's logit follows those of the others.
  const GateLogits gate =
      is_left ? GateLogits{routing.shared_gate, routing.room + experts, routing.num_experts}
              : GateLogits{routing.shared_gate, scratch.gate_logits};
  add_norm(cx,
           {.y = y.as<float>(),
            .h = h.as<uint16_t>(),
            .x = x.as<float>(),
            .d = d.as<float>(),
            .norm = norm,
            .tokens = routing.num_tokens,
            .hidden = router.cols},
           gate);
  const Params a{.h = h.as<uint16_t>(),
                 .router = reinterpret_cast<const uint16_t*>(router.codes),
                 .bias = router.bias,
                 .logits = is_left ? routing.room : scratch.logits,
                 .gate_logits = scratch.gate_logits,
                 .tile_counts = scratch.tile_counts,
                 .counters = cx.counters,
                 .routing = routing,
                 .hidden = static_cast<int32_t>(router.cols),
                 .experts = experts,
                 .stride = is_left ? routing.num_experts : experts,
                 .is_left = is_left,
                 .pitch = tile_pitch(routing.num_experts)};
  // Larger tiles read less, but their last block has more to choose: a kernel of its own does.
  const bool has_many = a.experts > kFewExperts;
  const int32_t tokens = routing.num_tokens;
  if (tokens <= (has_many ? 64 : 256)) return launch_route<1, 1>(cx, a);
  if (!has_many && tokens <= 1024) return launch_route<1, 2>(cx, a);
  if (tokens <= 1024)
    launch_route<2, 4>(cx, a);
  else
    launch_route<4, 4>(cx, a);
  choose_and_sort(cx, routing, scratch, a.experts);
}

}  // namespace nibble::ops::gpu
