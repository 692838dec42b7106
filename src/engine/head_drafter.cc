#include "engine/head_drafter.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>

#include "base/check.h"
#include "cuda/memory.h"
#include "engine/philox.h"
#include "engine/step_block.h"

namespace nibble {
namespace {

constexpr int64_t kAlign = 16;
constexpr int32_t kLeastContextBound = 1024;  // as of other steps
constexpr int64_t kInt = sizeof(int32_t);

int64_t padded(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

int64_t pass_bytes(int64_t tokens, int64_t spans) {
  return 3 * padded(tokens * kInt) + padded(spans * kInt) +
         padded(spans * static_cast<int64_t>(sizeof(Span))) +
         padded(spans * static_cast<int64_t>(sizeof(ops::Draw)));
}

}  // namespace

// Of many sequences fewer, that they take no gigabytes: together they are as many tokens at once.
// No more than a window, out of which pages slide that nobody knows before the head has been fed.
int32_t HeadDrafter::Limits::history() const {
  constexpr int32_t kTokens = 4096, kMost = 64, kLeast = 16;
  const int32_t most = window == kNoWindow ? kMost : std::clamp(window, kLeast, kMost);
  const int32_t share = std::clamp(kTokens / max_num_seqs, kLeast, most);
  return std::max(share, 4 * (max_drafts + 2));
}

StepLimits HeadDrafter::Limits::steps() const {
  return {max_tokens, std::max(max_num_seqs, std::min(kMostSeen, max_tokens))};
}

bool HeadDrafter::must_feed(const Sequence& s) const {
  return owed(s) + 2 * (limits_.max_drafts + 2) > limits_.history();
}

// ---- what it takes ----

void HeadDrafter::begin(Part part) {
  if (cx_.on_gpu()) return events_[2 * part]->record(cx_.stream);
  began_ = std::chrono::steady_clock::now();
}

void HeadDrafter::end(Part part) {
  if (cx_.on_gpu()) {
    events_[2 * part + 1]->record(cx_.stream);
    is_timed_[part] = true;
  } else {
    spent_.seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }
}

void HeadDrafter::add_time(Part part) {
  if (std::exchange(is_timed_[part], false))
    spent_.seconds += events_[2 * part + 1]->ms_since(*events_[2 * part]) / 1000;
}

HeadDrafter::Spent HeadDrafter::spent() {
  add_time(kFeeding), add_time(kDrafting);
  return std::exchange(spent_, {});
}

// ---- the arrays of a round ----

int64_t HeadDrafter::bytes(const Limits& limits) {
  const int64_t seqs = limits.max_num_seqs, drafts = limits.max_drafts, tokens = limits.max_tokens;
  const int64_t outs = limits.steps().max_out, put_by = seqs * limits.history();
  const int64_t fills = 3 + (put_by + seqs) / tokens;  // of what was put by, and of the step's rows
  return put_by * limits.row_bytes + fills * pass_bytes(tokens, 2 * seqs) +
         pass_bytes(tokens, outs) + drafts * pass_bytes(seqs, seqs) +
         2 * padded((drafts + 1) * seqs * static_cast<int64_t>(sizeof(ops::IdCopy)));
}

HeadDrafter::HeadDrafter(const Model& target, DraftHead& head, ops::Ctx& cx, const SeqState& kv,
                         const Limits& limits)
    : head_(head),
      sampler_(head.model().info().vocab_size, {}),
      cx_(cx),
      kv_(kv.layer(target.info().num_layers)),
      limits_(limits),
      stride_(limits.steps().max_out),
      history_(target.kept_rows(), cx, limits.max_num_seqs, limits.history()) {
  head.model().reserve(cx, limits.steps());
  CHECK(history_.rows().size() == head.target_layers().size());
  chain_.reserve(limits.max_drafts), chain_rows_.reserve(limits.max_drafts);
  limits_.vocab_size = head.model().info().vocab_size;
  if (const int64_t kept = kept_bytes(limits_); kept > 0)
    kept_ = cx.on_gpu() ? cuda::pinned_buffer(kept) : Buffer(kept);
  drafting_.reserve(limits.max_num_seqs), last_rows_.reserve(stride_);
  seen_.reserve(kMostSeen), was_seen_.reserve(kMostSeen);
  const int64_t num_ids = int64_t{limits.max_drafts} * stride_;
  Limits tables = limits;
  tables.row_bytes = 0;
  if (!cx.on_gpu()) {
    block_ = Buffer(bytes(tables));
    ids_memory_ = Buffer(num_ids * kInt);
  } else {
    block_ = cuda::pinned_buffer(bytes(tables));
    device_ = cuda::device_buffer(bytes(tables));
    ids_memory_ = cx.allocate(num_ids * kInt), turn_ = cx.allocate(kInt);
    found_ = cuda::pinned_buffer(num_ids * kInt);
    found_seen_ = cuda::pinned_buffer(kMostSeen * kInt);
    greedy_ = cuda::pinned_buffer(stride_ * static_cast<int64_t>(sizeof(ops::Greedy)));
    const auto table_bytes = static_cast<int64_t>(head.target_ids().size()) * kInt;
    target_ids_ = cuda::device_buffer(table_bytes);
    cuda::copy(target_ids_.data(), head.target_ids().data(), table_bytes);
    for (auto& event : events_) event = std::make_unique<cuda::Event>(cuda::Event::Kind::kTiming);
    has_sent_ = std::make_unique<cuda::Event>(), has_seen_ = std::make_unique<cuda::Event>();
  }
  ids_ = static_cast<int32_t*>(ids_memory_.data());
}

template <typename T>
T* HeadDrafter::place(int64_t n) {
  auto* const at = reinterpret_cast<T*>(static_cast<char*>(block_.data()) + used_);
  used_ += padded(n * static_cast<int64_t>(sizeof(T)));
  CHECK(used_ <= block_.size_bytes());
  return at;
}

template <typename T>
const T* HeadDrafter::there(const T* here) const {
  if (!cx_.on_gpu()) return here;
  const auto offset = reinterpret_cast<const char*>(here) - static_cast<const char*>(block_.data());
  return reinterpret_cast<const T*>(static_cast<const char*>(device_.data()) + offset);
}

// An empty one, with room for so many.
HeadDrafter::Pass HeadDrafter::make_pass(int32_t tokens, int32_t spans, int32_t outs) {
  Pass p{.step = {.max_context = kLeastContextBound},
         .capacity = tokens,
         .tokens = place<int32_t>(tokens),
         .positions = place<int32_t>(tokens),
         .rows = place<int32_t>(tokens),
         .spans = place<Span>(spans),
         .out_rows = place<int32_t>(outs),
         .draws = place<ops::Draw>(outs)};
  p.step.tokens = there(p.tokens), p.step.positions = there(p.positions);
  p.step.spans = there(p.spans), p.step.out_rows = there(p.out_rows);
  return p;
}

// Of the positions from `begin` on.
void HeadDrafter::add_span(Pass& pass, int32_t slot, int32_t begin, int32_t length) {
  Step& step = pass.step;
  pass.spans[step.num_spans++] = {
      .q_start = step.num_tokens, .q_len = length, .context = begin, .slot = slot};
  for (int32_t i = 0; i < length; ++i) pass.positions[step.num_tokens++] = begin + i;
  const auto end = std::bit_ceil(static_cast<uint32_t>(begin + length));
  step.max_context = std::max(step.max_context, static_cast<int32_t>(end));
}

void HeadDrafter::add(Pass& pass, const Fed& fed, int32_t begin, int32_t end) {
  const Sequence& s = *fed.sequence;
  for (int32_t p = begin, t = pass.step.num_tokens; p < end; ++p, ++t) {
    const int32_t at = std::max(p, s.num_fed);  // that has a row
    pass.tokens[t] = s.tokens[p + 1];
    pass.rows[t] = fed.row == Fed::kPutBy ? history_.row(s.slot, at) : fed.row + at - s.num_fed;
  }
  add_span(pass, s.slot, begin, end - begin);
}

// For the id of the row that is the draft at `place`.
void HeadDrafter::set_draw(Pass& pass, int32_t row, const Sequence& sequence, int32_t place) const {
  ops::Draw& draw = pass.draws[row];
  draw = limits_.draws ? draw_of(sequence, place) : ops::Draw{};
  if (limits_.max_kept > 0 && place >= 0) {
    const auto index = static_cast<uint64_t>(sequence.sampling.index + place);
    draw.u = uniform(sequence.sampling.seed, index, kDrawsDraft + place);
  }
  pass.has_draws |= draw.temperature > 0;
}

// Of its own vocabulary.
int32_t HeadDrafter::find(std::span<float> logits, const ops::Draw& draw) {
  const int32_t id = sampler_.find(logits, draw);
  return head_.target_ids()[std::max(id, 0)];
}

void HeadDrafter::keep(const Tensor& logits) {
  const int64_t n = logits.dim(0), row_bytes = logits.dim(1) * int64_t{sizeof(float)};
  CHECK(num_kept_ + n <= limits_.max_kept);
  char* const to = static_cast<char*>(kept_.data()) + num_kept_ * row_bytes;
  if (cx_.on_gpu())
    cuda::copy_async(to, logits.as<float>(), n * row_bytes, cx_.stream);
  else
    std::memcpy(to, logits.as<float>(), n * row_bytes);
  num_kept_ += static_cast<int32_t>(n);
}

void HeadDrafter::find_distribution(const Sequence& s, int32_t place, Distribution& q) {
  int64_t row = s.draft_row;
  if (place > 0) {
    const auto at = std::ranges::find(drafting_, &s, &Drafting::sequence);
    row = chain_rows_[place - 1] + (at - drafting_.begin());
  }
  const int64_t vocab = head_.model().info().vocab_size;
  const std::span logits(static_cast<const float*>(kept_.data()) + row * vocab, vocab);
  if (all_finite(logits))
    sampler_.find_distribution(logits, draw_of(s, place), of_head_);
  else
    of_head_.assign(vocab, 0), of_head_[0] = 1;  // as find()
  std::ranges::fill(q, 0);
  for (int64_t v = 0; v < vocab; ++v) q[head_.target_ids()[v]] = of_head_[v];
}

// What was placed from there on.
void HeadDrafter::send(int64_t from) {
  if (!cx_.on_gpu()) return;
  cuda::copy_async(static_cast<char*>(device_.data()) + from,
                   static_cast<const char*>(block_.data()) + from, used_ - from, cx_.stream);
  has_sent_->record(cx_.stream);
}

// Its ids are those of drafts at `place`.
Tensor HeadDrafter::run(const Pass& pass, std::span<const Tensor> target, int32_t place) {
  head_.set_input({target, there(pass.rows)});
  cx_.whose = "draft/";
  const Tensor logits = head_.model().forward(cx_, pass.step, {.layers = &kv_});
  cx_.whose.clear();
  const int64_t n = pass.step.num_out, vocab = logits.dim(1);
  if (!cx_.on_gpu()) {
    for (int64_t r = 0; r < n; ++r)
      ids_of(place)[r] =
          find({logits.as<float>() + r * vocab, static_cast<size_t>(vocab)}, pass.draws[r]);
  } else if (n > 0) {
    const ops::GreedyOut out{.rows = static_cast<ops::Greedy*>(greedy_.data()),
                             .stride = stride_,
                             .turn = static_cast<const int32_t*>(turn_.data()),
                             .ids = ids_of(place)};
    ops::sample_greedy(cx_, out, logits, nullptr);
    if (pass.has_draws) ops::sample_drawn(cx_, out, logits, nullptr, there(pass.draws));
    ops::translate_ids(cx_, out.ids, n, static_cast<const int32_t*>(target_ids_.data()));
  }
  return logits;
}

void HeadDrafter::feed(std::span<const Fed> fed, bool drafts) {
  chain_.clear(), last_rows_.clear(), drafting_.clear();
  drafted_ = {};
  if (fed.empty()) return;
  if (cx_.on_gpu()) has_sent_->wait();  // the block is free
  used_ = 0;
  const auto num_drafting =
      static_cast<int32_t>(std::ranges::count_if(fed, [](const Fed& f) { return f.num_out > 0; }));
  const bool is_timed = drafts && num_drafting > 0;
  if (is_timed) begin(kFeeding);
  // What drafts follow goes along with the last token, where that is not too much.
  const int32_t tail =
      num_drafting * (limits_.max_drafts + 1) > limits_.max_tokens ? 1 : limits_.max_drafts + 1;
  for (const bool is_of_step : {true, false}) fill(fed, is_of_step, drafts ? tail : 0);
  if (num_drafting > 0) feed_tails(fed, drafts, drafts ? tail : 0);
  for (const Fed& f : fed) f.sequence->num_fed = f.begin + f.length, f.sequence->lacks_row = false;
  if (is_timed) end(kFeeding);
}

// How many of its tokens go into the pass that gives logits: up to `tail`, or those to be seen.
int32_t HeadDrafter::tail_of(const Fed& fed, int32_t tail) const {
  if (fed.num_out == 0) return 0;
  return tail > 0 ? std::min(fed.length, tail) : fed.num_out;
}

// All before the tails, from the rows of the step or from those put by: keys and values alone.
void HeadDrafter::fill(std::span<const Fed> fed, bool is_of_step, int32_t tail) {
  const auto is_meant = [&](const Fed& f) { return (f.row != Fed::kPutBy) == is_of_step; };
  int32_t left = 0;
  for (const Fed& f : fed) left += is_meant(f) ? f.length - tail_of(f, tail) : 0;
  spent_.has_read |= left > 0;
  int64_t sent = used_;
  std::optional<Pass> pass;
  for (const Fed& f : fed) {
    const int32_t end = f.begin + f.length - tail_of(f, tail);
    for (int32_t at = f.begin; is_meant(f) && at < end;) {
      if (!pass)
        pass = make_pass(std::min(left, limits_.max_tokens), static_cast<int32_t>(fed.size()), 0);
      const int32_t n = std::min(end - at, pass->capacity - pass->step.num_tokens);
      add(*pass, f, at, at + n);
      at += n, left -= n;
      if (pass->step.num_tokens < pass->capacity) continue;
      send(std::exchange(sent, used_));
      run(*pass, is_of_step ? history_.of_step() : history_.rows(), 0);
      pass.reset();
    }
  }
}

void HeadDrafter::feed_tails(std::span<const Fed> fed, bool drafts, int32_t tail) {
  int32_t tokens = 0, spans = 0, outs = 0;
  for (const Fed& f : fed) {
    CHECK(f.num_out == 0 || f.row == Fed::kPutBy);
    tokens += tail_of(f, tail), outs += f.num_out, spans += f.num_out > 0;
  }
  const int64_t sent = used_;
  Pass pass = make_pass(tokens, spans, outs);
  for (const Fed& f : fed) {
    if (f.num_out == 0) continue;
    Sequence& s = *f.sequence;
    const int32_t end = f.begin + f.length;
    add(pass, f, end - tail_of(f, tail), end);
    if (drafts) s.draft_row = pass.step.num_out;
    for (int32_t i = f.num_out; i > 0; --i) {
      const int32_t draft = end - i + 2;  // the position of its id
      set_draw(pass, pass.step.num_out, s, draft - s.length());
      pass.out_rows[pass.step.num_out++] = pass.step.num_tokens - i;
      last_rows_.push_back(pass.step.num_tokens - i);
      if (!drafts) seen_.push_back({.id = s.id, .drafted = -1, .token = s.tokens[draft]});
    }
  }
  send(sent);
  num_kept_ = 0;
  const Tensor logits = run(pass, history_.rows(), 0);
  if (drafts && limits_.max_kept > 0) keep(logits);
  if (drafts || !cx_.on_gpu()) return;
  cuda::copy_async(found_seen_.data(), ids_, std::ssize(seen_) * kInt, cx_.stream);
  has_seen_->record(cx_.stream);
}

// Its time is that of the next step, if what was fed is taken.
void HeadDrafter::feed_ahead(std::span<const Chunk> chunks, const int32_t* ids) {
  has_sent_->wait();  // the block is free; and what was fed before its arrays were sent has ended
  add_time(kFeeding);
  chain_.clear(), last_rows_.clear(), used_ = 0;
  int32_t tokens = 0;
  for (const Chunk& c : chunks) tokens += c.length;
  CHECK(tokens <= kMostFedAhead && limits_.max_kept == 0);
  events_[2 * kFeeding]->record(cx_.stream);
  Pass pass = make_pass(tokens, static_cast<int32_t>(chunks.size()), tokens);
  for (const Chunk& c : chunks) {
    CHECK(c.begin == c.sequence->num_fed && c.length == c.num_out);
    for (int32_t i = 0, t = pass.step.num_tokens; i < c.length; ++i, ++t) {
      pass.rows[t] = history_.row(c.sequence->slot, c.begin + i);
      pass.out_rows[t] = t;
      last_rows_.push_back(t);
      set_draw(pass, t, *c.sequence, i + 1);
    }
    add_span(pass, c.sequence->slot, c.begin, c.length);
  }
  pass.step.num_out = tokens;
  pass.step.tokens = ids;
  send(0);
  run(pass, history_.rows(), 0);
  events_[2 * kFeeding + 1]->record(cx_.stream);
}

void HeadDrafter::take_fed(std::span<const Fed> fed) {
  drafting_.clear();
  drafted_ = {};
  is_timed_[kFeeding] = true;
  for (const Fed& f : fed) {
    f.sequence->num_fed = f.begin + f.length;
    if (f.num_out > 0) f.sequence->draft_row = f.row + f.length - 1;
  }
}

std::span<const HeadDrafter::Seen> HeadDrafter::seen() {
  was_seen_.clear();
  if (seen_.empty() || (cx_.on_gpu() && !has_seen_->is_done())) return {};
  const auto* const ids = cx_.on_gpu() ? static_cast<const int32_t*>(found_seen_.data()) : ids_;
  std::swap(seen_, was_seen_);
  for (size_t i = 0; i < was_seen_.size(); ++i) was_seen_[i].drafted = ids[i];
  return was_seen_;
}

void HeadDrafter::draft(std::span<const Chunk> chunks) {
  int32_t token = 0;
  for (const Chunk& c : chunks) {
    token += c.length;
    c.sequence->drafts.resize(c.num_drafts);
    if (c.num_drafts == 0) continue;
    CHECK(c.sequence->draft_row >= 0);
    drafting_.push_back({c.sequence, c.begin, c.num_drafts, token - c.num_drafts});
  }
  if (drafting_.empty()) return;
  begin(kDrafting);
  std::ranges::stable_sort(drafting_, std::greater{}, &Drafting::num_drafts);
  spent_.passes = drafting_.front().num_drafts;

  // A pass for the second draft of all that have one, and so on: those of a pass come first in the
  // one before.
  const int64_t sent = used_;
  for (int32_t place = 1; place < spent_.passes; ++place) {
    const auto n = static_cast<int32_t>(
        std::ranges::count_if(drafting_, [&](const Drafting& d) { return d.num_drafts > place; }));
    Pass& pass = chain_.emplace_back(make_pass(n, n, n));
    for (int32_t i = 0; i < n; ++i) {
      const Sequence& s = *drafting_[i].sequence;
      pass.rows[i] = place == 1 ? last_rows_[s.draft_row] : i;
      pass.out_rows[i] = i;
      add_span(pass, s.slot, drafting_[i].begin - 1 + place, 1);
      set_draw(pass, i, s, place);
    }
    pass.step.num_out = n;
    if (place > 1) pass.step.tokens = ids_of(place - 1);
  }
  const auto num = static_cast<int64_t>(drafting_.size());
  auto* const firsts = place<ops::IdCopy>(num);
  int64_t num_copies = 0;
  for (const Drafting& d : drafting_) num_copies += d.num_drafts;
  auto* const copies = place<ops::IdCopy>(num_copies);
  for (int32_t i = 0, at = 0; i < num; ++i) {
    const Drafting& d = drafting_[i];
    firsts[i] = {i, d.sequence->draft_row};
    for (int32_t k = 0; k < d.num_drafts; ++k)
      copies[at++] = {d.first_token + k, k == 0 ? d.sequence->draft_row : k * stride_ + i};
  }
  send(sent);
  if (!chain_.empty()) {  // the first drafts, in this order
    auto* const tokens = const_cast<int32_t*>(chain_[0].step.tokens);
    const int32_t n = chain_[0].step.num_tokens;
    if (cx_.on_gpu()) ops::copy_ids(cx_, tokens, ids_, there(firsts), n);
    for (int32_t i = 0; !cx_.on_gpu() && i < n; ++i) tokens[i] = ids_[firsts[i].from];
  }
  chain_rows_.clear();
  for (size_t p = 0; p < chain_.size(); ++p) {
    const Tensor logits = run(chain_[p], {}, static_cast<int32_t>(p) + 1);
    chain_rows_.push_back(num_kept_);
    if (limits_.max_kept > 0) keep(logits);
  }
  if (!cx_.on_gpu()) {
    end(kDrafting);
    return take();
  }
  drafted_ = {ids_, there(copies), num_copies};
  cuda::copy_async(found_.data(), ids_, int64_t{spent_.passes} * stride_ * kInt, cx_.stream);
  end(kDrafting);
  if (cx_.comm == nullptr) return;
  cuda::wait(cx_.stream);  // for no other rank: nothing of a step is in flight
  take();
  drafted_ = {};
}

void HeadDrafter::take() {
  const auto* const ids = cx_.on_gpu() ? static_cast<const int32_t*>(found_.data()) : ids_;
  for (size_t i = 0; i < drafting_.size(); ++i) {
    Sequence& s = *drafting_[i].sequence;
    for (int32_t k = 0; k < drafting_[i].num_drafts; ++k)
      s.drafts[k] = ids[k == 0 ? s.draft_row : k * stride_ + static_cast<int32_t>(i)];
  }
}

}  // namespace nibble
