// norm_qkv's end of the wgmma GEMMs with MXFP4 weights: q and k turned by their positions, then q,
// k and v stored, from the sums in registers: [T, (Q + 2 G) D] float32 never cross memory.
//
// A warpgroup's 64 rows are a head. What turns together, dims i and i + 32, meets in a lane: it has
// rows i = 8 warp + lane / 4 and i + 32 instead of rows 8 apart, which is a matter of what its
// warp takes from shared memory. Cosines and sines of an item's tokens come as two stages of the
// ring behind those of K, a token's 32 float32 as a row of x.
#pragma once

#include "cuda/fp8.cuh"
#include "cuda/mma_digits.cuh"
#include "ops/gpu_matmul/gemm_ring_sm90.cuh"
#include "ops/gpu_matmul/unit.cuh"
#include "ops/norm_qkv/store_qkv.cuh"

namespace nibble::ops::gpu::sm90 {

// Of 64 rows, those that a lane has sums of: the first, and the one kApart below.
template <GemmOut kOut>
struct LaneRows {
  static constexpr int kApart = kOut == GemmOut::kQkv ? 32 : 8;
  __device__ static int first() {
    return threadIdx.x / 32 % 4 * (kOut == GemmOut::kQkv ? 8 : 16) + threadIdx.x % 32 / 4;
  }
};

// Where a lane finds its part of a unit of A, as the words and scales of 16 neighbouring rows lie;
// of 64 rows whose units lie kPitch bytes apart. Shared addresses of the first, kept in registers.
template <GemmOut kOut, int kPitch, class Unit = gpu::Unit<Format::kMxfp4>>
struct LaneUnit {
  using Scales = typename Unit::Scales;
  using Codes = std::conditional_t<Unit::kHasNibbles, NibbleCodes, ByteCodes>;
  uint32_t words, scales;
  __device__ explicit LaneUnit(uint32_t first) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    first += (kOut == GemmOut::kQkv ? warp / 2 : warp) * kPitch;
    words = kept(first + lane * 16);
    scales = kept(first + Unit::kCodeBytes + lane / 4 * sizeof(Scales));
  }
  // Of the unit `offset` bytes on.
  __device__ __forceinline__ void take(uint32_t offset, Codes& codes, Scales& s) const {
    codes = load_codes<Unit>(words + offset);
    if constexpr (Unit::kScaleBytes > 0) s = load_scales_at<Scales>(scales + offset);
    if constexpr (kOut == GemmOut::kQkv) {
      static_assert(sizeof(Scales) == 4);  // of two tiles the first 8 rows, or the last
      const uint4 b = cuda::load_shared_16(words + offset + 2 * kPitch);
      const bool last = threadIdx.x / 32 % 2 != 0;
      uint4& q = codes.words;
      q = last ? uint4{q.y, b.y, q.w, b.w} : uint4{q.x, b.x, q.z, b.z};
      s = __byte_perm(s, cuda::load_shared_4(scales + offset + 2 * kPitch), last ? 0x7351 : 0x6240);
    }
  }
};

// Two float32 of shared memory, where they are used and not before: registers.
__device__ __forceinline__ float2 load_pair(uint32_t at) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at));
  return v;
}

// The producer's two stages behind K, by the filling warpgroup.
template <typename Ring>
__device__ __forceinline__ void fill_turns(Ring& ring, const GemmItem& it, int t) {
  const int chunk = t % 8;
  for (int half = 0; half < 2; ++half, ring.next()) {
    barrier_wait(ring.empty(ring.slot), ring.phase ^ 1);
    const float* from = ring.args.qkv.cos_sin + half * 32 + chunk * 4;
    for (int row = t / 8; row < it.n; row += 16)
      copy_16(ring.x_at(ring.slot) + row * 128 + ((chunk ^ (row % 8)) << 4),
              from + int64_t{it.slot0 + min(row, it.valid - 1)} * 64);
    barrier_arrive_after_copies(ring.full(ring.slot));
  }
}

// By a warpgroup: where a head of the item's columns lies in q, or in the pages of k or v, in 64s.
__device__ __forceinline__ void find_places(int32_t* places, const QkvStore& s, const GemmItem& it,
                                            int head, int wg) {
  warpgroup_barrier(1 + wg);  // nobody reads those of the head before
  for (int i = threadIdx.x % 128; i < it.valid; i += 128) {
    const int t = it.slot0 + i, kv_head = (head - s.q_heads) % s.kv_heads;
    places[i] = head < s.q_heads ? t * s.q_heads + head
                                 : static_cast<int32_t>(kv_row(s, t) / 64) + kv_head * s.page_size;
  }
  warpgroup_barrier(1 + wg);
}

// Columns from column0 on of a head: values(j) are dim i of columns 8 j + 2 p and + 1, then dim
// i + 32, with bias. `cosines` and `sines`: shared addresses of the stages.
template <int kN, typename Values>
__device__ __forceinline__ void store_turned(const QkvStore& s, const GemmItem& it, int head,
                                             int column0, uint32_t cosines, uint32_t sines,
                                             const int32_t* places, const Values& values) {
  // Even rows keep the first column, odd ones the second, each with its neighbour's row.
  const int i = LaneRows<GemmOut::kQkv>::first(), pair = i & ~1, odd = i & 1;
  const int column = threadIdx.x % 4 * 2 + odd, valid = it.valid - column0 - column;
  const uint32_t at = (column0 + column) * 128 + (((pair / 4) ^ column) << 4) + pair % 4 * 4;
  const int g = head - s.q_heads;
  const bool turns = g < s.kv_heads, fp8 = g >= 0 && s.fp8;
  void* const base = g < 0 ? s.q : turns ? s.k : s.v;
  places += column0 + column;
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    const float4 v = values(j);
    const float r0 = __shfl_xor_sync(~0u, odd ? v.x : v.y, 4);
    const float r1 = __shfl_xor_sync(~0u, odd ? v.z : v.w, 4);
    float2 a = odd ? float2{r0, v.y} : float2{v.x, r0};
    float2 b = odd ? float2{r1, v.w} : float2{v.z, r1};
    if (turns) {
      const float2 c = load_pair(cosines + at + j * 1024), n = load_pair(sines + at + j * 1024);
      const float2 turned = {a.x * c.x - b.x * n.x, a.y * c.y - b.y * n.y};
      b = {b.x * c.x + a.x * n.x, b.y * c.y + a.y * n.y};
      a = turned;
    }
    if (8 * j >= valid) continue;
    const int64_t to = int64_t{places[8 * j]} * 64 + pair;
    if (fp8) {
      const float by = turns ? s.by_k : s.by_v;
      auto* codes = reinterpret_cast<uint16_t*>(static_cast<uint8_t*>(base) + to);
      codes[0] = static_cast<uint16_t>(cuda::e4m3_pair(a.x * by, a.y * by));
      codes[16] = static_cast<uint16_t>(cuda::e4m3_pair(b.x * by, b.y * by));
    } else {
      auto* values16 = static_cast<uint16_t*>(base) + to;
      *reinterpret_cast<uint32_t*>(values16) = pack(a.x, a.y);
      *reinterpret_cast<uint32_t*>(values16 + 32) = pack(b.x, b.y);
    }
  }
}

}  // namespace nibble::ops::gpu::sm90
