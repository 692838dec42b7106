// KvCache: keys and values of all sequences in pages, one page table and one page pool per layer
// group. A page is an integer id with a reference count; a page that several sequences share is
// copied before one of them writes to it. Pages of a window group are given back once no later
// token can see them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/kv_plan.h"
#include "engine/page_pool.h"
#include "models/model.h"
#include "tensor/buffer.h"

namespace nibble {

class KvCache {
 public:
  static constexpr int32_t kNoSlot = -1;

  KvCache(const ModelInfo& info, const KvPlan& plan);

  // Bytes of the page tables of all groups, for sequences of up to `len` tokens.
  static int64_t table_bytes(const ModelInfo& info, const KvOptions& options, int32_t len);

  // A slot with an empty sequence; kNoSlot where max_num_seqs are open.
  int32_t open();
  // Gives back the slot and its pages.
  void close(int32_t slot);

  // Makes positions [length, length + n) writable in every group; false, with nothing changed,
  // where pages are missing.
  bool reserve(int32_t slot, int32_t n);
  // The first n reserved positions now belong to the sequence; what was reserved beyond them, and
  // what fell out of a window, is given back.
  void commit(int32_t slot, int32_t n);
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
  double usage() const;  // of the pages of the fullest group, 0..1
  SeqState state() const { return {.layers = layers_.data()}; }

 private:
  // Logical pages [first, end) of a sequence are held in a group's table.
  struct Extent {
    int32_t first = 0;
    int32_t end = 0;
  };
  struct Slot {
    bool is_open = false;
    int32_t length = 0;
    int32_t reserved = 0;         // positions, committed ones included
    std::vector<Extent> extents;  // [groups]
  };
  struct Group {
    int32_t window;
    PagePool pool;
    std::vector<int32_t> table;  // [slots, max_pages]
    const LayerGroup* layers;
  };

  int32_t* row(Group& group, int32_t slot) { return &group.table[int64_t{slot} * max_pages_]; }
  bool writes_shared(const Group& group, int32_t slot, const Extent& extent) const;
  void copy_page(const Group& group, int32_t from, int32_t to);
  void drop(Group& group, int32_t slot, int32_t first, int32_t end);
  void trim(int32_t slot);

  KvPlan plan_;
  int32_t max_pages_;
  std::vector<LayerGroup> layer_groups_;
  Arena arena_;
  std::vector<KvLayer> layers_;  // [num_layers]
  std::vector<Group> groups_;
  std::vector<Slot> slots_;
};

}  // namespace nibble
