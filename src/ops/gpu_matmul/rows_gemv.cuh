// Matrix-vector products for few tokens a weight: BF16 weights row by row (Layout::kRows) times
// bf16 activations, by mma m16n8k16. The dense layers of a checkpoint as it is.
//
// A block takes a contiguous range of row tiles (16 rows, or 8: RowTile); warp w takes chunks w, w
// + W ... of them (64 kUnits k). Each lane copies the 16-byte pieces that it will multiply into
// slots of its own in shared memory, a chunk or more ahead, and refills a slot as soon as it has
// read it: 96 KB are on their way in a block without a register, so that two kernels fit an SM and
// one fetches while the other works. K is permuted inside 32: lane p's 16 bytes are k = 8p .. 8p +
// 7, so a piece is two A fragments, and the activations' fragment is the same 16 bytes of a token.
// Partial sums as in tiles.cuh: chunk by chunk, then in order, so that a token's sums are the same
// in any batch. One token of gpt-oss-120b on an H200, 2026-11-21, what a step saves without the op:
// norm_qkv (29.5 MB) 9.4 us a layer, out_proj (23.6 MB) 9.0. Lost: bursts of loads into registers
// (19.2 and 13.5: they leave no room for a neighbour, so that nothing is fetched before the wait).
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/bulk_copy.cuh"
#include "cuda/mma_bf16.cuh"
#include "ops/gpu_matmul/gemv_one.cuh"

namespace nibble::ops::gpu {

struct RowMatrix {
  const uint16_t* rows = nullptr;  // [16 row_tiles, cols]
  int cols = 0;
};

// Slots of a warp, each of a 1 KB block of 16 rows x 32 k: six or, where there is room, eight, less
// what is no whole chunk; of an Op that says so kSlots, whole or not, so that it starts while the
// kernel in front has half of an SM.
template <class Op>
concept LiesBeside = requires {
  Op::kSlots;
};
template <int kUnits, int kTokens, class Op>
inline constexpr int kRowSlots =
    kUnits == 3 ? 6 : (NIBBLE_CUDA_SM == 90 && kTokens == 1 ? 4 : 3) / kUnits* kUnits * 2;
template <int kUnits, int kTokens, LiesBeside Op>
inline constexpr int kRowSlots<kUnits, kTokens, Op> = Op::kSlots;
template <int kUnits, int kTokens, class Op>
inline constexpr int kRowSlotBytes = kGemvWarps* kRowSlots<kUnits, kTokens, Op> * 1024;

// A row tile: 16 rows, or for up to 4 tokens 8, whose later chunks take the place of the other
// eight, so that blocks have more equal shares. Of kHeadHalves the second half of its rows are the
// partners of the first in a rotary embedding, 32 further.
template <Items kItems, int kTokens>
struct RowTile {
  static constexpr int kRows = kTokens <= 4 ? 8 : 16, kHalf = kRows / 2;
  static constexpr bool kHalves = kItems == Items::kHeadHalves;

  // Row i of the tile.
  static __device__ __forceinline__ int row(int tile, int i) {
    if (!kHalves) return tile * kRows + i;
    constexpr int kOfHead = 64 / kRows;
    return tile / kOfHead * 64 + tile % kOfHead * kHalf + i % kHalf + i / kHalf * 32;
  }
};

// Rows of a round as finish_pairs(), for such tiles.
template <Items kItems, int kTokens, typename Store>
__device__ __forceinline__ void finish_row_pairs(const TileMatrix& m, const float* parts,
                                                 const uint16_t* biases, int begin, int tiles,
                                                 int tokens, const Store& store) {
  using Tile = RowTile<kItems, kTokens>;
  constexpr int kSecond = Tile::kHalves ? Tile::kHalf : 1;
  const int pairs = tiles * Tile::kHalf, tile_floats = m.chunks * Tile::kRows * kTokens;
#pragma unroll 1
  for (int i = threadIdx.x; i < pairs * tokens; i += kGemvThreads) {
    const int token = kTokens == 1 ? 0 : i / pairs, pair = i - token * pairs;
    const int tile = pair / Tile::kHalf, r = pair % Tile::kHalf * (Tile::kHalves ? 1 : 2);
    const int row = Tile::row(begin + tile, r);
    const float* from = parts + tile * tile_floats + r * kTokens + token;
    float2 v = row_sums<kTokens, Tile::kRows>(from, from + kSecond * kTokens, m.chunks);
    if (m.bias != nullptr) {
      v.x += cuda::bf16_value(biases[tile * Tile::kRows + r]);
      v.y += cuda::bf16_value(biases[tile * Tile::kRows + r + kSecond]);
    }
    store(token, row, v);
  }
}

// m: row_tiles, chunks, round_tiles and bias; its bytes are w's. Dynamic shared memory: the slots,
// activations [kTokens][cols + 32], then two buffers of partial sums. Op: as for gemv_few.
template <int kUnits, int kTokens, Items kItems, class Op>
__global__ void __launch_bounds__(kGemvThreads, 2)
    gemv_rows(const __grid_constant__ TileMatrix m, const __grid_constant__ RowMatrix w,
              const __grid_constant__ Op op) {
  constexpr int kBlocks = kUnits * 2;  // of 32 k
  constexpr int kSlots = kRowSlots<kUnits, kTokens, Op>;
  constexpr int kAhead = kSlots / kBlocks, kRest = kSlots % kBlocks;  // chunks, and blocks
  constexpr int kPad = 32;  // rows of activations start 64 bytes apart in the banks
  extern __shared__ __align__(128) uint8_t shared[];
  cuda::griddep_launch_dependents();
  cuda::touch_parameters(m, w, op);
  auto* x = reinterpret_cast<uint16_t*>(shared + kRowSlotBytes<kUnits, kTokens, Op>);
  const int stride = w.cols + kPad;
  float* const parts = reinterpret_cast<float*>(x + kTokens * stride);
  // Read at the kernel's end they would come from L2.
  auto* const biases = reinterpret_cast<uint16_t*>(
      parts + 2 * m.round_tiles * m.chunks * RowTile<kItems, kTokens>::kRows * kTokens);
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  using Tile = RowTile<kItems, kTokens>;
  // Up to 4 tokens: chunk c of a row goes with chunk c + steps, if there is one.
  constexpr bool kTwoChunks = kTokens <= 4;
  const int steps = kTwoChunks ? (m.chunks + 1) / 2 : m.chunks;
  const Share mine(m.row_tiles, blockIdx.x, gridDim.x);
  const int first = mine.begin, last = mine.end;

  const uint32_t slots =
      cuda::shared_address(shared) + threadIdx.x / 32 * (kSlots * 1024) + lane * 16;
  ChunkWalk ahead(first, steps);
  // This lane's pieces of block 0 of the chunk at `ahead`, and of row g + 8 or of the other chunk.
  const uint16_t *from = nullptr, *second = nullptr;
  const auto seek = [&] {
    const int64_t row = Tile::row(ahead.item, g);
    from = second = nullptr;
    if (ahead.item >= last) return;
    from = w.rows + row * w.cols + ahead.chunk * kUnits * 64 + p * 8;
    if constexpr (!kTwoChunks)
      second = from + (Tile::row(0, 8) - Tile::row(0, 0)) * w.cols;
    else if (ahead.chunk + steps < m.chunks)
      second = from + steps * kUnits * 64;
  };
  const auto fetch = [&](uint32_t slot, int block) {
    const auto copy = [](uint32_t to, const uint16_t* piece) {
      if constexpr (kTokens == 1)  // more may take several passes
        cuda::async_copy_16(to, piece, cuda::evict_first());
      else
        cuda::async_copy_16(to, piece);
    };
    if (from != nullptr) copy(slot, from + block * 32);
    if (second != nullptr) copy(slot + 512, second + block * 32);
    cuda::async_copy_commit();
  };
#pragma unroll
  for (int c = 0; c < kAhead; ++c, ahead.next(steps)) {
    seek();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) fetch(slots + (c * kBlocks + b) * 1024, b);
  }
  if constexpr (kRest > 0) {
    seek();
#pragma unroll
    for (int b = 0; b < kRest; ++b) fetch(slots + (kAhead * kBlocks + b) * 1024, b);
  }
  const int row0 = blockIdx.y * kTokens, rows = min(kTokens, op.tokens - row0);
  __shared__ int64_t places[kTokens];
  if constexpr (HasPlaces<Op>) {
    if (threadIdx.x < rows) places[threadIdx.x] = op.place_of(row0 + threadIdx.x);
  }
  if (m.bias != nullptr)
#pragma unroll 1
    for (int i = threadIdx.x; i < (last - first) * Tile::kRows; i += kGemvThreads)
      biases[i] = *bias_of(m, 0, Tile::row(first + i / Tile::kRows, i % Tile::kRows));
  if constexpr (HasNorm<Op>) {
    constexpr int kLoads = kNormLoads<kGemvThreads>;
    uint4 h[kLoads];
    NormReady<kGemvThreads> ready;
    ready.load(op.norm);
    cuda::griddep_wait();
    const auto norm = [&](const NormInput& n, uint16_t* to) {
      norm_token<kGemvThreads>(h, n, ready);
#pragma unroll
      for (int r = 0; r < kLoads; ++r) {
        const int k = 8 * (r * kGemvThreads + threadIdx.x);
        if (k < w.cols) *reinterpret_cast<uint4*>(to + k) = h[r];
      }
    };
    norm(op.norm, x);
    if constexpr (kTokens > 1) {
#pragma unroll 1
      for (int t = 1; t < rows; ++t) {
        NormInput n = op.norm.of(t);
        n.is_x_old = false;
        __syncthreads();
        norm(n, x + t * stride);
      }
    }
  } else {
    cuda::griddep_wait();
    for (int i = threadIdx.x; i < rows * w.cols / 8; i += kGemvThreads) {
      const int row = i / (w.cols / 8), k = (i - row * (w.cols / 8)) * 8;
      *reinterpret_cast<uint4*>(x + row * stride + k) = op.load(row0 + row, k);
    }
  }
  if constexpr (HasPlaces<Op>) op.touch(threadIdx.x);
  __syncthreads();
  // Columns of B past the tokens read token 0 again; nothing reads what comes of it. Two chunks:
  // behind the tokens of the first come those of the other.
  const bool is_other = kTokens == 1 ? g == 1 : kTwoChunks && g / kTokens == 1;
  const int column = kTokens > 1 && is_other ? g - kTokens : g;
  const uint16_t* const mine_x = x + (column < rows ? column : 0) * stride + p * 8;
  ChunkWalk at(first, steps);
  int round = 0;
  uint32_t turn = slots;  // of a chunk or, kRest > 0, of a block
  for (int begin = first; begin < last; begin += m.round_tiles, ++round) {
    const int end = min(last, begin + m.round_tiles);
    float* const sums = parts + round % 2 * (m.round_tiles * m.chunks * Tile::kRows * kTokens);
    for (; at.item < end; at.next(steps)) {
      if (kRest == 0) seek();
      const bool is_pair = kTwoChunks && at.chunk + steps < m.chunks;
      const uint16_t* const chunk_x =
          mine_x + (at.chunk + (is_pair && is_other ? steps : 0)) * kUnits * 64;
      float d[4] = {};
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const uint32_t slot = kRest == 0 ? turn + b * 1024 : turn;
        cuda::async_copy_wait<kSlots - 1>();
        const uint4 r = cuda::load_shared_16(slot), r8 = cuda::load_shared_16(slot + 512);
        if (kRest > 0 && b == kBlocks - kRest) ahead.next(steps), seek();
        fetch(slot, (b + kRest) % kBlocks);
        if (kRest > 0) turn = turn == slots + (kSlots - 1) * 1024 ? slots : turn + 1024;
        const uint4 v = *reinterpret_cast<const uint4*>(chunk_x + b * 32);
        cuda::mma_bf16(d, r.x, r8.x, r.y, r8.y, v.x, v.y);
        cuda::mma_bf16(d, r.z, r8.z, r.w, r8.w, v.z, v.w);
      }
      if constexpr (kRest == 0) {
        ahead.next(steps);
        turn += kBlocks * 1024;
        if (turn == slots + kSlots * 1024) turn = slots;
      }
      float* const to =
          sums + (((at.item - begin) * m.chunks + at.chunk) * Tile::kRows + g) * kTokens;
      if constexpr (kTokens == 1) {
        if (p == 0) to[0] = d[0];
        if (p == 0 && is_pair) to[steps * Tile::kRows] = d[3];
      } else if constexpr (kTwoChunks) {
        if (2 * p < kTokens)
          *reinterpret_cast<float2*>(to + 2 * p) = {d[0], d[1]};
        else if (is_pair)
          *reinterpret_cast<float2*>(to + steps * Tile::kRows * kTokens + 2 * p - kTokens) = {d[2],
                                                                                              d[3]};
      } else {
        if (2 * p < kTokens) {
          *reinterpret_cast<float2*>(to + 2 * p) = {d[0], d[1]};
          *reinterpret_cast<float2*>(to + 8 * kTokens + 2 * p) = {d[2], d[3]};
        }
      }
    }
    __syncthreads();
    finish_row_pairs<kItems, kTokens>(m, sums, biases + (begin - first) * Tile::kRows, begin,
                                      end - begin, rows, [&](int token, int row, float2 v) {
                                        store_pair_of(op, row0 + token, row, v, places[token]);
                                      });
  }
}

}  // namespace nibble::ops::gpu
