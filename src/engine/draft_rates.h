// DraftRates: how often the drafts for a sequence come true, place by place.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "engine/speculation_counts.h"

namespace nibble {

class DraftRates {
 public:
  // Of draft i, where all before it came true.
  double rate(int32_t i) const { return rates_[i]; }
  void learn(int32_t i, bool came_true) {
    constexpr float kWeight = 0.1f;  // of the latest
    rates_[i] += kWeight * ((came_true ? 1.0f : 0.0f) - rates_[i]);
  }
  // Nothing was seen of draft i and those behind it: each comes closer to the one before, which it
  // is likely to be like. So what was once bad, or bad luck, is tried again.
  void forget(int32_t i) {
    constexpr float kWeight = 0.01f;
    for (i = std::max(i, int32_t{1}); i < kMaxDrafts; ++i)
      rates_[i] += kWeight * (rates_[i - 1] - rates_[i]);
  }

 private:
  static constexpr float kUnknown = 0.5f;
  static constexpr std::array<float, kMaxDrafts> all_unknown() {
    std::array<float, kMaxDrafts> rates{};
    for (float& rate : rates) rate = kUnknown;
    return rates;
  }
  std::array<float, kMaxDrafts> rates_ = all_unknown();
};

}  // namespace nibble
