#include "engine/state_slots.h"

#include <algorithm>

#include "base/check.h"

namespace nibble {

StateSlots::StateSlots(const ModelInfo& info, const KvPlan& plan, PageMemory& memory,
                       PrefixCache& prefixes, int32_t num_nodes)
    : page_size_(plan.options.page_size),
      memory_(memory),
      prefixes_(prefixes),
      pool_(plan.state_slots) {
  if (!exist()) return;
  rows_.resize(plan.options.max_num_seqs);
  from_.resize(rows_.size(), kNone);
  to_.resize(rows_.size(), kNone);
  kept_.resize(plan.state_slots);
  tails_.resize(static_cast<size_t>(plan.state_slots) * page_size_);
  first_.resize(num_nodes, kNone);
  layers_.resize(info.num_layers);
  const PageMemory::Table from = memory_.add_table(from_, plan.state_slots),
                          to = memory_.add_table(to_, plan.state_slots);
  from_table_ = from.number, to_table_ = to.number;
  for (const LayerGroup& group : info.groups) {
    const RecurrentShape& shape = group.recurrent;
    for (size_t i = 0; group.is_recurrent() && i < group.layers.size(); ++i) {
      layers_[group.layers[i]] = {
          .state = memory_.take(DType::kF32,
                                {plan.state_slots, shape.heads, shape.key_dim, shape.value_dim}),
          .conv = memory_.take(DType::kF32, {plan.state_slots, shape.taps - 1, shape.channels}),
          .from = from.entries,
          .to = to.entries};
    }
  }
}

int64_t StateSlots::arena_bytes(const ModelInfo& info, int32_t num_slots) {
  int64_t bytes = 0;
  for (const LayerGroup& group : info.groups) {
    if (!group.is_recurrent()) continue;
    const RecurrentShape& shape = group.recurrent;
    const int64_t conv = int64_t{4} * num_slots * (shape.taps - 1) * shape.channels;
    const int64_t state = num_slots * shape.bytes() - conv;
    bytes +=
        static_cast<int64_t>(group.layers.size()) * (Arena::padded(state) + Arena::padded(conv));
  }
  return bytes;
}

int64_t StateSlots::table_bytes(int64_t num_slots, const KvOptions& options, int64_t num_nodes) {
  constexpr auto kId = static_cast<int64_t>(sizeof(int32_t));
  return PagePool::bytes(num_slots) +
         num_slots * (static_cast<int64_t>(sizeof(Kept)) + kId * options.page_size) +
         options.max_num_seqs * (static_cast<int64_t>(sizeof(Row)) + 2 * kId) + kId * num_nodes;
}

int32_t StateSlots::take() {
  const int32_t slot = pool_.take();
  if (slot != kNone && kept_[slot].node != PrefixCache::kNoNode) leave(slot);
  return slot;
}

void StateSlots::drop(int32_t& slot) {
  if (slot != kNone) pool_.drop(slot, kept_[slot].queue);
  slot = kNone;
}

void StateSlots::put(int32_t row, int32_t from, int32_t to) {
  if (from_[row] != from) from_[row] = from, memory_.changed(from_table_, row);
  if (to_[row] != to) to_[row] = to, memory_.changed(to_table_, row);
}

bool StateSlots::reserve(int32_t row) {
  Row& r = rows_[row];
  if (r.next == kNone) r.next = take();
  if (r.next != kNone) put(row, r.committed, r.next);
  return r.next != kNone;
}

// The committed slot, where nobody else wants it: the step at hand reads it before the one behind
// it writes, and is certain to be committed.
bool StateSlots::reserve_ahead(int32_t row) {
  Row& r = rows_[row];
  CHECK(r.next != kNone && r.ahead == kNone);
  const bool is_own = r.committed != kNone && pool_.references(r.committed) == 1 &&
                      kept_[r.committed].node == PrefixCache::kNoNode;
  if (is_own) pool_.share(r.committed);
  r.ahead = is_own ? r.committed : take();
  if (r.ahead != kNone) put(row, r.next, r.ahead);
  return r.ahead != kNone;
}

void StateSlots::commit(int32_t row, bool ran, bool keeps_ahead) {
  Row& r = rows_[row];
  CHECK(ran || !keeps_ahead);
  if (!keeps_ahead) drop(r.ahead);
  if (!ran) return drop(r.next);
  CHECK(r.next != kNone);
  drop(r.committed);
  r.committed = r.next;
  r.next = r.ahead;
  r.ahead = kNone;
}

void StateSlots::close(int32_t row) {
  drop(rows_[row].ahead);
  drop(rows_[row].next);
  drop(rows_[row].committed);
}

void StateSlots::fork(int32_t from_row, int32_t to_row) {
  CHECK(rows_[from_row].next == kNone && rows_[to_row].committed == kNone);
  rows_[to_row].committed = rows_[from_row].committed;
  if (rows_[to_row].committed != kNone) pool_.share(rows_[to_row].committed);
}

// What was found once may well be asked for again.
void StateSlots::adopt(int32_t row, int32_t slot) {
  CHECK(rows_[row].committed == kNone && rows_[row].next == kNone);
  pool_.share(slot);
  kept_[slot].queue = PagePool::kLasting;
  rows_[row].committed = slot;
}

std::span<const int32_t> StateSlots::tail(int32_t slot) const {
  return std::span(tails_).subspan(static_cast<size_t>(slot) * page_size_, kept_[slot].tail_length);
}

int32_t StateSlots::keep(int32_t row, int32_t node, std::span<const int32_t> tail,
                         PagePool::Queue queue) {
  const int32_t slot = rows_[row].committed;
  // A step that was begun ahead may be writing to it, if this one has not been committed.
  if (slot == kNone || rows_[row].ahead != kNone) return kNone;
  if (kept_[slot].node != PrefixCache::kNoNode) return kNone;
  const int32_t known = find(node, tail);
  if (known != kNone && kept_[known].tail_length == std::ssize(tail)) return kNone;
  prefixes_.share(node);
  kept_[slot] = {.node = node,
                 .tail_length = static_cast<int32_t>(tail.size()),
                 .next = first_[node],
                 .queue = queue};
  std::ranges::copy(tail, tails_.begin() + int64_t{slot} * page_size_);
  first_[node] = slot;
  ++num_kept_;
  return slot;
}

int32_t StateSlots::find(int32_t node, std::span<const int32_t> tokens) const {
  int32_t best = kNone;
  for (int32_t slot = first_[node]; slot != kNone; slot = kept_[slot].next) {
    const int32_t length = kept_[slot].tail_length;
    if (length > std::ssize(tokens) || (best != kNone && length < kept_[best].tail_length))
      continue;
    if (std::ranges::equal(tail(slot), tokens.first(length))) best = slot;
  }
  return best;
}

// The slot is about to be overwritten, or its text is lost.
void StateSlots::leave(int32_t slot) {
  const int32_t node = kept_[slot].node;
  int32_t* at = &first_[node];
  while (*at != slot) at = &kept_[*at].next;
  *at = kept_[slot].next;
  kept_[slot] = {};
  --num_kept_;
  prefixes_.release(node);
}

void StateSlots::forget(int32_t node) {
  for (int32_t slot; exist() && (slot = first_[node]) != kNone;) {
    leave(slot);
    if (pool_.references(slot) == 0) pool_.blank(slot);
  }
}

}  // namespace nibble
