#include "engine/row_slice.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "base/error.h"
#include "engine/sampler.h"

namespace nibble {
namespace {

struct Head {
  int32_t what, row, num_ids, num_words;
  Weighting weighting;
  WeightSum target;
  OrderPrefix prefix;
};
static_assert(sizeof(Head) == 48);

[[noreturn]] void refuse(const char* what) {
  throw Error(ErrorKind::kUnsupported, std::string("rank 0 asks for ") + what);
}

int64_t first_word(const Cut& slice) { return slice.begin / 32; }
int64_t num_words(const Cut& slice) { return (slice.end() + 31) / 32 - first_word(slice); }

template <typename T>
void put(std::vector<std::byte>& to, std::span<const T> values) {
  const size_t at = to.size();
  to.resize(at + values.size_bytes());
  if (!values.empty()) std::memcpy(to.data() + at, values.data(), values.size_bytes());
}
template <typename T>
void put(std::vector<std::byte>& to, const T& value) {
  put(to, std::span<const T>(&value, 1));
}

template <typename T>
std::span<const T> take(std::span<const std::byte>& from, int64_t n) {
  const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
  if (n < 0 || bytes > std::ssize(from)) refuse("less than it says");
  const auto* values = reinterpret_cast<const T*>(from.data());
  from = from.subspan(static_cast<size_t>(bytes));
  return {values, static_cast<size_t>(n)};
}

bool is_prefix(const OrderPrefix& p) {
  return p.num >= 0 && p.num < OrderPrefix::kDigits && p.digits << 8 * p.num == 0;
}

bool is_weighting(const Weighting& w) {
  return std::isfinite(w.largest) && std::isfinite(w.temperature) && w.temperature > 0 &&
         !std::isnan(w.floor) && w.ties >= 0;
}

}  // namespace

uint32_t order_of(float logit) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);  // -0 equals 0
  return (bits >> 31) != 0 ? ~bits : bits | uint32_t{1} << 31;
}

float logit_of(uint32_t order) {
  return std::bit_cast<float>((order >> 31) != 0 ? order ^ uint32_t{1} << 31 : ~order);
}

RowSummary RowSlice::summary(std::vector<Candidate>& work) const {
  RowSummary s;
  s.is_finite = all_finite(logits_);
  select_top(logits_, RowSummary::kMost, work);
  std::ranges::sort(work, heavier);
  s.num = static_cast<int32_t>(work.size());
  for (size_t i = 0; i < work.size(); ++i) s.heaviest[i] = {begin_ + work[i].id, work[i].logit};
  return s;
}

void RowSlice::mask(std::span<const int32_t> ids) const {
  for (const int32_t id : ids)
    if (has(id)) (*this)[id] = kNever;
}

void RowSlice::allow(std::span<const uint32_t> allowed, int32_t first) const {
  for (size_t i = 0; i < logits_.size(); ++i) {
    const size_t bit = i + static_cast<size_t>(begin_ - first);
    if ((allowed[bit / 32] >> (bit % 32) & 1) == 0) logits_[i] = kNever;
  }
}

RowSummary::Entry RowSlice::find(const Weighting& weighting, WeightSum target) const {
  const int32_t at = find_weight(logits_, weighting, target);
  if (at < 0) return {-1, 0};
  return {begin_ + at, logits_[static_cast<size_t>(at)]};
}

DigitSums RowSlice::add_up(const RowAsk& ask) const {
  DigitSums sums{};
  int32_t ties = ask.weighting.ties;
  for (const float x : logits_) {
    uint32_t digit;
    if (x == kNever || !ask.weighting.takes(x, ties) || !ask.prefix.has(order_of(x), digit))
      continue;
    sums[digit] += ask.what == RowAsk::What::kCount ? 1 : units(ask.weighting(x));
  }
  return sums;
}

void write_ask(const RowAsk& ask, const Cut& slice, std::vector<std::byte>& to) {
  Head head{static_cast<int32_t>(ask.what),
            ask.row,
            0,
            ask.allowed.empty() ? 0 : static_cast<int32_t>(num_words(slice)),
            ask.weighting,
            ask.target,
            ask.prefix};
  const auto is_here = [&](int32_t id) { return id >= slice.begin && id < slice.end(); };
  head.num_ids = static_cast<int32_t>(std::ranges::count_if(ask.ids, is_here));
  to.clear();
  put(to, head);
  for (const int32_t id : ask.ids)
    if (is_here(id)) put(to, id);
  for (size_t i = 0; i < ask.values.size(); ++i)
    if (is_here(ask.ids[i])) put(to, ask.values[i]);
  if (head.num_words > 0)
    put(to, ask.allowed.subspan(static_cast<size_t>(first_word(slice)),
                                static_cast<size_t>(head.num_words)));
}

RowAsk read_ask(std::span<const std::byte> bytes, const Cut& slice, int64_t rows) {
  const Head head = take<Head>(bytes, 1)[0];
  if (head.what < 0 || head.what > static_cast<int32_t>(RowAsk::What::kLogits))
    refuse("what nobody knows");
  if (head.row < 0 || head.row >= rows) refuse("a row that is none");
  RowAsk ask{.what = static_cast<RowAsk::What>(head.what),
             .row = head.row,
             .weighting = head.weighting,
             .target = head.target,
             .prefix = head.prefix};
  using What = RowAsk::What;
  const bool weighs = ask.what != What::kAdjust && ask.what != What::kLogits;
  if (weighs && !is_weighting(ask.weighting)) refuse("weights that are none");
  if (!is_prefix(ask.prefix)) refuse("digits that are none");
  if (head.num_ids > slice.size) refuse("more ids than there are");
  ask.ids = take<int32_t>(bytes, head.num_ids);
  if (!std::ranges::all_of(ask.ids,
                           [&](int32_t id) { return id >= slice.begin && id < slice.end(); }))
    refuse("ids that are another's");
  if (ask.what == What::kAdjust) ask.values = take<float>(bytes, head.num_ids);
  if (std::ranges::any_of(ask.values, [](float x) { return std::isnan(x) || x > kLargestLogit; }))
    refuse("logits that are none");
  if (head.num_words != 0 && head.num_words != num_words(slice)) refuse("bits of no ids");
  ask.allowed = take<uint32_t>(bytes, head.num_words);
  if (!bytes.empty()) refuse("more than it says");
  return ask;
}

int64_t most_ask_bytes(const Cut& slice) {
  return static_cast<int64_t>(sizeof(Head)) + 8 * slice.size + 4 * num_words(slice);
}

void answer(const RowAsk& ask, const RowSlice& slice, std::span<const int32_t> masked_ids,
            std::vector<Candidate>& work, std::vector<std::byte>& to) {
  using What = RowAsk::What;
  to.clear();
  if (ask.what == What::kScore) {
    put(to, sum_weights(slice.logits(), ask.weighting));
    for (const int32_t id : ask.ids) put(to, slice[id]);
    return;
  }
  if (ask.what == What::kLogits) return put(to, std::span<const float>(slice.logits()));
  for (size_t i = 0; i < ask.values.size(); ++i) slice[ask.ids[i]] = ask.values[i];
  slice.mask(masked_ids);
  if (!ask.allowed.empty()) slice.allow(ask.allowed, slice.begin() / 32 * 32);
  if (ask.what == What::kAdjust) put(to, slice.summary(work));
  if (ask.what == What::kSum) put(to, sum_weights(slice.logits(), ask.weighting));
  if (ask.what == What::kFind) put(to, slice.find(ask.weighting, ask.target));
  if (ask.what == What::kCount || ask.what == What::kWeigh) put(to, slice.add_up(ask));
}

}  // namespace nibble
