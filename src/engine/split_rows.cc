#include "engine/split_rows.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"

namespace nibble {
namespace {

using What = RowAsk::What;

RowSlice slice_of(const Tensor& logits, int64_t row, const Cut& slice) {
  CHECK(row >= 0 && row < logits.dim(0) && logits.dim(1) == slice.size);
  return {{logits.as<float>() + row * slice.size, static_cast<size_t>(slice.size)}, slice.begin};
}

// Ids become indices.
void check_summary(const RowSummary& s, const Cut& slice, int rank) {
  const bool has_room = s.num >= 0 && s.num <= RowSummary::kMost;
  if (has_room && std::all_of(s.heaviest.begin(), s.heaviest.begin() + s.num, [&](const auto& e) {
        return e.id >= slice.begin && e.id < slice.end();
      }))
    return;
  throw Error(ErrorKind::kUnsupported,
              "rank " + std::to_string(rank) + " says what is heaviest among ids of another's");
}

}  // namespace

SplitRows::SplitRows(dist::Comm& comm, std::vector<Cut> slices, std::vector<int32_t> masked_ids)
    : comm_(comm),
      slices_(std::move(slices)),
      masked_ids_(std::move(masked_ids)),
      sums_(slices_.size()) {
  std::ranges::sort(masked_ids_);
}

RowSlice SplitRows::mine(int64_t row) const { return slice_of(logits_, row, slices_[0]); }

void SplitRows::tell(int rank, const RowAsk& ask) {
  write_ask(ask, slices_[rank], message_);
  const MessageHead head{MessageHead::Kind::kAsk, message_.size()};
  comm_.send(rank, std::as_bytes(std::span(&head, 1)));
  comm_.send(rank, message_);
  counts_.bytes += static_cast<int64_t>(sizeof(head) + message_.size());
}

void SplitRows::tell_all(const RowAsk& ask) {
  for (int r = 1; r < size(); ++r) tell(r, ask);
}

std::span<const std::byte> SplitRows::hear(int rank, int64_t bytes) {
  answer_.resize(static_cast<size_t>(bytes));
  comm_.receive(rank, answer_);
  counts_.bytes += bytes;
  return answer_;
}

// The answer of a rank; rank 0's own.
template <typename T>
T SplitRows::take(const RowAsk& ask, int rank) {
  if (rank == 0)
    answer(ask, mine(ask.row), masked_ids_, work_, answer_);
  else
    hear(rank, sizeof(T));
  T value;
  CHECK(answer_.size() == sizeof(T));
  std::memcpy(&value, answer_.data(), sizeof(T));
  return value;
}

void SplitRows::take(const Tensor& logits) {
  logits_ = logits;
  const auto rows = static_cast<size_t>(logits.dim(0)), ranks = static_cast<size_t>(size());
  summaries_.resize(rows * ranks);
  for (size_t row = 0; row < rows; ++row)
    summaries_[row * ranks] = mine(static_cast<int64_t>(row)).summary(work_);
  counts_.rows += logits.dim(0);
  for (size_t r = 1; r < ranks && rows > 0; ++r) {
    const auto bytes = hear(static_cast<int>(r), static_cast<int64_t>(rows * sizeof(RowSummary)));
    for (size_t row = 0; row < rows; ++row) {
      RowSummary& s = summaries_[row * ranks + r];
      std::memcpy(&s, bytes.data() + row * sizeof(RowSummary), sizeof(RowSummary));
      check_summary(s, slices_[r], static_cast<int>(r));
    }
  }
}

bool SplitRows::is_finite(int64_t row) const {
  const auto* of = &summaries_[static_cast<size_t>(row * size())];
  return std::all_of(of, of + size(), [](const RowSummary& s) { return s.is_finite != 0; });
}

// What a rank has not said is lighter than the last that it has.
bool SplitRows::heaviest(int64_t row, std::vector<Candidate>& to) const {
  to.clear();
  Candidate bar{.id = -1, .logit = 0, .weight = 0};  // the heaviest of those last ones
  for (int r = 0; r < size(); ++r) {
    const RowSummary& s = summaries_[static_cast<size_t>(row * size() + r)];
    for (int32_t i = 0; i < s.num; ++i)
      to.push_back({.id = s.heaviest[i].id, .logit = s.heaviest[i].logit, .weight = 0});
    if (!s.is_all() && (bar.id < 0 || heavier(to.back(), bar))) bar = to.back();
  }
  std::ranges::sort(to, heavier);
  if (bar.id >= 0) std::erase_if(to, [&](const Candidate& c) { return heavier(bar, c); });
  return bar.id < 0;
}

WeightSum SplitRows::score(int64_t row, const Weighting& weighting, std::span<const int32_t> ids,
                           std::span<float> logits) {
  const RowAsk ask{
      .what = What::kScore, .row = static_cast<int32_t>(row), .weighting = weighting, .ids = ids};
  tell_all(ask);
  WeightSum sum = sum_weights(mine(row).logits(), weighting);
  for (int r = 0; r < size(); ++r) {
    const auto is_here = [&](int32_t id) {
      return id >= slices_[r].begin && id < slices_[r].end();
    };
    const int64_t num = std::ranges::count_if(ids, is_here);
    std::span<const std::byte> bytes;
    if (r > 0) {
      bytes = hear(r, static_cast<int64_t>(sizeof(WeightSum)) + 4 * num);
      WeightSum part;
      std::memcpy(&part, bytes.data(), sizeof(part));
      bytes = bytes.subspan(sizeof(part));
      sum += part;
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!is_here(ids[i])) continue;
      logits[i] = r == 0 ? mine(row)[ids[i]] : 0;
      if (r == 0) continue;
      std::memcpy(&logits[i], bytes.data(), sizeof(float));
      bytes = bytes.subspan(sizeof(float));
    }
  }
  return sum;
}

void SplitRows::adjust(int64_t row, std::span<const int32_t> ids, std::span<const float> values,
                       std::span<const uint32_t> allowed) {
  CHECK(ids.size() == values.size());
  const RowAsk ask{.what = What::kAdjust,
                   .row = static_cast<int32_t>(row),
                   .ids = ids,
                   .values = values,
                   .allowed = allowed};
  tell_all(ask);
  const RowSlice slice = mine(row);
  for (size_t i = 0; i < ids.size(); ++i)
    if (slice.has(ids[i])) slice[ids[i]] = values[i];
  slice.mask(masked_ids_);
  if (!allowed.empty()) slice.allow(allowed, 0);
  auto* const of = &summaries_[static_cast<size_t>(row * size())];
  of[0] = slice.summary(work_);
  for (int r = 1; r < size(); ++r) {
    of[r] = take<RowSummary>(ask, r);
    check_summary(of[r], slices_[r], r);
  }
}

WeightSum SplitRows::sum(int64_t row, const Weighting& weighting) {
  const RowAsk ask{.what = What::kSum, .row = static_cast<int32_t>(row), .weighting = weighting};
  tell_all(ask);
  WeightSum sum = 0;
  for (int r = 0; r < size(); ++r) sum += sums_[r] = take<WeightSum>(ask, r);
  return sum;
}

RowSummary::Entry SplitRows::draw(int64_t row, const Weighting& weighting, double u) {
  const WeightSum all = sum(row, weighting);
  WeightSum target = std::min(share_of(all, u), all - 1);
  int rank = 0;
  while (target >= sums_[rank]) target -= sums_[rank++];
  const RowAsk ask{.what = What::kFind,
                   .row = static_cast<int32_t>(row),
                   .weighting = weighting,
                   .target = target};
  if (rank > 0) tell(rank, ask);
  const auto found = take<RowSummary::Entry>(ask, rank);
  if (found.id < slices_[rank].begin || found.id >= slices_[rank].end())
    throw Error(ErrorKind::kUnsupported, "rank " + std::to_string(rank) +
                                             " adds the weights of its logits up differently "
                                             "from time to time: its memory or processor is wrong");
  return found;
}

std::span<float> SplitRows::whole(int64_t row) {
  if (counts_.whole_rows++ == 0)
    LOG_WARN(
        "ranks: a request needs whole rows of logits, %.0f KB each, which the ranks send: "
        "top_k or logprobs above %d, or a top_p that reaches further down than so many ids of "
        "each rank (nibble_rank_whole_rows_total counts them)",
        static_cast<double>(vocab_size()) * 4e-3, RowSummary::kMost);
  const RowAsk ask{.what = What::kLogits, .row = static_cast<int32_t>(row)};
  tell_all(ask);
  whole_.resize(static_cast<size_t>(vocab_size()));
  std::ranges::copy(mine(row).logits(), whole_.begin());
  for (int r = 1; r < size(); ++r) {
    const std::span to(whole_.data() + slices_[r].begin, static_cast<size_t>(slices_[r].size));
    comm_.receive(r, std::as_writable_bytes(to));
    counts_.bytes += static_cast<int64_t>(to.size_bytes());
  }
  return whole_;
}

RowSlice AnsweredRows::row(int64_t row) const { return slice_of(logits_, row, slice_); }

void AnsweredRows::take(const Tensor& mine) {
  logits_ = mine;
  summaries_.clear();
  for (int64_t r = 0; r < mine.dim(0); ++r) summaries_.push_back(row(r).summary(work_));
  if (!summaries_.empty()) comm_.send(0, std::as_bytes(std::span(summaries_)));
}

void AnsweredRows::answer(std::span<const std::byte> bytes) {
  const RowAsk ask = read_ask(bytes, slice_, logits_.data == nullptr ? 0 : logits_.dim(0));
  nibble::answer(ask, row(ask.row), masked_ids_, work_, answer_);
  comm_.send(0, answer_);
}

}  // namespace nibble
