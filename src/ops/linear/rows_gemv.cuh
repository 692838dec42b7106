// Matrix-vector products for few tokens a weight: BF16 weights row by row (Layout::kRows) times
// bf16 activations, by mma m16n8k16. The dense layers of a checkpoint as it is.
//
// A block takes a contiguous range of row tiles (16 rows); warp w takes chunks w, w + W ... of them
// (64 kUnits k), each one burst of 16-byte loads straight into registers, the next chunk's before
// this one's products. K is permuted inside 32: lane p's 16 bytes are k = 8p .. 8p + 7, so a load
// is two A fragments, and the activations' fragment is the same 16 bytes of a token. Partial sums
// as in tiles_gemv.cuh: chunk by chunk, then in order, so that a token's sums are the same in any
// batch.
#pragma once

#include "cuda/mma_bf16.cuh"
#include "ops/linear/tiles_gemv.cuh"

namespace nibble::ops::gpu {

struct RowMatrix {
  const uint16_t* rows = nullptr;  // [16 row_tiles, cols]
  int cols = 0;
};

// Weights are read once: past L1.
__device__ __forceinline__ uint4 load_weights(const uint16_t* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// m: row_tiles, chunks, round_tiles and bias; its bytes are w's. Dynamic shared memory:
// activations [kTokens][cols + 32], then two buffers of partial sums. Op: as for gemv_few.
template <int kUnits, int kTokens, Items kItems, class Op>
__global__ void __launch_bounds__(kGemvThreads, 1)
    gemv_rows(const __grid_constant__ TileMatrix m, const __grid_constant__ RowMatrix w,
              const __grid_constant__ Op op) {
  constexpr int kBlocks = kUnits * 2;  // of 32 k
  constexpr int kPad = 32;             // rows of activations start 64 bytes apart in the banks
  extern __shared__ __align__(128) uint8_t shared[];
  auto* x = reinterpret_cast<uint16_t*>(shared);
  const int stride = w.cols + kPad;
  float* const parts = reinterpret_cast<float*>(x + kTokens * stride);
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  constexpr int kTogether = kItems == Items::kHeadHalves ? 2 : 1;
  const Share mine(m.row_tiles / kTogether, blockIdx.x, gridDim.x);
  const int first = mine.begin * kTogether, last = mine.end * kTogether;

  struct Burst {
    uint4 row_g[kBlocks], row_g8[kBlocks];
  };
  const auto load = [&](Burst& burst, const ChunkWalk& from) {
    if (from.item >= last) return;
    const int64_t row = tile_of<kItems>(from.item) * 16 + g;
    const uint16_t* at = w.rows + row * w.cols + from.chunk * kUnits * 64 + p * 8;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      burst.row_g[b] = load_weights(at + b * 32);
      burst.row_g8[b] = load_weights(at + 8 * w.cols + b * 32);
    }
  };
  ChunkWalk at(first, m.chunks), ahead = at;
  Burst next;
  load(next, ahead);
  const int row0 = blockIdx.y * kTokens, rows = min(kTokens, op.tokens - row0);
  __shared__ int64_t places[kTokens];
  if constexpr (HasPlaces<Op>) {
    if (threadIdx.x < rows) places[threadIdx.x] = op.place_of(row0 + threadIdx.x);
  }
  if constexpr (HasNorm<Op>) {
    __shared__ float squares[kNormLoads * kGemvWarps];
    uint4 weight[kNormLoads], h[kNormLoads];
    load_norm_weight(weight, op.norm);
    const int64_t from = op.norm.row == nullptr ? 0 : int64_t{*op.norm.row} * op.norm.hidden;
    cuda::griddep_wait();
    cuda::griddep_launch_dependents();
    norm_token(h, op.norm, from, weight, squares);
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
  __syncthreads();
  // Columns of B past the tokens read token 0 again; nothing reads what comes of it.
  const uint16_t* const mine_x = x + (g < rows ? g : 0) * stride + p * 8;
  int round = 0;
  for (int begin = first; begin < last; begin += m.round_tiles, ++round) {
    const int end = min(last, begin + m.round_tiles);
    float* const sums = parts + round % 2 * (m.round_tiles * m.chunks * 16 * kTokens);
    for (; at.item < end; at.next(m.chunks)) {
      const Burst now = next;
      ahead.next(m.chunks);
      load(next, ahead);
      float d[4] = {};
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const uint4 v = *reinterpret_cast<const uint4*>(mine_x + at.chunk * kUnits * 64 + b * 32);
        const uint4 &r = now.row_g[b], &r8 = now.row_g8[b];
        cuda::mma_bf16(d, r.x, r8.x, r.y, r8.y, v.x, v.y);
        cuda::mma_bf16(d, r.z, r8.z, r.w, r8.w, v.z, v.w);
      }
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
    finish_pairs<kItems, kTokens>(m, sums, begin, end - begin, rows, 0, 0,
                                  [&](int token, int row, float2 v) {
                                    store_pair_of(op, row0 + token, row, v, places[token]);
                                  });
  }
}

}  // namespace nibble::ops::gpu
