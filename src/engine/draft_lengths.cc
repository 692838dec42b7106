#include "engine/draft_lengths.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr int64_t kWellKnown = 10;          // times that a size was seen
constexpr double kForgottenAfter = 10'000;  // steps, of a size that is well known
constexpr double kTriedAfter = 100;         // steps for each time that another was seen
constexpr double kLeastGain = 0.01;         // tokens

}  // namespace

// The first step of a size may record a graph, or find memory cold; it does not count. What a busy
// machine adds now and then is left out by taking the least of the next ones, and later counts for
// no more than twice what is known.
void StepTimes::add(int32_t tokens, double seconds) {
  constexpr int64_t kFirst = 3;
  constexpr double kOwn = 0.02, kCommon = 0.08;
  if (seconds <= 0) return;  // of two clocks: a step less what it drafted
  Seen& seen = seen_[tokens];
  seen.at = ++num_steps_;
  const double share = seconds / pace_;
  if (++seen.times == 1) return;
  if (seen.times == 2) seen.share = share;
  if (seen.times <= kFirst) seen.share = std::min(seen.share, share);
  const double off = std::min(share / seen.share, 2.0) - 1;
  seen.share *= 1 + kOwn * off;
  pace_ *= 1 + kCommon * off;
}

double StepTimes::hoped(const Seen& seen) const {
  const double forgotten_after =
      seen.times < kWellKnown ? kTriedAfter * static_cast<double>(seen.times) : kForgottenAfter;
  return pace_ * seen.share * std::exp(static_cast<double>(seen.at - num_steps_) / forgotten_after);
}

void StepTimes::of(int32_t first, std::span<double> seconds) const {
  double below_at = 0, below = 0;
  size_t i = 0;
  for (const auto& [at, seen] : seen_) {
    if (seen.times < 2) continue;
    const double time = std::max(below, hoped(seen));
    for (; i < seconds.size() && first + static_cast<int32_t>(i) <= at; ++i) {
      const double share = (first + static_cast<double>(i) - below_at) / (at - below_at);
      seconds[i] = below == 0 ? time : below + (time - below) * share;
    }
    below = time, below_at = at;
  }
  std::fill(seconds.begin() + static_cast<int64_t>(i), seconds.end(), below);
}

// As of steps: the first does not count, nor what a busy machine adds for more than twice what is
// known.
void DraftTimes::add(int32_t length, double seconds) {
  constexpr double kWeight = 0.1;
  Seen& seen = seen_[length];
  if (++seen.times == 1) return;
  if (seen.times == 2) seen.seconds = seconds;
  seen.seconds += kWeight * (std::min(seconds, 2 * seen.seconds) - seen.seconds);
}

double DraftTimes::of(int32_t length) const {
  for (int32_t n = length; n > 0; --n)
    if (seen_[n].times > 1) return seen_[n].seconds * length / n;
  return 0;
}

void DraftLengths::choose(std::span<Sequence* const> sequences, int32_t max_drafts,
                          const StepTimes& times, const DraftTimes& draft_times) {
  gains_.clear();
  for (size_t s = 0; s < sequences.size(); ++s) {
    double gain = 1;
    sequences[s]->num_wanted = 0;
    for (size_t i = 0; i < sequences[s]->drafts.size(); ++i) {
      gain *= sequences[s]->draft_rates()->rate(static_cast<int32_t>(i));
      if (gain < kLeastGain) break;
      gains_.push_back(
          {.tokens = gain, .sequence = static_cast<int32_t>(s), .place = static_cast<int32_t>(i)});
    }
  }
  // Stable: a sequence's drafts stay in order, as each adds no more than the one before.
  std::ranges::stable_sort(gains_, std::greater{}, &Gain::tokens);
  if (gains_.size() > static_cast<size_t>(max_drafts)) gains_.resize(max_drafts);

  const auto num_sequences = static_cast<int32_t>(sequences.size());
  seconds_.resize(gains_.size() + 1);
  times.of(num_sequences, seconds_);
  double tokens = num_sequences;
  double best_rate = tokens / seconds_[0];
  size_t best = 0;
  int32_t longest = 0;
  for (size_t n = 0; n < gains_.size(); ++n) {
    tokens += gains_[n].tokens;
    longest = std::max(longest, gains_[n].place + 1);
    const double rate = tokens / (seconds_[n + 1] + draft_times.of(longest));
    if (rate > best_rate) best_rate = rate, best = n + 1;
  }
  for (size_t n = 0; n < best; ++n) ++sequences[gains_[n].sequence]->num_wanted;
}

}  // namespace nibble
