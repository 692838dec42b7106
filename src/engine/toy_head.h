// ToyHead: a draft head for the engine's tests, which sees everything that is done with it. What it
// computes at a position depends on all of its pages before, so a wrong row, token, page or
// position changes it; and as a row of the ToyModel tells one text from every other, it compares
// what it computes there with what it computed there before, alone or in any company.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/engine_testing.h"
#include "models/draft_head.h"

namespace nibble {

// What heads of several engines know of the same texts.
struct ToyHeadMemory {
  using Row = std::array<uint32_t, ToyModel::kDim>;  // bits
  // Of a target's row, the token behind it and its position: what a head makes of them.
  std::map<std::pair<Row, std::pair<int32_t, int32_t>>, Row> outputs;
  // The ids behind them, where the text is known.
  std::map<std::pair<Row, std::pair<int32_t, int32_t>>, std::pair<size_t, int32_t>> places;
  std::vector<std::vector<int32_t>> texts;
  bool learns = true;    // what comes behind: the text that is being read is the last of them
  bool compares = true;  // rows of a text are the same bits however it is computed
  int64_t num_compared = 0, num_passes = 0;
};

class ToyHead : public Model, public DraftHead {
 public:
  static constexpr int32_t kDim = 3, kHeads = 2;  // other pages than the model's

  // Draft i of a chain is right where bit i is set.
  ToyHead(std::shared_ptr<ToyHeadMemory> memory, uint32_t pattern)
      : memory_(std::move(memory)), pattern_(pattern) {
    info_.num_layers = 1;
    info_.vocab_size = ToyModel::kVocab;
    info_.groups = {group()};
    for (int32_t i = 0; i < ToyModel::kVocab; ++i) ids_.push_back(i);
  }
  static LayerGroup group() { return {.layers = {0}, .num_kv_heads = kHeads, .head_dim = kDim}; }

  Model& model() override { return *this; }
  const ModelInfo& info() const override { return info_; }
  int64_t scratch_bytes(const ops::Ctx&, const StepLimits&) const override { return 0; }
  void reserve(const ops::Ctx&, const StepLimits& limits) override {
    limits_ = limits;
    logits_.resize(int64_t{limits.max_out} * ToyModel::kVocab);
    out_.resize(limits.max_tokens), before_.resize(limits.max_tokens);
  }
  const std::vector<int32_t>& target_layers() const override { return layers_; }
  const std::vector<int32_t>& target_ids() const override { return ids_; }
  void set_input(DraftInput input) override { input_ = input; }

  Tensor forward(ops::Ctx&, const Step& step, const SeqState& kv) override {
    CHECK(step.num_tokens <= limits_.max_tokens && step.num_out <= limits_.max_out);
    ++memory_->num_passes;
    std::swap(out_, before_);
    for (int32_t s = 0; s < step.num_spans; ++s) {
      const Span& span = step.spans[s];
      for (int32_t i = 0; i < span.q_len; ++i) {
        CHECK(step.positions[span.q_start + i] == span.context + i);
        run(step, span, span.q_start + i, kv.layer(0));
      }
    }
    for (int32_t r = 0; r < step.num_out; ++r) {
      CHECK(step.out_rows[r] >= 0 && step.out_rows[r] < step.num_tokens);
      const State& at = out_[step.out_rows[r]];
      float* const logits = &logits_[int64_t{r} * ToyModel::kVocab];
      std::fill_n(logits, ToyModel::kVocab, 0.0f);
      const int32_t known = next(at);
      const bool is_right = (pattern_ >> (at.chain % 32) & 1) != 0;
      logits[is_right ? known : known ^ 1] = 1;
    }
    return make_tensor(logits_.data(), DType::kF32, {step.num_out, ToyModel::kVocab});
  }

 private:
  using Row = ToyHeadMemory::Row;
  struct State {
    std::array<float, ToyModel::kDim> x{};
    std::pair<size_t, int32_t> place{0, -1};  // of the id behind it, in a known text
    int32_t chain = 0;
  };

  int32_t next(const State& at) const {
    if (at.place.second < 0) return 0;
    const std::vector<int32_t>& text = memory_->texts[at.place.first];
    return at.place.second < std::ssize(text) ? text[at.place.second] : 0;
  }

  static float* at(const Tensor& pages, const KvLayer& kv, int32_t slot, int32_t position) {
    const int32_t page = kv.page_table[slot * kv.max_pages + position / kv.page_size];
    CHECK(page != KvLayer::kNoPage && page < pages.dim(0));
    CHECK(pages.dim(1) == kHeads && pages.dim(3) == kDim);
    return pages.as<float>() +
           (int64_t{page} * kHeads * kv.page_size + position % kv.page_size) * kDim;
  }

  void run(const Step& step, const Span& span, int32_t t, const KvLayer& kv) {
    const int32_t position = step.positions[t], token = step.tokens[t], row = input_.rows[t];
    const bool is_fed = !input_.target.empty();
    State now;
    std::array<float, ToyModel::kDim> from{};
    if (is_fed)
      std::copy_n(input_.target[1].as<float>() + int64_t{row} * ToyModel::kDim, from.size(),
                  from.begin());
    else
      from = before_[row].x;
    for (int32_t d = 0; d < kDim; ++d) {
      at(kv.k, kv, span.slot, position)[d] = from[d] + static_cast<float>(token % 7);
      at(kv.v, kv, span.slot, position)[d] = from[d + 1];
    }
    for (int32_t p = 0; p <= position; ++p) {
      const float near = 1.0f / static_cast<float>(2 + position - p);
      for (int32_t d = 0; d < kDim; ++d)
        now.x[d] += near * at(kv.k, kv, span.slot, p)[d] * at(kv.v, kv, span.slot, p)[d];
    }
    now.x[kDim] = static_cast<float>(token);
    if (is_fed) {
      compare(now, from, token, position);
    } else {
      now.chain = before_[row].chain + 1;
      now.place = before_[row].place;
      if (now.place.second >= 0 && next(before_[row]) == token) ++now.place.second;
    }
    out_[t] = now;
  }

  void compare(State& now, const std::array<float, ToyModel::kDim>& from, int32_t token,
               int32_t position) {
    Row key{}, made{};
    std::memcpy(key.data(), from.data(), sizeof(key));
    std::memcpy(made.data(), now.x.data(), sizeof(made));
    const std::pair where{key, std::pair{token, position}};
    const auto [known, is_new] = memory_->outputs.try_emplace(where, made);
    if (!is_new && memory_->compares) {
      ++memory_->num_compared;
      EXPECT_EQ(known->second, made) << "position " << position << " token " << token;
    }
    if (memory_->learns) memory_->places[where] = {memory_->texts.size(), position + 2};
    if (const auto place = memory_->places.find(where); place != memory_->places.end())
      if (place->second.first < memory_->texts.size()) now.place = place->second;
  }

  std::shared_ptr<ToyHeadMemory> memory_;
  uint32_t pattern_;
  ModelInfo info_;
  StepLimits limits_;
  DraftInput input_;
  std::vector<int32_t> layers_ = {1, 2}, ids_;
  std::vector<float> logits_;
  std::vector<State> out_, before_;
};

// With as many drafts as there are, always.
inline EngineOptions with_head(EngineOptions options, std::shared_ptr<DraftHead> head, int32_t k) {
  options.speculation = {.method = SpeculationOptions::Method::kHead,
                         .num_tokens = k,
                         .is_adaptive = false,
                         .head_group = ToyHead::group(),
                         .head = std::move(head)};
  return options;
}

// The text of a request that runs alone, and a memory that knows what a head makes of it.
inline Transcript learn(const std::shared_ptr<ToyHeadMemory>& memory, const Request& request,
                        bool is_recurrent = false) {
  ToyModel model(8192, is_recurrent);
  EngineOptions options = with_head(toy_options(), std::make_shared<ToyHead>(memory, 0), 1);
  options.prefix_caching = false;
  Engine engine(model, {}, options);
  Transcript transcript = run_all(engine, {request})[0];
  std::vector<int32_t>& text = memory->texts.emplace_back(request.prompt);
  text.insert(text.end(), transcript.ids.begin(), transcript.ids.end());
  return transcript;
}

}  // namespace nibble
