// How bf16 of the wgmma GEMM's sums leave a warpgroup: its 64 rows meet 32 slots at a time in
// shared memory, and go out as whole lines of 128 bytes a slot (64 with SwiGLU). Straight from
// registers each 16 bytes would be a store to a sector of its own: as long as 8 units of K take.
#pragma once

#include "cuda/mma_digits.cuh"
#include "ops/gpu_matmul/gemm_ring_sm90.cuh"

namespace nibble::ops::gpu::sm90 {

inline constexpr int kStagedBytes = 32 * 128;

// Two buffers that a warpgroup fills by turns: their shared address, aligned to 1024 bytes.
struct Staged {
  uint32_t first;
  int barrier;  // of the warpgroup
  uint32_t turn = 0;

  __device__ __forceinline__ uint32_t here() const { return first + turn; }
  __device__ __forceinline__ void next() { turn ^= kStagedBytes; }
};

// 8x8 matrices of bf16 whose rows lanes hold by pairs, to shared memory, transposed: lane 8m + i
// says where column i of matrix m is to lie.
__device__ __forceinline__ void store_turned_8x8(uint32_t to, uint32_t a, uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(a),
               "r"(b)
               : "memory");
}
__device__ __forceinline__ void store_turned_8x8(uint32_t to, uint32_t a, uint32_t b, uint32_t c,
                                                 uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// Sums of rows g and g + 8 of a warp's 16, columns 2p and 2p + 1 of 8: with their scales and bias.
struct RowFactors {
  float back0, back1, b0, b1;
  __device__ __forceinline__ float4 of(float4 v) const {
    return {fmaf(v.x, back0, b0), fmaf(v.y, back0, b0), fmaf(v.z, back1, b1), fmaf(v.w, back1, b1)};
  }
};

// A pair of columns of one feature: of even lanes' rows feature g / 2, of odd ones' 4 + g / 2.
__device__ __forceinline__ uint32_t swiglu_pair(float4 v, const Swiglu& act) {
  const bool odd = threadIdx.x / 4 % 2 != 0;
  // Even rows keep the first column, odd ones the second, each with its neighbour's row.
  const float r0 = __shfl_xor_sync(~0u, odd ? v.x : v.y, 4);
  const float r1 = __shfl_xor_sync(~0u, odd ? v.z : v.w, 4);
  const float u0 = swiglu(odd ? r0 : v.x, odd ? v.y : r0, act);
  const float u1 = swiglu(odd ? r1 : v.z, odd ? v.w : r1, act);
  const float r = __shfl_xor_sync(~0u, odd ? u0 : u1, 4);
  return odd ? pack(r, u1) : pack(u0, r);
}

// By a warpgroup: 64 rows from row0 on, slots from 0 on: values(j) are a lane's of 8 slots 8 j.
template <GemmOut kOut, int kBlocks, typename Values>
__device__ __forceinline__ void store_lines(const GemmArgs& g, const GemmItem& it, int row0,
                                            Staged& staged, const RowFactors& factors,
                                            const Values& values) {
  static_assert(kBlocks % 2 == 0);
  constexpr bool kHalves = kOut == GemmOut::kSwiglu;
  constexpr int kChunks = kHalves ? 4 : 8;  // of 16 bytes, of a slot
  const int t = threadIdx.x % 128, warp = t / 32, lane = t % 32, i = lane % 8;
  // Places of chunks are turned so that neither side meets a bank twice.
  const uint32_t to = kHalves ? (lane / 8 % 2 * 8 + i) * 64 + ((warp ^ (i / 2)) << 4)
                              : (lane / 16 * 8 + i) * 128 + (((warp * 2 + lane / 8 % 2) ^ i) << 4);
  const int chunk = t % kChunks, slot = t / kChunks;
  const uint32_t from = slot * 16 * kChunks + ((chunk ^ (kHalves ? slot / 2 % 4 : slot % 8)) << 4);
  const int pitch = kHalves ? g.rows / 2 : g.rows;
  uint16_t* y = static_cast<uint16_t*>(g.y) + int64_t{it.slot0 + slot} * pitch +
                (kHalves ? row0 / 2 : row0) + chunk * 8;
  int left = row0 + chunk * (64 / kChunks) < g.rows ? it.valid - slot : 0;
#pragma unroll
  for (int j0 = 0; j0 < kBlocks; j0 += 4) {
    asm volatile("" : "+l"(y), "+r"(left));  // or those of all would be kept
#pragma unroll
    for (int j = j0; j < (j0 + 4 < kBlocks ? j0 + 4 : kBlocks); j += 2) {
      const uint32_t at = staged.here() + to + (j - j0) * 128 * kChunks;
      float4 a = factors.of(values(j)), b = factors.of(values(j + 1));
      if constexpr (kHalves) {
        store_turned_8x8(at, swiglu_pair(a, g.act), swiglu_pair(b, g.act));
      } else {
        if constexpr (kOut == GemmOut::kRelu2) {
          a = {relu2(a.x), relu2(a.y), relu2(a.z), relu2(a.w)};
          b = {relu2(b.x), relu2(b.y), relu2(b.z), relu2(b.w)};
        }
        store_turned_8x8(at, pack(a.x, a.y), pack(a.z, a.w), pack(b.x, b.y), pack(b.z, b.w));
      }
    }
    warpgroup_barrier(staged.barrier);
    constexpr int kSlots = 128 / kChunks;
#pragma unroll
    for (int s = 0; s < (j0 + 4 <= kBlocks ? 32 : 16); s += kSlots) {
      uint4 v = cuda::load_shared_16(staged.here() + from + s * 16 * kChunks);
      if constexpr (kHalves)  // features 0, 4, 1, 5, 2, 6, 3, 7
        v = {__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.z, v.w, 0x5410),
             __byte_perm(v.x, v.y, 0x7632), __byte_perm(v.z, v.w, 0x7632)};
      if (s < left) *reinterpret_cast<uint4*>(y + s * pitch) = v;
    }
    y += 32 * pitch, left -= 32;
    staged.next();
  }
}

}  // namespace nibble::ops::gpu::sm90
