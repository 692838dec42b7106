// One token and the experts chosen for it: moe_up (every row of every expert) and moe_down (sums
// over the experts), MXFP4 weights in kTiles16x64 by int8 digits.
//
// Worker warp w multiplies chunk w (and w + 15 ...) of every row tile of its block: the digits of
// its columns stay in registers, and it brings its chunks through a ring of its own. The last warp
// chooses the experts and finishes row tiles as their sums come in, while the workers are at the
// next: no block barrier stands between the first weight and the last. Two blocks of a cluster
// share the row tiles of a sum over experts, each with half of the choices; the first adds both.
// Sums are those of gemv_experts, bit for bit: inside a chunk as mma_digits says, chunks in
// sequence, bias.
//
// Reached on an H200, gpt-oss-120b, 2026-11-21, in a chain of a layer's products (qkv, out, route,
// up, down) in one graph: 33.1 us a layer where gemv_one's loop took 41.4; up and down by
// themselves 20.0 us (27.6) for 53 MB. A chunk costs some 165 instructions (306). Lost there, same
// day, us a layer: 3 and 4 stages (+0.6, +1.5); row tiles brought whole by the last warp (+4 to +9:
// its own instructions are in front of every copy) and dealt out by a counter; the choice once
// beforehand for the instruction cache (+1.0: blocks that start late wait for it); the same for a
// worker's loop (+0.8). A trace says what is left: of up's 13 us 1.2 until the experts are chosen,
// 2 until the first row tile is done, 0.8 for each of 11; of down's 7 us 2.1 until its first row
// tile is done and 0.9 for each of 6, which lie in shared memory by then.
#pragma once

#include "cuda/bf16.cuh"
#include "cuda/cluster.cuh"
#include "ops/linear/gemv.cuh"
#include "ops/norm_route/route.cuh"

namespace nibble::ops::gpu {

inline constexpr int kWorkers = 15;  // chunks of 3 units that 2,880 columns have
inline constexpr int kChosenThreads = (kWorkers + 1) * 32;
inline constexpr int kMaxItems = 32;  // row tiles of an expert of a block

// One token's choices: of a product per expert by slot, of a sum over experts in order of choice.
struct Choices {
  int expert[kMaxChoices], slot[kMaxChoices];
  float weight[kMaxChoices];
};

// Row tiles of a block: a piece of the sequence of all choices' or, kSum, the same of each choice.
template <bool kSum>
struct BlockTiles {
  int begin, end, row_tiles;
  int first_choice, end_choice;

  __device__ __forceinline__ void share_out(int tiles, int top_k) {
    row_tiles = tiles;
    if constexpr (kSum) {
      const Share mine(tiles, blockIdx.x / 2, gridDim.x / 2);
      begin = mine.begin, end = mine.end;
      const int half = (top_k + 1) / 2;
      first_choice = blockIdx.x % 2 == 0 ? 0 : half;
      end_choice = blockIdx.x % 2 == 0 ? half : top_k;
    } else {
      const Share mine(tiles * top_k, blockIdx.x, gridDim.x);
      begin = mine.begin, end = mine.end;
      first_choice = begin / tiles;
      end_choice = (end - 1) / tiles + 1;
    }
  }
  __device__ __forceinline__ int first_tile(int choice) const {
    return kSum ? begin : max(begin - choice * row_tiles, 0);
  }
  __device__ __forceinline__ int count(int choice) const {
    return (kSum ? end : min(end - choice * row_tiles, row_tiles)) - first_tile(choice);
  }
};

struct ChosenMemory {
  uint32_t digits, parts, end;
};

template <int kStages, bool kSum>
struct ChosenShared {
  static constexpr int kSumItems = kSum ? kMaxItems : 1;
  uint64_t barriers[kWorkers * kStages];  // of the rings
  uint64_t table_words[kWorkers];
  uint64_t done[kMaxItems];      // all chunks of an item have been summed
  uint64_t received[kSumItems];  // the other block's sums of a row tile
  float sums[kSumItems][16], other[kSumItems][16];
  uint16_t bias[kMaxItems][16];
  Choices choices;
  BlockTiles<kSum> tiles;  // here, as registers are few
};

template <int kUnits, int kStages, bool kSum, class Op>
class ChosenWorker {
 public:
  using Product = cuda::RangeProduct<kUnits>;
  using Shared = ChosenShared<kStages, kSum>;
  static constexpr int kChunkBytes = kUnits * cuda::kUnitBytes, kBlocks = 2 * kUnits;
  static constexpr uint32_t kDigitsBytes = kBlocks * (cuda::kDigitBytes + 8);

  __device__ __forceinline__ ChosenWorker(const TileMatrix& m, const ChosenMemory& memory,
                                          const Op& op, Shared& shared, uint32_t base)
      : m_(m),
        op_(op),
        shared_(shared),
        tiles_(shared.tiles),
        memory_(memory),
        base_(base),
        tables_(cuda::shared_address(&shared.table_words[threadIdx.x / 32])),
        ring_(base, cuda::shared_address(shared.barriers)) {}

  // Fills the ring, when the experts are chosen.
  __device__ __forceinline__ void start() {
    choice_ = tiles_.first_choice - 1;
    chunk_ = m_.chunks;
#pragma unroll 1
    for (int s = 0; s < kStages; ++s)
      if (next()) ring_.fetch(s, from_);
  }
  // Behind the kernel in front: the first two vectors of activations are on their way.
  __device__ __forceinline__ void load_first() { load_pair(0); }
  __device__ __forceinline__ void run() {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int v = 0; v < vectors(); v += 2) {
      if (v > 0) load_pair(v);
      store_digits(v, x_[0]);
      if (v + 1 < vectors()) store_digits(v + 1, x_[1]);
    }
    __syncwarp();
    int first_item = 0;
    for (int k = tiles_.first_choice; k < tiles_.end_choice; ++k) {
      const int count = tiles_.count(k);
      for (int c = warp, pass = 0; c < m_.chunks; c += kWorkers, ++pass) {
        const uint32_t from = digits((kSum ? k - tiles_.first_choice : 0) * passes() + pass);
        product_.load(from, from + kBlocks * cuda::kDigitBytes);
        uint32_t to = base_ + memory_.parts + (first_item * m_.chunks + c) * 64 + (lane & 1) * 32 +
                      lane / 4 * 4;
        uint32_t done = cuda::shared_address(&shared_.done[first_item]);
        const uint32_t end = done + count * 8;
#pragma unroll 1
        for (; done != end; done += 8) {
          const bool has_next = next();
          const typename Product::Chunk codes(ring_.take());
          __syncwarp();
          if (has_next) ring_.fetch(0, from_);
          ring_.advance();
          const float sum = product_.run(tables_, codes);
          if ((lane & 2) == 0) cuda::store_shared_float(to, sum);
          __syncwarp();
          if (lane == 0) cuda::barrier_arrive(done);
          to += m_.chunks * 64;
        }
      }
      first_item += count;
    }
  }

 private:
  __device__ __forceinline__ int passes() const { return (m_.chunks + kWorkers - 1) / kWorkers; }
  // This warp's vectors: its chunks of h, or of u's row of each choice.
  __device__ __forceinline__ int vectors() const {
    return passes() * (kSum ? tiles_.end_choice - tiles_.first_choice : 1);
  }
  __device__ __forceinline__ void load_pair(int first) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int choice = (first + i) / passes();
      const int chunk = (first + i - choice * passes()) * kWorkers + threadIdx.x / 32;
      if (first + i >= vectors() || chunk >= m_.chunks || lane >= 8 * kUnits) continue;
      x_[i] = op_.load(kSum ? shared_.choices.slot[tiles_.first_choice + choice] : 0,
                       chunk * kUnits * 64 + lane * 8);
    }
  }
  __device__ __forceinline__ uint32_t digits(int vector) const {
    return base_ + memory_.digits + (vector * kWorkers + threadIdx.x / 32) * kDigitsBytes;
  }
  __device__ __forceinline__ void store_digits(int vector, const uint4& x) {
    const int lane = threadIdx.x % 32;
    const uint32_t to = digits(vector);
    if (lane < 8 * kUnits) store_activations(x, lane, to, to + kBlocks * cuda::kDigitBytes, 1);
  }
  // Lane 0 moves on to the next chunk to fetch; false: there is none.
  __device__ __forceinline__ bool next() {
    if (threadIdx.x % 32 != 0) return false;
    if (left_ > 0) {
      from_ += m_.chunks * kChunkBytes;
    } else {
      chunk_ += kWorkers;
      if (chunk_ >= m_.chunks) {
        chunk_ = threadIdx.x / 32;
        if (choice_ + 1 >= tiles_.end_choice || chunk_ >= m_.chunks) {
          chunk_ = m_.chunks;
          return false;
        }
        ++choice_;
      }
      left_ = tiles_.count(choice_);
      from_ = m_.bytes + shared_.choices.expert[choice_] * m_.expert_bytes +
              (int64_t{tiles_.first_tile(choice_)} * m_.chunks + chunk_) * kChunkBytes;
    }
    --left_;
    return true;
  }

  const TileMatrix& m_;
  const Op& op_;
  Shared& shared_;
  const BlockTiles<kSum>& tiles_;
  const ChosenMemory& memory_;
  const uint32_t base_;
  const cuda::CodeTables tables_;
  ChunkRing<kUnits, kStages> ring_;
  Product product_;
  uint4 x_[2] = {};
  // Of the last chunk fetched, in lane 0; left_: row tiles behind it.
  const uint8_t* from_ = nullptr;
  int choice_, chunk_, left_ = 0;
};

// The last warp's. The tiles are there for the workers behind the barrier that shows the choices.
template <int kStages, bool kSum, class Op>
class ChosenFinisher {
 public:
  using Shared = ChosenShared<kStages, kSum>;

  __device__ __forceinline__ ChosenFinisher(const TileMatrix& m, const Op& op, Shared& shared,
                                            const float* parts)
      : m_(m), op_(op), shared_(shared), parts_(parts), tiles_(shared.tiles) {}

  __device__ __forceinline__ void prepare() {
    const int lane = threadIdx.x % 32;
    if (lane == 0) shared_.tiles.share_out(m_.row_tiles, op_.top_k);
    cuda::barrier_init(cuda::shared_address(&shared_.done[lane]), m_.chunks);
    if (kSum && blockIdx.x % 2 == 0) {
      const uint32_t barrier = cuda::shared_address(&shared_.received[lane]);
      cuda::barrier_init(barrier, 1);
      cuda::barrier_expect(barrier, 16 * sizeof(float));
    }
    cuda::barrier_init_fence();
  }
  // All biases at once: from far away, they would stand in front of each row tile's end.
  __device__ __forceinline__ void load_biases() {
    if (m_.bias == nullptr) return;
    int item = 0;
    for (int k = tiles_.first_choice; k < tiles_.end_choice; ++k) {
      const int count = tiles_.count(k), first = tiles_.first_tile(k);
      const uint16_t* from = bias_of(m_, shared_.choices.expert[k], first * 16);
      for (int i = threadIdx.x % 32; i < count * 4; i += 32)
        *reinterpret_cast<uint2*>(shared_.bias[item] + i * 4) =
            *reinterpret_cast<const uint2*>(from + i * 4);
      item += count;
    }
    __syncwarp();
  }
  __device__ __forceinline__ void run() {
    const int lane = threadIdx.x % 32, r = lane % 16;
    int item = 0;
    for (int k = tiles_.first_choice; k < tiles_.end_choice; ++k) {
      const int first = tiles_.first_tile(k), count = tiles_.count(k);
      for (int i = 0; i < count; ++i, ++item) {
        const float bias = m_.bias == nullptr ? 0 : cuda::bf16_value(shared_.bias[item][r]);
        cuda::barrier_wait(cuda::shared_address(&shared_.done[item]), 0);
        const float* from = parts_ + item * m_.chunks * 16 + r;
        float sum = 0;
#pragma unroll 15
        for (int c = 0; c < m_.chunks; ++c) sum += from[c * 16];
        finish(k, first + i, i, r, finite(sum) + bias);
      }
    }
    if (kSum && tiles_.first_choice == tiles_.end_choice)  // a token has one expert
      for (int i = 0; i < tiles_.end - tiles_.begin; ++i) send(i, r, 0);
  }

 private:
  __device__ __forceinline__ void send(int i, int r, float v) {
    if (threadIdx.x % 32 < 16)
      cuda::store_remote(cuda::remote_address(cuda::shared_address(&shared_.other[i][r]), 0), v,
                         cuda::remote_address(cuda::shared_address(&shared_.received[i]), 0));
  }
  // Row r of a row tile, the i-th of this block; lane r has its sum.
  __device__ __forceinline__ void finish(int choice, int tile, int i, int r, float v) {
    const int lane = threadIdx.x % 32;
    if constexpr (!kSum) {
      const float next = __shfl_down_sync(0xffffffff, v, 1);
      if (lane < 16 && lane % 2 == 0) op_.store(choice, tile * 16 + r, v, next);
    } else {
      float all = choice == tiles_.first_choice ? 0 : shared_.sums[i][r];
      all = fmaf(shared_.choices.weight[choice], v, all);
      if (choice + 1 < tiles_.end_choice) {
        __syncwarp();
        if (lane < 16) shared_.sums[i][r] = all;
      } else if (blockIdx.x % 2 == 1) {
        send(i, r, all);
      } else {
        cuda::barrier_wait(cuda::shared_address(&shared_.received[i]), 0);
        if (lane < 16) op_.store(tile * 16 + r, all + shared_.other[i][r]);
      }
      __syncwarp();
    }
  }

  const TileMatrix& m_;
  const Op& op_;
  Shared& shared_;
  const float* parts_;
  const BlockTiles<kSum>& tiles_;
};

// Op: top_k; choose(), by one warp; fill(choices, chosen); publish(chosen), by the first block;
// load(slot, k): 8 bf16 activations; store(slot, row, first, second) or, kSum, store(row, sum).
template <int kUnits, int kStages, bool kSum, class Op>
__global__ void __launch_bounds__(kChosenThreads, kUnits == 4 ? 1 : 2)
    gemv_chosen(const __grid_constant__ TileMatrix m, const __grid_constant__ ChosenMemory memory,
                const __grid_constant__ Op op) {
  extern __shared__ __align__(128) uint8_t rings[];
  __shared__ __align__(16) ChosenShared<kStages, kSum> shared;
  const uint32_t base = cuda::shared_address(rings);
  if constexpr (kSum) cuda::griddep_launch_dependents();
  const auto wait = [] {
    if constexpr (kSum) cuda::cluster_wait();
    cuda::griddep_wait();
    if constexpr (!kSum) cuda::griddep_launch_dependents();
  };
  // What a sum's choices are made of was there before the kernel in front began.
  if (threadIdx.x < kWorkers * 32) {
    ChosenWorker<kUnits, kStages, kSum, Op> worker(m, memory, op, shared, base);
    if constexpr (kSum) {
      cuda::cluster_arrive();
    } else {
      wait();
      worker.load_first();
    }
    __syncthreads();  // choices
    worker.start();
    if constexpr (kSum) {
      wait();
      worker.load_first();
    }
    worker.run();
    return;
  }
  ChosenFinisher<kStages, kSum, Op> finisher(m, op, shared,
                                             reinterpret_cast<const float*>(rings + memory.parts));
  finisher.prepare();
  if constexpr (kSum)
    cuda::cluster_arrive();
  else
    wait();
  const OneChoice chosen = op.choose();
  op.fill(shared.choices, chosen);
  __syncthreads();
  finisher.load_biases();
  if constexpr (kSum) wait();
  if (blockIdx.x == 0) op.publish(chosen);
  finisher.run();
}

// Chunks of a worker on their way: sm_121 has 99 KB a block.
template <int kUnits>
inline constexpr int kChosenStages = NIBBLE_CUDA_SM == 121 && kUnits > 1 ? 1 : 2;

// T = 1: see gemv_chosen.
template <bool kSum, class Op>
void launch_chosen(Ctx& cx, const Weight& weight, const Op& op) {
  with_chunk_units<4>(weight.cols, [&]<int kUnits>() {
    constexpr int kStages = kChosenStages<kUnits>;
    const TileMatrix m = tile_matrix(weight, kUnits);
    // Blocks, or pairs of blocks that share row tiles.
    constexpr int kTogether = kSum ? 2 : 1;
    const int shared = kSum ? m.row_tiles : m.row_tiles * op.top_k;
    const int items_of_one = kSum ? (op.top_k + 1) / 2 : 1, most = kMaxItems / items_of_one;
    const int blocks =
        std::max(std::min(shared, cx.kernels.gpu.num_sms / kTogether), (shared + most - 1) / most);
    const int items = (shared + blocks - 1) / blocks * items_of_one;
    ChosenMemory memory{};
    memory.digits = kWorkers * kStages * kUnits * cuda::kUnitBytes;
    const int vectors = (m.chunks + kWorkers - 1) / kWorkers * (kSum ? (op.top_k + 1) / 2 : 1);
    memory.parts = memory.digits + vectors * kWorkers * kUnits * 2 * (cuda::kDigitBytes + 8);
    memory.end = memory.parts + items * m.chunks * 64;
    cuda::launch(cx.stream, gemv_chosen<kUnits, kStages, kSum, Op>,
                 {.grid = dim3(blocks * kTogether),
                  .block = dim3(kChosenThreads),
                  .smem_bytes = kSum ? memory.end : std::max<size_t>(memory.end, kOneBlockBytes),
                  .cluster = kTogether},
                 m, memory, op);
  });
}

}  // namespace nibble::ops::gpu
