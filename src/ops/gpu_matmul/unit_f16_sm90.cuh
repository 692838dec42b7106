// Dense products of 2 to 8 tokens with NVFP4 weights in kTiles16x64, unfolded to f16, by mma.sync:
// y[t] = x[t] W^T + b.
//
//   weights  in   [N / 16][K / 64] units of 576 bytes and [N] f32
//   x        in   [T, K] bf16
//   Op       out  store(), as gemm_stream_sm90.cuh's
//
// A warp keeps to its part of K, whose activations it holds in registers as B operands: of each row
// tile of its block it multiplies the units that it has brought to a ring of its own, which fills
// before griddep_wait(). Sums of a round of row tiles go to shared memory, where a warp a row tile
// adds up those of the warps. Of more K than 16 warps hold, blocks share a row tile, leave their
// sums in L2, and the last to come adds them up. 64 registers a thread: the next kernel's weights
// are on their way to the other half of an SM meanwhile.
//
// f16: E2M1's bits are f16's for 2^-14 of the value, E4M3's for 2^-8; codes times scales are
// multiples of 2^-10 below 2^12 and stay exact at 2^-7 of the value. Activations of a token and a
// part are multiplied by the power of two that brings the largest to f16's last exponent: those
// down to 2^-32 of it are exact, the others off by 2^-40 of it. So sums have the errors of float32
// alone, as unit_gemv.cuh's.
//
// Sums: a chain over a part of K, then parts in sequence, then slices: which part is whose depends
// on the shape alone, so a token's bits do not depend on the others.
//
// Bytes: N K 9 / 16 + T (2 K + 4 N); Qwen3-8B's gate and up (24,576 x 4,096): 56.6 MB, 12.9 us at
// 4.4 TB/s.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/bf16.cuh"
#include "cuda/bulk_copy.cuh"
#include "cuda/launch.cuh"
#include "cuda/mma_bf16.cuh"
#include "cuda/mma_digits_nvfp4.cuh"
#include "cuda/parameters.cuh"
#include "ops/ctx.h"
#include "ops/gpu_matmul/shares_sm90.cuh"
#include "ops/gpu_matmul/unit_f16.h"
#include "ops/scratch.h"
#include "ops/weight.h"

namespace nibble::ops::gpu::sm90 {

using cuda::sm90::uniform;

inline constexpr int kF16Threads = kF16Warps * 32;
inline constexpr float kF16SumFactor = 128;

// Pairs (k, k + 1), k = 8j, of a word's codes: value * 2^-14.
__device__ __forceinline__ void f16_codes(uint32_t w, uint32_t (&v)[4]) {
  const uint32_t even = (w << 4 & 0x80808080u) | (w << 1 & 0x0e0e0e0eu);
  const uint32_t odd = (w & 0x80808080u) | (w >> 3 & 0x0e0e0e0eu);
  v[0] = __byte_perm(even, 0, 0x2404), v[1] = __byte_perm(odd, 0, 0x2404);
  v[2] = even & 0xff00ff00u, v[3] = odd & 0xff00ff00u;
}
template <bool kHigh>
__device__ __forceinline__ void scale_f16(uint32_t& pair, uint32_t scales) {
  if constexpr (kHigh)
    asm("{\n.reg .f16 low, high;\n.reg .b32 both;\nmov.b32 {low, high}, %1;\n"
        "mov.b32 both, {high, high};\nmul.f16x2 %0, %0, both;\n}"
        : "+r"(pair)
        : "r"(scales));
  else
    asm("{\n.reg .f16 low, high;\n.reg .b32 both;\nmov.b32 {low, high}, %1;\n"
        "mov.b32 both, {low, low};\nmul.f16x2 %0, %0, both;\n}"
        : "+r"(pair)
        : "r"(scales));
}
// E4M3 of two blocks in bits 7 to 14 and 23 to 30 -> 2^7 times their values.
__device__ __forceinline__ uint32_t f16_scales(uint32_t bits) {
  uint32_t scales;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(scales) : "r"(bits & 0x7f807f80u), "r"(0x78007800u));
  return scales;
}

// sum += 32 k of weights, of words of rows g and g + 8 and the scales of both, times 8 columns.
__device__ __forceinline__ void multiply_f16(float (&sum)[4], uint32_t low, uint32_t high,
                                             uint32_t scales, const uint32_t* b) {
  const uint32_t of_low = f16_scales(scales << 7), of_high = f16_scales(scales >> 1);
  uint32_t v[4], w[4];
  f16_codes(low, v), f16_codes(high, w);
  scale_f16<false>(v[0], of_low), scale_f16<false>(v[1], of_low);
  scale_f16<true>(v[2], of_low), scale_f16<true>(v[3], of_low);
  scale_f16<false>(w[0], of_high), scale_f16<false>(w[1], of_high);
  scale_f16<true>(w[2], of_high), scale_f16<true>(w[3], of_high);
  cuda::mma_f16(sum, v[0], w[0], v[1], w[1], b[0], b[1]);
  cuda::mma_f16(sum, v[2], w[2], v[3], w[3], b[2], b[3]);
}

__device__ __forceinline__ void store_shared_16(uint32_t address, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

// The larger magnitude of each half, with any sign.
__device__ __forceinline__ uint32_t larger_bf16(uint32_t a, uint32_t b) {
  uint32_t most;
  asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
  return most;
}

// A warp's activations as B operands: of a unit two times 32 k, pairs of f16.
template <int kUnits>
struct F16Columns {
  uint32_t b[kUnits][8];

  // Units from `unit` on, the first `others` of which are another's; by way of 8 * 144 bytes at
  // `staging`. To `back`, 8 floats: what takes back a token's power of two.
  __device__ __forceinline__ void load(const UnitF16& m, int unit, int others, uint32_t staging,
                                       uint32_t back) {
    const int lane = threadIdx.x % 32, row = lane / 8, piece = lane % 8;
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int token = 4 * h + row;
        uint4 v{};
        if (token < m.tokens && u >= others)
          v = __ldcg(reinterpret_cast<const uint4*>(m.x + int64_t{token} * m.num_units * 64 +
                                                    (unit + u) * 64 + piece * 8));
        b[u][4 * h] = v.x, b[u][4 * h + 1] = v.y, b[u][4 * h + 2] = v.z, b[u][4 * h + 3] = v.w;
      }
    const uint32_t to = staging + row * 144 + piece * 16;
    const uint32_t from = staging + lane % 8 * 144 + lane / 8 * 16;
    uint32_t most = 0;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      uint32_t(&v)[8] = b[u];
      store_shared_16(to, {v[0], v[1], v[2], v[3]});
      store_shared_16(to + 4 * 144, {v[4], v[5], v[6], v[7]});
      __syncwarp();
      uint32_t first[4], last[4];
      cuda::load_matrices(first, from);
      cuda::load_matrices(last, from + 64);
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = first[i], v[i + 4] = last[i];
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 8; ++i) most = larger_bf16(most, v[i]);
    }
    to_f16(most, back);
  }

 private:
  // `most`: the largest magnitudes of what this lane has of token g.
  __device__ __forceinline__ void to_f16(uint32_t most, uint32_t back) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
      most = larger_bf16(most, __shfl_xor_sync(0xffffffff, most, step));
    const uint32_t exponent = max(most >> 7 & 0xff, most >> 23 & 0xff);
    // 2^(15 - e) and its inverse, both normal.
    const uint32_t inverse = max(exponent, 16u) - 15;
    const float by = __uint_as_float((254 - inverse) << 23);
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float low = cuda::bf16_lo(b[u][i]) * by, high = cuda::bf16_hi(b[u][i]) * by;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(b[u][i]) : "f"(high), "f"(low));
      }
    if (threadIdx.x % 4 == 0)
      cuda::store_shared_float(back + threadIdx.x % 32, __uint_as_float(inverse << 23));
    __syncwarp();
  }
};

// A warp's part of its block's row tiles on its way, some row tiles ahead.
template <int kUnits>
class F16Ring {
 public:
  static constexpr int kSlotBytes = kUnits * cuda::kNvfp4UnitBytes;

  // `from`: the first of `tiles` parts.
  __device__ __forceinline__ F16Ring(const UnitF16& m, uint32_t memory, uint32_t barriers,
                                     const uint8_t* from, int tiles)
      : m_(m), from_(from), left_(tiles) {
    const int warp = uniform(static_cast<int>(threadIdx.x / 32));
    data_ = memory + warp * m.ahead * kSlotBytes, barrier_ = barriers + warp * kF16Ahead * 8;
    if (threadIdx.x % 32 == 0) {
#pragma unroll 1
      for (int s = 0; s < m.ahead; ++s) cuda::barrier_init(barrier_ + s * 8, 1);
      cuda::barrier_init_fence();
    }
    __syncwarp();
#pragma unroll 1
    for (int s = 0; s < m.ahead; ++s) fetch();
    phase_ = 0;
  }
  __device__ __forceinline__ uint32_t take() const {
    cuda::barrier_wait(barrier_, phase_);
    return data_;
  }
  // Behind what has been read of it; to the next.
  __device__ __forceinline__ void release() {
    __syncwarp();
    fetch();
  }

 private:
  __device__ __forceinline__ void fetch() {
    if (left_ > 0 && threadIdx.x % 32 == 0)
      cuda::bulk_copy(data_, from_, kSlotBytes, barrier_, cuda::evict_first());
    --left_, from_ += m_.num_units * cuda::kNvfp4UnitBytes;
    data_ += kSlotBytes, barrier_ += 8;
    if (++slot_ < m_.ahead) return;
    data_ -= m_.ahead * kSlotBytes, barrier_ -= m_.ahead * 8;
    slot_ = 0, phase_ ^= 1;
  }

  const UnitF16& m_;
  const uint8_t* from_;
  int left_, slot_ = 0;  // to fetch
  uint32_t data_, barrier_, phase_ = 0;
};

// A row tile's part times a warp's columns.
template <int kUnits>
__device__ __forceinline__ float4 multiply_part(F16Ring<kUnits>& ring, const F16Columns<kUnits>& x,
                                                uint32_t back) {
  const int lane = threadIdx.x % 32;
  float sum[4] = {};
  const uint32_t at = ring.take();
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const uint32_t unit = at + u * cuda::kNvfp4UnitBytes;
    const uint4 codes = cuda::load_shared_16(unit + lane * 16);
    const uint2 scales = cuda::load_shared_8(unit + 512 + lane / 4 * 8);
    multiply_f16(sum, codes.x, codes.y, scales.x, x.b[u]);
    multiply_f16(sum, codes.z, codes.w, scales.y, x.b[u] + 4);
  }
  ring.release();
  const uint2 bits = cuda::load_shared_8(back + lane % 4 * 8);
  const float2 by = {__uint_as_float(bits.x), __uint_as_float(bits.y)};
  return {sum[0] * by.x, sum[1] * by.y, sum[2] * by.x, sum[3] * by.y};
}

// Sums of a row tile as lanes have them, at its end.
template <class Op>
__device__ __forceinline__ void store_row_tile(const UnitF16& m, int tile, const float4& sum,
                                               const float* scales, const Op& op) {
  const int g = threadIdx.x % 32 / 4;
  RowEnds ends{.back = {kF16SumFactor * scales[g], kF16SumFactor * scales[g + 8]}};
  ends.read_bias(m.bias, tile * 16 + g);
  const float d[4] = {sum.x, sum.y, sum.z, sum.w};
  store_sums<8>(d, {}, ends, tile * 16, m.tokens, op);
}

// By the last of the blocks that share row tiles: theirs, added up in the order of K.
template <class Op>
__device__ __forceinline__ void store_slices(const UnitF16& m, int group, int first, int count,
                                             const float* scales, const Op& op) {
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) is_last = cuda::is_last_arrival(m.counters + group, m.slices);
  __syncthreads();
  if (!is_last) return;
  for (int i = threadIdx.x / 32; i < count; i += kF16Warps) {
    const float4* from =
        static_cast<const float4*>(m.parts) + int64_t{first + i} * m.slices * 32 + threadIdx.x % 32;
    float4 sum{};
#pragma unroll 4
    for (int s = 0; s < m.slices; ++s) {
      const float4 v = __ldcg(from + s * 32);
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    store_row_tile(m, first + i, sum, scales + i * 16, op);
  }
}

template <int kUnits, class Op>
__global__ void __launch_bounds__(kF16Threads, 2)
    unit_f16(const __grid_constant__ UnitF16 m, const __grid_constant__ Op op) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kF16Warps * kF16Ahead];
  __shared__ __align__(8) float backs[kF16Warps * 8];
  cuda::griddep_launch_dependents();
  const uint32_t base = cuda::shared_address(shared);
  const int warp = uniform(static_cast<int>(threadIdx.x / 32)), lane = threadIdx.x % 32;
  const int group = uniform(static_cast<int>(blockIdx.x) / m.slices);
  const int slice = static_cast<int>(blockIdx.x) - group * m.slices;
  const int first = group * m.each + min(group, m.more), count = m.each + (group < m.more);
  const int parts = min(m.slice_parts, m.num_parts - slice * m.slice_parts);
  const int part = slice * m.slice_parts + warp, unit = min(part * kUnits, m.num_units - kUnits);
  const bool works = warp < parts;
  F16Ring<kUnits> ring(m, base, cuda::shared_address(barriers),
                       m.units + (int64_t{first} * m.num_units + unit) * cuda::kNvfp4UnitBytes,
                       works ? count : 0);
  for (int i = threadIdx.x; i < count * 4; i += kF16Threads)
    cuda::async_copy_16_if(true, base + m.scales + i * 16, m.row_scales + first * 16 + i * 4);
  cuda::async_copy_commit();
  cuda::touch_parameters(m, op);
  cuda::griddep_wait();

  const uint32_t back = cuda::shared_address(backs) + warp * 32;
  const uint32_t mine = base + m.sums + warp * m.sums_of_part;
  F16Columns<kUnits> x;
  if (works) x.load(m, unit, part * kUnits - unit, mine, back);
  __syncwarp();
  cuda::async_copy_wait<0>();
  const auto* const scales = reinterpret_cast<const float*>(shared + m.scales);
  // Rounds take two pieces of memory by turns: one barrier each, and one row tile's warp adds up
  // while others go on.
  const auto sums_of = [&](int tile) {
    return shared + m.sums + (tile & (kF16KeptTiles - 1)) * kF16TileSums + lane * 16;
  };
#pragma unroll 1
  for (int begin = 0; begin < count; begin += m.round_tiles) {
    const int end = min(count, begin + m.round_tiles);
    if (works) {
#pragma unroll 1
      for (int i = begin; i < end; ++i) {
        const float4 sum = multiply_part(ring, x, back);
        *reinterpret_cast<float4*>(sums_of(i) + warp * m.sums_of_part) = sum;
      }
    }
    __syncthreads();
    const int i = begin + ((warp - begin) & (kF16Warps - 1));
    if (i >= end) continue;
    const uint8_t* from = sums_of(i);
    float4 sum{};
#pragma unroll 4
    for (int p = 0; p < parts; ++p, from += m.sums_of_part) {
      const float4 v = *reinterpret_cast<const float4*>(from);
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    if (m.slices == 1)
      store_row_tile(m, first + i, sum, scales + i * 16, op);
    else
      static_cast<float4*>(m.parts)[(int64_t{first + i} * m.slices + slice) * 32 + lane] = sum;
  }
  if (m.slices > 1) store_slices(m, group, first, count, scales, op);
}

// op.store() of x [tokens, K] W^T + b, up to kF16Tokens tokens. `alone`: no two blocks share an SM,
// where the kernel before leaves it empty.
template <class Op>
void launch_unit_f16(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int64_t tokens,
                     bool alone, const Op& op) {
  if (tokens == 0) return;
  CHECK(w.layout == Layout::kTiles16x64 && w.format == Format::kNvfp4 && w.experts == 1);
  CHECK(tokens <= kF16Tokens);
  const auto plan = plan_unit_f16(w.rows, w.cols, cx.kernels.gpu);
  CHECK(plan);
  UnitF16 m = *plan;
  m.units = w.codes, m.row_scales = w.row_scales, m.bias = w.bias;
  m.x = x, m.tokens = static_cast<int>(tokens);
  if (m.slices > 1) {
    m.parts = scratch.take<float>(f16_parts(m));
    m.counters = cx.counters;
  }
  const cuda::LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(m.groups * m.slices)),
      .block = dim3(kF16Threads),
      .smem_bytes = alone ? std::max<size_t>(m.end, 116 * 1024) : size_t{m.end}};
  const auto launch = [&]<int kUnits>() {
    cuda::launch(cx.stream, unit_f16<kUnits, Op>, shape, m, op);
  };
  if (m.part_units == 4) return launch.template operator()<4>();
  if (m.part_units == 2) return launch.template operator()<2>();
  launch.template operator()<1>();
}

}  // namespace nibble::ops::gpu::sm90
