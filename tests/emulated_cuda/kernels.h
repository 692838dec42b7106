// Kernels that show single instructions, for emulated_cuda_test.cc.
#pragma once

#include <cstdint>

namespace nibble::emulated {

struct MatrixProblem {  // of m16n8: fragments of 32 lanes as the instruction has them
  uint32_t a[32][4], b[32][2], c[32][4], scale_a[32], scale_b[32];
};
enum class Mma : int { kBf16, kF16, kTf32, kS8, kE4m3, kE2m1E4m3, kScaledE4m3, kNvfp4, kMxfp4 };
void run_mma(Mma what, const MatrixProblem& problem, uint32_t (&d)[32][4]);

// out[i] = f(x[i], y[i]) of 32 lanes.
enum class Lanes : int {
  kE4m3,
  kE5m2,
  kBf16x2,
  kF16x2,
  kE4m3ToF16,
  kTf32,
  kPermute,
  kDot4,
  kFunnel,
  kFma2,
  kSub2,
  kLargest2,
  kRoundDown,
  kShuffleUp,
  kShuffleXor,
  kShuffleIndex,
  kBallot,
  kMatch,
  kReduceMax,
  kReduceAdd,
  kTranspose,
  kLoadMatrix,
  kLoadMatrixTransposed,
  kCollatz,
  kPartedVote,
  kPopulation,
  kDivision,
  kHighProduct,
  kExp2,
};
void run_lanes(Lanes what, const uint32_t (&x)[32], const uint32_t (&y)[32], uint32_t (&out)[32]);

// Sums of parts by blocks that meet (`blocks` each write, all read): out [blocks].
void run_meeting(int blocks, int* out);
// A ring of copies by cp.async, or by the copy engine and mbarriers, through shared memory: out =
// in, reversed within each block's part. `waits` false: reads before the copies have landed.
void run_copies(bool by_engine, bool waits, const uint32_t* in, uint32_t* out, int n);
// out = in by the copy engine's stores; `waits` false: what is put there behind the store, ~in.
void run_stores(bool waits, const uint32_t* in, uint32_t* out, int n);
// A box of 32 x 32, swizzled by 128 bytes, to row y and column x of out [rows][cols].
void run_box_store(const uint32_t* in, uint32_t* out, int rows, int cols, int x, int y);
// Each of two blocks of a cluster sends its number to the other: out [2].
void run_cluster(uint32_t* out);
void run_atomics(uint32_t* counters, int threads);

enum class Wrong : int {
  kGlobal,
  kShared,
  kMisaligned,
  kBarrier,
  kEndless,
  kFreed,
  kUnread,
  kNoCluster
};
void run_wrong(Wrong what, uint32_t* memory);

}  // namespace nibble::emulated
