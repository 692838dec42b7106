// For tests: pages for every layer of a model, and steps over them made by hand.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "cpu/thread_pool.h"
#include "models/model.h"
#include "ops/ctx.h"
#include "tensor/buffer.h"

namespace nibble {

// One run of one sequence's next tokens within a step.
struct TestChunk {
  int32_t slot;
  std::vector<int32_t> tokens;
};

// The twins, and nothing else.
inline void run_twins(ops::KernelOptions& options) {
  options.allow_ref = true;
  options.activations = ops::ActFormat::kFloat;
  options.forced.clear();
  for (int op = 0; op < ops::kNumOps; ++op)
    options.forced.emplace_back(ops::op_name(static_cast<ops::Op>(op)), "ref");
}

class TestRunner {
 public:
  // Room for `slots` sequences of `max_len` tokens. Pages are dealt out in an order that follows no
  // pattern, so that only the table can find them.
  TestRunner(Model& model, ops::Ctx& cx, int32_t slots, int32_t max_len, DType kv_dtype,
             int32_t page_size = 16);

  // Appends the chunks in one step and returns the logits of all their tokens, [T][V].
  std::vector<std::vector<float>> step(const std::vector<TestChunk>& chunks);
  // A sequence on its own in slot 0, from position 0, in chunks of at most `chunk` tokens.
  std::vector<std::vector<float>> run(const std::vector<int32_t>& tokens, int32_t chunk);
  void clear(int32_t slot) { lengths_[slot] = 0; }

 private:
  Model& model_;
  ops::Ctx& cx_;
  std::vector<int32_t> lengths_;  // [slots]
  std::vector<int32_t> table_;
  std::vector<Buffer> pages_;
  std::vector<KvLayer> layers_;
};

inline TestRunner::TestRunner(Model& model, ops::Ctx& cx, int32_t slots, int32_t max_len,
                              DType kv_dtype, int32_t page_size)
    : model_(model), cx_(cx), lengths_(slots, 0) {
  const ModelInfo& info = model.info();
  const int32_t per_slot = (max_len + page_size - 1) / page_size, pages = slots * per_slot;
  for (int32_t i = 0; i < pages; ++i) table_.push_back(i);
  std::shuffle(table_.begin(), table_.end(), std::mt19937(7));
  layers_.resize(info.num_layers);
  for (const LayerGroup& group : info.groups) {
    for (const int32_t l : group.layers) {
      Tensor side[2];
      for (Tensor& t : side) {
        t = make_tensor(nullptr, kv_dtype, {pages, group.num_kv_heads, page_size, group.head_dim});
        pages_.emplace_back(t.size_bytes());
        t.data = pages_.back().data();
      }
      layers_[l] = {side[0], side[1], table_.data(), per_slot, page_size};
    }
  }
}

inline std::vector<std::vector<float>> TestRunner::step(const std::vector<TestChunk>& chunks) {
  std::vector<int32_t> tokens, positions, out_rows;
  std::vector<Span> spans;
  for (const TestChunk& chunk : chunks) {
    const auto len = static_cast<int32_t>(chunk.tokens.size());
    spans.push_back({static_cast<int32_t>(tokens.size()), len, lengths_[chunk.slot], chunk.slot});
    for (int32_t token : chunk.tokens) {
      out_rows.push_back(static_cast<int32_t>(tokens.size()));
      tokens.push_back(token);
      positions.push_back(lengths_[chunk.slot]++);
    }
  }
  Step step{.num_tokens = static_cast<int32_t>(tokens.size()),
            .num_spans = static_cast<int32_t>(spans.size()),
            .num_out = static_cast<int32_t>(out_rows.size()),
            .tokens = tokens.data(),
            .positions = positions.data(),
            .spans = spans.data(),
            .out_rows = out_rows.data()};
  const Tensor logits = model_.forward(cx_, step, SeqState{layers_.data()});
  std::vector<std::vector<float>> rows;
  for (int64_t r = 0; r < logits.dim(0); ++r) {
    const float* row = logits.as<float>() + r * logits.dim(1);
    rows.emplace_back(row, row + logits.dim(1));
  }
  return rows;
}

inline std::vector<std::vector<float>> TestRunner::run(const std::vector<int32_t>& tokens,
                                                       int32_t chunk) {
  clear(0);
  std::vector<std::vector<float>> all;
  for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const size_t end = std::min(tokens.size(), begin + chunk);
    for (auto& row : step({{0, {tokens.begin() + begin, tokens.begin() + end}}}))
      all.push_back(std::move(row));
  }
  return all;
}

}  // namespace nibble
