// The third kernel of delta_rule_chunks_cuda.cu: states from chunk to chunk.
#pragma once

#include "cuda/bulk_copy.cuh"
#include "ops/delta_rule/delta_rule_chunks.cuh"
#if NIBBLE_CUDA_SM == 90
#include "ops/delta_rule/delta_rule_columns_sm90.cuh"
#endif

namespace nibble::ops::gpu::delta {

// A block has 16 kGroups columns of a value head's state; grid (HV * kTiles, S). A warp of each 16
// keeps them for all chunks, turned: what comes out of one product goes into the next in the same
// registers (by wgmma, on Hopper, for four warps together). Four more make the outputs, 16 tokens
// each, and the last two bring chunks: what the columns take, in two parts, as W is free before the
// rest is asked for; and what the outputs take.
inline constexpr int kReaders = 4, kAcrossThreads = 32 * (kGroups + kReaders + 2);

struct WriteStage {
  alignas(1024) uint8_t w[sizeof(HeadImage::Writes::w)];
  alignas(1024) uint8_t k[sizeof(KeyImage::k)];
  uint4 u[kGroups][kChunk / 16][32];
  HeadImage::Writes::Decays decays;
};
struct ReadStage {
  alignas(1024) uint8_t q[sizeof(KeyImage::q)];
  HeadImage::Reads head;
};
// From the warps of columns to those of outputs, by lane.
struct Passed {
  // Before the chunk, in f16: as b of mma.m16n8k16; or, by wgmma, panels of which columns are rows.
  alignas(1024) uint4 state[kGroups][kDim / 16][32];
  float4 values[kGroups][kChunk / 8][32];  // V', by 8 tokens, in TF32
  float unit[kGroups];                     // of both
};
struct AcrossMemory {
  WriteStage writes[kStages];
  ReadStage reads[kStages];
  Passed passed[kStages];
  uint64_t w_full[kStages], w_free[kStages];
  uint64_t writes_full[kStages], writes_free[kStages];  // the rest of them
  uint64_t reads_full[kStages], reads_free[kStages];
  uint64_t state_full[kStages], values_full[kStages], passed_free[kStages];
};

// One of a ring of stages at its i-th use.
template <int kStages>
__device__ __forceinline__ void wait_full(uint64_t (&full)[kStages], int i) {
  cuda::barrier_wait(cuda::shared_address(&full[i % kStages]), i / kStages % 2);
}
template <int kStages>
__device__ __forceinline__ void wait_free(uint64_t (&free)[kStages], int i) {
  cuda::barrier_wait(cuda::shared_address(&free[i % kStages]), (i / kStages + 1) % 2);
}
// By a warp that is done with it, or has written it.
template <int kStages>
__device__ __forceinline__ void arrive(uint64_t (&barriers)[kStages], int i) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) cuda::barrier_arrive(cuda::shared_address(&barriers[i % kStages]));
}

// What a block does: `chunks` of one sequence and value head, of a piece.
struct Crossing {
  int64_t index;        // of the first chunk
  int64_t first_token;  // of the step
  int tokens, chunks, head, first_column;
};
__device__ __forceinline__ const KeyImage& key_image(const ChunkParams& c, const Crossing& x,
                                                     int i) {
  const Params& a = c.a;
  return c.keys[(x.index + i) * (a.d.value_heads / a.d.ratio) + x.head / a.d.ratio];
}

// By one thread: what the columns take of the i-th chunk.
__device__ __forceinline__ void bring_writes(AcrossMemory& shared, const ChunkParams& c,
                                             const Crossing& x, int i) {
  const HeadImage& head = c.heads[(x.index + i) * c.a.d.value_heads + x.head];
  WriteStage& stage = shared.writes[i % kStages];
  wait_free(shared.w_free, i);
  cuda::bulk_copy(cuda::shared_address(stage.w), head.writes.w, sizeof(stage.w),
                  cuda::shared_address(&shared.w_full[i % kStages]));
  const uint32_t full = cuda::shared_address(&shared.writes_full[i % kStages]);
  wait_free(shared.writes_free, i);
  cuda::bulk_copy(cuda::shared_address(&stage.decays), &head.writes.decays, sizeof(stage.decays),
                  full);
  cuda::bulk_copy(cuda::shared_address(stage.u), head.u[x.first_column / 16], sizeof(stage.u),
                  full);
  cuda::bulk_copy(cuda::shared_address(stage.k), key_image(c, x, i).k, sizeof(stage.k), full);
}
// And the outputs.
__device__ __forceinline__ void bring_reads(AcrossMemory& shared, const ChunkParams& c,
                                            const Crossing& x, int i) {
  const HeadImage& head = c.heads[(x.index + i) * c.a.d.value_heads + x.head];
  ReadStage& stage = shared.reads[i % kStages];
  const uint32_t full = cuda::shared_address(&shared.reads_full[i % kStages]);
  wait_free(shared.reads_free, i);
  cuda::bulk_copy(cuda::shared_address(&stage.head), &head.reads, sizeof(head.reads), full);
  cuda::bulk_copy(cuda::shared_address(stage.q), key_image(c, x, i).q, sizeof(stage.q), full);
}

// V' of columns from W (by a warp of them, or all together): a W^T; and what they add to a state.
// Sums are there behind multiply_end().
__device__ __forceinline__ void multiply_w_begin(float (&v)[kChunk / 8][4],
                                                 const uint32_t (&a)[kDim / 16][4],
                                                 const WriteStage& stage) {
#if NIBBLE_CUDA_SM == 90
  begin_w(reinterpret_cast<float(&)[kChunk / 2]>(v), a, cuda::shared_address(stage.w));
#else
  const RowsOfDim w{cuda::shared_address(stage.w)};
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
    for (int n = 0; n < kChunk / 8; n += 2) {
      uint32_t b[4];
      w.load_b(b, 8 * n, 16 * k);
      cuda::mma_f16(v[n], a[k][0], a[k][1], a[k][2], a[k][3], b[0], b[1]);
      cuda::mma_f16(v[n + 1], a[k][0], a[k][1], a[k][2], a[k][3], b[2], b[3]);
    }
#endif
}
__device__ __forceinline__ void multiply_keys_begin(float (&s)[kDim / 8][4],
                                                    const uint32_t (&a)[kChunk / 16][4],
                                                    const WriteStage& stage) {
#if NIBBLE_CUDA_SM == 90
  begin_keys(reinterpret_cast<float(&)[kDim / 2]>(s), a, cuda::shared_address(stage.k));
#else
  const RowsOfDim keys{cuda::shared_address(stage.k)};
#pragma unroll
  for (int k = 0; k < kChunk / 16; ++k)
#pragma unroll
    for (int n = 0; n < kDim / 8; n += 2) {
      uint32_t b[4];
      keys.load_turned_b(b, 16 * k, 8 * n);
      cuda::mma_f16(s[n], a[k][0], a[k][1], a[k][2], a[k][3], b[0], b[1]);
      cuda::mma_f16(s[n + 1], a[k][0], a[k][1], a[k][2], a[k][3], b[2], b[3]);
    }
#endif
}
template <int kSteps, int kTilesOfN>
__device__ __forceinline__ void multiply_end([[maybe_unused]] const uint32_t (&a)[kSteps][4],
                                             float (&d)[kTilesOfN][4]) {
  auto& sums = reinterpret_cast<float(&)[kTilesOfN * 4]>(d);
#if NIBBLE_CUDA_SM == 90
  products_end(a, sums);
#else
#pragma unroll
  for (float& sum : sums) asm volatile("" : "+f"(sum));  // what they read may be written anew
#endif
}

// By a warp: its columns of the state, transposed, tile n: rows 8n + 2p and + 1 of columns g and g
// + 8. In units of a power of two, which leaves room in f16 for all that a chunk can add.
struct Columns {
  float s[kDim / 8][4], unit;

  __device__ __forceinline__ void begin(const float* state) {
    float most = 0;
    const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[n][e] =
            state == nullptr ? 0 : __ldcg(state + (8 * n + 2 * p + e % 2) * kDim + e / 2 * 8 + g);
        most = fmaxf(most, fabsf(s[n][e]));
      }
    const float by = fitting(warp_max(most));
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] *= by;
    unit = inverse_power(by);
  }
  __device__ __forceinline__ void end(float* state) const {
    const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        state[(8 * n + 2 * p + e % 2) * kDim + e / 2 * 8 + g] = s[n][e] * unit;
  }
  // As a of mma.m16n8k16, and the largest element.
  __device__ __forceinline__ float to_f16(uint32_t (&a)[kDim / 16][4]) const {
    float most[4] = {};
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        a[n / 2][n % 2 * 2 + i] = cuda::pack_f16(s[n][2 * i], s[n][2 * i + 1]);
        most[2 * i] = fmaxf(most[2 * i], fabsf(s[n][2 * i]));
        most[2 * i + 1] = fmaxf(most[2 * i + 1], fabsf(s[n][2 * i + 1]));
      }
    return warp_max(most);
  }
  // A chunk from its V' in this unit, which becomes `a`. `most`: no element of s is larger.
  __device__ __forceinline__ void begin_advance(const WriteStage& stage,
                                                const float (&v)[kChunk / 8][4], float most,
                                                uint32_t (&a)[kChunk / 16][4]) {
    const int p = threadIdx.x % 4;
    float x[kChunk / 8][4], most_of_x[4] = {};
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
      const float2 left = *reinterpret_cast<const float2*>(stage.decays.left + 8 * n + 2 * p);
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        x[n][i] = v[n][i] * left.x, x[n][i + 1] = v[n][i + 1] * left.y;
        most_of_x[i] = fmaxf(most_of_x[i], fabsf(x[n][i]));
        most_of_x[i + 1] = fmaxf(most_of_x[i + 1], fabsf(x[n][i + 1]));
      }
    }
    // Keys have a length of one, to f16's rounding.
    const float kept = stage.decays.kept;
    const float bound = fmaf(1.01f * kChunk, warp_max(most_of_x), kept * most);
    const float next = fitting(bound * unit), change = unit * next;
    unit = inverse_power(next);
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        a[n / 2][n % 2 * 2 + i] = cuda::pack_f16(x[n][2 * i] * change, x[n][2 * i + 1] * change);
    const float by = kept * change;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] *= by;
    multiply_keys_begin(s, a, stage);
  }
};

__device__ __forceinline__ void pass_state(Passed& to, int group,
                                           const uint32_t (&a)[kDim / 16][4]) {
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
#if NIBBLE_CUDA_SM == 90
    store_columns(cuda::shared_address(to.state), 16 * group, k, a[k]);
#else
    to.state[group][k][threadIdx.x % 32] = {a[k][0], a[k][1], a[k][2], a[k][3]};
#endif
  }
#if NIBBLE_CUDA_SM == 90
  cuda::sm90::fence_async_proxy();
#endif
}

// A warp of columns, the state's from `column` on: V' and the state, from chunk to chunk.
__device__ __forceinline__ void move_columns(AcrossMemory& shared, Columns& columns, int chunks,
                                             int group, int column) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int i = 0; i < chunks; ++i) {
    const WriteStage& stage = shared.writes[i % kStages];
    Passed& to = shared.passed[i % kStages];
    uint32_t a[kDim / 16][4];
    const float most = columns.to_f16(a);
    wait_full(shared.w_full, i);
    float v[kChunk / 8][4] = {};
    multiply_w_begin(v, a, stage);
    wait_free(shared.passed_free, i);
    pass_state(to, group, a);
    if (lane == 0) to.unit[group] = columns.unit;
    arrive(shared.state_full, i);
    wait_full(shared.writes_full, i);
    multiply_end(a, v);
    arrive(shared.w_free, i);
    const float by = stage.decays.units[column / 16] * inverse_power(columns.unit);
#pragma unroll
    for (int n = 0; n < kChunk / 8; n += 2) {
      const uint4 u = stage.u[group][n / 2][lane];
      const uint32_t pairs[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float2 x = cuda::f16_values(pairs[k]);
        float* const of = &v[n + k / 2][k % 2 * 2];
        of[0] = fmaf(x.x, by, -of[0]), of[1] = fmaf(x.y, by, -of[1]);
      }
    }
    uint32_t added[kChunk / 16][4];
    columns.begin_advance(stage, v, most, added);
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n)
      to.values[group][n][lane] = {v[n][0] * kBeforeCut, v[n][1] * kBeforeCut, v[n][2] * kBeforeCut,
                                   v[n][3] * kBeforeCut};
    arrive(shared.values_full, i);
    multiply_end(added, columns.s);
    arrive(shared.writes_free, i);
  }
}

// 16 tokens of a chunk, by a warp.
struct Outputs {
  float o[2 * kGroups][4];

  // exp(G) Q S + P V', and the unit of V' and S.
  __device__ __forceinline__ void make(AcrossMemory& shared, int i, int m) {
    const int lane = threadIdx.x % 32;
    const ReadStage& stage = shared.reads[i % kStages];
    const Passed& from = shared.passed[i % kStages];
    const RowsOfChunk p{cuda::shared_address(stage.head.p)};
#pragma unroll
    for (auto& of : o) of[0] = of[1] = of[2] = of[3] = 0;
    wait_full(shared.reads_full, i);
    wait_full(shared.state_full, i);
#if NIBBLE_CUDA_SM == 90
    auto& sums = reinterpret_cast<float(&)[8 * kGroups]>(o);
    begin_outputs(sums, cuda::shared_address(stage.q), cuda::shared_address(from.state));
    products_end(sums);
#else
    const RowsOfDim q{cuda::shared_address(stage.q)};
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      uint32_t of_q[4];
      q.load(of_q, 16 * m, 16 * k);
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        const uint4 b = from.state[n][k][lane];
        cuda::mma_f16(o[2 * n], of_q[0], of_q[1], of_q[2], of_q[3], b.x, b.z);
        cuda::mma_f16(o[2 * n + 1], of_q[0], of_q[1], of_q[2], of_q[3], b.y, b.w);
      }
    }
#endif
    cuda::each_pair<2 * kGroups>([&](int n, int e, int row, int) {
      const float by = stage.head.by[16 * m + row];
      o[n][e] *= by, o[n][e + 1] *= by;
    });
    wait_full(shared.values_full, i);
#pragma unroll 1
    for (int k = 0; k <= m; ++k) {
      uint32_t of_p[4];
      p.load(of_p, 16 * m, 16 * k);
      const cuda::F16Rows rows(of_p);
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
          const float4 b = from.values[n][2 * k + j][lane];
          rows.multiply(o[2 * n], j, b.x, b.y);
          rows.multiply(o[2 * n + 1], j, b.z, b.w);
        }
    }
#pragma unroll
    for (int n = 0; n < 2 * kGroups; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[n][e] *= from.unit[n / 2];
    arrive(shared.passed_free, i);
    arrive(shared.reads_free, i);
  }
  // In f16, each row by a power of two. `to`, `powers`: of the first token.
  __device__ __forceinline__ void store(uint16_t* to, int64_t stride, float* powers,
                                        int64_t stride_of_powers, int tokens) const {
    float most[2] = {};
    cuda::each_pair<2 * kGroups>([&](int n, int e, int, int) {
      most[e / 2] = fmaxf(most[e / 2], fmaxf(fabsf(o[n][e]), fabsf(o[n][e + 1])));
    });
    float by[2];
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffff, most[i], 1));
      most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffff, most[i], 2));
      const auto scale = cuda::power_of(most[i]);
      by[i] = scale.inverse;
      if (threadIdx.x % 4 == 0 && g + 8 * i < tokens)
        powers[(g + 8 * i) * stride_of_powers] = scale.power;
    }
    cuda::each_pair<2 * kGroups>([&](int n, int e, int row, int column) {
      if (row < tokens)
        *reinterpret_cast<uint32_t*>(to + row * stride + column) =
            cuda::pack_f16(o[n][e] * by[e / 2], o[n][e + 1] * by[e / 2]);
    });
  }
};

// A warp of outputs, tokens 16 m .. of each chunk.
__device__ __forceinline__ void make_outputs(AcrossMemory& shared, const ChunkParams& c,
                                             const Crossing& x, int m) {
  const Dims& d = c.a.d;
#pragma unroll 1
  for (int i = 0; i < x.chunks; ++i) {
    Outputs outputs;
    outputs.make(shared, i, m);
    const int64_t at = (x.first_token + i * kChunk + 16 * m) * d.value_heads + x.head;
    outputs.store(c.a.att + at * kDim + x.first_column, d.value_width,
                  c.o_powers + at * kTiles + x.first_column / 16 / kGroups, d.value_heads * kTiles,
                  x.tokens - i * kChunk - 16 * m);
  }
}

static __global__ void __launch_bounds__(kAcrossThreads, 1)
    across_chunks(const __grid_constant__ ChunkParams c, Piece piece) {
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& shared =
      *reinterpret_cast<AcrossMemory*>(raw + (1024 - cuda::shared_address(raw) % 1024) % 1024);
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const Params& a = c.a;
  const Span span = a.spans[blockIdx.y];
  const int before = Chunks{a.spans, a.num_spans}.before(static_cast<int>(blockIdx.y));
  const int begin = max(piece.first, before), end = min(piece.end, before + Chunks::of(span.q_len));
  const int done = (begin - before) * kChunk;  // tokens in pieces before
  const Crossing x{.index = begin,
                   .first_token = span.q_start + done,
                   .tokens = span.q_len - done,
                   .chunks = end - begin,
                   .head = static_cast<int>(blockIdx.x) / kTiles,
                   .first_column = static_cast<int>(blockIdx.x) % kTiles * 16 * kGroups};
  if (x.chunks <= 0) return;
  if (threadIdx.x == 0) {
    const auto init = [](auto& barriers, int arrivals) {
      for (uint64_t& barrier : barriers)
        cuda::barrier_init(cuda::shared_address(&barrier), arrivals);
    };
    init(shared.w_full, 1), init(shared.w_free, kGroups);
    init(shared.writes_full, 3), init(shared.writes_free, kGroups);
    init(shared.reads_full, 2), init(shared.reads_free, kReaders);
    init(shared.state_full, kGroups), init(shared.values_full, kGroups);
    init(shared.passed_free, kReaders);
    cuda::barrier_init_fence();
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (warp < kGroups) {
    const int64_t size = int64_t{kDim} * a.d.value_width,
                  corner = int64_t{x.head} * kDim * kDim + x.first_column + 16 * warp;
    const int32_t from = done > 0 ? a.to[span.slot] : a.from[span.slot];
    Columns columns;
    columns.begin(from == RecurrentLayer::kNoState ? nullptr : a.state + from * size + corner);
    move_columns(shared, columns, x.chunks, warp, x.first_column + 16 * warp);
    columns.end(a.state + a.to[span.slot] * size + corner);
  } else if (warp < kGroups + kReaders) {
    make_outputs(shared, c, x, warp - kGroups);
  } else if (threadIdx.x % 32 == 0) {
    for (int i = 0; i < x.chunks; ++i)
      warp == kGroups + kReaders ? bring_writes(shared, c, x, i) : bring_reads(shared, c, x, i);
  }
}

}  // namespace nibble::ops::gpu::delta
