#include "engine/split_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>
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
      ties_(slices_.size()),
      sums_(slices_.size()),
      digits_(slices_.size()) {
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

void SplitRows::begin(int64_t row, const Weighting& weighting) {
  row_ = row, weighting_ = weighting;
  std::ranges::fill(ties_, weighting.ties);
}

RowAsk SplitRows::ask_of(What what, int rank) const {
  RowAsk ask{.what = what, .row = static_cast<int32_t>(row_), .weighting = weighting_};
  ask.weighting.ties = ties_[rank];
  return ask;
}

template <typename T>
void SplitRows::ask_all(What what, const OrderPrefix& prefix, std::vector<T>& answers) {
  const auto ask_of_rank = [&](int rank) {
    RowAsk ask = ask_of(what, rank);
    ask.prefix = prefix;
    return ask;
  };
  for (int r = 1; r < size(); ++r) tell(r, ask_of_rank(r));
  for (int r = 0; r < size(); ++r) answers[r] = take<T>(ask_of_rank(r), r);
}

WeightSum SplitRows::sum() {
  ask_all(What::kSum, {}, sums_);
  return std::accumulate(sums_.begin(), sums_.end(), WeightSum{0});
}

// Digit by digit finds the logit of the last that is in. Equal ones are in by their ids, so those
// of the first ranks first.
template <typename Target>
void SplitRows::cut(What what, const Target& target_of) {
  OrderPrefix prefix;
  WeightSum rest = 0;  // of what is to be reached, less what lies above `prefix`
  while (prefix.num < OrderPrefix::kDigits) {
    ask_all(what, prefix, digits_);
    DigitSums all{};
    for (const DigitSums& of : digits_)
      for (size_t d = 0; d < all.size(); ++d) all[d] += of[d];
    if (prefix.num == 0) {
      const WeightSum total = std::accumulate(all.begin(), all.end(), WeightSum{0});
      rest = target_of(total);
      if (rest >= total) return;
    }
    auto digit = static_cast<uint32_t>(all.size()) - 1;
    while (digit > 0 && all[digit] < rest) rest -= all[digit--];
    prefix = prefix.with(digit);
    for (size_t r = 0; r < digits_.size(); ++r) sums_[r] = digits_[r][digit];
  }
  weighting_.floor = logit_of(prefix.digits);
  const WeightSum each =
      what == What::kCount ? 1 : std::max<WeightSum>(1, units(weighting_(weighting_.floor)));
  WeightSum ties = (rest + each - 1) / each;
  for (size_t r = 0; r < ties_.size(); ++r) {
    const WeightSum here = std::min(ties, sums_[r] / each);
    ties_[r] = static_cast<int32_t>(here);
    ties -= here;
  }
}

void SplitRows::keep_heaviest(int32_t top_k) {
  cut(What::kCount, [&](WeightSum) { return static_cast<WeightSum>(top_k); });
}

void SplitRows::keep_nucleus(float top_p) {
  cut(What::kWeigh,
      [&](WeightSum total) { return std::max<WeightSum>(1, share_of(total, top_p)); });
}

RowSummary::Entry SplitRows::draw(double u) {
  const WeightSum all = sum();
  WeightSum target = std::min(share_of(all, u), all - 1);
  int rank = 0;
  while (target >= sums_[rank]) target -= sums_[rank++];
  RowAsk ask = ask_of(What::kFind, rank);
  ask.target = target;
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
        "ranks: a request needs whole rows of logits, %.0f KB each, which the ranks send: logprobs "
        "above %d, or drafts that are verified where ids are drawn (nibble_rank_whole_rows_total "
        "counts them)",
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
  const RowAsk ask = read_ask(bytes, slice_, logits_.rank == 0 ? 0 : logits_.dim(0));
  nibble::answer(ask, row(ask.row), masked_ids_, work_, answer_);
  comm_.send(0, answer_);
}

}  // namespace nibble
