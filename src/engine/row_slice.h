// RowSlice: some of a row's logits, ids [begin, begin + size), of which each of several ranks has
// one, and what sampling asks of it. A rank says at once what is heaviest in its slice; what else
// is asked (RowAsk) is answered from the slice as it then is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/logprobs.h"
#include "models/model.h"

namespace nibble {

// A logit as a number of 32 bits, the heavier the larger; equal ones are one number. Read by digits
// of 8 bits, the first one first.
struct OrderPrefix {
  static constexpr int kDigits = 4;
  uint32_t digits = 0;  // those before, the rest zeros
  int32_t num = 0;      // how many
  // Whether a number begins so; its next digit.
  bool has(uint32_t order, uint32_t& digit) const {
    digit = order >> shift() & 0xff;
    return uint64_t{order ^ digits} >> (shift() + 8) == 0;
  }
  OrderPrefix with(uint32_t digit) const { return {digits | digit << shift(), num + 1}; }

 private:
  int shift() const { return 24 - 8 * num; }  // of the next one
};
uint32_t order_of(float logit);  // of a number, or kNever
float logit_of(uint32_t order);

// Of logits by their next digit: a count, or a sum of weights.
using DigitSums = std::array<WeightSum, 256>;

// The heaviest ids of a slice, heaviest first: all that weigh anything where they are fewer than
// there is room for.
struct RowSummary {
  static constexpr int32_t kMost = 32;
  struct Entry {
    int32_t id;
    float logit;
  };
  int32_t is_finite = 0;  // of all of the slice, before anything is masked
  int32_t num = 0;
  std::array<Entry, kMost> heaviest = {};
  bool is_all() const { return num < kMost; }
};

struct RowAsk {
  enum class What : int32_t {
    kScore,   // sum of all weights, then the logits of `ids`
    kAdjust,  // `ids` get the logits `values`, what is masked goes; then a RowSummary
    kSum,     // what is masked goes; then a sum of weights
    kFind,    // the id where that sum goes beyond `target`, and its logit: a RowSummary::Entry
    kCount,   // what is masked goes; then DigitSums of how many ids weigh anything
    kWeigh,   // the same of their weights
    kLogits   // all of them
  };
  What what = What::kLogits;
  int32_t row = 0;
  Weighting weighting = {0, 1, 0};         // of kScore, kSum, kFind, kCount and kWeigh
  WeightSum target = 0;                    // of kFind
  OrderPrefix prefix = {};                 // of kCount and kWeigh
  std::span<const int32_t> ids = {};       // of kScore and kAdjust
  std::span<const float> values = {};      // of kAdjust, as many
  std::span<const uint32_t> allowed = {};  // of kAdjust: bit per id of the vocabulary; none: all
};

class RowSlice {
 public:
  RowSlice(std::span<float> logits, int64_t begin)
      : logits_(logits), begin_(static_cast<int32_t>(begin)) {}
  // `work` is scratch.
  RowSummary summary(std::vector<Candidate>& work) const;
  bool has(int32_t id) const { return id >= begin_ && id < begin_ + std::ssize(logits_); }
  float& operator[](int32_t id) const { return logits_[static_cast<size_t>(id - begin_)]; }
  // Those of `ids` that it has.
  void mask(std::span<const int32_t> ids) const;
  // allowed: bit per id from `first` on.
  void allow(std::span<const uint32_t> allowed, int32_t first) const;
  RowSummary::Entry find(const Weighting& weighting, WeightSum target) const;
  // As kCount and kWeigh ask.
  DigitSums add_up(const RowAsk& ask) const;
  std::span<float> logits() const { return logits_; }
  int32_t begin() const { return begin_; }

 private:
  std::span<float> logits_;
  int32_t begin_;
};

// What goes to the rank that has `slice` of the vocabulary: its ids and words of bits alone.
void write_ask(const RowAsk& ask, const Cut& slice, std::vector<std::byte>& to);
// Views into `bytes`, which are aligned as ints are; `allowed` begins at the word that has the
// slice's first id. Throws Error(kUnsupported) where it does not fit a step of so many rows.
RowAsk read_ask(std::span<const std::byte> bytes, const Cut& slice, int64_t rows);
int64_t most_ask_bytes(const Cut& slice);

// Answers, in the order in which RowAsk names their parts.
void answer(const RowAsk& ask, const RowSlice& slice, std::span<const int32_t> masked_ids,
            std::vector<Candidate>& work, std::vector<std::byte>& to);

}  // namespace nibble
