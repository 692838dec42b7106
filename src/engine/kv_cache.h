// KvCache: keys and values of all sequences in pages, one page table and one page pool per layer
// group, and the states of recurrent layers in slots (state_slots.h). A page is an integer id with
// a reference count; a page that several sequences share is copied before one of them writes to it.
// Pages of a window group are given back once no later token can see them. With a prefix cache,
// whole pages that were given back keep their content until the memory is needed, and a later
// sequence that starts with the same text takes them over.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/kv_plan.h"
#include "engine/page_memory.h"
#include "engine/page_pool.h"
#include "engine/prefix_cache.h"
#include "engine/state_slots.h"
#include "models/model.h"

namespace nibble {

class KvCache {
 public:
  static constexpr int32_t kNoSlot = -1;

  // Pages in `memory`, which holds arena_bytes(); without one, in the host's.
  KvCache(const ModelInfo& info, const KvPlan& plan, std::unique_ptr<PageMemory> memory = {});
  static int64_t arena_bytes(const ModelInfo& info, const KvPlan& plan);
  // Of the page tables of all groups together.
  static int64_t table_entries(const ModelInfo& info, const KvOptions& options, int32_t len);

  // Bytes of the page tables of all groups, for sequences of up to `len` tokens, and of the books
  // on the pages that options.bytes hold.
  static int64_t table_bytes(const ModelInfo& info, const KvOptions& options, int32_t len);

  // A slot with an empty sequence; kNoSlot where max_num_seqs are open.
  int32_t open();
  // Gives back the slot and its pages. What follows its `tokens`, if given, may go on from its
  // state.
  void close(int32_t slot, std::span<const int32_t> tokens = {});

  // For a slot just opened: takes over the pages of the longest prefix of `tokens` that is known
  // under `salt` and shorter than all of them, and returns its length; 0 where none is. Without
  // recurrent layers a multiple of the page size; with them, a length whose state was kept. With
  // `reuse` false it takes none, but what the sequence will commit is found by others.
  int32_t adopt(int32_t slot, std::span<const int32_t> tokens, const std::string& salt,
                bool reuse = true);

  // Makes positions [length, length + n) writable in every group; false, with nothing changed,
  // where pages are missing. A step that writes them has n tokens, of which commit() takes all or
  // none where there are recurrent layers: their state is that behind the last, or behind the n
  // that shorten() says.
  bool reserve(int32_t slot, int32_t n);
  void shorten(int32_t slot, int32_t n);
  // One position more, for a step that begins before commit() of the one at hand.
  bool reserve_ahead(int32_t slot, int32_t n);
  // Of the n tokens that follow, how many a step should take at most: up to where texts part, as a
  // state exists only where a step ends.
  int32_t cut(int32_t slot, int32_t n) const;
  // The first n reserved positions now belong to the sequence, the next `kept` stay reserved; what
  // was reserved beyond them, and what fell out of a window, is given back. `tokens` are those of
  // the sequence from its start, at least as many as are committed now; only a slot that called
  // adopt() needs them.
  void commit(int32_t slot, int32_t n, std::span<const int32_t> tokens = {}, int32_t kept = 0);
  // Behind commit(), where a head has written to pages since: what goes with a state that was kept
  // there.
  void copy_tail(int32_t slot);
  // Positions before `end` are in all layers of which some are written behind steps; later ones are
  // not known to others. Where it is never called, all are in all layers once committed; else it is
  // to be called behind each commit(), which leaves window pages that are out of sight to it.
  void wrote(int32_t slot, int32_t end, std::span<const int32_t> tokens);
  // Takes back the last n committed positions: all of them, or down to max_rollback below the
  // longest that the sequence has been.
  void rollback(int32_t slot, int32_t n);
  // A slot with the same sequence over the same pages; kNoSlot where all are open. Nothing may be
  // reserved.
  int32_t fork(int32_t slot);

  int32_t length(int32_t slot) const { return slots_[slot].length; }
  // Of full groups, which all have the same number of pages and lose them at the same pace. A
  // model without one has no limit here.
  int32_t free_pages() const;
  int32_t held_pages(int32_t slot) const;
  int32_t pages_for(int32_t tokens) const;

  const KvPlan& plan() const { return plan_; }
  const PagePool& pool(int32_t group) const { return groups_[group].pool; }
  double usage() const;  // of the pages of the fullest group, 0..1; cached ones count as free
  const PrefixCache& prefixes() const { return prefixes_; }
  const StateSlots& states() const { return states_; }
  SeqState state() const { return {.layers = layers_.data(), .recurrent = states_.layers()}; }

 private:
  // Logical pages [first, end) of a sequence are held in a group's table.
  struct Extent {
    int32_t first = 0;
    int32_t end = 0;
  };
  static constexpr int32_t kAll = std::numeric_limits<int32_t>::max();
  struct Slot {
    bool is_open = false;
    int32_t length = 0;
    int32_t reserved = 0;                 // positions, committed ones included
    std::vector<Extent> extents;          // [groups]
    int32_t node = PrefixCache::kNoNode;  // of its first num_known pages; kNoNode: is not cached
    int32_t num_known = 0;
    int32_t marks[2] = {0, 0};  // positions where later prompts may go on from this one's text
    int32_t cuts[2] = {0, 0};   // the same, where steps end for the sake of the state; 0: none
    int32_t num_prompt = 0;     // tokens that adopt() was shown
    int32_t kept_at = 0;        // position of the last state that was kept
    int32_t step = 0;           // tokens reserved for the step at hand
    int32_t written = kAll;     // positions that are in all layers
  };
  struct Group {
    int32_t window;
    PagePool pool;
    std::vector<int32_t> table;  // [slots, max_pages]
    std::vector<int32_t> nodes;  // [pages] whose text a page holds, or kNoNode
    const LayerGroup* layers;
    int32_t number;  // of the table
  };
  // What is known of a text's beginning.
  struct Hit {
    int32_t length = 0;
    int32_t state = StateSlots::kNone;
  };

  int32_t* row(Group& group, int32_t slot) { return &group.table[int64_t{slot} * max_pages_]; }
  void put(size_t group, int32_t slot, int32_t p, int32_t page);
  int32_t first_visible(const Group& group, int32_t position) const;
  bool writes_shared(const Group& group, int32_t slot, const Extent& extent) const;
  void copy_page(const Group& group, int32_t from, int32_t to);
  int32_t take_page(int32_t group);
  void forget_page(int32_t group, int32_t page);
  void drop(Group& group, int32_t slot, int32_t first, int32_t end);
  void trim(int32_t slot);
  Hit longest_hit(int32_t root, std::span<const int32_t> tokens, int32_t& known_pages);
  bool take_over(int32_t slot, const Hit& hit);
  void plan_cuts(Slot& slot, int32_t hit, int32_t known);
  void keep_state(int32_t slot, std::span<const int32_t> tokens, PagePool::Queue queue);
  void keep_prompts_state(int32_t slot, std::span<const int32_t> tokens, int32_t begin);
  int32_t pages_before(int32_t length) const;
  int32_t behind(std::span<const int32_t> tokens, int32_t page) const;
  void publish(int32_t slot, std::span<const int32_t> tokens);
  void leave_tree(Slot& slot);
  bool is_kept(const Group& group, const Slot& slot, int32_t page) const;

  KvPlan plan_;
  int32_t max_pages_;
  std::vector<LayerGroup> layer_groups_;
  std::unique_ptr<PageMemory> memory_;
  std::vector<KvLayer> layers_;  // [num_layers]
  std::vector<Group> groups_;
  std::vector<Slot> slots_;
  PrefixCache prefixes_;
  StateSlots states_;
  std::vector<int32_t> path_;  // [max_pages] nodes of the text that is looked up
};

}  // namespace nibble
