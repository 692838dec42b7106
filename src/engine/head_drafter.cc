#include "engine/head_drafter.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "base/check.h"
#include "cuda/memory.h"
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

HeadDrafter::Spent HeadDrafter::spent() {
  for (const Part part : {kFeeding, kDrafting})
    if (std::exchange(is_timed_[part], false))
      spent_.seconds += events_[2 * part + 1]->ms_since(*events_[2 * part]) / 1000;
  return std::exchange(spent_, {});
}

// ---- the arrays of a round ----

int64_t HeadDrafter::bytes(const Limits& limits) {
  const int64_t seqs = limits.max_num_seqs, drafts = limits.max_drafts;
  return pass_bytes(limits.max_tokens, seqs) + drafts * pass_bytes(seqs, seqs) +
         2 * padded((drafts + 1) * seqs * static_cast<int64_t>(sizeof(ops::IdCopy)));
}

HeadDrafter::HeadDrafter(const Model& target, DraftHead& head, ops::Ctx& cx, const SeqState& kv,
                         const Limits& limits)
    : head_(head),
      sampler_(head.model().info().vocab_size, {}),
      cx_(cx),
      kv_(kv.layer(target.info().num_layers)),
      limits_(limits) {
  head.model().reserve(cx, {limits.max_tokens, limits.max_num_seqs});
  kept_ = target.kept_rows();
  CHECK(kept_.size() == head.target_layers().size());
  passes_.reserve(limits.max_drafts + 1);
  drafting_.reserve(limits.max_num_seqs), last_rows_.reserve(limits.max_num_seqs);
  const int64_t num_ids = int64_t{limits.max_drafts} * limits.max_num_seqs;
  if (!cx.on_gpu()) {
    block_ = Buffer(bytes(limits));
    ids_memory_ = Buffer(num_ids * kInt);
  } else {
    block_ = cuda::pinned_buffer(bytes(limits));
    device_ = cuda::device_buffer(bytes(limits));
    ids_memory_ = cx.allocate(num_ids * kInt), turn_ = cx.allocate(kInt);
    found_ = cuda::pinned_buffer(num_ids * kInt);
    greedy_ = cuda::pinned_buffer(limits.max_num_seqs * static_cast<int64_t>(sizeof(ops::Greedy)));
    const auto table_bytes = static_cast<int64_t>(head.target_ids().size()) * kInt;
    target_ids_ = cuda::device_buffer(table_bytes);
    cuda::copy(target_ids_.data(), head.target_ids().data(), table_bytes);
    for (auto& event : events_) event = std::make_unique<cuda::Event>(cuda::Event::Kind::kTiming);
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

HeadDrafter::Pass& HeadDrafter::add_pass(int32_t tokens, int32_t spans, int32_t outs) {
  Pass& p = passes_.emplace_back();
  p.tokens = place<int32_t>(tokens), p.positions = place<int32_t>(tokens);
  p.rows = place<int32_t>(tokens);
  p.spans = place<Span>(spans), p.out_rows = place<int32_t>(outs);
  p.draws = place<ops::Draw>(outs);
  p.step = {.num_tokens = tokens,
            .num_spans = spans,
            .num_out = outs,
            .max_context = kLeastContextBound,
            .tokens = there(p.tokens),
            .positions = there(p.positions),
            .spans = there(p.spans),
            .out_rows = there(p.out_rows)};
  return p;
}

// For the id of the row that is the draft at `place`.
void HeadDrafter::set_draw(Pass& pass, int32_t row, const Sequence& sequence, int32_t place) const {
  pass.draws[row] = limits_.draws ? draw_of(sequence, place) : ops::Draw{};
  pass.has_draws |= pass.draws[row].temperature > 0;
}

// Of its own vocabulary.
int32_t HeadDrafter::find(std::span<float> logits, const ops::Draw& draw) {
  const int32_t id = sampler_.find(logits, draw);
  return head_.target_ids()[std::max(id, 0)];
}

// What was placed from there on.
void HeadDrafter::send(int64_t from) {
  if (!cx_.on_gpu()) return;
  cuda::copy_async(static_cast<char*>(device_.data()) + from,
                   static_cast<const char*>(block_.data()) + from, used_ - from, cx_.stream);
}

// Its ids are those of drafts at `place`.
void HeadDrafter::run(const Pass& pass, std::span<const Tensor> target, int32_t place) {
  head_.set_input({target, there(pass.rows)});
  const Tensor logits = head_.model().forward(cx_, pass.step, {.layers = &kv_});
  const int64_t n = pass.step.num_out, vocab = logits.dim(1);
  if (!cx_.on_gpu()) {
    for (int64_t r = 0; r < n; ++r)
      ids_of(place)[r] =
          find({logits.as<float>() + r * vocab, static_cast<size_t>(vocab)}, pass.draws[r]);
  } else if (n > 0) {
    const ops::GreedyOut out{.rows = static_cast<ops::Greedy*>(greedy_.data()),
                             .stride = limits_.max_num_seqs,
                             .turn = static_cast<const int32_t*>(turn_.data()),
                             .ids = ids_of(place)};
    ops::sample_greedy(cx_, out, logits, nullptr);
    if (pass.has_draws) ops::sample_drawn(cx_, out, logits, nullptr, there(pass.draws));
    ops::translate_ids(cx_, out.ids, n, static_cast<const int32_t*>(target_ids_.data()));
  }
}

void HeadDrafter::feed(std::span<const Fed> fed) {
  passes_.clear(), last_rows_.clear(), drafting_.clear();
  used_ = 0;
  drafted_ = {};
  // Of the last token the one behind it may not be there: of a text that is only scored.
  const auto length_of = [](const Fed& f) {
    return std::min(f.length, f.sequence->length() - 1 - f.begin);
  };
  int32_t tokens = 0, spans = 0, outs = 0;
  for (const Fed& f : fed) {
    if (length_of(f) <= 0) continue;
    tokens += length_of(f), ++spans;
    outs += f.sequence->num_wanted > 0;
    spent_.has_read |= f.is_read;
  }
  if (spans == 0) return;
  begin(kFeeding);
  Pass& pass = add_pass(tokens, spans, outs);
  int32_t t = 0, s = 0;
  for (const Fed& f : fed) {
    const int32_t length = length_of(f);
    if (length <= 0) continue;
    pass.spans[s++] = {.q_start = t, .q_len = length, .context = f.begin, .slot = f.sequence->slot};
    for (int32_t i = 0; i < length; ++i, ++t) {
      pass.tokens[t] = f.sequence->tokens[f.begin + i + 1];
      pass.positions[t] = f.begin + i;
      pass.rows[t] = f.row + i;
    }
    const auto end = static_cast<uint32_t>(f.begin + length);
    pass.step.max_context =
        std::max(pass.step.max_context, static_cast<int32_t>(std::bit_ceil(end)));
    if (f.sequence->num_wanted == 0) continue;
    f.sequence->draft_row = static_cast<int32_t>(last_rows_.size());
    pass.out_rows[last_rows_.size()] = t - 1;
    set_draw(pass, f.sequence->draft_row, *f.sequence, 0);
    last_rows_.push_back(t - 1);
  }
  send(0);
  run(pass, kept_, 0);
  end(kFeeding);
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
    Pass& pass = add_pass(n, n, n);
    for (int32_t i = 0; i < n; ++i) {
      const int32_t position = drafting_[i].begin - 1 + place;
      pass.positions[i] = position;
      pass.rows[i] = place == 1 ? last_rows_[drafting_[i].sequence->draft_row] : i;
      pass.spans[i] = {
          .q_start = i, .q_len = 1, .context = position, .slot = drafting_[i].sequence->slot};
      pass.out_rows[i] = i;
      set_draw(pass, i, *drafting_[i].sequence, place);
      const auto end = static_cast<uint32_t>(position + 1);
      pass.step.max_context =
          std::max(pass.step.max_context, static_cast<int32_t>(std::bit_ceil(end)));
    }
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
      copies[at++] = {d.first_token + k,
                      k == 0 ? d.sequence->draft_row : k * limits_.max_num_seqs + i};
  }
  send(sent);
  if (passes_.size() > 1) {  // the first drafts, in this order
    auto* const tokens = const_cast<int32_t*>(passes_[1].step.tokens);
    const int32_t n = passes_[1].step.num_tokens;
    if (cx_.on_gpu()) ops::copy_ids(cx_, tokens, ids_, there(firsts), n);
    for (int32_t i = 0; !cx_.on_gpu() && i < n; ++i) tokens[i] = ids_[firsts[i].from];
  }
  for (size_t p = 1; p < passes_.size(); ++p) run(passes_[p], {}, static_cast<int32_t>(p));
  if (!cx_.on_gpu()) {
    end(kDrafting);
    return take();
  }
  drafted_ = {ids_, there(copies), num_copies};
  cuda::copy_async(found_.data(), ids_, int64_t{spent_.passes} * limits_.max_num_seqs * kInt,
                   cx_.stream);
  end(kDrafting);
}

void HeadDrafter::take() {
  const auto* const ids = cx_.on_gpu() ? static_cast<const int32_t*>(found_.data()) : ids_;
  for (size_t i = 0; i < drafting_.size(); ++i) {
    Sequence& s = *drafting_[i].sequence;
    for (int32_t k = 0; k < drafting_[i].num_drafts; ++k)
      s.drafts[k] = ids[k == 0 ? s.draft_row : k * limits_.max_num_seqs + static_cast<int32_t>(i)];
  }
  drafting_.clear();
}

}  // namespace nibble
