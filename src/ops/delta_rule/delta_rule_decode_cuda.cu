// delta_rule for few tokens of each sequence: of few sequences by clusters
// (delta_rule_clusters_cuda.cu), else in one launch of blocks that stay: each takes its
// share of the value heads' sequences, head by head. One warp moves data: states come and go by the
// copy engine, up to two of them in shared memory, and a token's inputs come four tokens ahead;
// sixteen convolve, norm, and move the state on where it lies.
//   as delta_rule_any_cuda.cu, whose bits these are
// Needs DK = DV = 128, 4 taps.
// Bytes: 8 HV DK DV a sequence: Qwen3-Next-80B 4.2 MB a layer, 0.9 us of an H200's 4.55 TB/s, 18 us
// of a GB10's 233 GB/s. Reached on one H200, 2026-11-23: 8 sequences 12 us, 64 83, 256 311, 84% of
// what reads alone would take.
#include <algorithm>
#include <cstddef>

#include "cuda/async_copy.cuh"
#include "cuda/bulk_copy.cuh"
#include "cuda/launch.cuh"
#include "ops/delta_rule/delta_rule.cuh"

namespace nibble::ops::gpu {
namespace {

using namespace delta;

constexpr int kHead = 128, kTaps = 4, kWindow = kTaps - 1;
constexpr int kStepWarps = kHead / kWarpColumns, kStepThreads = kStepWarps * 32;
constexpr int kThreads = kStepThreads + 32;
constexpr int kPerLane = kHead / 32;
constexpr int kMostStages = NIBBLE_CUDA_SM == 121 ? 1 : 2, kTokens = 4;
constexpr uint32_t kRowBytes = kHead * 4;
static_assert(kCommonDim == kHead);

// What the step before has left of a sequence's value head. The rows of a group lie a warp's
// columns apart from those of the next, so that a warp reads from all banks. What the copy engine
// moves lies at multiples of 32 bytes: 16 beside them one sequence took 8.0 us for 6.6.
struct alignas(128) Stage {
  float state[kRowGroups][kCommonRows * kHead + kWarpColumns];
  float inputs[3][kWindow][kHead];  // of q, k, v, the oldest first
};
constexpr int kPieces = kRowGroups + 3 * kWindow;

// What this step brings of a token.
struct alignas(16) Token {
  float x[4][kHead];  // q, k, v, z
  float gates[2];     // a, b
  int32_t row, head, stage;
  bool has_state, is_first, is_last, is_end;
};
constexpr int kTokenArrivals = 4 + 2 + 1;  // rows, gates, and the rest

// Where a stage goes back to.
struct Left {
  int32_t head, to;  // head < 0: to none
};

struct alignas(128) Shared {
  Token tokens[kTokens];
  alignas(16) float q[kRowGroups][kCommonRows + 4];
  alignas(16) float k[kRowGroups][kCommonRows + 4];
  float4 conv[3][kHead];  // weights of q, k and v, for the lanes that put them there
  float v[kHead], o[kHead], norm[kHead];
  float2 gates;  // decay, beta
  uint64_t brought[kTokens], taken[kTokens];
  uint64_t loaded[kMostStages], stepped[kMostStages];
  Left left[kMostStages];
};
static_assert(offsetof(Stage, inputs) % 32 == 0 && sizeof(Stage::state[0]) % 32 == 0);

struct Task {
  Params a;
  int most;             // tokens of a span: those of more are another kernel's
  int stages;           // that the launch has memory for
  bool releases_first;  // its followers start before its wait, and bring their weights
  bool waits_last;      // all that it reads was there before the kernel in front
};

__device__ __forceinline__ Stage* stages_of(Shared& shared) {
  return reinterpret_cast<Stage*>(&shared + 1);
}

// A phase of each of a few barriers.
struct Phases {
  uint32_t bits = 0;
  __device__ __forceinline__ uint32_t next(int i) {
    const uint32_t phase = bits >> i & 1;
    bits ^= 1u << i;
    return phase;
  }
};

// A block's share: sequences of a value head follow one another.
struct Share {
  int32_t first, count;
  __device__ __forceinline__ explicit Share(const Params& a) {
    const int64_t all = int64_t{a.d.value_heads} * a.num_spans;
    first = static_cast<int32_t>(all * blockIdx.x / gridDim.x);
    count = static_cast<int32_t>(all * (blockIdx.x + 1) / gridDim.x) - first;
  }
};

// The warp that moves data.
class Mover {
 public:
  __device__ __forceinline__ Mover(const Task& task, Shared& shared)
      : task_(task), a_(task.a), shared_(shared), share_(task.a), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run() {
    const int ahead = min(task_.stages, share_.count);
    for (int n = 0; n < ahead; ++n) load(n, n);
    if (!task_.waits_last) cuda::griddep_wait();
    int stage = 0;
    for (int n = 0; n < share_.count; ++n) {
      if (n >= ahead) {
        store(stage);
        load(n, stage);
      }
      const Item item = item_of(n);
      for (int j = 0; j < item.span.q_len; ++j) bring(item, j, stage);
      if (++stage == ahead) stage = 0;
    }
    end();
    for (int i = 0; i < ahead; ++i) {
      store(stage);
      if (++stage == ahead) stage = 0;
    }
    if (task_.waits_last) cuda::griddep_wait();  // launches end in their order
  }

 private:
  struct Item {
    int32_t head, from, to;
    Span span;  // q_len is 0 where another kernel has it
  };

  // Each lane keeps one of 32.
  __device__ __forceinline__ Item item_of(int n) {
    if (n / 32 != batch_) {
      batch_ = n / 32;
      const int mine = batch_ * 32 + lane_;
      if (mine < share_.count) {
        const int32_t i = share_.first + mine;
        mine_.head = i / a_.num_spans;
        mine_.span = a_.spans[i % a_.num_spans];
        mine_.from = a_.from[mine_.span.slot], mine_.to = a_.to[mine_.span.slot];
        if (mine_.span.q_len > task_.most) mine_.span.q_len = 0;
      }
    }
    const auto get = [n](int32_t x) { return __shfl_sync(~0u, x, n % 32); };
    return {get(mine_.head),
            get(mine_.from),
            get(mine_.to),
            {get(mine_.span.q_start), get(mine_.span.q_len), 0, 0}};
  }

  // A lane's part of what a slot has of a value head, and where it lies in a stage.
  struct Piece {
    float* there;
    uint32_t here, bytes;
  };
  __device__ __forceinline__ Piece piece_of(int32_t slot, int32_t head, int index) const {
    Stage& stage = stages_of(shared_)[index];
    if (lane_ < kRowGroups)
      return {a_.state + (int64_t{slot} * a_.d.value_width + head * kHead) * kHead +
                  lane_ * kCommonRows * kHead,
              cuda::shared_address(stage.state[lane_]), kCommonRows * kRowBytes};
    const int part = (lane_ - kRowGroups) / kWindow, i = (lane_ - kRowGroups) % kWindow;
    return {a_.conv + (int64_t{slot} * kWindow + i) * a_.d.channels + channel_of(a_, part, head),
            cuda::shared_address(stage.inputs[part][i]), kRowBytes};
  }

  // Asks for item n's state and last inputs.
  __device__ __forceinline__ void load(int n, int index) {
    const Item item = item_of(n);
    if (lane_ == 0) shared_.left[index] = {item.span.q_len > 0 ? item.head : -1, item.to};
    __syncwarp();
    if (item.span.q_len == 0 || lane_ >= kPieces) return;
    const uint32_t barrier = cuda::shared_address(&shared_.loaded[index]);
    const Piece piece = piece_of(item.from, item.head, index);
    if (item.from == RecurrentLayer::kNoState)
      cuda::barrier_arrive(barrier);
    else
      cuda::bulk_copy(piece.here, piece.there, piece.bytes, barrier);
  }

  // Puts by what a stage holds, when its tokens are through. The first value head of a key head
  // keeps the inputs of q and k.
  __device__ __forceinline__ void store(int index) {
    const auto [head, to] = shared_.left[index];
    if (head < 0) return;
    cuda::barrier_wait_together(cuda::shared_address(&shared_.stepped[index]),
                                stepped_.next(index));
    const bool is_of_key = lane_ >= kRowGroups && lane_ < kRowGroups + 2 * kWindow;
    if (lane_ < kPieces && (!is_of_key || head % a_.d.ratio == 0)) {
      const Piece piece = piece_of(to, head, index);
      cuda::bulk_store(piece.there, piece.here, piece.bytes);
      cuda::bulk_store_commit();
      cuda::bulk_store_wait_read<0>();
    }
    __syncwarp();
  }

  __device__ __forceinline__ Token& next_token() {
    cuda::barrier_wait_together(cuda::shared_address(&shared_.taken[token_]), taken_.next(token_));
    return shared_.tokens[token_];
  }

  // Asks for token j of an item.
  __device__ __forceinline__ void bring(const Item& item, int j, int stage) {
    Token& token = next_token();
    const uint32_t barrier = cuda::shared_address(&shared_.brought[token_]);
    const int32_t row = item.span.q_start + j, head = item.head;
    if (lane_ < 4) {
      cuda::bulk_copy(cuda::shared_address(token.x[lane_]),
                      a_.qkvz + int64_t{row} * a_.d.width + place_of(lane_, head), kRowBytes,
                      barrier);
    } else if (lane_ < 6) {
      cuda::async_copy_4(&token.gates[lane_ - 4],
                         lane_ == 4 ? gate_a(a_, row, head) : gate_b(a_, row, head));
      cuda::barrier_arrive_after_copies(barrier);
    } else if (lane_ == 6) {
      token.row = row, token.head = head, token.stage = stage;
      token.has_state = item.from != RecurrentLayer::kNoState;
      token.is_first = j == 0, token.is_last = j + 1 == item.span.q_len, token.is_end = false;
      cuda::barrier_arrive(barrier);
    }
    token_ = (token_ + 1) % kTokens;
  }

  __device__ __forceinline__ void end() {
    Token& token = next_token();
    if (lane_ == 0) token.is_end = true;
    if (lane_ < kTokenArrivals)
      cuda::barrier_arrive(cuda::shared_address(&shared_.brought[token_]));
  }

  // Of q, k, v or z of a value head in a row of `qkvz`.
  __device__ __forceinline__ int64_t place_of(int part, int32_t h) const {
    const int32_t g = h / a_.d.ratio, of = h % a_.d.ratio * kHead;
    if (part == 0) return place(g, a_.d.first.q, a_.d.step.q);
    if (part == 1) return place(g, a_.d.first.k, a_.d.step.k);
    return part == 2 ? place(g, a_.d.first.v, a_.d.step.v) + of
                     : place(g, a_.d.first.z, a_.d.step.z) + of;
  }

  const Task& task_;
  const Params& a_;
  Shared& shared_;
  const Share share_;
  const int lane_;
  Item mine_{};
  int batch_ = -1, token_ = 0;
  Phases stepped_, taken_{~0u};  // all tokens are free at first
};

// Channel c's newest input, convolved with its last ones, which move on.
__device__ __forceinline__ float convolve(float (*inputs)[kHead], int c, bool has_inputs,
                                          float newest, const float4& weights) {
  float x[kWindow], sum = 0;
#pragma unroll
  for (int j = 0; j < kWindow; ++j) x[j] = has_inputs ? inputs[j][c] : 0;
  sum = fmaf(weights.x, x[0], sum), sum = fmaf(weights.y, x[1], sum);
  sum = fmaf(weights.z, x[2], sum), sum = fmaf(weights.w, newest, sum);
  inputs[0][c] = x[1], inputs[1][c] = x[2], inputs[2][c] = newest;
  return silu(sum);
}

// A warp: q, k or v of a token, normed.
__device__ __forceinline__ void prepare(Shared& shared, const Params& a, const Token& token,
                                        int part) {
  Stage& stage = stages_of(shared)[token.stage];
  const bool has_inputs = token.has_state || !token.is_first;
  const int lane = threadIdx.x % 32;
  float x[kPerLane], squares = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int c = lane + 32 * i;
    x[i] = convolve(stage.inputs[part], c, has_inputs, token.x[part][c], shared.conv[part][c]);
    squares = fmaf(x[i], x[i], squares);
  }
  if (part == 2) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) shared.v[lane + 32 * i] = x[i];
    return;
  }
  const float factor = part == 0 ? rsqrtf(static_cast<float>(a.d.key_dim)) : 1;
  const float by = factor / sqrtf(warp_sum(squares) + 1e-6f);
  static_assert(kCommonRows == 32 && kPerLane == kRowGroups);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) (part == 0 ? shared.q : shared.k)[i][lane] = x[i] * by;
}

__device__ __forceinline__ void meet() {
  asm volatile("bar.sync 1, %0;" ::"n"(kStepThreads) : "memory");
}

// step() of a state that stays in shared memory, a row kHead floats from the next: in registers it
// would keep the block from lying beside one of the kernel in front.
__device__ __forceinline__ float step_there(float* s, bool has_state, const float* k,
                                            const float* q, float v, float decay, float beta) {
  if (!has_state) {
#pragma unroll
    for (int i = 0; i < kCommonRows; ++i) s[i * kHead] = 0;
  }
  float known[4] = {}, o[4] = {};
#pragma unroll 2  // registers are few
  for (int i = 0; i < kCommonRows; i += 4) {
    const float4 by = *reinterpret_cast<const float4*>(k + i);
    known[0] = fmaf(s[i * kHead], by.x, known[0]);
    known[1] = fmaf(s[(i + 1) * kHead], by.y, known[1]);
    known[2] = fmaf(s[(i + 2) * kHead], by.z, known[2]);
    known[3] = fmaf(s[(i + 3) * kHead], by.w, known[3]);
  }
  const float all = column_sum((known[0] + known[1]) + (known[2] + known[3]));
  const float delta = beta * (v - decay * all);
  asm volatile("" ::: "memory");  // all of it again, rather than in registers meanwhile
#pragma unroll 2                  // registers are few
  for (int i = 0; i < kCommonRows; i += 4) {
    const float4 by = *reinterpret_cast<const float4*>(k + i);
    const float4 with = *reinterpret_cast<const float4*>(q + i);
    const auto move = [&](int j, float by_j, float with_j) {
      float& at = s[(i + j) * kHead];
      at = fmaf(by_j, delta, decay * at);
      o[j] = fmaf(at, with_j, o[j]);
    };
    move(0, by.x, with.x), move(1, by.y, with.y), move(2, by.z, with.z), move(3, by.w, with.w);
  }
  return column_sum((o[0] + o[1]) + (o[2] + o[3]));
}

// The sixteen warps that compute. Before a step warps 0 to 2 make q, k and v, warp 3 the gates;
// behind it warp 4 norms what came out, while those go on with the next token.
__device__ __forceinline__ void step_tokens(const Task& task, Shared& shared) {
  constexpr int kGatesWarp = 3, kNormWarp = 4;
  const Params& a = task.a;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / kWarpColumns;
  const int column = warp * kWarpColumns + lane % kWarpColumns;
  float a_log = 0, dt_bias = 0;
  int32_t head = -1;
  const auto begin_head = [&](int32_t h) {
    head = h;
    for (int i = lane; warp < kGatesWarp && i < kHead; i += 32)
      shared.conv[warp][i] = reinterpret_cast<const float4*>(a.w.conv)[channel_of(a, warp, h) + i];
    if (warp == kGatesWarp) a_log = a.w.a_log[h], dt_bias = a.w.dt_bias[h];
  };
  begin_head(Share(a).first / a.num_spans);
  if (warp == kNormWarp && !task.waits_last) {  // for all: it meets them before anything is written
    cuda::griddep_wait();
    if (!task.releases_first) cuda::griddep_launch_dependents();
  }
  Phases brought, loaded;
#pragma unroll 1
  for (int index = 0;; index = (index + 1) % kTokens) {
    cuda::barrier_wait(cuda::shared_address(&shared.brought[index]), brought.next(index));
    const Token& token = shared.tokens[index];
    if (token.is_end) return;
    Stage& stage = stages_of(shared)[token.stage];
    const bool is_last = token.is_last;  // another token may come in its place behind the step
    const uint32_t stepped = cuda::shared_address(&shared.stepped[token.stage]);
    float* const state = &stage.state[group][column];
    if (token.head != head) begin_head(token.head);
    const bool has_state = token.has_state || !token.is_first;
    if (token.is_first)
      cuda::barrier_wait(cuda::shared_address(&shared.loaded[token.stage]),
                         loaded.next(token.stage));
    if (warp < kGatesWarp) prepare(shared, a, token, warp);
    if (warp == kGatesWarp && lane == 0)
      shared.gates =
          decay_and_beta(log_decay_and_beta(token.gates[0], token.gates[1], a_log, dt_bias));
    meet();
    const float o = step_there(state, has_state, shared.k[group], shared.q[group], shared.v[column],
                               shared.gates.x, shared.gates.y);
    if (group == 0) shared.o[column] = o;
    if (is_last) cuda::bulk_store_fence();
    meet();
    if (is_last && threadIdx.x == 0) cuda::barrier_arrive(stepped);
    if (warp != kNormWarp) continue;
    norm_gated(a, token.row, token.head, kHead, shared.o, [&](int j) {
      return float2{shared.norm[j], token.x[3][j]};
    });
    __syncwarp();
    if (lane == 0) cuda::barrier_arrive(cuda::shared_address(&shared.taken[index]));
  }
}

__global__ void __launch_bounds__(kThreads, 1) decode(const __grid_constant__ Task task) {
  extern __shared__ __align__(128) uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (task.releases_first) cuda::griddep_launch_dependents();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kTokens; ++i) {
      cuda::barrier_init(cuda::shared_address(&shared.brought[i]), kTokenArrivals);
      cuda::barrier_init(cuda::shared_address(&shared.taken[i]), 1);
    }
    for (int i = 0; i < kMostStages; ++i) {
      cuda::barrier_init(cuda::shared_address(&shared.loaded[i]), kPieces);
      cuda::barrier_init(cuda::shared_address(&shared.stepped[i]), 1);
    }
    cuda::barrier_init_fence();
  }
  if (threadIdx.x < kHead) shared.norm[threadIdx.x] = task.a.w.norm[threadIdx.x];
  __syncthreads();
  if (threadIdx.x >= kStepThreads)
    Mover(task, shared).run();
  else
    step_tokens(task, shared);
}

}  // namespace

void delta::decode_spans(Ctx& cx, const Params& a, int most, bool waits_last) {
  CHECK(a.d.key_dim == kHead && a.d.value_dim == kHead && a.d.taps == kTaps);
  const int64_t items = int64_t{a.d.value_heads} * a.num_spans;
  const int64_t blocks = std::min<int64_t>(items, cx.kernels.gpu.num_sms);
  const auto stages = std::min<int64_t>((items + blocks - 1) / blocks, kMostStages);
  const bool releases_first = a.num_spans == 1 || waits_last;
  cuda::launch(cx.stream, decode,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(kThreads),
                .smem_bytes = sizeof(Shared) + stages * sizeof(Stage),
                .release = releases_first ? cuda::Release::kBeforeWait : cuda::Release::kAfterWait,
                .reads_inputs = true},
               Task{a, most, static_cast<int>(stages), releases_first, waits_last});
}

// Clusters of more sequences do not run all at once: of 2 4.3 us (5.7 by blocks that stay), of 3
// 7.8 (6.3), one token each.
constexpr int kMostClusterSpans = 2;

void delta_rule_decode(Ctx& cx, const Tensor& att, const RecurrentLayer& state,
                       const DeltaRuleIn& in, const DeltaRuleDesc& desc,
                       const DeltaRuleWeights& weights, const Step& s) {
  if (s.num_tokens == 0) return;
  if (!is_decode(s)) return delta_rule_any(cx, att, state, in, desc, weights, s);
  // Layers whose states are computed once more do not follow one another, as of all that they read
  // the first launch has waited for: 36 of Qwen3-Next's.
  const cuda::LaunchOrder& order = cx.stream.order;
  const bool waits_last = s.is_replay && order.are_inputs_complete() &&
                          order.is_complete(in.qkvz.data) &&
                          (desc.joined || order.is_complete(in.gates.data));
  const Params a = params_of(att, state, in, desc, weights, s);
  if (s.num_tokens <= kClusterTokens && s.num_spans <= kMostClusterSpans)
    return step_by_clusters(cx, a, waits_last);
  decode_spans(cx, a, INT32_MAX, waits_last);
}

}  // namespace nibble::ops::gpu
