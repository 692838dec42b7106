// Few tokens with weights in kTiles16x64, decoded to bf16 in registers (unit.cuh), by mma.sync:
// dense layers and experts of any size. y[slot] = x[row of slot] W_e^T + b_e, e the slot's expert.
//
//   weights  in   [E][N / 16][K / 64] units of U::kBytes, and of NVFP4 and FP8 in rows [E][N] f32
//   Op       load(row, k): 8 bf16 activations, or norm, of one token (NormInput); store(row, weight
//            row, first, second) with the sums of two neighbouring rows; tokens, or of experts:
//            offsets, experts, is_chosen_before
//
// N % 16 == 0, K % 64 == 0. The work is the row tiles (16 rows) of all groups, a group being up to
// 8 kTokenTiles tokens of an expert, or of all of a dense layer; a block takes a contiguous share.
// `split` of its warps share K of a row tile, each with its own ring of bulk copies, which fills
// before griddep_wait() where the block knows which weights. Activations stand in shared memory as
// rows of bf16, as many groups' as fit. After a round of row tiles the block adds up the warps'
// sums in order and stores them.
//
// Sums: one chain over K for each of `split` warps, which depends on K alone, then those in
// sequence: the same for a token alone and in any batch.
//
// kDigits, experts where bits may depend on the batch: groups of one or two tokens go by int8
// digits (cuda/mma_digits_nvfp4.cuh), 60 or 80 instructions a unit instead of 118, which bind.
//
// Bytes: the weights once a group of tokens. Qwen3-8B's gate and up (24,576 x 4,096 in NVFP4): 56.6
// MB, 12.9 us at an H200's 4.4 TB/s.
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "cuda/mma_bf16.cuh"
#include "cuda/mma_digits_nvfp4.cuh"
#include "cuda/parameters.cuh"
#include "ops/ctx.h"
#include "ops/gpu_matmul/dense_groups.cuh"
#include "ops/gpu_matmul/gemv.cuh"
#include "ops/gpu_matmul/unit.cuh"
#include "ops/routing.h"
#include "ops/weight.h"

namespace nibble::ops::gpu {

inline constexpr int kUnitGemvStages = NIBBLE_CUDA_SM == 121 ? 2 : 3;  // at most
inline constexpr int kDigitTokens = 2;  // most of a group that goes by digits

struct UnitGemv {
  const uint8_t* units;
  const float* row_scales;  // or none
  const uint16_t* bias;     // or none
  int64_t expert_bytes;
  int row_tiles, num_units;
  int row_units;                  // from a row tile to the next: more than num_units of a slice
  int split;                      // warps that share K
  int stages;                     // of a warp's ring
  int group_rows;                 // most of a group
  int held_rows;                  // of activations in shared memory
  int pitch;                      // bytes between those
  int round_tiles;                // whose sums of warps are kept at a time
  uint32_t x, parts, part_bytes;  // where in shared memory
};

// Of a row tile with a group's tokens: the weights, and products.
template <bool kDigits>
struct UnitTileCost {
  static constexpr bool kPaired = false;
  static __device__ __forceinline__ int of(int rows) {
    if (kDigits && rows <= kDigitTokens) return rows == 0 ? 0 : 4;
    return rows == 0 ? 0 : 5 + (rows + 7) / 8;
  }
};

// What a warp multiplies of each row tile: units [begin, end); and its ring of chunks of them.
template <class U>
class UnitRing {
 public:
  static constexpr int kUnits = U::kHasNibbles ? 4 : 2;  // of a chunk
  static constexpr int kSlotBytes = kUnits * U::kBytes;

  __device__ __forceinline__ UnitRing(const UnitGemv& m, uint32_t memory, uint32_t barriers)
      : stages_(m.stages) {
    const int warp = threadIdx.x / 32, part = warp % m.split;
    begin = m.num_units * part / m.split, end = m.num_units * (part + 1) / m.split;
    data_ = memory + warp * m.stages * kSlotBytes;
    barrier_ = barriers + warp * kUnitGemvStages * 8;
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int s = 0; s < kUnitGemvStages; ++s) cuda::barrier_init(barrier_ + s * 8, 1);
      cuda::barrier_init_fence();
    }
    __syncwarp();
  }
  // By lane 0: starts the copy of `n` units into slot s.
  __device__ __forceinline__ void fetch(int s, const uint8_t* from, int n) const {
    cuda::bulk_copy(data_ + s * kSlotBytes, from, n * U::kBytes, barrier_ + s * 8,
                    cuda::evict_first());
  }
  __device__ __forceinline__ uint32_t take() const {
    cuda::barrier_wait(barrier_ + slot * 8, phase_);
    return data_ + slot * kSlotBytes;
  }
  __device__ __forceinline__ void advance() {
    if (++slot == stages_) slot = 0, phase_ ^= 1;
  }

  int begin, end, slot = 0;

 private:
  const int stages_;
  uint32_t data_, barrier_, phase_ = 0;
};

// d += a unit of weights times kTokenTiles times 8 tokens, of whose tiles `tiles` are any. x: this
// lane's row of the unit's activations, as load_matrices() asks, of each tile.
template <class U, int kTokenTiles>
__device__ __forceinline__ void multiply_unit(float (&d)[kTokenTiles][4], uint32_t unit,
                                              const uint32_t (&x)[kTokenTiles], uint32_t offset,
                                              int tiles) {
  const auto q = load_codes<U>(unit + threadIdx.x % 32 * 16);
  const typename U::Scales s = load_scales<U>(unit);
  const auto multiply = [&]<int kHalf>() {
    uint32_t a0[4], a1[4];
    [[maybe_unused]] const float2 scale = decode_for_sums<U, kHalf>(q, s, a0, a1);
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      if (t > 0 && t >= tiles) break;
      uint32_t b[4];
      cuda::load_matrices(b, x[t] + offset + kHalf * 64);
      float part[4] = {};
      float(&sum)[4] = U::kScalesSums ? part : d[t];
      cuda::mma_bf16(sum, a0[0], a0[1], a0[2], a0[3], b[0], b[1]);
      cuda::mma_bf16(sum, a1[0], a1[1], a1[2], a1[3], b[2], b[3]);
      if constexpr (U::kScalesSums) add_scaled(d[t], part, scale);
    }
  };
  multiply.template operator()<0>(), multiply.template operator()<1>();
}

// h = norm(x + d) of one token, to shared memory, as add_norm() works it out: by its 12 warps. The
// last block stores what else is asked for. A barrier follows.
__device__ __forceinline__ void norm_to_shared(const NormInput& n, uint8_t* to) {
  constexpr int kThreads = kNormWarps * 32, kGroups = 3;  // of 8 columns: 9,216 of them
  static_assert(kThreads <= kGemvThreads || NIBBLE_CUDA_SM == 121);
  __shared__ float squares[kNormWarps];
  const int thread = threadIdx.x;
  const bool is_last = blockIdx.x + 1 == gridDim.x;
  float y[kGroups][8] = {}, sum = 0;
  if (thread < kThreads) {
    const int64_t from = n.row == nullptr ? 0 : int64_t{*n.row} * n.hidden;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int column = 8 * (i * kThreads + thread);
      if (column < n.hidden) add_8(y[i], n.x, n.d, from + column);
      sum = sum_of_squares(y[i], sum);
    }
    sum = warp_sum(sum);
    if (thread % 32 == 0) squares[thread / 32] = sum;
  }
  __syncthreads();
  if (thread >= kThreads) return;
  const float inv = inverse_rms_of<kNormWarps>(squares, n.hidden, n.eps);
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const int column = 8 * (i * kThreads + thread);
    if (column >= n.hidden) continue;
    const uint4 h = norm_8(y[i], inv, *reinterpret_cast<const uint4*>(n.weight + column), n.offset);
    *reinterpret_cast<uint4*>(to + 2 * column) = h;
    if (!is_last) continue;
    if (n.y != nullptr) store_8(n.y, column, y[i]);
    *reinterpret_cast<uint4*>(n.h + column) = h;
  }
}

// A group's rows of activations, to shared memory from row `held` on; several loads of a thread are
// on their way at once.
template <bool kDigits, class Op>
__device__ __forceinline__ void load_rows(const UnitGemv& m, const Group& group, const Op& op,
                                          uint8_t* shared, uint32_t base, int held) {
  constexpr int kAtOnce = 4;
  const int per_row = m.num_units * 8, pieces = group.rows * per_row;  // of 16 bytes
#pragma unroll 1
  for (int first = threadIdx.x; first < pieces; first += kAtOnce * kGemvThreads) {
    uint4 v[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * kGemvThreads, row = i / per_row;
      if (i < pieces) v[j] = op.load(group.row0 + row, (i - row * per_row) * 8);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * kGemvThreads, row = i / per_row, piece = i - row * per_row;
      if (i >= pieces) break;
      const uint32_t to = m.x + (held + row) * m.pitch;
      if (kDigits && group.rows <= kDigitTokens)
        cuda::store_unit_digits(v[j], piece, base + to);
      else
        *reinterpret_cast<uint4*>(shared + to + piece * 16) = v[j];
    }
  }
}

// Adds up a round's row tiles [begin, end) of a group and stores them.
template <class U, bool kDigits, class Op>
__device__ __forceinline__ void finish_units(const UnitGemv& m, const float* parts,
                                             const Group& group, int begin, int end, const Op& op) {
  const int rows = group.rows, pairs = (end - begin) * 8, part_floats = 16 * rows;
#pragma unroll 1
  for (int i = threadIdx.x; i < pairs * rows; i += kGemvThreads) {
    const int pair = i / rows, token = i - pair * rows, item = pair / 8;
    const int row = (begin + item - group.first_item) * 16 + pair % 8 * 2;
    const float* from = parts + item * m.split * part_floats + pair % 8 * 2 * rows + token;
    float2 sum{0, 0};
#pragma unroll 4
    for (int s = 0; s < m.split; ++s, from += part_floats) sum.x += from[0], sum.y += from[rows];
    const int64_t at = HasSlices<Op> ? row : int64_t{group.expert} * m.row_tiles * 16 + row;
    const float factor = kDigits && rows <= kDigitTokens ? 1 : kSumFactor;
    float2 back{factor, factor}, bias{0, 0};
    if constexpr (U::kHasRowScales) {
      const float2 scale = *reinterpret_cast<const float2*>(m.row_scales + at);
      back = {factor * scale.x, factor * scale.y};
    }
    if (m.bias != nullptr && (!HasSlices<Op> || group.expert == 0)) {
      const uint32_t two = *reinterpret_cast<const uint32_t*>(m.bias + at);
      bias = {cuda::bf16_lo(two), cuda::bf16_hi(two)};
    }
    op.store(group.row0 + token, row, fmaf(sum.x, back.x, bias.x), fmaf(sum.y, back.y, bias.y));
  }
}

template <class U, int kTokenTiles, bool kMoe, bool kDigits, class Op>
__global__ void __launch_bounds__(kGemvThreads, 1)
    unit_gemv(const __grid_constant__ UnitGemv m, const __grid_constant__ Op op) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kGemvWarps * kUnitGemvStages];
  __shared__ std::conditional_t<kMoe, Groups<UnitTileCost<kDigits>, kMaxExperts>, char> groups;
  __shared__ __align__(8) uint64_t table_words[kDigits ? kGemvWarps : 1];
  const uint32_t base = cuda::shared_address(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if constexpr (!kMoe) cuda::griddep_launch_dependents();
  UnitRing<U> ring(m, base, cuda::shared_address(barriers));
  [[maybe_unused]] const auto tables = [&] {
    if constexpr (kDigits)
      return cuda::CodeTables(cuda::shared_address(&table_words[warp]));
    else
      return 0;
  }();
  cuda::touch_parameters(m, op);

  const auto wait = [] {
    cuda::griddep_wait();
    if constexpr (kMoe) cuda::griddep_launch_dependents();
  };
  bool waits_first = false;
  [[maybe_unused]] int experts = 1;
  if constexpr (kMoe) {
    waits_first = !op.is_chosen_before;
    if (waits_first) wait();
    experts = op.experts;
    for (int e = threadIdx.x; e <= experts; e += kGemvThreads)
      groups.offset[e] = __ldcg(op.offsets + e);
    __syncthreads();
    groups.count(experts, m.group_rows);
  }
  const auto share = [&](int block) {
    if constexpr (kMoe)
      return groups.share(block, gridDim.x, experts, m.group_rows, m.row_tiles);
    else
      return dense_groups(op).share(block, gridDim.x, m.group_rows, m.row_tiles);
  };
  const int first = share(blockIdx.x), last = share(blockIdx.x + 1);
  const auto group_at = [&](int item) {
    if constexpr (kMoe)
      return groups.at(item, last, experts, m.group_rows, m.row_tiles);
    else
      return dense_groups(op).at(item, last, m.group_rows, m.row_tiles);
  };

  // This warp's row tiles: every `apart`-th of the share.
  const int apart = kGemvWarps / m.split;
  int next_item = first + warp / m.split, next_unit = ring.begin, next_end = 0;
  const uint8_t* from = nullptr;  // row tile 0 of the next one's group
  const auto fetch = [&](int slot) {
    if (next_item >= last || ring.begin == ring.end) return;
    if (next_item >= next_end) {
      const Group group = group_at(next_item);
      next_end = group.end;
      from = m.units + group.expert * m.expert_bytes -
             int64_t{group.first_item} * m.row_units * U::kBytes;
    }
    const int n = min(UnitRing<U>::kUnits, ring.end - next_unit);
    if (lane == 0)
      ring.fetch(slot, from + (int64_t{next_item} * m.row_units + next_unit) * U::kBytes, n);
    next_unit += n;
    if (next_unit == ring.end) next_unit = ring.begin, next_item += apart;
  };
#pragma unroll 1
  for (int s = 0; s < m.stages; ++s) fetch(s);
  if constexpr (HasNorm<Op>)
    for (int i = threadIdx.x; i < op.norm.hidden / 32; i += kGemvThreads)
      touch(op.norm.weight + i * 32);
  if constexpr (!kMoe && U::kHasRowScales)
    for (int i = first * 16 + threadIdx.x; i < last * 16; i += kGemvThreads)
      touch(m.row_scales + i % (m.row_tiles * 16));
  if (!waits_first) wait();

  int item = first + warp / m.split;
  uint32_t parts = m.parts;  // two buffers take turns
  // This warp's part of a row tile, unit by unit: add(shared address, index of the unit).
  const auto run_tile = [&](const auto& add) {
    for (int unit = ring.begin; unit < ring.end; unit += UnitRing<U>::kUnits) {
      const int n = min(UnitRing<U>::kUnits, ring.end - unit);
      const uint32_t at = ring.take();
#pragma unroll 1
      for (int u = 0; u < n; ++u) add(at + u * U::kBytes, unit + u);
      __syncwarp();
      fetch(ring.slot);
      ring.advance();
    }
  };
  [[maybe_unused]] const auto multiply_digits = [&]<int kTokens>(const Group& group, int held,
                                                                 float* to) {
    const uint32_t x = base + m.x + held * m.pitch;
    cuda::Nvfp4Tokens<kTokens> tokens(x, x + m.pitch);
    run_tile([&](uint32_t at, int unit) { tokens.add(tables, at, unit); });
    const float2 sum = tokens.total();
    if (lane % 4 >= kTokens) return;
    to[lane % 4] = sum.x, to[8 * group.rows + lane % 4] = sum.y;
  };
  const auto multiply_bf16 = [&](const Group& group, int held, float* to) {
    const int tiles = (group.rows + 7) / 8;
    // Columns past the tokens read the last one again; nothing reads what comes of it.
    uint32_t x[kTokenTiles];
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t)
      x[t] = base + m.x + (held + min(t * 8 + lane % 8, group.rows - 1)) * m.pitch + lane / 8 * 16;
    float d[kTokenTiles][4] = {};
    run_tile([&](uint32_t at, int unit) { multiply_unit<U>(d, at, x, unit * 128, tiles); });
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = t * 8 + lane % 4 * 2 + i;
        if (token >= group.rows) continue;
        to[token] = d[t][i];
        to[8 * group.rows + token] = d[t][i + 2];
      }
  };
  const auto run_group = [&](const Group& group, int held) {
    for (int begin = max(first, group.first_item); begin < group.end; begin += m.round_tiles) {
      const int end = min(group.end, begin + m.round_tiles);
      for (; item < end; item += apart) {
        auto* const to = reinterpret_cast<float*>(shared + parts) +
                         ((item - begin) * m.split + warp % m.split) * 16 * group.rows +
                         lane / 4 * group.rows;
        if constexpr (kDigits) {
          if (group.rows == 1) {
            multiply_digits.template operator()<1>(group, held, to);
            continue;
          }
          if (group.rows == 2) {
            multiply_digits.template operator()<2>(group, held, to);
            continue;
          }
        }
        multiply_bf16(group, held, to);
      }
      __syncthreads();
      finish_units<U, kDigits>(m, reinterpret_cast<const float*>(shared + parts), group, begin, end,
                               op);
      parts = 2 * m.parts + m.part_bytes - parts;
    }
  };
  // Groups whose activations are held together: behind the last barrier nobody reads those before.
  for (int begin = first; begin < last;) {
    int end = begin;
    for (int held = 0; end < last;) {
      const Group group = group_at(end);
      if (held + group.rows > m.held_rows) break;
      if constexpr (HasNorm<Op>) {
        norm_to_shared(op.norm, shared + m.x);
      } else {
        load_rows<kDigits>(m, group, op, shared, base, held);
      }
      held += group.rows;
      end = group.end;
    }
    __syncthreads();
    for (int held = 0; begin < end;) {
      const Group group = group_at(begin);
      run_group(group, held);
      held += group.rows;
      begin = group.end;
    }
  }
}

// Warps that share K of a row tile, for the least time of one token, whose row tiles blocks share
// out: a visit costs its units of K and what one and a half of them do.
inline int warps_of_row_tile(const Ctx& cx, const UnitGemv& m, int experts) {
  const auto blocks = static_cast<int>(grid_of(cx, m.row_tiles * int64_t{experts}));
  const int tiles = (m.row_tiles * experts + blocks - 1) / blocks;
  int best = 1, least = std::numeric_limits<int>::max();
  for (int split = 1; split <= kGemvWarps && split <= m.num_units; split *= 2) {
    const int visits = (tiles * split + kGemvWarps - 1) / kGemvWarps;
    const int cost = visits * (2 * ((m.num_units + split - 1) / split) + 3);
    if (cost < least) best = split, least = cost;
  }
  return best;
}

// `most_rows`: of an expert, or the tokens; `experts`: that one token meets, or slices of K.
template <class U, int kTokenTiles, bool kMoe, bool kDigits = false, class Op>
void launch_unit_gemv(Ctx& cx, const Weight& w, const Op& op, int64_t most_rows, int experts = 1) {
  UnitGemv m{.units = w.codes,
             .row_scales = w.row_scales,
             .bias = w.bias,
             .expert_bytes = w.rows * w.row_code_bytes(),
             .row_tiles = static_cast<int>(w.rows / 16),
             .num_units = static_cast<int>(w.cols / 64),
             .row_units = static_cast<int>(w.cols / 64),
             .split = 1,
             .stages = kUnitGemvStages,
             .pitch = static_cast<int>(kDigits ? w.cols / 64 * cuda::kUnitDigitsBytes + 16
                                               : 2 * w.cols + 16)};
  if constexpr (HasSlices<Op>) {
    m.num_units /= experts, m.pitch = m.num_units * 128 + 16;
    m.expert_bytes = int64_t{m.num_units} * U::kBytes;
  }
  m.split = warps_of_row_tile(cx, m, experts);
  const int apart = kGemvWarps / m.split;
  const auto round_of = [&](int group_rows) {
    const int tile_bytes = m.split * 64 * group_rows;
    m.round_tiles = std::max(1, kOneRoundBytes / tile_bytes / apart) * apart;
    m.part_bytes = static_cast<uint32_t>(m.round_tiles * tile_bytes);
  };
  // Less what it declares.
  const int64_t free = cx.kernels.gpu.smem_per_block_bytes - (kMoe ? 8 : 6) * 1024;
  const auto room = [&] {
    round_of(m.group_rows);
    const int64_t rings = int64_t{kGemvWarps} * m.stages * UnitRing<U>::kSlotBytes;
    return static_cast<int>((free - rings - 2 * int64_t{m.part_bytes}) / m.pitch);
  };
  m.group_rows = static_cast<int>(std::min<int64_t>(most_rows, 8 * kTokenTiles));
  while (room() < m.group_rows) {
    if (m.stages > 2)
      --m.stages;
    else
      m.group_rows = m.group_rows - 1;
    CHECK(m.group_rows > 0);
  }
  m.held_rows = std::min(room(), kMoe ? 4 * m.group_rows : m.group_rows);
  m.x = static_cast<uint32_t>(kGemvWarps * m.stages * UnitRing<U>::kSlotBytes);
  m.parts = (m.x + static_cast<uint32_t>(m.held_rows * m.pitch) + 127) / 128 * 128;
  const size_t bytes = m.parts + 2 * m.part_bytes;
  cuda::launch(cx.stream, unit_gemv<U, kTokenTiles, kMoe, kDigits, Op>,
               {.grid = dim3(grid_of(cx, m.row_tiles * (HasSlices<Op> ? experts : w.experts))),
                .block = dim3(kGemvThreads),
                .smem_bytes = std::max(bytes, kOneBlockBytes),
                .release = kMoe ? cuda::Release::kAfterWait : cuda::Release::kBeforeWait},
               m, op);
}

// Experts: groups as large as what most of them meet.
template <class Op>
void launch_unit_experts(Ctx& cx, const Weight& w, const Op& op, const Routing& routing) {
  CHECK(routing.num_experts <= kMaxExperts);
  const int64_t most = routing.num_tokens, met = most * routing.top_k;
  const int64_t mean = met / routing.num_experts;
  with_unit_format(w, [&]<Format kFormat>() {
    using U = Unit<kFormat>;
    // Of more choices most experts meet more tokens than go by digits.
    const bool is_few = !cx.kernels.exact && 2 * met <= 3 * routing.num_experts;
    if constexpr (kFormat == Format::kNvfp4) {
      if (is_few) return launch_unit_gemv<U, 1, true, true>(cx, w, op, most, routing.top_k);
    }
    if (most <= 8 || mean <= 4) return launch_unit_gemv<U, 1, true>(cx, w, op, most, routing.top_k);
    if (most <= 16 || mean <= 10)
      return launch_unit_gemv<U, 2, true>(cx, w, op, most, routing.top_k);
    launch_unit_gemv<U, 3, true>(cx, w, op, most, routing.top_k);
  });
}

}  // namespace nibble::ops::gpu
