// all_reduce: t = sum over the ranks of their t, in float32 and in order of ranks: every rank gets
// the same bits. (Parts that one_shot_blocks sends are rounded to bf16 first, but under --exact.)
// Stands behind products whose columns are cut, in models that are split over several ranks.
#pragma once

#include "ops/ctx.h"

namespace nibble::ops {

struct AllReduceDesc {
  int64_t hidden = 0;
  int64_t ranks = 1;
  int64_t tokens = 1;  // the most of a step that it is to serve
  bool operator==(const AllReduceDesc&) const = default;
};

// t [T, H] f32, in and out.
using AllReduceFn = void(Ctx& cx, const Tensor& t);
using AllReduceKernel = Kernel<AllReduceDesc, AllReduceFn>;

// Over the ranks of cx.comm. Many tokens' sum, whose only reader is a norm by add_norm, may be left
// to that: until then it is cx.left_sum, and t this rank's part.
void all_reduce(Ctx& cx, const Site& site, const Tensor& t);
// Whether the row of the product that runs sends its rows, to a norm that makes the sum, and leaves
// its own in bf16: gpu::gemm_over_ranks.
bool sends_sum(const Ctx& cx, int64_t tokens);
// Whether the row of moe_down that runs leaves its choices to that norm: gpu::GpuRanks::leave().
bool leaves_choices(const Ctx& cx, int64_t tokens);
// For who reads t in another way: makes what is left, if any.
void make_left_sum(Ctx& cx);
std::span<const AllReduceKernel> all_reduce_kernels();
inline constexpr const char* kOneShotBlocks = "one_shot_blocks";

// What a rank sends and receives, and of its own memory reads and writes.
int64_t bytes(const AllReduceDesc& desc, int64_t tokens, int64_t act_bytes = 4);
int64_t flops(const AllReduceDesc& desc, int64_t tokens);

// Messages over the sockets of cx.comm.
namespace sockets {
AllReduceFn all_reduce;
}
namespace ref {
AllReduceFn all_reduce;
}
}  // namespace nibble::ops
