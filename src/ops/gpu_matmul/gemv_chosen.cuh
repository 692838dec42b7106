// One token and the experts chosen for it: moe_up (every row of every expert) and moe_down (sums
// over the experts), MXFP4 weights in kTiles16x64 by int8 digits. Of few tokens each for itself, in
// blocks (x, t): no token waits until all have chosen and all choices are sorted, and few tokens
// have few experts in common.
//
// Worker warp w multiplies chunk w (and w + 15 ...) of every row tile of its block: the digits of
// its columns stay in registers, and it brings its chunks through a ring of its own. The last warp
// chooses the experts and finishes row tiles as their sums come in, while the workers are at the
// next: no block barrier stands between the first weight and the last. Two blocks of a cluster
// share the row tiles of a sum over experts, each with half of the choices; the first adds both.
// Sums are those of grouped_gemm, bit for bit: inside a chunk as mma_digits says, chunks in
// sequence, bias.
//
// Bound by instructions, then by the memory. Lost: experts brought into L2 beforehand, weights
// straight to registers, other numbers of stages: docs/lab/one-token.md.
#pragma once

#include <type_traits>

#include "cuda/async_copy.cuh"
#include "cuda/bf16.cuh"
#include "cuda/cluster.cuh"
#include "cuda/parameters.cuh"
#include "ops/gpu_matmul/chosen_plan.h"
#include "ops/gpu_matmul/gemv.cuh"
#include "ops/norm_route/route.cuh"

namespace nibble::ops::gpu {

inline constexpr int kWorkers = 15;  // chunks of 3 units that 2,880 columns have
inline constexpr int kChosenThreads = (kWorkers + 1) * 32;

// One token's choices: of a product per expert by slot or in their order, of a sum in their order.
struct Choices {
  int expert[kMaxChoices], slot[kMaxChoices];
  float weight[kMaxChoices];
};

// A row tile of an expert.
struct ChosenItem {
  const uint8_t* from;  // its weights
  int choice, row;
};

// What a block has: a piece of the sequence of all choices' row tiles or, kSum, the same row tiles
// of each of its choices, of which each is a run of items.
struct ChosenShare {
  int first, run, runs, first_choice;

  template <bool kSum>
  static __device__ __forceinline__ ChosenShare of(int row_tiles, int top_k) {
    if constexpr (kSum) {
      const Share mine(row_tiles, blockIdx.x / 2, gridDim.x / 2);
      const int half = (top_k + 1) / 2;
      const bool is_second = blockIdx.x % 2 == 1;
      return {mine.begin, mine.end - mine.begin, is_second ? top_k - half : half,
              is_second ? half : 0};
    } else {
      const Share mine(row_tiles * top_k, blockIdx.x, gridDim.x);
      return {mine.begin, mine.end - mine.begin, 1, 0};
    }
  }
  __device__ __forceinline__ int items() const { return run * runs; }
};

struct ChosenMemory {
  uint32_t digits, parts, end;
};

// kMost: items of a block.
template <int kStages, bool kSum, int kMost>
struct ChosenShared {
  static constexpr int kSumItems = kSum ? kMost : 1;
  uint64_t table_words[kWorkers];
  uint64_t done[kMost];          // all lanes of all chunks of an item have stored their sums
  uint64_t received[kSumItems];  // the other block's sums of a row tile
  float sums[kSumItems][16], other[kSumItems][16];
  uint16_t bias[kMost][16];
  ChosenItem items[kMost + kStages];  // workers look ahead
  ChosenShare share;
  Choices choices;
};

// The choices are there: of the last warp for the others.
__device__ __forceinline__ void show_choices() {
  asm volatile("bar.arrive 1, %0;" ::"n"(kChosenThreads) : "memory");
}
__device__ __forceinline__ void await_choices() {
  asm volatile("bar.sync 1, %0;" ::"n"(kChosenThreads) : "memory");
}

// A warp's ring of chunks, which all its lanes bring: a copy in bulk takes a branch of one lane,
// and more instructions.
template <int kUnits, int kStages>
class ChosenRing {
 public:
  static constexpr int kChunkBytes = kUnits * cuda::kUnitBytes;
  static_assert(kStages <= 2);

  __device__ __forceinline__ explicit ChosenRing(uint32_t memory)
      : slot_(memory + threadIdx.x / 32 * (kStages * kChunkBytes)),
        both_(2 * slot_ + (kStages - 1) * kChunkBytes) {}
  // The next chunk, or none: for each take(), kStages calls ahead of it. `from`: where it starts,
  // and 16 bytes further on in each lane.
  __device__ __forceinline__ void fetch(const uint8_t* from, bool is_any) const {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < kChunkBytes; i += 512)
      cuda::async_copy_16_if(is_any && i + lane * 16 < kChunkBytes, slot_ + lane * 16 + i,
                             from + i);
    cuda::async_copy_commit();
  }
  // Waits for the next chunk; its shared address.
  __device__ __forceinline__ uint32_t take() const {
    cuda::async_copy_wait<kStages - 1>();
    __syncwarp();
    return slot_;
  }
  __device__ __forceinline__ void advance() { slot_ = both_ - slot_; }

 private:
  uint32_t slot_;
  const uint32_t both_;  // the sum of the two slots' addresses
};

template <int kUnits, int kStages, bool kSum, int kMost, class Op>
class ChosenWorker {
 public:
  using Product = cuda::RangeProduct<kUnits>;
  using Shared = ChosenShared<kStages, kSum, kMost>;
  static constexpr int kChunkBytes = kUnits * cuda::kUnitBytes, kBlocks = 2 * kUnits;
  static constexpr uint32_t kDigitsBytes = kBlocks * (cuda::kDigitBytes + 8);

  __device__ __forceinline__ ChosenWorker(const TileMatrix& m, const ChosenMemory& memory,
                                          const Op& op, Shared& shared, uint32_t base)
      : m_(m),
        op_(op),
        shared_(shared),
        digits_(base + memory.digits + threadIdx.x / 32 * kDigitsBytes),
        parts_(base + memory.parts),
        chunk_(threadIdx.x / 32),
        tables_(cuda::shared_address(&shared.table_words[threadIdx.x / 32])),
        ring_(base) {}

  // Fills the ring, when the experts are chosen.
  __device__ __forceinline__ void start() {
    if (chunk_ >= m_.chunks) return;
    next_ = cuda::shared_address(shared_.items);
    end_ = next_ + shared_.share.items() * sizeof(ChosenItem);
    offset_ = chunk_ * kChunkBytes + threadIdx.x % 32 * 16;
#pragma unroll 1
    for (int s = 0; s < kStages; ++s, ring_.advance()) fetch();
  }
  // Behind the kernel in front: the first activations are on their way.
  __device__ __forceinline__ void load_first() { load(0, threadIdx.x / 32); }
  __device__ __forceinline__ void run() {
    const int lane = threadIdx.x % 32;
    store_all_digits();
    uint32_t digits = digits_;
    while (chunk_ < m_.chunks) {
      uint32_t to = parts_ + chunk_ * 64 + (lane & 1) * 32 + lane / 4 * 4;
      uint32_t done = cuda::shared_address(shared_.done);
#pragma unroll 1
      for (int k = 0; k < shared_.share.runs; ++k) {
        product_.load(digits, digits + kBlocks * cuda::kDigitBytes);
        digits += kWorkers * kDigitsBytes;
        const uint32_t end = done + shared_.share.run * 8;
#pragma unroll 1
        for (; done != end; done += 8) {
          const typename Product::Chunk codes(ring_.take());
          __syncwarp();
          fetch();
          ring_.advance();
          const float sum = product_.run(tables_, codes);
          if ((lane & 2) == 0) cuda::store_shared_float(to, sum);
          cuda::barrier_arrive(done);
          to += m_.chunks * 64;
        }
      }
      chunk_ += kWorkers;
      start();
    }
  }

 private:
  // Of chunk c of h or, kSum, of u's row of the k-th of the block's choices.
  __device__ __forceinline__ void load(int k, int c) {
    const int lane = threadIdx.x % 32;
    if (lane < 8 * kUnits && c < m_.chunks)
      x_ = op_.load_one(kSum ? shared_.choices.slot[shared_.share.first_choice + k] : 0,
                        c * kUnits * 64 + lane * 8);
  }
  // Of all this warp's chunks, choice by choice; the next one's activations are on their way.
  __device__ __forceinline__ void store_all_digits() {
    const int lane = threadIdx.x % 32;
    uint32_t to = digits_;
    int k = 0;
#pragma unroll 1
    for (int c = threadIdx.x / 32; c < m_.chunks;) {
      const uint4 x = x_;
      if (++k == shared_.share.runs) k = 0, c += kWorkers;
      load(k, c);
      store_activations(x, lane, to, to + kBlocks * cuda::kDigitBytes, 1, ~0u, lane < 8 * kUnits);
      to += kWorkers * kDigitsBytes;
    }
    __syncwarp();
  }
  // Of the next item.
  __device__ __forceinline__ void fetch() {
    const uint2 from = cuda::load_shared_8(next_);
    ring_.fetch(reinterpret_cast<const uint8_t*>(uint64_t{from.y} << 32 | from.x) + offset_,
                next_ < end_);
    next_ += sizeof(ChosenItem);
  }

  const TileMatrix& m_;
  const Op& op_;
  Shared& shared_;
  const uint32_t digits_, parts_;
  int chunk_;
  uint32_t next_ = 0, end_ = 0;  // items to fetch
  uint32_t offset_ = 0;          // of this lane's part of the chunk in a row tile
  const cuda::CodeTables tables_;
  ChosenRing<kUnits, kStages> ring_;
  Product product_;
  uint4 x_ = {};
};

// The last warp's.
template <int kUnits, int kStages, bool kSum, int kMost, class Op>
class ChosenFinisher {
 public:
  using Shared = ChosenShared<kStages, kSum, kMost>;

  __device__ __forceinline__ ChosenFinisher(const TileMatrix& m, const Op& op, Shared& shared,
                                            const float* parts)
      : m_(m),
        op_(op),
        shared_(shared),
        parts_(parts),
        share_(ChosenShare::of<kSum>(m.row_tiles, op.top_k)) {}

  __device__ __forceinline__ void prepare() {
    for_items(
        [&](int i) { cuda::barrier_init(cuda::shared_address(&shared_.done[i]), m_.chunks * 32); });
    if (kSum && blockIdx.x % 2 == 0)
      for_items([&](int i) { cuda::barrier_init(cuda::shared_address(&shared_.received[i]), 1); });
    cuda::barrier_init_fence();
  }
  // The other block's sums: they may come before, but do not end the phase.
  __device__ __forceinline__ void expect_other() {
    if (blockIdx.x % 2 == 0)
      for_items([&](uint32_t i) {
        cuda::barrier_expect(cuda::shared_address(&shared_.received[i]), 16 * sizeof(float));
      });
  }
  // What the workers and run() go by; `from` as if of expert 0.
  __device__ __forceinline__ void list_items() {
    if (threadIdx.x % 32 == 0) shared_.share = share_;
    for_items([&](int i) {
      if (i >= share_.items()) return;
      const int at = kSum ? i : share_.first + i, per_choice = kSum ? share_.run : m_.row_tiles;
      const int k = at / per_choice;
      const int tile = at - k * per_choice + (kSum ? share_.first : 0);
      shared_.items[i] = {m_.bytes + int64_t{tile} * (m_.chunks * kUnits * cuda::kUnitBytes),
                          share_.first_choice + k, tile * 16};
    });
  }
  __device__ __forceinline__ void find_items(const OneChoice& chosen) {
    op_.fill(shared_.choices, chosen);
    __syncwarp();
    for_items([&](uint32_t i) {
      ChosenItem& item = shared_.items[i];
      if (i < share_.items()) item.from += shared_.choices.expert[item.choice] * m_.expert_bytes;
    });
  }
  // All biases at once: from far away, they would stand in front of each row tile's end.
  __device__ __forceinline__ void load_biases() {
    if (m_.bias == nullptr) return;
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < share_.items() * 4; i += 32) {
      const ChosenItem& item = shared_.items[i / 4];
      const uint16_t* from = bias_of(m_, shared_.choices.expert[item.choice], item.row);
      *reinterpret_cast<uint2*>(shared_.bias[i / 4] + i % 4 * 4) =
          *reinterpret_cast<const uint2*>(from + i % 4 * 4);
    }
    __syncwarp();
  }
  __device__ __forceinline__ void run() {
    const int r = threadIdx.x % 16;
    const float* from = parts_ + r;
    int i = 0, k = 0;
#pragma unroll 1
    for (int item = 0; item < share_.items(); ++item) {
      const float bias = m_.bias == nullptr ? 0 : cuda::bf16_value(shared_.bias[item][r]);
      cuda::barrier_wait(cuda::shared_address(&shared_.done[item]), 0);
      float sum = 0;
#pragma unroll 5
      for (int c = 0; c < m_.chunks; ++c, from += 16) sum += *from;
      finish(shared_.items[item], i, k, finite(sum) + bias);
      if (kSum && ++i == share_.run) i = 0, ++k;
    }
    if (kSum && share_.runs == 0)  // a token has one expert
      for (int j = 0; j < share_.run; ++j) send(j, 0);
  }

 private:
  // Calls fn(i) for the items that this lane has, of kMost.
  template <typename Fn>
  static __device__ __forceinline__ void for_items(const Fn& fn) {
    fn(threadIdx.x % 32);
    if constexpr (kMost > 32)
      if (32 + threadIdx.x % 32 < kMost) fn(32 + threadIdx.x % 32);
  }
  __device__ __forceinline__ void send(int i, float v) {
    const int lane = threadIdx.x % 32;
    if (lane < 16)
      cuda::store_remote(cuda::remote_address(cuda::shared_address(&shared_.other[i][lane]), 0), v,
                         cuda::remote_address(cuda::shared_address(&shared_.received[i]), 0));
  }
  // Row tile i of the block's k-th choice, whose row r is in lane r.
  __device__ __forceinline__ void finish(const ChosenItem& item, int i, int k, float v) {
    const int lane = threadIdx.x % 32;
    if constexpr (!kSum) {
      const float next = __shfl_down_sync(0xffffffff, v, 1);
      if (lane < 16 && lane % 2 == 0)
        op_.store(op_.slot_of(shared_.choices, item.choice), item.row + lane, v, next);
    } else {
      float all = k == 0 ? 0 : shared_.sums[i][lane % 16];
      all = fmaf(shared_.choices.weight[item.choice], v, all);
      if (k + 1 < share_.runs) {
        __syncwarp();
        if (lane < 16) shared_.sums[i][lane] = all;
      } else if (blockIdx.x % 2 == 1) {
        send(i, all);
      } else {
        cuda::barrier_wait(cuda::shared_address(&shared_.received[i]), 0);
        if (lane < 16) op_.store(item.row + lane, all + shared_.other[i][lane]);
      }
      __syncwarp();
    }
  }

  const TileMatrix& m_;
  const Op& op_;
  Shared& shared_;
  const float* parts_;
  const ChosenShare share_;
};

// Base of an Op whose code leaves no registers for two blocks on an SM.
struct OneBlock {};
// Blocks of an SM, as far as registers go: 64 of a thread are too few for ptxas on sm_121.
template <int kUnits, class Op>
inline constexpr int kChosenBlocks =
    kUnits == 4 || NIBBLE_CUDA_SM == 121 || std::is_base_of_v<OneBlock, Op> ? 1 : 2;

// Op: top_k; choose(), by one warp; fill(choices, chosen), where choice i of a product per expert
// has slot_of(choices, i); publish(chosen), by the token's first block; load_one(slot, k): 8 bf16
// activations; store(slot, row, first, second) or, kSum, store(row, sum); kSum: is_chosen_before:
// what choose() reads is complete when the kernel starts. Several tokens: a TokenChoice.
template <int kUnits, int kStages, bool kSum, int kMost, class Op>
__global__ void __launch_bounds__(kChosenThreads, kChosenBlocks<kUnits, Op>)
    gemv_chosen(const __grid_constant__ TileMatrix m, const __grid_constant__ ChosenMemory memory,
                const __grid_constant__ Op op) {
  extern __shared__ __align__(128) uint8_t rings[];
  __shared__ __align__(16) ChosenShared<kStages, kSum, kMost> shared;
  const uint32_t base = cuda::shared_address(rings);
  if constexpr (kSum) cuda::griddep_launch_dependents();
  const auto wait = [] {
    if constexpr (kSum) cuda::cluster_wait();
    cuda::griddep_wait();
  };
  cuda::touch_parameters(m, memory, op);
  if (threadIdx.x < kWorkers * 32) {
    ChosenWorker<kUnits, kStages, kSum, kMost, Op> worker(m, memory, op, shared, base);
    if constexpr (kSum) {
      cuda::cluster_arrive_relaxed();
    } else {
      wait();
      worker.load_first();
    }
    await_choices();
    // A block has none of a token's only expert.
    const bool has_items = !kSum || shared.share.runs > 0;
    if (has_items) worker.start();
    if constexpr (kSum) {
      wait();
      if (!has_items) return;
      worker.load_first();
    }
    worker.run();
    return;
  }
  ChosenFinisher<kUnits, kStages, kSum, kMost, Op> finisher(
      m, op, shared, reinterpret_cast<const float*>(rings + memory.parts));
  finisher.prepare();
  finisher.list_items();
  if constexpr (kSum)
    cuda::cluster_arrive_relaxed();
  else
    wait();
  if constexpr (kSum) {
    if (!op.is_chosen_before) cuda::griddep_wait();
  }
  const OneChoice chosen = op.choose();
  finisher.find_items(chosen);
  __syncwarp();
  show_choices();
  // Not before: the next kernel's weights would come in front of this one's.
  if constexpr (!kSum) cuda::griddep_launch_dependents();
  finisher.load_biases();
  if constexpr (kSum) {
    finisher.expect_other();
    wait();
  }
  if (blockIdx.x == 0) op.publish(chosen);
  finisher.run();
}

// Chunks of a worker on their way: sm_121 has 99 KB a block.
template <int kUnits>
inline constexpr int kChosenStages = NIBBLE_CUDA_SM == 121 && kUnits > 1 ? 1 : 2;

// See gemv_chosen. kMost: kMostOfOne of one token, else kMaxItems.
template <bool kSum, int kMost, class Op>
void launch_chosen(Ctx& cx, const Weight& weight, const Op& op, int tokens) {
  with_chunk_units<4>(weight.cols, [&]<int kUnits>() {
    constexpr int kStages = kChosenStages<kUnits>;
    const TileMatrix m = tile_matrix(weight, kUnits);
    const ChosenPlan plan =
        plan_chosen({kSum, m.row_tiles, op.top_k, tokens}, cx.kernels.gpu.num_sms);
    ChosenMemory memory{};
    memory.digits = kWorkers * kStages * kUnits * cuda::kUnitBytes;
    const int vectors = (m.chunks + kWorkers - 1) / kWorkers * (kSum ? (op.top_k + 1) / 2 : 1);
    memory.parts = memory.digits + vectors * kWorkers * kUnits * 2 * (cuda::kDigitBytes + 8);
    memory.end = memory.parts + plan.items * m.chunks * 64;
    const bool is_alone = !kSum && plan.of_sm == 1;
    cuda::launch(
        cx.stream, gemv_chosen<kUnits, kStages, kSum, kMost, Op>,
        {.grid = dim3(plan.blocks * plan.together, tokens),
         .block = dim3(kChosenThreads),
         .smem_bytes = is_alone ? std::max<size_t>(memory.end, kOneBlockBytes) : memory.end,
         .cluster = static_cast<unsigned>(plan.together),
         .release = kSum ? cuda::Release::kBeforeWait : cuda::Release::kAfterWait},
        m, memory, op);
  });
}

}  // namespace nibble::ops::gpu
