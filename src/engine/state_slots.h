// StateSlots: what recurrent layers keep of sequences, in slots of fixed size. A slot is an integer
// id with a reference count, as a page is. A step reads the slot that a sequence has committed and
// writes another one, which commit() puts in its place: a step that is dropped has changed nothing.
// So a state that was committed never changes, and may be kept for others that begin with the same
// text: how many tokens it follows is a node of the prefix cache, whose text is whole pages, and a
// tail. Slots that nobody uses keep such states until the memory is needed, as pages do.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv_plan.h"
#include "engine/page_memory.h"
#include "engine/page_pool.h"
#include "engine/prefix_cache.h"
#include "models/model.h"

namespace nibble {

class StateSlots {
 public:
  static constexpr int32_t kNone = RecurrentLayer::kNoState;

  // Of the recurrent layers of `info`, if any. `prefixes` has room for num_nodes.
  StateSlots(const ModelInfo& info, const KvPlan& plan, PageMemory& memory, PrefixCache& prefixes,
             int32_t num_nodes);
  static int64_t arena_bytes(const ModelInfo& info, int32_t num_slots);
  static int64_t table_bytes(int64_t num_slots, const KvOptions& options, int64_t num_nodes);
  bool exist() const { return pool_.num_pages() > 0; }

  // A slot for the next step to write to; false where all are in use.
  bool reserve(int32_t row);
  // The same for the step behind it, which begins before commit().
  bool reserve_ahead(int32_t row);
  // The step has run, or, `ran` false, is dropped. What was reserved ahead goes unless it is kept.
  void commit(int32_t row, bool ran, bool keeps_ahead);
  void close(int32_t row);
  void fork(int32_t from_row, int32_t to_row);
  void adopt(int32_t row, int32_t slot);  // one that is kept

  // The committed state of the row follows the text of `node` and `tail`. Keeps it for others;
  // returns its slot, or kNone where it is kept already.
  int32_t keep(int32_t row, int32_t node, std::span<const int32_t> tail, PagePool::Queue queue);
  // Of the states kept behind `node`, the one with the longest tail that `tokens` begin with.
  int32_t find(int32_t node, std::span<const int32_t> tokens) const;
  // The committed slot of the row, where it is kept; else kNone.
  int32_t kept(int32_t row) const {
    const int32_t slot = rows_[row].committed;
    return slot != kNone && kept_[slot].node != PrefixCache::kNoNode ? slot : kNone;
  }
  int32_t tail_length(int32_t slot) const { return kept_[slot].tail_length; }
  // The text of the node is lost.
  void forget(int32_t node);

  const PagePool& pool() const { return pool_; }
  int32_t num_kept() const { return num_kept_; }
  const RecurrentLayer* layers() const { return exist() ? layers_.data() : nullptr; }

 private:
  struct Row {
    int32_t committed = kNone, next = kNone, ahead = kNone;
  };
  struct Kept {
    int32_t node = PrefixCache::kNoNode;  // kNoNode: the slot's state is not kept
    int32_t tail_length = 0;
    int32_t next = kNone;  // of the same node
    PagePool::Queue queue = PagePool::kBlank;
  };

  int32_t take();
  void drop(int32_t& slot);
  void leave(int32_t slot);
  void put(int32_t row, int32_t from, int32_t to);
  std::span<const int32_t> tail(int32_t slot) const;

  int32_t page_size_;
  PageMemory& memory_;
  PrefixCache& prefixes_;
  PagePool pool_;
  std::vector<RecurrentLayer> layers_;  // [num_layers]
  std::vector<Row> rows_;
  std::vector<int32_t> from_, to_;  // [rows]
  int32_t from_table_ = 0, to_table_ = 0;
  std::vector<Kept> kept_;      // [slots]
  std::vector<int32_t> tails_;  // [slots, page_size]
  std::vector<int32_t> first_;  // [nodes] of the states kept behind each
  int32_t num_kept_ = 0;
};

}  // namespace nibble
