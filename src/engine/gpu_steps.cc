#include "engine/gpu_steps.h"

#include <utility>
#include <vector>

#include "base/check.h"
#include "cuda/memory.h"

namespace nibble {
namespace {

int64_t mask_bytes(const ModelInfo& info) {
  return (info.vocab_size + 31) / 32 * static_cast<int64_t>(sizeof(uint32_t));
}

}  // namespace

GpuSteps::GpuSteps(Model& model, ops::Ctx& cx, GpuPages& pages, SeqState kv,
                   const StepLimits& limits, int32_t max_num_seqs,
                   std::span<const int32_t> masked_ids)
    : model_(model),
      cx_(cx),
      pages_(pages),
      kv_(kv),
      block_(cuda::device_buffer(StepBlock::bytes(limits, max_num_seqs))),
      never_(cx.allocate(mask_bytes(model.info()))),
      greedy_(cuda::pinned_buffer(limits.max_out * static_cast<int64_t>(sizeof(ops::Greedy)))),
      row_(cuda::pinned_buffer(model.info().vocab_size * static_cast<int64_t>(sizeof(float)))) {
  std::vector<uint32_t> never(never_.size_bytes() / sizeof(uint32_t));
  for (const int32_t id : masked_ids) never[id / 32] |= uint32_t{1} << (id % 32);
  cuda::copy(never_.data(), never.data(), never_.size_bytes());
}

int64_t GpuSteps::device_bytes(const ModelInfo& info, const StepLimits& limits,
                               int32_t max_num_seqs) {
  return StepBlock::bytes(limits, max_num_seqs) + mask_bytes(info);
}

void GpuSteps::launch(const StepBlock& block) {
  pages_.flush();
  cuda::copy_async(block_.data(), block.data(), block.used_bytes(), cx_.stream);
  const Step step = block.step_at(block_.data());
  const bool is_decode = step.num_tokens == step.num_spans && step.num_tokens == step.num_out;
  if (!is_decode || step.num_tokens > kMaxGraphTokens || cx_.tap) {
    logits_ = run(step);
    return;
  }
  auto& [graph, logits] = graphs_[{step.num_tokens, step.max_context}];
  if (!graph) graph = cuda::Graph(cx_.stream, [&] { logits = run(step); });
  graph.launch(cx_.stream);
  logits_ = logits;
}

Tensor GpuSteps::run(const Step& step) {
  const Tensor logits = model_.forward(cx_, step, kv_);
  ops::sample_greedy(cx_, static_cast<ops::Greedy*>(greedy_.data()), logits,
                     static_cast<const uint32_t*>(never_.data()));
  return logits;
}

void GpuSteps::wait() { cuda::wait(cx_.stream); }

ops::Greedy GpuSteps::greedy(int64_t row) const {
  CHECK(row < logits_.dim(0));
  return static_cast<const ops::Greedy*>(greedy_.data())[row];
}

std::span<float> GpuSteps::logits(int64_t row) {
  CHECK(row < logits_.dim(0));
  const int64_t vocab = logits_.dim(1);
  auto* const to = static_cast<float*>(row_.data());
  cuda::copy_async(to, logits_.as<float>() + row * vocab,
                   vocab * static_cast<int64_t>(sizeof(float)), cx_.stream);
  cuda::wait(cx_.stream);
  return {to, static_cast<size_t>(vocab)};
}

}  // namespace nibble
