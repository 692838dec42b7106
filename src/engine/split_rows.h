// SplitRows: the logits of a step, of which each rank has a slice of the vocabulary, as rank 0 sees
// them. The others send what is heaviest in theirs, and answer what it asks besides; whole rows
// travel only where nothing less will do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dist/comm.h"
#include "engine/rank_counts.h"
#include "engine/row_slice.h"
#include "tensor/tensor.h"

namespace nibble {

// Before each message of rank 0's to the others.
struct MessageHead {
  enum class Kind : uint64_t { kStep, kReplay, kAsk };
  Kind kind = Kind::kStep;
  uint64_t size = 0;
};

class SplitRows {
 public:
  // slices: each rank's of the vocabulary, in order. masked_ids: never sampled.
  SplitRows(dist::Comm& comm, std::vector<Cut> slices, std::vector<int32_t> masked_ids);
  int32_t vocab_size() const { return static_cast<int32_t>(slices_[0].all); }
  std::span<const int32_t> masked_ids() const { return masked_ids_; }

  // Of the step that has run: rank 0's slice of each row, [R, slice].
  void take(const Tensor& mine);

  bool is_finite(int64_t row) const;
  // The row's heaviest ids, heaviest first: so many that no other is heavier. Returns whether that
  // is all that are not masked.
  bool heaviest(int64_t row, std::vector<Candidate>& to) const;
  // The logits of `ids`, and the sum of all weights.
  WeightSum score(int64_t row, const Weighting& weighting, std::span<const int32_t> ids,
                  std::span<float> logits);
  // From here on the row is another: masked, and with `values` for `ids`; allowed: bit per id.
  void adjust(int64_t row, std::span<const int32_t> ids, std::span<const float> values,
              std::span<const uint32_t> allowed);
  // Of the row less what is masked: what draws go by. Which ids weigh anything is narrowed down
  // first: to the top_k heaviest, to the fewest heaviest that have top_p of the sum.
  void begin(int64_t row, const Weighting& weighting);
  void keep_heaviest(int32_t top_k);
  void keep_nucleus(float top_p);
  WeightSum sum();
  RowSummary::Entry draw(double u);  // the id that u draws, its logit
  // The row as it is now, until the next call.
  std::span<float> whole(int64_t row);

  const RankCounts& counts() const { return counts_; }

 private:
  int size() const { return comm_.size(); }
  RowSlice mine(int64_t row) const;
  void tell(int rank, const RowAsk& ask);
  void tell_all(const RowAsk& ask);
  std::span<const std::byte> hear(int rank, int64_t bytes);
  template <typename T>
  T take(const RowAsk& ask, int rank);
  // What each rank says of its part of the row that draws are from.
  RowAsk ask_of(RowAsk::What what, int rank) const;
  template <typename T>
  void ask_all(RowAsk::What what, const OrderPrefix& prefix, std::vector<T>& answers);
  template <typename Target>
  void cut(RowAsk::What what, const Target& target_of);

  dist::Comm& comm_;
  const std::vector<Cut> slices_;
  std::vector<int32_t> masked_ids_;    // in order
  Tensor logits_;                      // rank 0's
  std::vector<RowSummary> summaries_;  // [R, ranks]
  int64_t row_ = 0;                    // that draws are from
  Weighting weighting_ = {0, 1, 0};    // of it
  std::vector<int32_t> ties_;          // [ranks]: Weighting::ties of each
  std::vector<WeightSum> sums_;        // [ranks], of the last sum()
  std::vector<DigitSums> digits_;      // [ranks]
  std::vector<float> whole_;           // [V]
  std::vector<Candidate> work_;
  std::vector<std::byte> message_, answer_;
  RankCounts counts_;
};

// Another rank's side.
class AnsweredRows {
 public:
  AnsweredRows(dist::Comm& comm, const Cut& slice, std::vector<int32_t> masked_ids)
      : comm_(comm), slice_(slice), masked_ids_(std::move(masked_ids)) {}
  // Sends rank 0 what is heaviest in each row.
  void take(const Tensor& mine);
  // Of the rows taken last.
  void answer(std::span<const std::byte> ask);
  int64_t most_bytes() const { return most_ask_bytes(slice_); }

 private:
  RowSlice row(int64_t row) const;
  dist::Comm& comm_;
  const Cut slice_;
  const std::vector<int32_t> masked_ids_;
  Tensor logits_;
  std::vector<RowSummary> summaries_;
  std::vector<Candidate> work_;
  std::vector<std::byte> answer_;
};

}  // namespace nibble
