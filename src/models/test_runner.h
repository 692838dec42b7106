// For tests: pages or slots for every layer of a model, and steps over them made by hand.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
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
  using Copy = decltype(WeightMemory::copy);
  // Room for `slots` sequences of `max_len` tokens. Pages are dealt out in an order that follows no
  // pattern, so that only the table can find them. `copy` brings bytes to where the model runs.
  TestRunner(Model& model, ops::Ctx& cx, int32_t slots, int32_t max_len, DType kv_dtype,
             int32_t page_size = 16, const Copy& copy = {});

  // Appends the chunks in one step and returns the logits of all their tokens, [T][V], of the last
  // of each, or of none.
  enum class Wanted : uint8_t { kAll, kLast, kNone };
  std::vector<std::vector<float>> step(const std::vector<TestChunk>& chunks,
                                       Wanted wanted = Wanted::kAll);
  // A sequence on its own in slot 0, from position 0, in chunks of at most `chunk` tokens.
  std::vector<std::vector<float>> run(const std::vector<int32_t>& tokens, int32_t chunk);
  void clear(int32_t slot) { lengths_[slot] = 0; }
  // As if tokens up to `length` had been read whose keys and values are those of the first `period`
  // positions, again and again; all are whole pages. States stay as they are.
  void repeat(int32_t slot, int32_t period, int32_t length);
  // What a recurrent layer carries of the slot's tokens so far: [heads, key dims, value dims] and
  // [taps - 1, channels].
  std::span<float> state(int32_t layer, int32_t slot) {
    return row(recurrent_[layer].state, from_[slot]);
  }
  std::span<float> conv(int32_t layer, int32_t slot) {
    return row(recurrent_[layer].conv, from_[slot]);
  }

 private:
  static std::span<float> row(const Tensor& all, int32_t i) {
    const int64_t size = all.num_elements() / all.dim(0);
    return {all.as<float>() + i * size, static_cast<size_t>(size)};
  }

  Model& model_;
  ops::Ctx& cx_;
  const Copy copy_;
  std::vector<int32_t> lengths_;  // [slots]
  const int32_t page_size_, pages_per_slot_;
  std::vector<int32_t> table_;
  std::vector<Buffer> pages_;
  std::vector<KvLayer> layers_;
  // Two slots a sequence, which a step turns by.
  std::vector<RecurrentLayer> recurrent_;  // none in models without
  std::vector<int32_t> from_, to_;         // [slots]

  // `values` where kernels read them.
  template <typename T>
  const T* there(const std::vector<T>& values) {
    if (!copy_ || values.empty()) return values.data();
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    copies_.push_back(cx_.allocate(bytes));
    copy_(copies_.back().data(), values.data(), bytes);
    return static_cast<const T*>(copies_.back().data());
  }
  std::vector<Buffer> copies_;  // of a step
};

inline TestRunner::TestRunner(Model& model, ops::Ctx& cx, int32_t slots, int32_t max_len,
                              DType kv_dtype, int32_t page_size, const Copy& copy)
    : model_(model),
      cx_(cx),
      copy_(copy),
      lengths_(slots, 0),
      page_size_(page_size),
      pages_per_slot_((max_len + page_size - 1) / page_size) {
  const ModelInfo& info = model.info();
  const int32_t pages = slots * pages_per_slot_;
  for (int32_t i = 0; i < pages; ++i) table_.push_back(i);
  std::shuffle(table_.begin(), table_.end(), std::mt19937(7));
  layers_.resize(info.num_layers);
  from_.assign(slots, RecurrentLayer::kNoState), to_.resize(slots);
  for (int32_t slot = 0; slot < slots; ++slot) to_[slot] = 2 * slot;
  recurrent_.resize(info.num_layers);
  // No numbers until they are written.
  const auto take = [&](DType dtype, std::initializer_list<int64_t> shape) {
    Tensor t = make_tensor(nullptr, dtype, shape);
    pages_.push_back(cx.allocate(t.size_bytes()));
    t.data = pages_.back().data();
    const std::vector<uint8_t> ones(t.size_bytes(), 0xff);
    copy_ ? copy_(t.data, ones.data(), t.size_bytes())
          : static_cast<void>(std::memcpy(t.data, ones.data(), ones.size()));
    return t;
  };
  for (const LayerGroup& group : info.groups) {
    const RecurrentShape& r = group.recurrent;
    for (const int32_t l : group.layers) {
      if (!group.is_recurrent()) {
        const auto side = [&] {
          return take(kv_dtype, {pages, group.num_kv_heads, page_size, group.head_dim});
        };
        layers_[l] = {side(), side(), nullptr, pages_per_slot_, page_size};
        continue;
      }
      recurrent_[l].state = take(DType::kF32, {2 * slots, r.heads, r.key_dim, r.value_dim});
      recurrent_[l].conv = take(DType::kF32, {2 * slots, r.taps - 1, r.channels});
    }
  }
}

inline std::vector<std::vector<float>> TestRunner::step(const std::vector<TestChunk>& chunks,
                                                        Wanted wanted) {
  std::vector<int32_t> tokens, positions, out_rows;
  std::vector<Span> spans;
  for (const TestChunk& chunk : chunks) {
    const auto len = static_cast<int32_t>(chunk.tokens.size());
    spans.push_back({static_cast<int32_t>(tokens.size()), len, lengths_[chunk.slot], chunk.slot});
    for (int32_t token : chunk.tokens) {
      if (wanted == Wanted::kAll) out_rows.push_back(static_cast<int32_t>(tokens.size()));
      tokens.push_back(token);
      positions.push_back(lengths_[chunk.slot]++);
    }
    if (wanted == Wanted::kLast) out_rows.push_back(static_cast<int32_t>(tokens.size()) - 1);
  }
  Step step{.num_tokens = static_cast<int32_t>(tokens.size()),
            .num_spans = static_cast<int32_t>(spans.size()),
            .num_out = static_cast<int32_t>(out_rows.size()),
            .max_context = *std::max_element(lengths_.begin(), lengths_.end()),
            .tokens = there(tokens),
            .positions = there(positions),
            .spans = there(spans),
            .out_rows = there(out_rows)};
  for (const TestChunk& chunk : chunks)
    if (lengths_[chunk.slot] == static_cast<int32_t>(chunk.tokens.size()))
      from_[chunk.slot] = RecurrentLayer::kNoState;
  const int32_t *table = there(table_), *from = there(from_), *to = there(to_);
  for (KvLayer& layer : layers_) layer.page_table = table;
  for (RecurrentLayer& layer : recurrent_) layer.from = from, layer.to = to;
  Buffer memory;
  const Tensor logits =
      cx_.on_host(model_.forward(cx_, step, SeqState{layers_.data(), recurrent_.data()}), memory);
  copies_.clear();
  for (const TestChunk& chunk : chunks) {
    from_[chunk.slot] = to_[chunk.slot];
    to_[chunk.slot] ^= 1;
  }
  std::vector<std::vector<float>> rows;
  for (int64_t r = 0; r < logits.dim(0); ++r) {
    const float* row = logits.as<float>() + r * logits.dim(1);
    rows.emplace_back(row, row + logits.dim(1));
  }
  return rows;
}

inline void TestRunner::repeat(int32_t slot, int32_t period, int32_t length) {
  int32_t* const pages = &table_[slot * pages_per_slot_];
  for (int32_t i = lengths_[slot] / page_size_; i < length / page_size_; ++i)
    pages[i] = pages[i % (period / page_size_)];
  lengths_[slot] = length;
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
