#include <algorithm>

#include "cpu/thread_pool.h"
#include "ops/attention/attend_bf16.h"
#include "ops/attention/attention.h"
#include "ops/cpu_matmul/float_kernels.h"
#include "ops/scratch.h"
#include "ops/store.h"

namespace nibble::ops {
namespace {

// Query rows (token, head) that share one pass over the keys; those of bf16 products cost less
// beside loading the keys.
constexpr int64_t kFloatRows = 32, kBf16Rows = 128;

constexpr bool has_bf16(cpu::Isa isa) {
  return isa == cpu::Isa::kAmx || isa == cpu::Isa::kAvx512Bf16;
}

int32_t tile_tokens(int64_t rows, int64_t group) {
  return static_cast<int32_t>(std::max<int64_t>(1, rows / group));
}

int64_t worker_floats(int64_t group, int64_t dim) {
  return std::max(attend_scratch_floats(tile_tokens(kFloatRows, group) * group, dim),
                  attend_bf16_scratch_floats(tile_tokens(kBf16Rows, group) * group, dim));
}

// Query heads of one KV head that a task takes: all, or so few that each worker gets a task.
int64_t heads_of_task(int64_t group, int64_t tasks, int threads) {
  const int64_t parts = std::clamp<int64_t>(threads / std::max<int64_t>(1, tasks), 1, group);
  return (group + parts - 1) / parts;
}

}  // namespace

int64_t scratch_bytes(const AttentionDesc& d, int threads) {
  Scratch s;
  s.take<float>(threads * worker_floats(d.q_heads / d.kv_heads, d.head_dim));
  return s.used_bytes();
}

template <cpu::Isa kIsa>
void BlockedAttention<kIsa>::run(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                                 const AttentionParams& params, const Step& s) {
  // float32 pages are asked for to be exact: they are met in float32.
  if constexpr (has_bf16(kIsa))
    if (kv.k.dtype == DType::kF32)
      return BlockedAttention<cpu::Isa::kAvx512>::run(cx, att, q, kv, params, s);
  AttendFn* attend = nullptr;
  if constexpr (has_bf16(kIsa))
    attend = attend_bf16(kIsa);
  else
    attend = float_kernels(kIsa).attend;
  const int64_t kv_heads = kv.k.dim(1), dim = kv.k.dim(3), width = q.dim(1);
  const int64_t group = width / dim / kv_heads, floats = worker_floats(group, dim);
  const int32_t per_tile = tile_tokens(has_bf16(kIsa) ? kBf16Rows : kFloatRows, group);
  float* scratch = Scratch(cx.scratch).take<float>(cx.pool->size() * floats);
  const auto tiles_of = [&](const Span& span) { return (span.q_len + per_tile - 1) / per_tile; };
  int64_t tiles = 0;
  for (int32_t i = 0; i < s.num_spans; ++i) tiles += tiles_of(s.spans[i]);

  // Few sequences that decode on many workers: the heads of a group part, each with its own reading
  // of the keys. A row's sums are its own, so that its bits do not depend on it.
  const int64_t heads = heads_of_task(group, tiles * kv_heads, cx.pool->size());
  const int64_t parts = (group + heads - 1) / heads;
  cx.pool->parallel_tasks(tiles * kv_heads * parts, [&](int64_t task, int worker) {
    // Last tiles first: they see the most keys.
    const int64_t g = task / parts % kv_heads, part = task % parts * heads;
    int64_t tile = tiles - 1 - task / parts / kv_heads;
    const Span* span = s.spans;
    for (; tile >= tiles_of(*span); ++span) tile -= tiles_of(*span);
    const auto first = static_cast<int32_t>(tile * per_tile);
    const int64_t head = g * group + part, num_heads = std::min(heads, group - part);
    const int64_t at = (span->q_start + first) * width + head * dim;
    const int32_t num_tokens = std::min(per_tile, span->q_len - first);
    attend({.kv = &kv,
            .slot = span->slot,
            .kv_head = static_cast<int32_t>(g),
            .group = static_cast<int32_t>(num_heads),
            .num_tokens = num_tokens,
            .first_pos = span->context + first,
            .window = params.window,
            .scale = params.scale * kv.k_scale,
            .sinks = params.sinks ? params.sinks + head : nullptr,
            .q = q.as<float>() + at,
            .att = att.as<float>() + at,
            .ld = width,
            .scratch = scratch + worker * floats});
    if (cx.activations != DType::kBF16) return;
    for (int32_t t = 0; t < num_tokens; ++t)
      for (int64_t j = 0; j < num_heads * dim; ++j) {
        float& value = att.as<float>()[at + t * width + j];
        value = stored(cx.activations, value);
      }
  });
}

template struct BlockedAttention<cpu::Isa::kAmx>;
template struct BlockedAttention<cpu::Isa::kAvx512Bf16>;
template struct BlockedAttention<cpu::Isa::kAvx512>;
template struct BlockedAttention<cpu::Isa::kAvx2>;
template struct BlockedAttention<cpu::Isa::kNeon>;
template struct BlockedAttention<cpu::Isa::kScalar>;

}  // namespace nibble::ops
