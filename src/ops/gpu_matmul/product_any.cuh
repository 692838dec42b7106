// The product of the general rows (cuda_any): any number of rows, columns, experts and slots, any
// weight format that decode.cuh has, in kRows; by mma m16n8k16 of bf16, weights decoded in shared
// memory.
//   y[slot][n] = row_scale[e][n] * sum_k w[e][n][k] x[row of slot][k] + bias[e][n]
// A slot is a token of a dense layer, or a choice of one (ops/routing.h), which meets its expert.
//
// Two forms of one sum. kFew: a block takes 16 rows and 8 slots, each of its warps a share of K,
// and adds up: for few slots, where the weights' bytes bind and each is read once. kMany: 128 rows
// and 64 slots, all of K by every warp. A row's sum is the same bits in both and in any batch: K is
// cut into kWarps segments by its length alone, a segment is one chain of mma in order of k, and
// the segments are added in order.
//
// The bytes of the next chunks of K come to registers while those in shared memory are multiplied.
// Bytes: the weights, as often as there are tiles of slots (from L2, as these are neighbours), the
// activations once a tile of rows.
#pragma once

#include <algorithm>

#include "cuda/bulk_copy.cuh"
#include "cuda/find_tile.cuh"
#include "cuda/launch.cuh"
#include "cuda/mma_bf16.cuh"
#include "ops/ctx.h"
#include "ops/gpu_matmul/decode.cuh"
#include "ops/routing.h"
#include "ops/weight.h"

namespace nibble::ops::gpu::any {

inline constexpr int kWarps = 8;
inline constexpr int kThreads = kWarps * 32;
inline constexpr int kChunk = 64;          // k at a time
inline constexpr int kPitch = kChunk + 8;  // of rows in shared memory, for the banks' sake

struct Product {
  const uint8_t* codes;
  const uint8_t* scales;
  const float* row_scales;  // or none
  const uint16_t* bias;     // or none
  const uint16_t* x;        // [*, cols]
  const int32_t* x_row;     // [slots] of x; none: the slot's own
  const int32_t* offsets;   // [experts + 1] slots of experts; none: a dense layer
  int64_t row_code_bytes, row_scale_bytes;
  int32_t experts, rows, cols, slots;
  int32_t row_tiles, items;   // the grid: items (tiles of slots) fastest
  bool is_wide_w, is_wide_x;  // rows are whole pieces of 16 bytes, aligned

  __device__ __forceinline__ int chunks() const { return (cols + kChunk - 1) / kChunk; }
  // First chunk of a segment.
  __device__ __forceinline__ int segment(int s) const {
    return static_cast<int>(int64_t{chunks()} * s / kWarps);
  }
};

// Some slots of one expert.
struct Item {
  int32_t expert, first, end;
};

// Threads that fill and multiply a tile together: a warp (kFew) or a block (kMany).
// With factors a block takes half of the slots: their sums need registers of their own.
template <int kGroup, bool kHasFactors>
struct alignas(16) Tile {
  static constexpr int kRows = kGroup / 2;
  static constexpr int kSlots = kHasFactors && kGroup > 32 ? kGroup / 8 : kGroup / 4;
  uint16_t w[kRows][kPitch];
  uint16_t x[kSlots][kPitch];
  float factor[kHasFactors ? kRows : 1][kChunk / 32];  // of sums over 32 k
};
template <Format kFormat, int kGroup>
using TileOf = Tile<kGroup, Decode<kFormat>::kHasFactors>;

template <int kGroup>
__device__ __forceinline__ void meet() {
  if constexpr (kGroup == 32)
    __syncwarp();
  else
    __syncthreads();
}

// The index-th tile of at most kSlots slots, counted through the experts; no slots: there are
// fewer. By the whole block.
template <int kSlots>
__device__ __forceinline__ Item find_item(const Product& p, int index) {
  if (p.offsets == nullptr) return {0, index * kSlots, min(p.slots, (index + 1) * kSlots)};
  const cuda::TilePlace at = cuda::find_tile<kThreads>(index, p.experts, [&](int e) {
    return (__ldcg(p.offsets + e + 1) - __ldcg(p.offsets + e) + kSlots - 1) / kSlots;
  });
  if (at.thing < 0) return {};
  const int first = __ldcg(p.offsets + at.thing) + at.tile * kSlots;
  return {at.thing, first, min(__ldcg(p.offsets + at.thing + 1), first + kSlots)};
}

// What of a chunk one thread of the group brings: pieces of weight rows and of slots.
template <Format kFormat, int kGroup>
struct Loader {
  using D = Decode<kFormat>;
  using T = TileOf<kFormat, kGroup>;
  static constexpr int kPerRow = kChunk / D::kElems;               // pieces
  static constexpr int kPieces = (kGroup / 2) * kPerRow / kGroup;  // of a thread
  static constexpr int kPiecesAhead =
      std::max(kPieces, D::kHasFactors ? 2 : 4);         // or registers lack
  static constexpr int kAhead = kPiecesAhead / kPieces;  // chunks in registers
  static constexpr int kXPerRow = kChunk / 8, kXPieces = T::kSlots * kXPerRow / kGroup;
  static_assert(kPieces * kAhead == kPiecesAhead && kXPieces * kGroup == T::kSlots * kXPerRow);

  const uint8_t *codes, *scales;  // of this thread's first row
  const uint16_t* x[kXPieces];
  int row, k, rows;  // first row in the tile, first k in the chunk; rows of the weight from there
  bool has_x[kXPieces];

  __device__ __forceinline__ Loader(const Product& p, const Item& item, int first_row, int thread) {
    row = thread / kPerRow, k = thread % kPerRow * D::kElems;
    const int64_t at = int64_t{item.expert} * p.rows + first_row + row;
    codes = p.codes + at * p.row_code_bytes;
    scales = p.scales + at * p.row_scale_bytes;
    rows = p.rows - first_row - row;
#pragma unroll
    for (int i = 0; i < kXPieces; ++i) {
      const int slot = item.first + (thread + i * kGroup) / kXPerRow;
      has_x[i] = slot < item.end;
      int64_t from = slot;
      if (has_x[i] && p.x_row != nullptr) from = __ldcg(p.x_row + slot);
      x[i] = p.x + (has_x[i] ? from * p.cols : 0);
    }
  }
  __device__ __forceinline__ void load(Piece (&w)[kPieces], const Product& p, int chunk) const {
    constexpr int kStep = kGroup / kPerRow;  // rows between a thread's pieces
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      w[i] = i * kStep < rows ? load_piece<kFormat>(codes + i * kStep * p.row_code_bytes,
                                                    scales + i * kStep * p.row_scale_bytes,
                                                    chunk * kChunk + k, p.cols, p.is_wide_w)
                              : Piece{};
  }
  __device__ __forceinline__ void load(uint4 (&v)[kXPieces], const Product& p, int chunk,
                                       int thread) const {
    const int at = chunk * kChunk + thread % kXPerRow * 8;
#pragma unroll
    for (int i = 0; i < kXPieces; ++i)
      v[i] = has_x[i] ? load_bf16(x[i] + at, p.cols - at, p.is_wide_x) : uint4{};
  }
  __device__ __forceinline__ void store(T& tile, const Piece (&w)[kPieces], int part) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      uint32_t pairs[D::kElems / 2];
      D::decode(w[i], pairs, part);
      if constexpr (D::kHasFactors) {
        if (k % 32 == 0) tile.factor[row + i * (kGroup / kPerRow)][k / 32] = D::factor(w[i]);
      }
      uint16_t* const to = &tile.w[row + i * (kGroup / kPerRow)][k];
      if constexpr (D::kElems == 4) *reinterpret_cast<uint2*>(to) = {pairs[0], pairs[1]};
#pragma unroll
      for (int j = 0; j < D::kElems / 8; ++j)
        reinterpret_cast<uint4*>(to)[j] = {pairs[4 * j], pairs[4 * j + 1], pairs[4 * j + 2],
                                           pairs[4 * j + 3]};
    }
  }
  __device__ __forceinline__ void store(T& tile, const uint4 (&v)[kXPieces], int thread) const {
#pragma unroll
    for (int i = 0; i < kXPieces; ++i) {
      const int at = thread + i * kGroup;
      *reinterpret_cast<uint4*>(&tile.x[at / kXPerRow][at % kXPerRow * 8]) = v[i];
    }
  }
};

// sum += 16 rows from `row` on times all slots of the tile: element i of sum[n] is row g + 8 (i /
// 2), slot 8 n + 2 p + i % 2, for lane 4 g + p.
template <int kN, int kGroup, bool kHasFactors>
__device__ __forceinline__ void multiply(float (&sum)[kN][4], const Tile<kGroup, kHasFactors>& tile,
                                         int row) {
  const int lane = threadIdx.x % 32;
  // Matrices of A: rows 0..7, rows 8..15, the same 8 k further; of B: four times 8 k.
  const uint32_t w = cuda::shared_address(&tile.w[row + lane % 16][lane / 16 * 8]);
  const uint32_t x = cuda::shared_address(&tile.x[lane % 8][lane / 8 * 8]);
#pragma unroll
  for (int k = 0; k < kChunk; k += 32) {
    uint32_t a[2][4];
    cuda::load_matrices(a[0], w + k * 2);
    cuda::load_matrices(a[1], w + (k + 16) * 2);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      uint32_t b[4];
      cuda::load_matrices(b, x + (n * 8 * kPitch + k) * 2);
      float part[4] = {};
      float(&to)[4] = kHasFactors ? part : sum[n];
      cuda::mma_bf16(to, a[0][0], a[0][1], a[0][2], a[0][3], b[0], b[1]);
      cuda::mma_bf16(to, a[1][0], a[1][1], a[1][2], a[1][3], b[2], b[3]);
      if constexpr (kHasFactors) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          sum[n][i] = fmaf(part[i], tile.factor[row + lane / 4 + i / 2 * 8][k / 32], sum[n][i]);
      }
    }
  }
}

// The sums of chunks [begin, end); done(c, sum) after each, with its index.
template <Format kFormat, int kGroup, int kN, typename Done>
__device__ __forceinline__ void run_chunks(float (&sum)[kN][4], TileOf<kFormat, kGroup>& tile,
                                           const Product& p, const Item& item, int first_row,
                                           int begin, int end, const Done& done) {
  using L = Loader<kFormat, kGroup>;
  const int thread = kGroup == 32 ? threadIdx.x % 32 : threadIdx.x;
  const int row = kGroup == 32 ? 0 : static_cast<int>(threadIdx.x) / 32 * 16;
  const L loader(p, item, first_row, thread);
  Piece w[L::kAhead][L::kPieces];
  uint4 x[L::kXPieces];
#pragma unroll
  for (int i = 0; i < L::kAhead; ++i)
    if (begin + i < end) loader.load(w[i], p, begin + i);
  if (begin < end) loader.load(x, p, begin, thread);
#pragma unroll 1
  for (int first = begin; first < end; first += L::kAhead)
#pragma unroll
    for (int i = 0; i < L::kAhead; ++i) {
      const int c = first + i;
      if (c >= end) break;
#pragma unroll(L::D::kParts < 3 ? L::D::kParts : 1)  // three would spill
      for (int part = 0; part < L::D::kParts; ++part) {
        const bool is_last = part + 1 == L::D::kParts;
        loader.store(tile, w[i], part);
        if (part == 0) loader.store(tile, x, thread);
        if (is_last && c + L::kAhead < end) loader.load(w[i], p, c + L::kAhead);
        if (is_last && c + 1 < end) loader.load(x, p, c + 1, thread);
        meet<kGroup>();
        multiply(sum, tile, row);
        meet<kGroup>();
      }
      done(c, sum);
    }
}

// What makes a sum of a row its result.
struct Finish {
  float scale = 1, bias = 0;

  __device__ __forceinline__ Finish(const Product& p, int expert, int row) {
    if (row >= p.rows) return;
    const int64_t at = int64_t{expert} * p.rows + row;
    if (p.row_scales != nullptr) scale = p.row_scales[at];
    if (p.bias != nullptr) bias = cuda::bf16_value(p.bias[at]);
  }
  __device__ __forceinline__ float operator()(float sum) const { return fmaf(sum, scale, bias); }
};

// Out: store(slot, row, a, b, has_second): rows `row` (even) and row + 1, if the weight has it.
template <Format kFormat, class Out>
__global__ void __launch_bounds__(kThreads, 2)
    product_few(const __grid_constant__ Product p, const __grid_constant__ Out out) {
  using T = TileOf<kFormat, 32>;
  __shared__ __align__(16) T tiles[kWarps];
  __shared__ float parts[kWarps][T::kSlots][T::kRows];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int first_row = static_cast<int>(blockIdx.x) / p.items * T::kRows;
  const Item item = find_item<T::kSlots>(p, static_cast<int>(blockIdx.x) % p.items);
  if (item.first >= item.end) return;
  float sum[1][4] = {};
  run_chunks<kFormat, 32, 1>(sum, tiles[warp], p, item, first_row, p.segment(warp),
                             p.segment(warp + 1), [](int, auto&) {});
#pragma unroll
  for (int i = 0; i < 4; ++i) parts[warp][lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] = sum[0][i];
  __syncthreads();
  const int slot = threadIdx.x / (T::kRows / 2), row = threadIdx.x % (T::kRows / 2) * 2;
  if (item.first + slot >= item.end || first_row + row >= p.rows) return;
  float a = 0, b = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) a += parts[w][slot][row], b += parts[w][slot][row + 1];
  const int at = first_row + row;
  out.store(item.first + slot, at, Finish(p, item.expert, at)(a), Finish(p, item.expert, at + 1)(b),
            at + 1 < p.rows);
}

template <Format kFormat, class Out>
__global__ void __launch_bounds__(kThreads, 1)
    product_many(const __grid_constant__ Product p, const __grid_constant__ Out out) {
  using T = TileOf<kFormat, kThreads>;
  constexpr int kN = T::kSlots / 8;
  __shared__ __align__(16) T tile;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int first_row = static_cast<int>(blockIdx.x) / p.items * T::kRows;
  const Item item = find_item<T::kSlots>(p, static_cast<int>(blockIdx.x) % p.items);
  if (item.first >= item.end) return;
  float sum[kN][4] = {}, all[kN][4] = {};
  int s = 0;  // the segment
  run_chunks<kFormat, kThreads, kN>(sum, tile, p, item, first_row, 0, p.chunks(),
                                    [&](int c, float(&part)[kN][4]) {
                                      while (p.segment(s + 1) <= c) ++s;
                                      if (c + 1 != p.segment(s + 1)) return;
#pragma unroll
                                      for (int n = 0; n < kN; ++n)
#pragma unroll
                                        for (int i = 0; i < 4; ++i)
                                          all[n][i] += part[n][i], part[n][i] = 0;
                                    });
  // Lanes of even g take rows g and g + 1, the others g + 7 and g + 8.
  const bool is_odd = lane / 4 % 2 != 0;
  const int row = first_row + warp * 16 + lane / 4 + (is_odd ? 7 : 0);
  const Finish first(p, item.expert, row), second(p, item.expert, row + 1);
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float other = __shfl_xor_sync(0xffffffff, is_odd ? all[n][i] : all[n][i + 2], 4);
      const float a = is_odd ? other : all[n][i], b = is_odd ? all[n][i + 2] : other;
      const int slot = item.first + 8 * n + lane % 4 * 2 + i;
      if (slot < item.end && row < p.rows)
        out.store(slot, row, first(a), second(b), row + 1 < p.rows);
    }
}

// Slots an expert, on average, from which on the form for many is the faster.
inline constexpr int kFewSlots = 16;

template <Format kFormat, class Out>
void launch(Ctx& cx, Product p, const Out& out) {
  if (p.slots == 0 || p.rows == 0) return;
  const bool is_many = p.slots > kFewSlots * p.experts;
  const int rows = is_many ? TileOf<kFormat, kThreads>::kRows : TileOf<kFormat, 32>::kRows;
  const int slots = is_many ? TileOf<kFormat, kThreads>::kSlots : TileOf<kFormat, 32>::kSlots;
  p.row_tiles = (p.rows + rows - 1) / rows;
  // Every expert's last tile may hold one slot.
  p.items = p.offsets == nullptr
                ? (p.slots + slots - 1) / slots
                : std::min(p.slots, p.slots / slots + std::min(p.slots, p.experts));
  const int64_t blocks = int64_t{p.row_tiles} * p.items;
  CHECK(blocks <= INT32_MAX);
  cuda::launch(cx.stream, is_many ? product_many<kFormat, Out> : product_few<kFormat, Out>,
               {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kThreads)}, p, out);
}

// out.store() of all slots and rows. `routing`, where `w` has experts: slots are its choices;
// `by_token`: x has a row a token, not a slot.
template <class Out>
void multiply(Ctx& cx, const Weight& w, const uint16_t* x, int64_t slots, const Routing* routing,
              bool by_token, const Out& out) {
  CHECK(w.layout == Layout::kRows);
  const auto is_wide = [&](const void* at, int64_t row_bytes) {
    return row_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(at) % 16 == 0;
  };
  const Product p{.codes = w.codes,
                  .scales = w.scales,
                  .row_scales = w.row_scales,
                  .bias = w.bias,
                  .x = x,
                  .x_row = by_token ? routing->token : nullptr,
                  .offsets = routing != nullptr ? routing->offsets : nullptr,
                  .row_code_bytes = w.row_code_bytes(),
                  .row_scale_bytes = w.row_scale_bytes(),
                  .experts = static_cast<int32_t>(w.experts),
                  .rows = static_cast<int32_t>(w.rows),
                  .cols = static_cast<int32_t>(w.cols),
                  .slots = static_cast<int32_t>(slots),
                  .is_wide_w = is_wide(w.codes, w.row_code_bytes()),
                  .is_wide_x = is_wide(x, 2 * w.cols)};
  with_format(w.format, [&]<Format kFormat>() { launch<kFormat>(cx, p, out); });
}

}  // namespace nibble::ops::gpu::any
