#include "engine/gpu_steps.h"

#include <utility>

#include "cuda/memory.h"

namespace nibble {

GpuSteps::GpuSteps(Model& model, ops::Ctx& cx, GpuPages& pages, SeqState kv,
                   const StepLimits& limits, int32_t max_num_seqs)
    : model_(model),
      cx_(cx),
      pages_(pages),
      kv_(kv),
      block_(cuda::device_buffer(device_bytes(limits, max_num_seqs))),
      logits_(cuda::pinned_buffer(int64_t{limits.max_out} * model.info().vocab_size *
                                  static_cast<int64_t>(sizeof(float)))) {}

int64_t GpuSteps::device_bytes(const StepLimits& limits, int32_t max_num_seqs) {
  return StepBlock::bytes(limits, max_num_seqs);
}

void GpuSteps::launch(const StepBlock& block) {
  pages_.flush();
  cuda::copy_async(block_.data(), block.data(), block.used_bytes(), cx_.stream);
  forward(block.step_at(block_.data()));
  if (device_logits_.num_elements() > 0)
    cuda::copy_async(logits_.data(), device_logits_.data, device_logits_.size_bytes(), cx_.stream);
}

void GpuSteps::forward(const Step& step) {
  const bool is_decode = step.num_tokens == step.num_spans && step.num_tokens == step.num_out;
  if (!is_decode || step.num_tokens > kMaxGraphTokens || cx_.tap) {
    device_logits_ = model_.forward(cx_, step, kv_);
    return;
  }
  auto& [graph, logits] = graphs_[{step.num_tokens, step.max_context}];
  if (!graph) graph = cuda::Graph(cx_.stream, [&] { logits = model_.forward(cx_, step, kv_); });
  graph.launch(cx_.stream);
  device_logits_ = logits;
}

Tensor GpuSteps::wait() {
  cuda::wait(cx_.stream);
  Tensor logits = device_logits_;
  logits.data = logits_.data();
  return logits;
}

}  // namespace nibble
