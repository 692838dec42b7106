// add_norm_over_ranks: some thread blocks send rows of d to all other ranks, the rest add up what
// arrives, in order of ranks, to x, and norm. Bytes at two ranks: 2 H a token over the link each
// way, 22 H of memory; 14 H where the product in front has sent the rows; with the choices of K
// experts 18 H and 2 K H, where combine() and a norm would take 26 H and 2 K H.
//
// Lost, where every block sent some rows, waited for theirs and normed them (pp8192 of gpt-oss-120b
// on two H200, 2026-11-28: 85,300 tokens/s; this: 86,900): the next rows on their way before, by
// stores or by the copy engine (no difference), blocks out of step (+0.5%). Of 256 blocks 32 that
// send gave 78,400, 48 and 80 86,700, 128 83,200; with nobody that sends, or norms, 87,700. With
// choices 64 that send gave 89,480, 96 90,820 (another host).
#include <algorithm>

#include "cuda/launch.cuh"
#include "ops/all_reduce/peer_exchange.cuh"
#include "ops/gpu_matmul/expert_limits.h"
#include "ops/moe_down/add_row.cuh"
#include "ops/norm/add_norm_over_ranks.h"
#include "ops/norm/add_norm_row.cuh"

namespace nibble::ops::gpu {
namespace {

struct Eight {
  float4 a, b;
};
// The i-th eight.
__device__ Eight eight_at(const float* from, uint32_t i) {
  const auto* const at = reinterpret_cast<const float4*>(from) + 2 * size_t{i};
  return {at[0], at[1]};
}
// As they travel, in bf16.
__device__ uint4 packed(const Eight& v) {
  return {cuda::pack_bf16(v.a.x, v.a.y), cuda::pack_bf16(v.a.z, v.a.w),
          cuda::pack_bf16(v.b.x, v.b.y), cuda::pack_bf16(v.b.z, v.b.w)};
}

__device__ void add(float (&sum)[8], const uint4& part) {
  const uint32_t words[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    sum[2 * i] += cuda::bf16_lo(words[i]), sum[2 * i + 1] += cuda::bf16_hi(words[i]);
}

// How this rank's part of the sum comes: float32 d; bf16 d, which a product has sent; or choices,
// whose sums those who send leave in d in bf16.
enum class Part { kFloats, kSent, kChoices };

// Groups of kRows rows: the first `senders` thread blocks send them in turns, those from
// `receivers` on take them in turns; one block may do both.
template <int kMine, bool kE4m3, int kRows, Part kPart>
__global__ void __launch_bounds__(kNormThreads, kPart == Part::kSent && kMine == 1 ? 3 : 2)
    add_norm_rows_over_ranks(const __grid_constant__ AddNorm a, const GateLogits gated,
                             const __grid_constant__ PeerMemory m,
                             const __grid_constant__ LeftChoices choices, int senders,
                             int receivers) {
  using Norm = NormRow<kMine, kE4m3>;
  constexpr bool kIsSent = kPart == Part::kSent, kChoices = kPart == Part::kChoices;
  __shared__ bool is_lost;
  if (threadIdx.x == 0) is_lost = false;
  const auto tokens = static_cast<int>(a.tokens), hidden = static_cast<int>(a.hidden);
  const int groups = (tokens + kRows - 1) / kRows, block = blockIdx.x;
  const int thread = threadIdx.x, peer = thread < m.rank ? thread : thread + 1;
  const auto at = [&](int row, int i) -> uint32_t {  // in eights
    return (static_cast<uint32_t>(row) * hidden + Norm::column(i)) / 8;
  };
  const auto has = [&](int i) { return Norm::column(i) < hidden; };
  uint4* const d_in_bf16 = reinterpret_cast<uint4*>(const_cast<float*>(a.d));
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const uint32_t number = next_rows(m.counts);
  const auto room = [&](int of, int from, int row, int i) {
    return reinterpret_cast<uint4*>(rows_of(m, of, from, number)) + at(row, i);
  };
  const auto send = [&](int row, int i, const uint4& values) {
    for (int other = 1; other < m.size; ++other)
      *room((m.rank + other) % m.size, m.rank, row, i) = values;
  };
  const auto say_sent = [&](int g) {
    if (thread < m.size - 1) say(sent_to(m, peer, m.rank, g), number);
    if (kChoices && thread == m.size - 1) say(sent_here(m, g), number);
  };
  if (kIsSent && block == 0) say_sent(0);
  if constexpr (kPart == Part::kFloats) {
    uint4 now[kRows][kMine];
    Eight next[kRows][kMine];  // on their way while a group is sent
    const auto each = [&](int g, auto&& what) {
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int i = 0; i < kMine; ++i)
          if (g * kRows + r < tokens && has(i)) what(g * kRows + r, r, i);
    };
    const auto fetch = [&](int g) {
      each(g, [&](int row, int r, int i) { next[r][i] = eight_at(a.d, at(row, i)); });
    };
    if (block < senders) fetch(block);
    for (int g = block; block < senders && g < groups; g += senders) {
      each(g, [&](int, int r, int i) { now[r][i] = packed(next[r][i]); });
      fetch(g + senders);
      each(g, [&](int row, int r, int i) { send(row, i, now[r][i]); });
      __syncthreads();  // one thread's release is of what all have written: it follows them
      say_sent(g);
    }
  }
  if constexpr (kChoices) {
    constexpr int kPair = kRows > 1 ? 2 : 1;      // rows that are added up at a time
    __shared__ int slots[2][kRows][kMaxChoices];  // of this group and the next
    __shared__ float weights[2][kRows][kMaxChoices];
    const auto* const rows = reinterpret_cast<const uint4*>(choices.rows);
    const auto stage = [&](int turn, int g) {
      const int r = thread / kMaxChoices, k = thread % kMaxChoices;
      const int row = min(g * kRows + r, tokens - 1);
      if (r >= kRows || k >= choices.top_k) return;
      slots[turn][r][k] = __ldcg(choices.slot + row * choices.top_k + k);
      weights[turn][r][k] = __ldcg(choices.p + row * choices.top_k + k);
    };
    int turn = 0;
    if (block < senders) stage(turn, block);
    __syncthreads();
    for (int g = block; block < senders && g < groups; g += senders, turn ^= 1) {
      stage(turn ^ 1, g + senders);
#pragma unroll
      for (int first = 0; first < kRows; first += kPair)
#pragma unroll
        for (int i = 0; i < kMine; ++i) {
          if (!has(i)) continue;
          float sum[kPair][8] = {};
#pragma unroll 4  // as many loads of each in flight
          for (int k = 0; k < choices.top_k; ++k)
#pragma unroll
            for (int r = 0; r < kPair; ++r) {
              const uint32_t from = at(slots[turn][first + r][k], i);
              add_row(sum[r], weights[turn][first + r][k], __ldcg(rows + from));
            }
#pragma unroll
          for (int r = 0; r < kPair; ++r) {
            const int row = g * kRows + first + r;
            if (row >= tokens) break;
            const float* const s = sum[r];
            const uint4 values = packed({{s[0], s[1], s[2], s[3]}, {s[4], s[5], s[6], s[7]}});
            d_in_bf16[at(row, i)] = values;
            send(row, i, values);
          }
        }
      __syncthreads();
      say_sent(g);
    }
  }
  if (block < receivers) return end_rows(m, number);
  Norm norm(a, gated);
  // A row's x, and this rank's part, are on their way while the others' are, if registers hold
  // them.
  constexpr bool kAhead = kMine == 1 && !kIsSent;
  Eight x[kMine];
  uint4 mine[kMine];
  const auto fetch_mine = [&](int row, int i) {
    mine[i] =
        kPart == Part::kFloats ? packed(eight_at(a.d, at(row, i))) : __ldcg(d_in_bf16 + at(row, i));
  };
  const auto fetch = [&](int row, int i) {
    if (row >= tokens || !has(i)) return;
    x[i] = eight_at(a.x, at(row, i));
    if (!kChoices) fetch_mine(row, i);
  };
  const auto wait = [&](int g) {
    const uint32_t* const sent =
        thread < m.size - 1 ? sent_to(m, m.rank, peer, g) : sent_here(m, g);
    if (thread < m.size - !kChoices && !wait_for(sent, number, m)) is_lost = true;
    __syncthreads();
  };
  if (kIsSent) wait(0);
  for (int g = block - receivers; g < groups; g += static_cast<int>(gridDim.x) - receivers) {
    if (kAhead) fetch(g * kRows, 0);
    if (!kIsSent) wait(g);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = g * kRows + r;
      if (row >= tokens) break;
      float y[kMine][8] = {};
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        if (!has(i)) continue;
        if (!kAhead) fetch(row, i);
        if (kChoices) fetch_mine(row, i);
        float sum[8];
        for (int rank = 0; rank < m.size; ++rank) {
          if (rank == 0) {
#pragma unroll
            for (float& v : sum) v = -0.0f;  // which leaves the first part as it is
          }
          add(sum, rank == m.rank ? mine[i] : __ldcg(room(m.rank, rank, row, i)));
        }
        if (is_lost) sum[0] = __uint_as_float(0x7fc00000);  // NaN, of the whole row by its norm
        const float4 &v = x[i].a, &w = x[i].b;
        y[i][0] = v.x + sum[0], y[i][1] = v.y + sum[1], y[i][2] = v.z + sum[2];
        y[i][3] = v.w + sum[3], y[i][4] = w.x + sum[4], y[i][5] = w.y + sum[5];
        y[i][6] = w.z + sum[6], y[i][7] = w.w + sum[7];
      }
      if (kAhead && r + 1 < kRows) fetch(row + 1, 0);
      norm.store(row, y);
    }
  }
  end_rows(m, number);
}

// `count` rows from `first` on.
AddNorm rows_from(const AddNorm& a, int64_t first, int64_t count, bool is_bf16) {
  AddNorm piece = a;
  const int64_t at = first * a.hidden;
  piece.y += at, piece.h += at, piece.x += at, piece.d += is_bf16 ? at / 2 : at;
  piece.tokens = count;
  if (a.e4m3.codes != nullptr) piece.e4m3.codes += at, piece.e4m3.scales += first;
  return piece;
}

// In as many exchanges as it takes. Of many rows some blocks send, as an exchange has room for all
// of them; of few each sends its own before it waits for theirs.
template <int kMine, bool kE4m3, Part kPart>
void norm_in_pieces(Ctx& cx, const PeerMemory& peers, const AddNorm& a, const GateLogits& gate,
                    const LeftChoices& choices) {
  constexpr bool kChoices = kPart == Part::kChoices;
  constexpr int kMost = kMine > 1 ? 1 : 4;  // as many as spill nothing
  const bool has_many = kChoices || a.tokens > 2 * peers.num_blocks;
  const int rows = has_many ? kMost : 1;
  const int64_t most = std::min<int64_t>(most_rows(peers.row_bytes, a.hidden),
                                         int64_t{PeerMemory::kMostGroups} * rows);
  CHECK(most > 0);
  for (int64_t first = 0; first < a.tokens; first += most) {
    const AddNorm piece = rows_from(a, first, std::min(most, a.tokens - first), kChoices);
    GateLogits gate_of_piece = gate;
    if (gate.gate != nullptr) gate_of_piece.logits += first * gate.stride;
    LeftChoices chosen = choices;
    chosen.p += first * choices.top_k, chosen.slot += first * choices.top_k;
    const auto groups = static_cast<int>((piece.tokens + rows - 1) / rows);
    const int eighths = kChoices ? 3 : 2;  // that send: for choices they read more
    const int senders = has_many ? std::max(1, peers.num_blocks * eighths / 8) : 0;
    const int blocks = senders + std::min(groups, peers.num_blocks - senders);
    const auto kernel = [&] {
      constexpr auto kOfMany = add_norm_rows_over_ranks<kMine, kE4m3, kMost, kPart>;
      if constexpr (kChoices)
        return kOfMany;
      else
        return has_many ? kOfMany : add_norm_rows_over_ranks<kMine, kE4m3, 1, kPart>;
    }();
    cuda::launch(cx.stream, kernel,
                 {.grid = dim3(static_cast<unsigned>(blocks)),
                  .block = dim3(kNormThreads),
                  .release = cuda::Release::kAfterWait},
                 piece, gate_of_piece, peers, chosen, has_many ? senders : blocks, senders);
  }
}

template <int kMine, bool kE4m3>
void norm_sent_rows(Ctx& cx, const PeerMemory& peers, const AddNorm& a, const GateLogits& gate) {
  CHECK(a.tokens <= most_rows(peers.row_bytes, a.hidden));
  const int64_t most = kMine == 1 ? peers.num_blocks * 3 / 2 : peers.num_blocks;
  cuda::launch(cx.stream, add_norm_rows_over_ranks<kMine, kE4m3, 1, Part::kSent>,
               {.grid = dim3(static_cast<unsigned>(std::min(a.tokens, most))),
                .block = dim3(kNormThreads),
                .release = cuda::Release::kAfterWait},
               a, gate, peers, LeftChoices{}, 0, 0);
}

// run<kMine, kE4m3>() by the shape of a.
template <typename Run>
void by_shape(const Ctx& cx, const PeerMemory& peers, const AddNorm& a, const Run& run) {
  CHECK(a.rows == nullptr && a.hidden <= kMostHiddenOverRanks);
  CHECK(a.tokens * a.hidden <= INT32_MAX);
  CHECK(peers.size <= PeerMemory::kMostRanks && peers.num_blocks > 1 && !cx.kernels.exact);
  const bool is_narrow = a.hidden <= 8 * kNormThreads, e4m3 = a.e4m3.codes != nullptr;
  if (is_narrow && e4m3) return run.template operator()<1, true>();
  if (is_narrow) return run.template operator()<1, false>();
  if (e4m3) return run.template operator()<2, true>();
  run.template operator()<2, false>();
}

}  // namespace

void add_norm_over_ranks(Ctx& cx, const PeerMemory& peers, const AddNorm& a,
                         const GateLogits& gate) {
  by_shape(cx, peers, a, [&]<int kMine, bool kE4m3>() {
    norm_in_pieces<kMine, kE4m3, Part::kFloats>(cx, peers, a, gate, {});
  });
}

void add_norm_of_sent(Ctx& cx, const PeerMemory& peers, const AddNorm& a, const GateLogits& gate) {
  by_shape(cx, peers, a,
           [&]<int kMine, bool kE4m3>() { norm_sent_rows<kMine, kE4m3>(cx, peers, a, gate); });
}

void add_norm_of_choices(Ctx& cx, const PeerMemory& peers, const AddNorm& a, const GateLogits& gate,
                         const LeftChoices& choices) {
  CHECK(choices.top_k <= kMaxChoices && a.tokens > 2 * peers.num_blocks);
  CHECK(a.tokens * choices.top_k * a.hidden <= UINT32_MAX);
  by_shape(cx, peers, a, [&]<int kMine, bool kE4m3>() {
    norm_in_pieces<kMine, kE4m3, Part::kChoices>(cx, peers, a, gate, choices);
  });
}

}  // namespace nibble::ops::gpu
