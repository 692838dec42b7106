#include "engine/step_message.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace nibble {
namespace {

struct Head {
  int32_t ends, compares, is_fed, all_rows, num_draws;
  int32_t num_tokens, num_spans, num_out, max_context;
  int32_t num_copies, num_changes;
};

constexpr int64_t kAlign = 8;

[[noreturn]] void refuse(const char* what) {
  throw Error(ErrorKind::kUnsupported, std::string("rank 0 sent a step with ") + what);
}

template <typename T>
void put(std::vector<std::byte>& to, const T* values, int64_t n) {
  const size_t at = to.size(), bytes = static_cast<size_t>(n) * sizeof(T);
  to.resize(at + (bytes + kAlign - 1) / kAlign * kAlign);
  if (n > 0) std::memcpy(to.data() + at, values, bytes);
}

template <typename T>
const T* take(std::span<const std::byte>& from, int64_t n) {
  if (n < 0) refuse("counts that are negative");
  const auto bytes = (n * static_cast<int64_t>(sizeof(T)) + kAlign - 1) / kAlign * kAlign;
  if (bytes > std::ssize(from)) refuse("less than it says");
  const auto* values = reinterpret_cast<const T*>(from.data());
  from = from.subspan(static_cast<size_t>(bytes));
  return values;
}

bool all_below(const int32_t* values, int64_t n, int64_t most) {
  return std::all_of(values, values + n, [&](int32_t v) { return v >= 0 && v < most; });
}

void check_step(const Step& s, const StepBounds& b) {
  if (s.num_tokens > b.limits.max_tokens || s.num_spans > b.max_seqs ||
      s.num_out > b.limits.max_out)
    refuse("more than a step may have");
  if (s.num_tokens < 0 || s.num_spans < 0 || s.num_out < 0) refuse("counts that are negative");
  if (s.tokens != nullptr && !all_below(s.tokens, s.num_tokens, b.vocab_size))
    refuse("tokens that are none");
  if (!all_below(s.positions, s.num_tokens, b.max_len)) refuse("positions that are none");
  if (!all_below(s.out_rows, s.num_out, s.num_tokens)) refuse("rows that are none");
  int64_t start = 0;
  for (int32_t i = 0; i < s.num_spans; ++i) {
    const Span& span = s.spans[i];
    if (span.q_start != start || span.q_len < 1 || span.q_len > s.num_tokens - start ||
        span.context < 0 || span.context > b.max_len - span.q_len || span.slot < 0 ||
        span.slot >= b.max_seqs)
      refuse("spans that are none");
    start += span.q_len;
  }
  if (start != s.num_tokens) refuse("tokens of no span");
}

void check_draws(std::span<const ops::Draw> draws, const Step& step) {
  if (!draws.empty() && std::ssize(draws) != step.num_out) refuse("draws of no row");
  for (const ops::Draw& d : draws)
    if (!(std::isfinite(d.temperature) && d.temperature >= 0 && d.min_p >= 0 && d.min_p <= 1 &&
          d.top_p >= 0 && d.top_p <= 1 && d.top_k >= 0 && d.u >= 0 && d.u < 1))
      refuse("draws that are none");
}

}  // namespace

int64_t StepBounds::most_bytes() const {
  const int64_t all = std::accumulate(entries.begin(), entries.end(), int64_t{0});
  const int64_t copies = all * std::ssize(pages);
  return static_cast<int64_t>(sizeof(Head)) + 64 + 8 * int64_t{limits.max_tokens} +
         static_cast<int64_t>(sizeof(Span)) * max_seqs +
         static_cast<int64_t>(4 + sizeof(ops::Draw)) * limits.max_out +
         static_cast<int64_t>(sizeof(TableChange)) * 4 * all +
         static_cast<int64_t>(sizeof(PageCopy)) * copies;
}

void write_message(const StepMessage& m, std::vector<std::byte>& to) {
  to.clear();
  const Head head{m.ends,
                  m.compares,
                  m.is_fed,
                  m.step.all_rows,
                  static_cast<int32_t>(m.draws.size()),
                  m.step.num_tokens,
                  m.step.num_spans,
                  m.step.num_out,
                  m.step.max_context,
                  static_cast<int32_t>(m.copies.size()),
                  static_cast<int32_t>(m.changes.size())};
  put(to, &head, 1);
  put(to, m.step.tokens, m.is_fed ? 0 : m.step.num_tokens);
  put(to, m.step.positions, m.step.num_tokens);
  put(to, m.step.spans, m.step.num_spans), put(to, m.step.out_rows, m.step.num_out);
  put(to, m.draws.data(), std::ssize(m.draws));
  put(to, m.copies.data(), std::ssize(m.copies)), put(to, m.changes.data(), std::ssize(m.changes));
}

StepMessage read_message(std::span<const std::byte> bytes, const StepBounds& bounds) {
  const Head head = *take<Head>(bytes, 1);
  StepMessage m{.ends = head.ends != 0, .compares = head.compares != 0, .is_fed = head.is_fed != 0};
  m.step = {.num_tokens = head.num_tokens,
            .num_spans = head.num_spans,
            .num_out = head.num_out,
            .max_context = head.max_context,
            .all_rows = head.all_rows != 0};
  m.step.tokens = m.is_fed ? nullptr : take<int32_t>(bytes, head.num_tokens);
  m.step.positions = take<int32_t>(bytes, head.num_tokens);
  m.step.spans = take<Span>(bytes, head.num_spans);
  m.step.out_rows = take<int32_t>(bytes, head.num_out);
  m.draws = {take<ops::Draw>(bytes, head.num_draws), static_cast<size_t>(head.num_draws)};
  m.copies = {take<PageCopy>(bytes, head.num_copies), static_cast<size_t>(head.num_copies)};
  m.changes = {take<TableChange>(bytes, head.num_changes), static_cast<size_t>(head.num_changes)};
  if (!bytes.empty()) refuse("more than it says");
  if (m.ends) return m;
  check_step(m.step, bounds);
  const bool only_decodes =
      m.step.num_tokens == m.step.num_spans && m.step.num_tokens == m.step.num_out;
  if (m.is_fed && !(bounds.may_be_fed && only_decodes)) refuse("tokens that no step has found");
  check_draws(m.draws, m.step);
  for (const PageCopy& c : m.copies)
    if (c.tensor < 0 || c.tensor >= std::ssize(bounds.pages) || c.from < 0 || c.to < 0 ||
        std::max(c.from, c.to) >= bounds.pages[c.tensor])
      refuse("pages that are none");
  for (const TableChange& c : m.changes) {
    if (c.table < 0 || c.table >= std::ssize(bounds.entries) || c.index < 0 ||
        c.index >= bounds.entries[c.table] || c.value < KvLayer::kNoPage ||
        c.value >= bounds.values[c.table])
      refuse("entries of tables that are none");
    if (c.table == bounds.written && c.value < 0) refuse("states that go to no slot");
  }
  return m;
}

}  // namespace nibble
