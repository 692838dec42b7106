// The third kernel of delta_rule_chunks_cuda.cu: states from chunk to chunk.
#pragma once

#include "cuda/bulk_copy.cuh"
#include "ops/delta_rule/delta_rule_chunks.cuh"

namespace nibble::ops::gpu::delta {

// A block has 16 kGroups columns of a value head's state; grid (HV * kTiles, S). A warp of each 16
// keeps them for all chunks, turned: what comes out of one product goes into the next in the same
// registers, and warps do not meet. Four more make the outputs, 16 tokens each, and the last one
// brings chunks.
inline constexpr int kReaders = 4, kAcrossThreads = 32 * (kGroups + kReaders + 1);

struct WriteStage {
  HeadImage::Writes head;
  uint8_t k[sizeof(KeyImage::k)];
  uint4 u[kGroups][kChunk / 16][32];
};
struct ReadStage {
  HeadImage::Reads head;
  uint8_t q[sizeof(KeyImage::q)];
};
// From the warps of columns to those of outputs, by lane.
struct Passed {
  uint4 state[kGroups][kDim / 16][32];     // before the chunk, f16, as b of mma.m16n8k16
  float4 values[kGroups][kChunk / 8][32];  // V', by 8 tokens, in TF32
  float unit[kGroups];                     // of both
};
struct AcrossMemory {
  WriteStage writes[kStages];
  ReadStage reads[kStages];
  Passed passed[kStages];
  uint64_t writes_full[kStages], writes_free[kStages];
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

// By one thread: what the block takes of the i-th chunk, first what is free first.
__device__ __forceinline__ void bring_chunk(AcrossMemory& shared, const ChunkParams& c,
                                            const Crossing& x, int i) {
  const HeadImage& head = c.heads[(x.index + i) * c.a.d.value_heads + x.head];
  const KeyImage& key = key_image(c, x, i);
  WriteStage& writes = shared.writes[i % kStages];
  uint32_t full = cuda::shared_address(&shared.writes_full[i % kStages]);
  wait_free(shared.writes_free, i);
  cuda::bulk_copy(cuda::shared_address(&writes.head), &head.writes, sizeof(head.writes), full);
  cuda::bulk_copy(cuda::shared_address(writes.k), key.k, sizeof(key.k), full);
  cuda::bulk_copy(cuda::shared_address(writes.u), head.u[x.first_column / 16], sizeof(writes.u),
                  full);
  ReadStage& reads = shared.reads[i % kStages];
  full = cuda::shared_address(&shared.reads_full[i % kStages]);
  wait_free(shared.reads_free, i);
  cuda::bulk_copy(cuda::shared_address(&reads.head), &head.reads, sizeof(head.reads), full);
  cuda::bulk_copy(cuda::shared_address(reads.q), key.q, sizeof(key.q), full);
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
  // A chunk from its V' in this unit. `most`: no element of s is larger.
  __device__ __forceinline__ void advance(const WriteStage& stage, const float (&v)[kChunk / 8][4],
                                          float most) {
    const int p = threadIdx.x % 4;
    float x[kChunk / 8][4], most_of_x[4] = {};
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
      const float2 left = *reinterpret_cast<const float2*>(stage.head.left + 8 * n + 2 * p);
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        x[n][i] = v[n][i] * left.x, x[n][i + 1] = v[n][i + 1] * left.y;
        most_of_x[i] = fmaxf(most_of_x[i], fabsf(x[n][i]));
        most_of_x[i + 1] = fmaxf(most_of_x[i + 1], fabsf(x[n][i + 1]));
      }
    }
    // Keys have a length of one, to f16's rounding.
    const float kept = stage.head.kept;
    const float bound = fmaf(1.01f * kChunk, warp_max(most_of_x), kept * most);
    const float next = fitting(bound * unit), change = unit * next;
    unit = inverse_power(next);
    uint32_t a[kChunk / 16][4];
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
  }
};

// A warp of columns, the state's from `column` on: V' and the state, from chunk to chunk.
__device__ __forceinline__ void move_columns(AcrossMemory& shared, Columns& columns, int chunks,
                                             int group, int column) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int i = 0; i < chunks; ++i) {
    const WriteStage& stage = shared.writes[i % kStages];
    Passed& to = shared.passed[i % kStages];
    wait_full(shared.writes_full, i);
    uint32_t a[kDim / 16][4];
    const float most = columns.to_f16(a);
    float v[kChunk / 8][4] = {};
    const RowsOfDim w{cuda::shared_address(stage.head.w)};
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
      for (int n = 0; n < kChunk / 8; n += 2) {
        uint32_t b[4];
        w.load_b(b, 8 * n, 16 * k);
        cuda::mma_f16(v[n], a[k][0], a[k][1], a[k][2], a[k][3], b[0], b[1]);
        cuda::mma_f16(v[n + 1], a[k][0], a[k][1], a[k][2], a[k][3], b[2], b[3]);
      }
    wait_free(shared.passed_free, i);
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k)
      to.state[group][k][lane] = {a[k][0], a[k][1], a[k][2], a[k][3]};
    if (lane == 0) to.unit[group] = columns.unit;
    arrive(shared.state_full, i);
    const float by = stage.head.units[column / 16] * inverse_power(columns.unit);
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
    columns.advance(stage, v, most);
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n)
      to.values[group][n][lane] = {cuda::to_tf32(v[n][0]), cuda::to_tf32(v[n][1]),
                                   cuda::to_tf32(v[n][2]), cuda::to_tf32(v[n][3])};
    arrive(shared.values_full, i);
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
    const RowsOfDim q{cuda::shared_address(stage.q)};
    const RowsOfChunk p{cuda::shared_address(stage.head.p)};
#pragma unroll
    for (auto& of : o) of[0] = of[1] = of[2] = of[3] = 0;
    wait_full(shared.reads_full, i);
    wait_full(shared.state_full, i);
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
  extern __shared__ __align__(128) uint8_t raw[];
  auto& shared = *reinterpret_cast<AcrossMemory*>(raw);
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
    for (int i = 0; i < x.chunks; ++i) bring_chunk(shared, c, x, i);
  }
}

}  // namespace nibble::ops::gpu::delta
