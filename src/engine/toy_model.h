// ToyModel: a language model of a few dozen lines for the engine's tests. Two window layers and a
// full one; every layer writes what it knows of a token into the pages and reads back all that the
// token may see, so a wrong page, position, slot or row changes every later logit. If asked for,
// there is a recurrent layer, too: its state is a number that follows from every token so far, and
// counts them. Each token is computed by itself in one fixed order: any batching must give the same
// bits.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "models/model.h"

namespace nibble {

class ToyModel : public Model {
 public:
  static constexpr int32_t kRecurrentLayer = 3;  // if there is one
  static constexpr int32_t kDim = 4;
  static constexpr int32_t kVocab = 64;
  static constexpr int32_t kWindow = 8;

  explicit ToyModel(int32_t max_positions = 8192, bool is_recurrent = false) {
    info_.architecture = "ToyModel";
    info_.num_layers = 3;
    info_.vocab_size = kVocab;
    info_.max_positions = max_positions;
    info_.groups = {{.window = kWindow, .layers = {0, 2}, .num_kv_heads = 1, .head_dim = kDim},
                    {.layers = {1}, .num_kv_heads = 1, .head_dim = kDim}};
    if (!is_recurrent) return;
    info_.num_layers = kRecurrentLayer + 1;
    info_.groups.push_back(
        {.layers = {kRecurrentLayer},
         .recurrent = {.heads = 1, .key_dim = 1, .value_dim = 2, .channels = 1, .taps = 3}});
  }

  const ModelInfo& info() const override { return info_; }
  int64_t scratch_bytes(const ops::Ctx&, const StepLimits& limits) const override {
    return int64_t{4} * limits.max_out * kVocab;
  }
  void reserve(const ops::Ctx&, const StepLimits& limits) override {
    limits_ = limits;
    logits_.resize(static_cast<size_t>(limits.max_out) * kVocab);
    x_.resize(static_cast<size_t>(limits.max_tokens));
    kept_.assign(kept_layers_.size(), x_);
  }
  void keep_rows(const std::vector<int32_t>& layers) override { kept_layers_ = layers; }
  std::vector<Tensor> kept_rows() const override {
    std::vector<Tensor> rows;
    for (const auto& kept : kept_)
      rows.push_back(
          make_tensor(const_cast<Vector*>(kept.data()), DType::kF32, {limits_.max_tokens, kDim}));
    return rows;
  }

  Tensor forward(ops::Ctx&, const Step& step, const SeqState& kv) override {
    if (throw_in_step == num_forwards.fetch_add(1)) throw std::runtime_error("the toy broke");
    CHECK(step.num_tokens <= limits_.max_tokens && step.num_out <= limits_.max_out);
    for (int32_t t = 0; t < step.num_tokens; ++t) x_[t] = embed(step.tokens[t]);
    for (int32_t l = 0; l < info_.num_layers; ++l) {
      for (size_t i = 0; i < kept_layers_.size(); ++i)
        if (kept_layers_[i] == l) std::copy_n(x_.begin(), step.num_tokens, kept_[i].begin());
      if (l == kRecurrentLayer) {
        run_recurrent(step, kv.recurrent_layer(l));
        continue;
      }
      for (int32_t s = 0; s < step.num_spans; ++s) run_layer(l, step, step.spans[s], kv.layer(l));
    }
    for (int32_t r = 0; r < step.num_out; ++r) {
      unembed(x_[step.out_rows[r]], &logits_[static_cast<size_t>(r) * kVocab]);
    }
    if (step.num_out > 0 && nan_in_step == num_forwards - 1) logits_[0] = std::nanf("");
    return make_tensor(logits_.data(), DType::kF32, {step.num_out, kVocab});
  }

  int64_t throw_in_step = -1;
  int64_t nan_in_step = -1;
  std::atomic<int64_t> num_forwards = 0;

 private:
  using Vector = std::array<float, kDim>;

  static Vector embed(int32_t token) {
    Vector x;
    for (int32_t d = 0; d < kDim; ++d) x[d] = std::sin(static_cast<float>(token * 7 + d * 3 + 1));
    return x;
  }

  static void unembed(const Vector& x, float* logits) {
    for (int32_t v = 0; v < kVocab; ++v) {
      float sum = 0;
      for (int32_t d = 0; d < kDim; ++d) {
        sum += x[d] * std::sin(static_cast<float>(v * 5 + d * 11 + 2));
      }
      logits[v] = 3 * sum;
    }
  }

  static float* at(const Tensor& pages, const KvLayer& kv, int32_t slot, int32_t position) {
    const int32_t page = kv.page_table[slot * kv.max_pages + position / kv.page_size];
    CHECK(page != KvLayer::kNoPage && page < pages.dim(0));
    return pages.as<float>() + (int64_t{page} * kv.page_size + position % kv.page_size) * kDim;
  }

  void run_layer(int32_t l, const Step& step, const Span& span, const KvLayer& kv) {
    const bool is_full = info_.groups[1].layers[0] == l;
    for (int32_t i = 0; i < span.q_len; ++i) {
      const int32_t position = span.context + i;
      CHECK(step.positions[span.q_start + i] == position);
      Vector& x = x_[span.q_start + i];
      for (int32_t d = 0; d < kDim; ++d) {
        at(kv.k, kv, span.slot, position)[d] = x[d] + 0.1f * static_cast<float>(l);
        at(kv.v, kv, span.slot, position)[d] = x[(d + 1) % kDim];
      }
      Vector sum{};
      for (int32_t p = is_full ? 0 : std::max(0, position - kWindow + 1); p <= position; ++p) {
        const float* const k = at(kv.k, kv, span.slot, p);
        const float* const v = at(kv.v, kv, span.slot, p);
        const float near = 1.0f / static_cast<float>(1 + position - p);
        for (int32_t d = 0; d < kDim; ++d) sum[d] += near * k[(d + 2) % kDim] * v[d];
      }
      for (int32_t d = 0; d < kDim; ++d) {
        x[d] = 0.5f * x[d] + sum[d] / (1 + std::fabs(sum[d]));
      }
    }
  }

  void run_recurrent(const Step& step, const RecurrentLayer& layer) {
    for (int32_t s = 0; s < step.num_spans; ++s) {
      for (int32_t other = 0; other < step.num_spans; ++other) {
        const int32_t to = layer.to[step.spans[s].slot], i = step.spans[other].slot;
        CHECK(to >= 0 && to < layer.state.dim(0) && to != layer.from[i]);
        CHECK(s == other || to != layer.to[i]);
      }
    }
    for (int32_t s = 0; s < step.num_spans; ++s) run_recurrent(step, step.spans[s], layer);
  }

  void run_recurrent(const Step& step, const Span& span, const RecurrentLayer& layer) {
    int64_t all = 1, count = 0, before[2] = {0, 0};  // the second last token, the last
    const int64_t from = layer.from[span.slot], to = layer.to[span.slot];
    if (from != RecurrentLayer::kNoState) {
      all = static_cast<int64_t>(layer.state.as<float>()[2 * from]);
      count = static_cast<int64_t>(layer.state.as<float>()[2 * from + 1]);
      for (int i : {0, 1}) before[i] = static_cast<int64_t>(layer.conv.as<float>()[2 * from + i]);
    }
    CHECK(count == span.context);
    for (int32_t t = span.q_start; t < span.q_start + span.q_len; ++t, ++count) {
      all = (all * 61 + step.tokens[t] + 3 * before[1] + 7 * before[0] + 1) % 1000003;
      before[0] = std::exchange(before[1], step.tokens[t]);
      for (int32_t d = 0; d < kDim; ++d) {
        x_[t][d] += 0.5f * std::sin(static_cast<float>(all % 1009 * (d + 1)));
      }
    }
    layer.state.as<float>()[2 * to] = static_cast<float>(all);  // below 2^24: exact
    layer.state.as<float>()[2 * to + 1] = static_cast<float>(count);
    for (int i : {0, 1}) layer.conv.as<float>()[2 * to + i] = static_cast<float>(before[i]);
  }

  ModelInfo info_;
  StepLimits limits_;
  std::vector<float> logits_;
  std::vector<Vector> x_;
  std::vector<int32_t> kept_layers_;
  std::vector<std::vector<Vector>> kept_;  // by layer
};

}  // namespace nibble
