// Matrix-vector products for few tokens a weight: BF16 weights row by row (Layout::kRows) times
// bf16 activations, by mma m16n8k16. The dense layers of a checkpoint as it is.
//
// A block takes a contiguous range of row tiles (16 rows); warp w takes chunks w, w + W ... of them
// (64 kUnits k). Each lane copies the 16-byte pieces that it will multiply into slots of its own in
// shared memory, a chunk or more ahead, and refills a slot as soon as it has read it: 96 KB are on
// their way in a block without a register, so that two kernels fit an SM and one fetches while the
// other works. K is permuted inside 32: lane p's 16 bytes are k = 8p .. 8p + 7, so a piece is two A
// fragments, and the activations' fragment is the same 16 bytes of a token. Partial sums as in
// tiles.cuh: chunk by chunk, then in order, so that a token's sums are the same in any batch.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/mma_bf16.cuh"
#include "ops/linear/gemv_one.cuh"

namespace nibble::ops::gpu {

struct RowMatrix {
  const uint16_t* rows = nullptr;  // [16 row_tiles, cols]
  int cols = 0;
};

// Chunks of kUnits that a warp's slots hold: six blocks of 32 k.
template <int kUnits>
inline constexpr int kRowsAhead = kUnits >= 3 ? 1 : 3 / kUnits;
// Shared memory of the slots, a 1 KB block of 16 rows x 32 k each.
template <int kUnits>
inline constexpr int kRowSlotBytes = kGemvWarps* kRowsAhead<kUnits>* kUnits * 2 * 1024;

// A row tile of 16 rows: of kHeadHalves rows r .. r + 7 and, 32 further, their partners in a rotary
// embedding. The tile's first row, and what the second eight lie behind it.
template <Items kItems>
__device__ __forceinline__ int first_row(int tile) {
  return kItems == Items::kHeadHalves ? tile / 4 * 64 + tile % 4 * 8 : tile * 16;
}
template <Items kItems>
inline constexpr int kSecondRows = kItems == Items::kHeadHalves ? 32 : 8;

// Rows of a round as finish_pairs(), for such tiles.
template <Items kItems, int kTokens, typename Store>
__device__ __forceinline__ void finish_row_pairs(const TileMatrix& m, const float* parts, int begin,
                                                 int tiles, int tokens, const Store& store) {
  constexpr bool kHalves = kItems == Items::kHeadHalves;
  constexpr int kSecond = kHalves ? 8 : 1;
  const int pairs = tiles * 8, tile_floats = m.chunks * 16 * kTokens;
  for (int i = threadIdx.x; i < pairs * tokens; i += kGemvThreads) {
    const int token = kTokens == 1 ? 0 : i / pairs, pair = i - token * pairs;
    const int tile = pair / 8, r = kHalves ? pair % 8 : pair % 8 * 2;
    const int row = first_row<kItems>(begin + tile) + r;
    const float* from = parts + tile * tile_floats + r * kTokens + token;
    float2 v = row_sums<kTokens>(from, from + kSecond * kTokens, m.chunks);
    v.x += bias_value(m, 0, row);
    v.y += bias_value(m, 0, row + (kHalves ? 32 : 1));
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
  constexpr int kAhead = kRowsAhead<kUnits>;
  constexpr int kPad = 32;  // rows of activations start 64 bytes apart in the banks
  extern __shared__ __align__(128) uint8_t shared[];
  auto* x = reinterpret_cast<uint16_t*>(shared + kRowSlotBytes<kUnits>);
  const int stride = w.cols + kPad;
  float* const parts = reinterpret_cast<float*>(x + kTokens * stride);
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  const Share mine(m.row_tiles, blockIdx.x, gridDim.x);
  const int first = mine.begin, last = mine.end;

  const uint32_t slots =
      cuda::shared_address(shared) + threadIdx.x / 32 * (kAhead * kBlocks * 1024) + lane * 16;
  ChunkWalk ahead(first, m.chunks);
  const uint16_t* from = nullptr;  // this lane's piece of block 0 of the chunk at `ahead`
  const auto seek = [&] {
    const int64_t row = first_row<kItems>(ahead.item) + g;
    from = ahead.item < last ? w.rows + row * w.cols + ahead.chunk * kUnits * 64 + p * 8 : nullptr;
  };
  const auto fetch = [&](uint32_t slot, int block) {
    if (from != nullptr) {
      cuda::async_copy_16(slot, from + block * 32);
      cuda::async_copy_16(slot + 512, from + kSecondRows<kItems> * w.cols + block * 32);
    }
    cuda::async_copy_commit();
  };
#pragma unroll
  for (int c = 0; c < kAhead; ++c, ahead.next(m.chunks)) {
    seek();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) fetch(slots + (c * kBlocks + b) * 1024, b);
  }
  const int row0 = blockIdx.y * kTokens, rows = min(kTokens, op.tokens - row0);
  __shared__ int64_t places[kTokens];
  if constexpr (HasPlaces<Op>) {
    if (threadIdx.x < rows) places[threadIdx.x] = op.place_of(row0 + threadIdx.x);
  }
  if (m.bias != nullptr)
    for (int i = threadIdx.x; i < (last - first) * 16; i += kGemvThreads)
      touch(bias_of(m, 0,
                    first_row<kItems>(first + i / 16) + i % 8 + i % 16 / 8 * kSecondRows<kItems>));
  if constexpr (HasNorm<Op>) {
    __shared__ float squares[kNormLoads * kGemvWarps];
    uint4 weight[kNormLoads], h[kNormLoads];
    load_norm_weight(weight, op.norm);
    const int64_t norm_from = op.norm.row == nullptr ? 0 : int64_t{*op.norm.row} * op.norm.hidden;
    cuda::griddep_wait();
    cuda::griddep_launch_dependents();
    norm_token(h, op.norm, norm_from, weight, squares);
#pragma unroll
    for (int r = 0; r < kNormLoads; ++r) {
      const int k = 8 * (r * kGemvThreads + threadIdx.x);
      if (k < w.cols) *reinterpret_cast<uint4*>(x + k) = h[r];
    }
  } else {
    cuda::griddep_wait();
    cuda::griddep_launch_dependents();
    for (int i = threadIdx.x; i < rows * w.cols / 8; i += kGemvThreads) {
      const int row = i / (w.cols / 8), k = (i - row * (w.cols / 8)) * 8;
      *reinterpret_cast<uint4*>(x + row * stride + k) = op.load(row0 + row, k);
    }
  }
  if constexpr (HasPlaces<Op>) op.touch(threadIdx.x);
  __syncthreads();
  // Columns of B past the tokens read token 0 again; nothing reads what comes of it.
  const uint16_t* const mine_x = x + (g < rows ? g : 0) * stride + p * 8;
  ChunkWalk at(first, m.chunks);
  int round = 0;
  uint32_t turn = slots;  // of the slots' chunks
  for (int begin = first; begin < last; begin += m.round_tiles, ++round) {
    const int end = min(last, begin + m.round_tiles);
    float* const sums = parts + round % 2 * (m.round_tiles * m.chunks * 16 * kTokens);
    for (; at.item < end; at.next(m.chunks)) {
      seek();
      float d[4] = {};
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const uint32_t slot = turn + b * 1024;
        cuda::async_copy_wait<kAhead * kBlocks - 1>();
        const uint4 r = cuda::load_shared_16(slot), r8 = cuda::load_shared_16(slot + 512);
        fetch(slot, b);
        const uint4 v = *reinterpret_cast<const uint4*>(mine_x + at.chunk * kUnits * 64 + b * 32);
        cuda::mma_bf16(d, r.x, r8.x, r.y, r8.y, v.x, v.y);
        cuda::mma_bf16(d, r.z, r8.z, r.w, r8.w, v.z, v.w);
      }
      ahead.next(m.chunks);
      turn += kBlocks * 1024;
      if (turn == slots + kAhead * kBlocks * 1024) turn = slots;
      float* const to = sums + (((at.item - begin) * m.chunks + at.chunk) * 16 + g) * kTokens;
      if constexpr (kTokens == 1) {
        if (p == 0) {
          to[0] = d[0];
          to[8] = d[2];
        }
      } else {
        if (2 * p < kTokens) {
          *reinterpret_cast<float2*>(to + 2 * p) = {d[0], d[1]};
          *reinterpret_cast<float2*>(to + 8 * kTokens + 2 * p) = {d[2], d[3]};
        }
      }
    }
    __syncthreads();
    finish_row_pairs<kItems, kTokens>(m, sums, begin, end - begin, rows,
                                      [&](int token, int row, float2 v) {
                                        store_pair_of(op, row0 + token, row, v, places[token]);
                                      });
  }
}

}  // namespace nibble::ops::gpu
