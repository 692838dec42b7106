// One token with NVFP4 weights in kTiles16x64 by int8 digits (cuda/mma_digits_nvfp4.cuh): a dense
// layer, or the experts chosen for it, each by itself (kChosen) or their sum (kSum). Of few tokens
// the experts of each for itself, in blocks (x, t): no token waits until all have chosen and all
// choices are sorted, and few tokens have few experts in common.
//
//   weights  in   [E][N / 16][K / 64] units of 576 bytes and [E][N] f32
//   Op       kDense: norm (NormInput) or load(0, k): 8 bf16 activations; store(0, row, first,
//            second), sums of two neighbouring rows. Experts: a TokenChoice, with choose(), by a
//            warp, or of ChosenByBlock weighed(), of what the block chooses itself;
//            publish(chosen), by the token's last block; load_one(slot, k);
//            store(slot, row, first, second) or, kSum, store(row, sum)
//
// A warp keeps to its part of K, whose digits it makes itself and keeps in registers: of each row
// tile of its block (or of each `teams`-th) it multiplies a chunk, kUnits units, that it has
// brought to a ring of its own before the wait for the kernel in front, where the block knows which
// weights. Its sums go to shared memory, and when all are there a warp a row tile adds them up.
// One block barrier lies between the wait and the end of a dense layer without a norm.
#pragma once

#include <algorithm>
#include <optional>

#include "cuda/async_copy.cuh"
#include "cuda/bf16.cuh"
#include "cuda/mma_digits_nvfp4.cuh"
#include "cuda/parameters.cuh"
#include "ops/ctx.h"
#include "ops/gpu_matmul/gemv.cuh"
#include "ops/gpu_matmul/gemv_chosen.cuh"
#include "ops/gpu_matmul/unit_one.h"
#include "ops/norm_route/block_choice.cuh"
#include "ops/weight.h"

namespace nibble::ops::gpu {

// This thread's warp, as a value that the compiler knows to be the warp's.
__device__ __forceinline__ int this_warp() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
}

// A block's row tiles and a warp's place among them. Divisions are the host's: here each is as much
// code as half a unit's products.
template <OneWork kWork>
struct OnePlace {
  static constexpr bool kSum = kWork == OneWork::kSum;
  int first, count;  // kChosen: of the sequence of all choices' row tiles
  int part, team;    // none: past the teams
  int unit, others;  // where its part of K begins; how many units of it are the part's before

  __device__ __forceinline__ explicit OnePlace(const UnitOne& m) {
    const int block = static_cast<int>(blockIdx.x), warp = this_warp();
    first = block * m.each + min(block, m.more), count = m.each + (block < m.more);
    team = warp * m.inverse_parts >> 16, part = warp - team * m.parts;
    unit = min(part * m.part_units, m.num_units - m.part_units);
    others = part * m.part_units - unit;
  }
  __device__ __forceinline__ bool works(const UnitOne& m) const { return team < m.teams; }
  // Whose row tile, kChosen.
  static __device__ __forceinline__ int choice_of(const UnitOne& m, int tile) {
    return static_cast<int>(__umulhi(static_cast<uint32_t>(tile), m.inverse_tiles));
  }
};

// What a warp takes one after the other: of each of its choices (kSum: every teams-th; else it is
// one) each of its `steps`.
struct OneCursor {
  int choice, step = 0;

  __device__ __forceinline__ void next(const UnitOne& m, int steps) {
    if (++step == steps) step = 0, choice += m.teams;
  }
};

// h = norm(x + d) of one token: this lane's 8 columns from `column` on, if there are any. `counts`:
// no other warp has the same columns. What is multiplied is h but for the factor of all columns, by
// which sums are multiplied at last, so that no warp waits for the others' squares. The last block
// stores what else is asked for.
struct UnitNorm {
  uint4 weight;
  float4 x[2];
  int64_t from;

  __device__ __forceinline__ void load_x(const NormInput& n, int column) {
    from = n.row == nullptr ? 0 : int64_t{__ldcg(n.row)} * n.hidden;
    const auto* at = reinterpret_cast<const float4*>(n.x + from + column);
    x[0] = __ldcg(at), x[1] = __ldcg(at + 1);
  }
  __device__ __forceinline__ void prepare(const NormInput& n, int column, bool has_columns) {
    if (!has_columns) return;
    weight = *reinterpret_cast<const uint4*>(n.weight + column);
    if (n.is_x_old) load_x(n, column);
  }
  // `squares` [kGemvWarps], shared.
  __device__ __forceinline__ uint4 run(const NormInput& n, int column, bool has_columns,
                                       bool counts, float* squares) {
    float y[8] = {};
    if (has_columns) {
      if (!n.is_x_old) load_x(n, column);
      const auto* d = reinterpret_cast<const float4*>(n.d + from + column);
      const float4 d0 = __ldcg(d), d1 = __ldcg(d + 1);
      y[0] = x[0].x + d0.x, y[1] = x[0].y + d0.y, y[2] = x[0].z + d0.z, y[3] = x[0].w + d0.w;
      y[4] = x[1].x + d1.x, y[5] = x[1].y + d1.y, y[6] = x[1].z + d1.z, y[7] = x[1].w + d1.w;
    }
    const float sum = warp_sum(sum_of_squares(y, 0));
    if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = counts ? sum : 0;
    if (blockIdx.x + 1 == gridDim.x) {
      __syncthreads();
      if (has_columns && counts) {
        if (n.y != nullptr) store_8(n.y, column, y);
        const float inv = inverse_rms_of<kGemvWarps>(squares, n.hidden, n.eps);
        *reinterpret_cast<uint4*>(n.h + column) = norm_8(y, inv, weight, n.offset);
      }
    }
    return norm_8(y, 1, weight, n.offset);
  }
};

template <int kUnits, OneWork kWork, class Op>
class UnitOneWarp {
 public:
  static constexpr bool kSum = kWork == OneWork::kSum;
  // Slots are filled again amid the products. Experts' mostly are not, and there it costs more than
  // it gains.
  static constexpr bool kEarly = kWork == OneWork::kDense;
  static constexpr int kChunkBytes = kUnits * cuda::kNvfp4UnitBytes;

  __device__ __forceinline__ UnitOneWarp(const UnitOne& m, const Op& op, const Choices& choices,
                                         const OnePlace<kWork>& place, uint32_t base,
                                         uint32_t barriers)
      : m_(m),
        op_(op),
        choices_(choices),
        at_(place),
        warp_(this_warp()),
        base_(base),
        barriers_(barriers) {
    next_ = first();
    next_tile_ = first_tile();
    if (next_tile_ >= at_.count) next_.choice = m.choices;
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int s = 0; s < kUnitOneStages; ++s) cuda::barrier_init(barrier(s), 1);
      cuda::barrier_init_fence();
    }
    __syncwarp();
  }
  // Fills the ring: a lane a slot, which is a third of the instructions, or one after the other.
  __device__ __forceinline__ void start() {
    if (kSum || m_.vectors > 1) {
#pragma unroll 1
      for (int s = 0; s < m_.stages; ++s) fetch(s);
      return;
    }
    const int lane = threadIdx.x % 32, tile = next_tile_ + lane * m_.teams;
    if (next_.choice < m_.choices && lane < m_.stages && tile < at_.count) bring(lane, tile);
    next_tile_ += m_.stages * m_.teams;
    if (next_tile_ >= at_.count) next_.choice = m_.choices;
  }
  // Digits of the 8 columns that each lane has of 4 units, the first such.
  __device__ __forceinline__ void store_first(const uint4& x) const { store(x, 0, digits_of(0)); }
  // What store_all() takes.
  __device__ __forceinline__ uint4 load_first() const { return load(first()); }
  // Digits of all this warp's activations, the first of them `x`; two loads are on their way.
  __device__ __forceinline__ void store_all(uint4 x) const {
    const int passes = (m_.part_units + 3) / 4;
    OneCursor at = first(), ahead = at;
    ahead.next(m_, passes);
    uint4 next = load(ahead);
#pragma unroll 1
    while (at.choice < m_.choices) {
      const uint4 now = x;
      x = next;
      ahead.next(m_, passes);
      next = load(ahead);
      store(now, at.step, digits_of(at.choice) + at.step * 4 * cuda::kUnitDigitsBytes);
      at.next(m_, passes);
    }
  }
  __device__ __forceinline__ void run(const cuda::CodeTables& tables, uint32_t sums) {
    const int lane = threadIdx.x % 32, tile_step = kSum ? 1 : m_.teams;
    const uint32_t row_bytes = m_.slices * 64, step = tile_step * row_bytes;
    sums += first_tile() * row_bytes + at_.part * 64 + (lane & 1) * 32 + lane / 4 * 4;
    uint32_t digits = digits_of(0);
    int slot = 0;
    uint32_t phase = 0;
#pragma unroll 1
    for (OneCursor at = first(); at.choice < m_.choices; at.next(m_, m_.vectors)) {
      if constexpr (kSum) digits = digits_of(at.choice) + at.step * kUnits * cuda::kUnitDigitsBytes;
      product_.load(digits);
      digits += kUnits * cuda::kUnitDigitsBytes;
      uint32_t to = sums + (at.choice * m_.vectors + at.step) * m_.parts * 64;
#pragma unroll 1
      for (int tile = first_tile(); tile < at_.count; tile += tile_step) {
        cuda::barrier_wait(barrier(slot), phase);
        const auto refill = [&] {
          __syncwarp();
          fetch(slot);
        };
        const float sum = product_.template run<kEarly>(tables, data(slot), refill);
        if constexpr (!kEarly) refill();
        if (++slot == m_.stages) slot = 0, phase ^= 1;
        if ((lane & 2) == 0) cuda::store_shared_float(to, sum);
        to += step;
      }
    }
  }

 private:
  // Worked out where they are needed: registers are few.
  __device__ __forceinline__ uint32_t barrier(int slot) const {
    return barriers_ + (warp_ * kUnitOneStages + slot) * 8;
  }
  __device__ __forceinline__ uint32_t data(int slot) const {
    return base_ + (warp_ * m_.stages + slot) * kChunkBytes;
  }
  // Of this warp's part of K, kSum: and of this choice.
  __device__ __forceinline__ uint32_t digits_of(int choice) const {
    const int place = kSum ? choice * m_.parts + at_.part : warp_;
    return base_ + m_.digits + place * m_.digits_of_part;
  }
  // Past the choices of a warp without work.
  __device__ __forceinline__ OneCursor first() const {
    return {at_.works(m_) ? (kSum ? at_.team : 0) : m_.choices};
  }
  __device__ __forceinline__ int first_tile() const { return kSum ? 0 : at_.team; }
  __device__ __forceinline__ void store(const uint4& x, int pass, uint32_t to) const {
    cuda::store_unit_digits(x, threadIdx.x % 32, to, ~0u,
                            pass * 4 + static_cast<int>(threadIdx.x) % 32 / 8 < m_.part_units);
  }
  __device__ __forceinline__ uint4 load(OneCursor at) const {
    const int unit = at.step * 4 + threadIdx.x % 32 / 8;
    if (at.choice >= m_.choices || unit >= m_.part_units || unit < at_.others) return {};
    const int k = (at_.unit + unit) * 64 + threadIdx.x % 8 * 8;
    if constexpr (kWork == OneWork::kDense)
      return op_.load(0, k);
    else
      return op_.load_one(kSum ? choices_.slot[at.choice] : 0, k);
  }
  // The next chunk's part of the block's row tile, by one lane.
  __device__ __forceinline__ void bring(int slot, int tile) const {
    int expert = 0;
    tile += at_.first;
    if constexpr (kSum) expert = choices_.expert[next_.choice];
    if constexpr (kWork == OneWork::kChosen) {
      const int k = at_.choice_of(m_, tile);
      tile -= k * m_.row_tiles;
      expert = choices_.expert[k];
    }
    const int unit = tile * m_.num_units + at_.unit + next_.step * kUnits;
    cuda::bulk_copy(data(slot),
                    m_.units + expert * m_.expert_bytes + int64_t{unit} * cuda::kNvfp4UnitBytes,
                    kChunkBytes, barrier(slot), cuda::evict_first());
  }
  // The next chunk, by lane 0; the fence is between what lanes have read of the slot and the copy.
  __device__ __forceinline__ void fetch(int slot) {
    if (next_.choice >= m_.choices) return;
    if (threadIdx.x % 32 == 0) {
      if constexpr (kEarly) cuda::bulk_store_fence();
      bring(slot, next_tile_);
    }
    next_tile_ += kSum ? 1 : m_.teams;
    if (next_tile_ >= at_.count) next_tile_ = first_tile(), next_.next(m_, m_.vectors);
  }

  const UnitOne& m_;
  const Op& op_;
  const Choices& choices_;
  const OnePlace<kWork>& at_;
  const int warp_;
  const uint32_t base_, barriers_;
  OneCursor next_{};  // to fetch
  int next_tile_;
  cuda::Nvfp4Product<kUnits> product_;
};

// The scales and biases of the block's row tiles, kSum: of each choice, on their way to shared
// memory, from where finish_row_tiles() reads them.
template <OneWork kWork>
__device__ __forceinline__ void copy_row_scales(const UnitOne& m, const OnePlace<kWork>& at,
                                                const Choices& choices, uint32_t base) {
  const auto copy = [&](int of, int quarter, int expert, int tile) {
    const int64_t row = (int64_t{expert} * m.row_tiles + tile) * 16;
    cuda::async_copy_16_if(true, base + m.scales + of * 64 + quarter * 16,
                           m.row_scales + row + quarter * 4);
    cuda::async_copy_16_if(m.bias != nullptr && quarter < 2,
                           base + m.biases + of * 32 + quarter * 16, m.bias + row + quarter * 8);
  };
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if constexpr (kWork == OneWork::kSum) {
    for (int c = warp; c < m.choices; c += kGemvWarps)
      for (int i = lane; i < at.count * 4; i += 32)
        copy(i / 4 * m.choices + c, i % 4, choices.expert[c], at.first + i / 4);
  } else {
#pragma unroll 1
    for (int i = threadIdx.x; i < at.count * 4; i += kGemvThreads) {
      int tile = at.first + i / 4, expert = 0;
      if constexpr (kWork == OneWork::kChosen) {
        const int k = at.choice_of(m, tile);
        tile -= k * m.row_tiles, expert = choices.expert[k];
      }
      copy(i / 4, i % 4, expert, tile);
    }
  }
  cuda::async_copy_commit();
}

// Adds up the sums of the block's row tiles and stores them, those of a dense layer times `by`:
// lanes 0 to 15 and 16 to 31 of a warp have half of the slices, or choices, of 16 rows.
template <OneWork kWork, class Op>
__device__ __forceinline__ void finish_row_tiles(const UnitOne& m, const OnePlace<kWork>& at,
                                                 const Choices& choices, const Op& op,
                                                 const uint8_t* shared, float by) {
  const int r = threadIdx.x % 16, half = threadIdx.x % 32 / 16;
  const auto* const scales = reinterpret_cast<const float*>(shared + m.scales) + r;
  const auto bias = [&](int of) {
    if (m.bias == nullptr) return 0.f;
    return cuda::bf16_value(reinterpret_cast<const uint16_t*>(shared + m.biases)[of * 16 + r]);
  };
#pragma unroll 1
  for (int i = threadIdx.x / 32; i < at.count; i += kGemvWarps) {
    const float* from = reinterpret_cast<const float*>(shared + m.sums) + i * m.slices * 16 + r;
    float all = 0;
    if constexpr (kWork == OneWork::kSum) {
      const int of_choice = m.parts * m.vectors;
      for (int c = half; c < m.choices; c += 2) {
        float sum = 0;
#pragma unroll 4
        for (int s = 0; s < of_choice; ++s) sum += from[(c * of_choice + s) * 16];
        const int of = i * m.choices + c;
        sum = fmaf(sum, cuda::kBlockUnit * scales[of * 16], bias(of));
        all = fmaf(choices.weight[c], sum, all);
      }
      all += __shfl_xor_sync(0xffffffff, all, 16);
      if (half == 0) op.store((at.first + i) * 16 + r, all);
    } else {
#pragma unroll 8
      for (int s = half; s < m.slices; s += 2) all += from[s * 16];
      all += __shfl_xor_sync(0xffffffff, all, 16);
      all = fmaf(all, by * scales[i * 16], bias(i));
      const float next = __shfl_down_sync(0xffffffff, all, 1);
      int tile = at.first + i, choice = 0;
      if constexpr (kWork == OneWork::kChosen) {
        choice = at.choice_of(m, tile), tile -= choice * m.row_tiles;
        choice = choices.slot[choice];
      }
      if (half == 0 && r % 2 == 0) op.store(choice, tile * 16 + r, all, next);
    }
  }
}

// Whether all threads of a block choose the experts, where that is left to it: few are chosen
// sooner by a warp, which meets no barrier.
template <class Op>
concept ChosenByBlock = requires(const Op& op, const OneChoice& one) {
  op.weighed(one);
};

// Blocks of an SM, as far as registers go.
inline constexpr int kUnitOneBlocks = NIBBLE_CUDA_SM == 121 ? 1 : 2;

template <int kUnits, OneWork kWork, class Op>
__global__ void __launch_bounds__(kGemvThreads, kUnitOneBlocks)
    unit_one(const __grid_constant__ UnitOne m, const __grid_constant__ Op op) {
  constexpr bool kMoe = kWork != OneWork::kDense, kSum = kWork == OneWork::kSum;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ float squares[kGemvWarps];
  __shared__ __align__(8) uint64_t barriers[kGemvWarps * kUnitOneStages], table_words[kGemvWarps];
  __shared__ Choices choices;
  const uint32_t base = cuda::shared_address(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (!m.releases_late) cuda::griddep_launch_dependents();
  const OnePlace<kWork> place(m);
  UnitOneWarp<kUnits, kWork, Op> mine(m, op, choices, place, base, cuda::shared_address(barriers));
  const cuda::CodeTables tables(cuda::shared_address(&table_words[warp]));
  cuda::touch_parameters(m, op);

  if constexpr (kMoe) {
    constexpr int kChooser = kGemvWarps - 1;
    OneChoice chosen{};
    uint4 x{};
    if constexpr (ChosenByBlock<Op>) {
      __shared__ BlockChoice<kGemvThreads> choice;
      choice.clear();
      __syncthreads();
      if (!kSum || !op.is_chosen_before) cuda::griddep_wait();
      if (op.is_left()) chosen = choose_left(choice, op.here());
      if (warp == kChooser) chosen = op.is_left() ? op.weighed(chosen) : op.chosen();
      if constexpr (!kSum) x = mine.load_first();
    } else {
      if (!kSum || !op.is_chosen_before) cuda::griddep_wait();
      if constexpr (!kSum) x = mine.load_first();
      if (warp == kChooser) chosen = op.choose();
    }
    const auto begin = [&] {
      if (warp == kChooser) op.fill(choices, chosen);
      __syncthreads();
      mine.start();
      // Not before, nor, kSum, before all weights in front have come: the next kernel's would come
      // in front of them.
      if constexpr (!kSum) cuda::griddep_launch_dependents();
      copy_row_scales(m, place, choices, base);
      if constexpr (kSum)
        cuda::griddep_wait(), cuda::griddep_launch_dependents(), x = mine.load_first();
    };
    // What chosen experts meet is asked for before their weights, and its digits are made while one
    // warp chooses; that warp's, and where all choose, while the weights come.
    if constexpr (kSum || ChosenByBlock<Op>) {
      begin();
      mine.store_all(x);
    } else {
#pragma unroll 1
      for (int late = 0; late < 2; ++late) {
        if (late == (warp == kChooser)) mine.store_all(x);
        if (late == 0) begin();
      }
    }
    if (warp == kChooser && blockIdx.x + 1 == gridDim.x) op.publish(chosen);
  } else {
    mine.start();
    copy_row_scales(m, place, choices, base);
    if constexpr (HasNorm<Op>) {
      const int column = place.unit * 64 + lane * 8;
      const bool has_columns =
          place.works(m) && lane < 8 * m.part_units && lane >= 8 * place.others;
      UnitNorm norm{};
      norm.prepare(op.norm, column, has_columns);
      cuda::griddep_wait();
      mine.store_first(norm.run(op.norm, column, has_columns, place.team == 0, squares));
    } else {
      cuda::griddep_wait();
      if (m.releases_late) cuda::griddep_launch_dependents();
      mine.store_all(mine.load_first());
    }
  }
  __syncwarp();
  mine.run(tables, base + m.sums);
  cuda::async_copy_wait<0>();
  __syncthreads();
  float by = cuda::kBlockUnit;
  if constexpr (HasNorm<Op>) by *= inverse_rms_of<kGemvWarps>(squares, op.norm.hidden, op.norm.eps);
  finish_row_tiles(m, place, choices, op, shared, by);
}

// `alone`: no two blocks share an SM, where the kernel before leaves it empty. `tokens`: of
// experts.
template <OneWork kWork, class Op>
void launch_unit_one(Ctx& cx, const Weight& w, const Op& op, bool alone, int tokens = 1) {
  CHECK(w.layout == Layout::kTiles16x64 && w.format == Format::kNvfp4);
  int top_k = 1;
  if constexpr (kWork != OneWork::kDense) top_k = op.top_k;
  const auto plan = plan_unit_one(
      {kWork, w.rows, w.cols, top_k, HasNorm<Op>, tokens, w.bias != nullptr}, cx.kernels.gpu);
  CHECK(plan);
  UnitOne m = *plan;
  m.units = w.codes, m.row_scales = w.row_scales, m.bias = w.bias;
  m.expert_bytes = w.rows * w.row_code_bytes();
  const cuda::LaunchShape shape{
      .grid = dim3(m.grid, tokens),
      .block = dim3(kGemvThreads),
      .smem_bytes = alone ? std::max<size_t>(m.end, kOneBlockBytes) : m.end,
      .release = m.releases_late ? cuda::Release::kAfterWait : cuda::Release::kBeforeWait};
  const auto launch = [&]<int kUnits>() {
    cuda::launch(cx.stream, unit_one<kUnits, kWork, Op>, shape, m, op);
  };
  if (m.chunk_units == 4) return launch.template operator()<4>();
  if (m.chunk_units == 3) return launch.template operator()<3>();
  if (m.chunk_units == 2) return launch.template operator()<2>();
  launch.template operator()<1>();
}

}  // namespace nibble::ops::gpu
