#include "engine/kv_cache.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace nibble {
namespace {

// Pages of a sequence of `len` tokens.
int32_t pages_of(const KvOptions& options, int32_t len) {
  return (len + options.page_size - 1) / options.page_size;
}

// A node for every page of every group, and a root for every sequence. Where window pages outlive
// the full ones of their text, nodes may run out all the same: then text goes uncached.
int32_t num_nodes(const KvPlan& plan) {
  if (!plan.options.prefix_cache) return 0;
  return std::accumulate(plan.group_pages.begin(), plan.group_pages.end(),
                         plan.options.max_num_seqs);
}

// Behind the pages of each group, one for every state: where a state that is kept follows a part of
// a page, that part is here, as the sequence's own page goes on to be written.
int32_t num_tails(const KvPlan& plan) { return plan.options.prefix_cache ? plan.state_slots : 0; }

int32_t num_paged(const ModelInfo& info) {
  return static_cast<int32_t>(std::ranges::count(info.groups, false, &LayerGroup::is_recurrent));
}

}  // namespace

int64_t KvCache::arena_bytes(const ModelInfo& info, const KvPlan& plan) {
  int64_t bytes = StateSlots::arena_bytes(info, plan.state_slots);
  for (size_t g = 0; g < info.groups.size(); ++g) {
    const auto num_layers = static_cast<int64_t>(info.groups[g].layers.size());
    const int64_t pages = plan.group_pages[g] + num_tails(plan);
    const int64_t all = pages * page_bytes(info.groups[g], plan.options);
    if (num_layers > 0) bytes += 2 * num_layers * Arena::padded(all / (2 * num_layers));
  }
  return bytes;
}

int64_t KvCache::table_entries(const ModelInfo& info, const KvOptions& options, int32_t len) {
  const int64_t rows = options.max_num_seqs;
  const bool has_states = num_paged(info) < std::ssize(info.groups);
  return num_paged(info) * rows * pages_of(options, len) + (has_states ? 2 * rows : 0);
}

int64_t KvCache::table_bytes(const ModelInfo& info, const KvOptions& options, int32_t len) {
  int64_t bytes = table_entries(info, options, len) * static_cast<int64_t>(sizeof(int32_t));
  if (!options.prefix_cache) return bytes;
  int64_t pages = options.max_num_seqs;
  for (const LayerGroup& group : info.groups) {
    if (group.is_recurrent()) continue;
    pages += peak_pages(group, options, len, options.max_num_seqs) +
             kept_pages(group, options, int64_t{len} * options.max_num_seqs);
  }
  if (num_paged(info) < std::ssize(info.groups)) {
    const int64_t slots = state_slots(info, options, options.max_num_seqs) +
                          kept_states(info, options, int64_t{len} * options.max_num_seqs);
    bytes += StateSlots::table_bytes(slots, options, pages);
  }
  return bytes + pages * static_cast<int64_t>(sizeof(int32_t)) + PagePool::bytes(pages) +
         PrefixCache::bytes(pages, options.page_size, num_paged(info));
}

KvCache::KvCache(const ModelInfo& info, const KvPlan& plan, std::unique_ptr<PageMemory> memory)
    : plan_(plan),
      max_pages_(pages_of(plan.options, plan.max_len)),
      layer_groups_(info.groups),
      memory_(memory ? std::move(memory) : std::make_unique<HostPages>(arena_bytes(info, plan))),
      layers_(info.num_layers),
      slots_(plan.options.max_num_seqs),
      prefixes_(num_nodes(plan), plan.options.page_size, num_paged(info)),
      states_(info, plan, *memory_, prefixes_, num_nodes(plan)) {
  CHECK(plan.group_pages.size() == layer_groups_.size());
  path_.reserve(max_pages_);
  for (Slot& slot : slots_) slot.extents.resize(num_paged(info));
  groups_.reserve(num_paged(info));
  for (size_t g = 0; g < layer_groups_.size(); ++g) {
    if (layer_groups_[g].is_recurrent()) continue;
    groups_.push_back({.window = layer_groups_[g].window,
                       .pool = PagePool(plan.group_pages[g]),
                       .table = std::vector<int32_t>(slots_.size() * max_pages_, KvLayer::kNoPage),
                       .nodes = std::vector<int32_t>(plan.group_pages[g], PrefixCache::kNoNode),
                       .layers = &layer_groups_[g],
                       .number = 0});
    const PageMemory::Table table = memory_->add_table(groups_.back().table, plan.group_pages[g]);
    groups_.back().number = table.number;
    for (int32_t l : layer_groups_[g].layers) {
      const std::initializer_list<int64_t> shape = {
          plan.group_pages[g] + num_tails(plan), layer_groups_[g].num_kv_heads,
          plan.options.page_size, layer_groups_[g].head_dim};
      layers_[l] = {.k = memory_->take(plan.options.dtype, shape),
                    .v = memory_->take(plan.options.dtype, shape),
                    .page_table = table.entries,
                    .max_pages = max_pages_,
                    .page_size = plan.options.page_size};
    }
  }
}

int32_t KvCache::open() {
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s].is_open) continue;
    slots_[s].is_open = true;
    return static_cast<int32_t>(s);
  }
  return kNoSlot;
}

void KvCache::close(int32_t slot, std::span<const int32_t> tokens) {
  Slot& s = slots_[slot];
  CHECK(s.is_open);
  if (states_.exist()) {
    if (!tokens.empty()) keep_state(slot, tokens, PagePool::kLasting);
    states_.close(slot);
  }
  s.length = s.reserved = 0;
  s.written = kAll;
  trim(slot);
  leave_tree(s);
  s.is_open = false;
}

// The token behind a page of a text, where a head's part of the page was made with it.
int32_t KvCache::behind(std::span<const int32_t> tokens, int32_t page) const {
  if (plan_.options.max_rollback == 0) return PrefixCache::kAnyToken;
  return tokens[int64_t{page + 1} * plan_.options.page_size];
}

// The text of a prefix is there where full groups have all of its pages, window groups those that
// the next token sees, and recurrent layers the state behind it. Sets known_pages to how far the
// full groups go.
KvCache::Hit KvCache::longest_hit(int32_t root, std::span<const int32_t> tokens,
                                  int32_t& known_pages) {
  const int32_t page_size = plan_.options.page_size;
  const auto most = static_cast<int32_t>(tokens.size()) - 1;
  path_.clear();
  std::vector<int32_t> run_starts(groups_.size(), 0);  // of the pages without a gap up to here
  const auto is_there = [&](int32_t node, int32_t g) {
    return prefixes_.page(node, g) != KvLayer::kNoPage;
  };
  const auto has_full_pages = [&](int32_t node) {
    for (int32_t g = 0; g < static_cast<int32_t>(groups_.size()); ++g)
      if (groups_[g].window == kNoWindow && !is_there(node, g)) return false;
    return true;
  };
  Hit hit;
  for (int32_t node = root;; path_.push_back(node)) {
    const auto p = static_cast<int32_t>(path_.size());
    Hit here{.length = p * page_size};
    if (states_.exist()) {
      const int32_t room = std::min(most - here.length, page_size);
      here.state = states_.find(node, tokens.subspan(here.length, room));
      here.length =
          here.state == StateSlots::kNone ? 0 : here.length + states_.tail_length(here.state);
    }
    bool all_there = true;
    for (size_t g = 0; g < groups_.size(); ++g) {
      all_there &=
          run_starts[g] <= std::min(std::max(p - 1, 0), first_visible(groups_[g], here.length));
    }
    if (here.length > 0 && all_there) hit = here;
    known_pages = p;
    // A page before another token may be the last: its last position is computed again.
    const bool parts = p > 0 && prefixes_.behind(node) != behind(tokens, p - 1);
    if (parts || (p + 1) * page_size > most) return hit;
    // Forks that part right behind a page share it, and one of their nodes has it.
    node = prefixes_.find(node, tokens.subspan(int64_t{p} * page_size, page_size),
                          behind(tokens, p), has_full_pages);
    if (node == PrefixCache::kNoNode) return hit;
    for (size_t g = 0; g < groups_.size(); ++g)
      if (!is_there(node, static_cast<int32_t>(g))) run_starts[g] = p + 1;
  }
}

int32_t KvCache::adopt(int32_t slot, std::span<const int32_t> tokens, const std::string& salt,
                       bool reuse) {
  Slot& s = slots_[slot];
  CHECK(s.is_open && s.reserved == 0 && s.node == PrefixCache::kNoNode && !tokens.empty());
  if (!plan_.options.prefix_cache) return 0;
  const int32_t root = prefixes_.root(salt);
  if (root == PrefixCache::kNoNode) return 0;
  prefixes_.share(root);
  s.node = root;
  int32_t known_pages = 0;
  const Hit hit = reuse ? longest_hit(root, tokens, known_pages) : Hit{};
  s.marks[0] = known_pages * plan_.options.page_size;
  s.marks[1] = static_cast<int32_t>(tokens.size()) - 1;
  s.num_prompt = static_cast<int32_t>(tokens.size());
  if (states_.exist()) plan_cuts(s, hit.length, s.marks[0]);
  return hit.length > 0 && take_over(slot, hit) ? hit.length : 0;
}

// False, with nothing changed, where there is no page for the part of one that the hit ends with.
bool KvCache::take_over(int32_t slot, const Hit& hit) {
  Slot& s = slots_[slot];
  const bool has_state = hit.state != StateSlots::kNone;
  const int32_t num_pages = has_state ? pages_before(hit.length) : pages_for(hit.length);
  const bool has_tail = hit.length > num_pages * plan_.options.page_size;
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    s.extents[g] = {first_visible(group, hit.length), num_pages};
    for (int32_t p = s.extents[g].first; p < num_pages; ++p) {
      const int32_t page = prefixes_.page(path_[p], static_cast<int32_t>(g));
      group.pool.share(page);
      put(g, slot, p, page);
    }
  }
  const auto is_full = [](const Group& group) { return group.pool.num_free() == 0; };
  if (has_tail && std::ranges::any_of(groups_, is_full)) return trim(slot), false;
  if (has_state) {
    states_.adopt(slot, hit.state);
    s.kept_at = hit.length;
  }
  for (size_t g = 0; has_tail && g < groups_.size(); ++g) {
    put(g, slot, num_pages, take_page(static_cast<int32_t>(g)));
    s.extents[g].end = num_pages + 1;
    copy_page(groups_[g], groups_[g].pool.num_pages() + hit.state,
              row(groups_[g], slot)[num_pages]);
  }
  if (num_pages > 0) {
    prefixes_.share(path_[num_pages - 1]);
    leave_tree(s);
    s.node = path_[num_pages - 1];
  }
  s.num_known = num_pages;
  s.length = s.reserved = hit.length;
  return true;
}

// Where the text goes on to be known, but no state is: others part from it there, and this time the
// state is kept. The same before the prompt's last tokens, which begin an answer, and may be others
// when the text comes again. Each cut costs a step, so it has to save more.
void KvCache::plan_cuts(Slot& slot, int32_t hit, int32_t known) {
  const int32_t page_size = plan_.options.page_size;
  const int32_t end = std::max(0, slot.num_prompt - kAnswerHeader) / page_size * page_size;
  slot.cuts[0] = known - hit >= kPartingPages * page_size ? known : 0;
  slot.cuts[1] = end - std::max(hit, slot.cuts[0]) >= kPromptPages * page_size ? end : 0;
  slot.kept_at = 0;
}

int32_t KvCache::cut(int32_t slot, int32_t n) const {
  const Slot& s = slots_[slot];
  for (const int32_t at : s.cuts) {
    if (s.length < at && at < s.length + n) n = at - s.length;
  }
  return n;
}

// The state behind the committed text, and the part of its last page, for others.
void KvCache::keep_state(int32_t slot, std::span<const int32_t> tokens, PagePool::Queue queue) {
  Slot& s = slots_[slot];
  const int32_t page_size = plan_.options.page_size;
  const int32_t whole = pages_before(s.length), tail = s.length - whole * page_size;
  if (s.node == PrefixCache::kNoNode || s.num_known != whole) return;
  const int32_t state =
      states_.keep(slot, s.node, tokens.subspan(int64_t{whole} * page_size, tail), queue);
  s.kept_at = s.length;
  if (state != StateSlots::kNone) copy_tail(slot);
}

void KvCache::copy_tail(int32_t slot) {
  const Slot& s = slots_[slot];
  const int32_t whole = pages_before(s.length), state = states_.kept(slot);
  if (state == StateSlots::kNone || s.length == whole * plan_.options.page_size) return;
  for (Group& group : groups_)
    copy_page(group, row(group, slot)[whole], group.pool.num_pages() + state);
}

// Those of a text that others may share: what may be rolled back is in none of them.
int32_t KvCache::pages_before(int32_t length) const {
  return std::max(0, length - plan_.options.max_rollback) / plan_.options.page_size;
}

// After a step from position `begin` on: where it ended at a cut, and, to be forgotten sooner, at
// the prompt's end or far behind the last one kept.
void KvCache::keep_prompts_state(int32_t slot, std::span<const int32_t> tokens, int32_t begin) {
  const Slot& s = slots_[slot];
  if (begin >= s.num_prompt) return;
  if (s.length == s.cuts[0] || s.length == s.cuts[1])
    return keep_state(slot, tokens, PagePool::kLasting);
  const bool is_end = s.length >= s.num_prompt - 1 && begin < s.num_prompt - 1;
  const int32_t worth = is_end && s.cuts[1] == 0 ? kPartingPages : kStatePages;
  if (s.length - s.kept_at >= worth * plan_.options.page_size)
    keep_state(slot, tokens, PagePool::kPassing);
}

// Makes the pages that are whole by now, and that will not be rolled back, known to others.
void KvCache::publish(int32_t slot, std::span<const int32_t> tokens) {
  Slot& s = slots_[slot];
  const int32_t page_size = plan_.options.page_size;
  const int32_t whole = std::min(pages_before(s.length), s.written / page_size);
  CHECK(s.node == PrefixCache::kNoNode || static_cast<int32_t>(tokens.size()) >= s.length);
  for (; s.node != PrefixCache::kNoNode && s.num_known < whole; ++s.num_known) {
    const int32_t node =
        prefixes_.insert(s.node, tokens.subspan(int64_t{s.num_known} * page_size, page_size),
                         behind(tokens, s.num_known));
    if (node == PrefixCache::kNoNode) return leave_tree(s);
    prefixes_.share(node);
    for (int32_t g = 0; g < static_cast<int32_t>(groups_.size()); ++g) {
      const int32_t page = row(groups_[g], slot)[s.num_known];
      if (page == KvLayer::kNoPage || prefixes_.page(node, g) != KvLayer::kNoPage) continue;
      // Forks may have parted right behind a page that they share.
      if (groups_[g].nodes[page] != PrefixCache::kNoNode) continue;
      prefixes_.set_page(node, g, page);
      groups_[g].nodes[page] = node;
    }
    prefixes_.release(s.node);
    s.node = node;
  }
}

void KvCache::wrote(int32_t slot, int32_t end, std::span<const int32_t> tokens) {
  slots_[slot].written = end;
  publish(slot, tokens);
  trim(slot);
}

void KvCache::leave_tree(Slot& slot) {
  if (slot.node != PrefixCache::kNoNode) prefixes_.release(slot.node);
  slot.node = PrefixCache::kNoNode;
  slot.num_known = 0;
}

void KvCache::put(size_t group, int32_t slot, int32_t p, int32_t page) {
  row(groups_[group], slot)[p] = page;
  memory_->changed(groups_[group].number, int64_t{slot} * max_pages_ + p);
}

// The page of the next position is partly filled, and others read it too, or may yet.
bool KvCache::writes_shared(const Group& group, int32_t slot, const Extent& extent) const {
  const int32_t p = slots_[slot].length / plan_.options.page_size;
  if (p < extent.first || p >= extent.end) return false;
  const int32_t page = group.table[int64_t{slot} * max_pages_ + p];
  return group.pool.references(page) > 1 || group.nodes[page] != PrefixCache::kNoNode;
}

bool KvCache::reserve(int32_t slot, int32_t n) {
  Slot& s = slots_[slot];
  CHECK(s.is_open && n >= 0 && s.length + n <= plan_.max_len);
  const int32_t end = pages_for(s.length + n), p = s.length / plan_.options.page_size;
  // Where no page is left for a copy, one that nobody else reads now is written to itself.
  const auto lacks_copy = [&](Group& group, const Extent& extent) {
    return std::max(0, end - extent.end) == group.pool.num_free() &&
           writes_shared(group, slot, extent);
  };
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    if (end - s.extents[g].end > group.pool.num_free()) return false;
    if (lacks_copy(group, s.extents[g]) && group.pool.references(row(group, slot)[p]) > 1)
      return false;
  }
  if (states_.exist() && n > 0 && !states_.reserve(slot)) return false;
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    Extent& extent = s.extents[g];
    if (lacks_copy(group, extent)) forget_page(static_cast<int32_t>(g), row(group, slot)[p]);
    if (writes_shared(group, slot, extent)) {
      const int32_t shared = row(group, slot)[p], own = take_page(static_cast<int32_t>(g));
      copy_page(group, shared, own);
      group.pool.drop(shared, group.nodes[shared] != PrefixCache::kNoNode ? PagePool::kLasting
                                                                          : PagePool::kBlank);
      put(g, slot, p, own);
    }
    for (; extent.end < end; ++extent.end) {
      put(g, slot, extent.end, take_page(static_cast<int32_t>(g)));
    }
  }
  s.reserved = std::max(s.reserved, s.length + n);
  s.step = n;
  return true;
}

void KvCache::shorten(int32_t slot, int32_t n) {
  CHECK(n > 0 && n <= slots_[slot].step);
  slots_[slot].step = n;
}

bool KvCache::reserve_ahead(int32_t slot, int32_t n) {
  if (!reserve(slot, n + 1)) return false;
  slots_[slot].step = n;
  return !states_.exist() || states_.reserve_ahead(slot);
}

// The caller has seen that one is free.
int32_t KvCache::take_page(int32_t group) {
  const int32_t page = groups_[group].pool.take();
  if (groups_[group].nodes[page] != PrefixCache::kNoNode) forget_page(group, page);
  return page;
}

// The page is about to be overwritten. Where a full group loses it, what other groups keep of the
// same text is of no use any more.
void KvCache::forget_page(int32_t group, int32_t page) {
  const int32_t node = std::exchange(groups_[group].nodes[page], PrefixCache::kNoNode);
  if (groups_[group].window == kNoWindow) states_.forget(node);
  for (int32_t g = 0; g < static_cast<int32_t>(groups_.size()); ++g) {
    const int32_t other = prefixes_.page(node, g);
    if (g == group || groups_[group].window != kNoWindow || other == KvLayer::kNoPage) continue;
    if (groups_[g].pool.references(other) > 0) continue;
    groups_[g].pool.blank(other);
    groups_[g].nodes[other] = PrefixCache::kNoNode;
    prefixes_.set_page(node, g, KvLayer::kNoPage);
  }
  prefixes_.set_page(node, group, KvLayer::kNoPage);
}

void KvCache::commit(int32_t slot, int32_t n, std::span<const int32_t> tokens, int32_t kept) {
  Slot& s = slots_[slot];
  CHECK(s.is_open && n >= 0 && kept >= 0 && s.length + n + kept <= s.reserved);
  s.length += n;
  s.reserved = s.length + kept;
  publish(slot, tokens);
  if (states_.exist()) {
    CHECK(n == 0 || n == s.step);
    states_.commit(slot, n > 0, kept > 0);
    if (n > 0 && s.node != PrefixCache::kNoNode) keep_prompts_state(slot, tokens, s.length - n);
  }
  trim(slot);
}

void KvCache::rollback(int32_t slot, int32_t n) {
  Slot& s = slots_[slot];
  CHECK(s.is_open && n >= 0 && n <= s.length);
  CHECK(!states_.exist() || n == 0 || n == s.length);
  s.length -= n;
  s.reserved = s.length;
  CHECK(s.length == 0 ||
        s.num_known * plan_.options.page_size <= s.length + plan_.options.max_rollback);
  if (s.length == 0) leave_tree(s);
  for (; s.num_known * plan_.options.page_size > s.length; --s.num_known) {
    const int32_t node = std::exchange(s.node, prefixes_.parent(s.node));
    prefixes_.share(s.node);
    prefixes_.release(node);
  }
  if (s.length == 0 && states_.exist()) states_.close(slot);
  for (size_t g = 0; g < groups_.size() && s.length > 0; ++g) {
    // The window of the next token must still be there.
    const int32_t oldest = std::max(0, s.length - groups_[g].window + 1);
    CHECK(groups_[g].window == kNoWindow || s.extents[g].first * plan_.options.page_size <= oldest);
  }
  trim(slot);
}

int32_t KvCache::fork(int32_t slot) {
  CHECK(slots_[slot].is_open && slots_[slot].reserved == slots_[slot].length);
  const int32_t copy = open();
  if (copy == kNoSlot) return kNoSlot;
  slots_[copy] = slots_[slot];
  if (states_.exist()) states_.fork(slot, copy);
  if (slots_[copy].node != PrefixCache::kNoNode) prefixes_.share(slots_[copy].node);
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (int32_t p = slots_[slot].extents[g].first; p < slots_[slot].extents[g].end; ++p) {
      put(g, copy, p, row(groups_[g], slot)[p]);
      groups_[g].pool.share(row(groups_[g], slot)[p]);
    }
  }
  return copy;
}

// Gives back the pages that hold no position of the sequence, or only ones out of sight; of these
// not those that others may find once all layers have them.
void KvCache::trim(int32_t slot) {
  Slot& s = slots_[slot];
  const int32_t end = pages_for(s.reserved);
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    Extent& extent = s.extents[g];
    drop(group, slot, std::max(end, extent.first), extent.end);
    extent.end = std::min(extent.end, end);
    if (s.length == 0) {
      extent = {};
    } else if (group.window != kNoWindow) {
      const int32_t first = std::min(
          {first_visible(group, s.length), extent.end, s.written / plan_.options.page_size});
      drop(group, slot, extent.first, first);
      extent.first = std::max(extent.first, first);
    }
  }
}

// The first page that a token at `position` sees, were it rolled back as far as may be: itself and
// window - 1 before it.
int32_t KvCache::first_visible(const Group& group, int32_t position) const {
  if (group.window == kNoWindow) return 0;
  return std::max(0, position - group.window + 1 - plan_.options.max_rollback) /
         plan_.options.page_size;
}

// The last page first: of cached ones, those whose text is longest are forgotten first, and no page
// is forgotten before the ones that go on from it.
void KvCache::drop(Group& group, int32_t slot, int32_t first, int32_t end) {
  const int32_t* const pages = row(group, slot);
  for (int32_t p = end; p-- > first;) {
    PagePool::Queue queue = PagePool::kBlank;
    if (group.nodes[pages[p]] != PrefixCache::kNoNode) {
      queue = is_kept(group, slots_[slot], p) ? PagePool::kLasting : PagePool::kPassing;
    }
    group.pool.drop(pages[p], queue);
    put(static_cast<size_t>(&group - groups_.data()), slot, p, KvLayer::kNoPage);
  }
}

// Whether the cached page is one that a later prompt is likely to ask for: any of a full group or
// of an ended sequence; of a running one, those that a token sees who stands at a mark, where a
// state was kept, or at one of the positions kept for all.
bool KvCache::is_kept(const Group& group, const Slot& slot, int32_t page) const {
  if (group.window == kNoWindow || slot.length == 0) return true;
  const auto sees = [&](int32_t position) {
    const int32_t end = position / plan_.options.page_size;
    return page < end && page >= first_visible(group, end * plan_.options.page_size);
  };
  const int32_t next = (page + 1) * plan_.options.page_size + kKeptWindowEvery - 1;
  return sees(slot.marks[0]) || sees(slot.marks[1]) || sees(slot.kept_at) ||
         sees(next / kKeptWindowEvery * kKeptWindowEvery);
}

void KvCache::copy_page(const Group& group, int32_t from, int32_t to) {
  for (int32_t l : group.layers->layers) {
    memory_->copy_page(layers_[l].k, from, to);
    memory_->copy_page(layers_[l].v, from, to);
  }
}

int32_t KvCache::pages_for(int32_t tokens) const {
  return (tokens + plan_.options.page_size - 1) / plan_.options.page_size;
}

int32_t KvCache::free_pages() const {
  int32_t n = std::numeric_limits<int32_t>::max();
  for (const Group& group : groups_) {
    if (group.window == kNoWindow) n = std::min(n, group.pool.num_free());
  }
  return n;
}

int32_t KvCache::held_pages(int32_t slot) const {
  int32_t n = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].window == kNoWindow) n = std::max(n, slots_[slot].extents[g].end);
  }
  return n;
}

double KvCache::usage() const {
  double most = 0;
  for (const Group& group : groups_) {
    if (group.pool.num_pages() == 0) continue;
    most =
        std::max(most, 1.0 - static_cast<double>(group.pool.num_free()) / group.pool.num_pages());
  }
  return most;
}

}  // namespace nibble
