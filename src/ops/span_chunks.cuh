// The chunks of a step's spans, in their order: a span of more than kFewTokens tokens is cut into
// chunks of kChunk, the last one shorter; others have none. And what is known of each token before.
#pragma once

#include "ops/norm_qkv/store_qkv.cuh"
#include "ops/step.h"

namespace nibble::ops::gpu {

inline constexpr float kLeastLogDecay =
    -40;  // e^-40 of a state is lost in any sum: G stays exact enough

// Where a token lies in its sequence.
struct TokenPlace {
  int32_t at, from;  // in its span; slot of the state before that
  int32_t to;        // where its inputs are kept: the last of a span's, else -1
  bool in_chunk;
};

// Of token t; a: a recurrent layer's spans and slots.
template <int kFewTokens, class Params>
__device__ __forceinline__ TokenPlace place_of_token(const Params& a, int t) {
  const Span span = span_of_token(a.spans, a.num_spans, a.num_tokens, t);
  const int32_t at = t - span.q_start;
  return {at, a.from[span.slot], at + 1 == span.q_len ? a.to[span.slot] : -1,
          span.q_len > kFewTokens};
}

// A channel's inputs before a tile, or those of several, whose first token lies at `first`, the
// oldest first. ago(i): the input i tokens before the tile's; kept(slot, i): the i-th that the step
// before has left.
template <int kWindow, class Value, class Ago, class Kept>
__device__ __forceinline__ void inputs_before(Value (&before)[kWindow], const TokenPlace& first,
                                              const Ago& ago, const Kept& kept) {
#pragma unroll
  for (int i = 0; i < kWindow; ++i)
    before[i] = first.at >= kWindow - i ? ago(kWindow - i)
                : first.at > 0 && first.from != RecurrentLayer::kNoState
                    ? kept(first.from, i + first.at)
                    : Value{};
}

template <int kChunk, int kFewTokens>
struct SpanChunks {
  const Span* spans;
  int32_t num_spans;

  static __device__ __forceinline__ int of(int32_t tokens) {
    return tokens > kFewTokens ? (tokens + kChunk - 1) / kChunk : 0;
  }
  // By a whole warp: chunks of the spans before span `end`.
  __device__ __forceinline__ int before(int end) const {
    int sum = 0;
    for (int i = threadIdx.x % 32; i < end; i += 32) sum += of(spans[i].q_len);
    return __reduce_add_sync(0xffffffff, sum);
  }

  struct Chunk {
    int64_t first;  // token of the step
    int tokens;     // none: no such chunk
  };
  // By a whole warp.
  __device__ __forceinline__ Chunk find(int index) const {
    const int lane = threadIdx.x % 32;
    for (int begin = 0; begin < num_spans; begin += 32) {
      const Span span = begin + lane < num_spans ? spans[begin + lane] : Span{};
      const int here = of(span.q_len);
      int upto = here;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffff, upto, step);
        if (lane >= step) upto += other;
      }
      const unsigned behind = __ballot_sync(0xffffffff, upto > index);
      if (behind != 0) {
        const int at_lane = __ffs(static_cast<int>(behind)) - 1;
        const int at = (index - __shfl_sync(0xffffffff, upto - here, at_lane)) * kChunk;
        return {__shfl_sync(0xffffffff, span.q_start, at_lane) + at,
                min(kChunk, __shfl_sync(0xffffffff, span.q_len, at_lane) - at)};
      }
      index -= __shfl_sync(0xffffffff, upto, 31);
    }
    return {};
  }
};

}  // namespace nibble::ops::gpu
