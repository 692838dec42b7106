#include "engine/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace nibble {
namespace {

int64_t arena_bytes(const ModelInfo& info, const KvPlan& plan) {
  int64_t bytes = 0;
  for (size_t g = 0; g < info.groups.size(); ++g) {
    const auto num_layers = static_cast<int64_t>(info.groups[g].layers.size());
    const int64_t all = plan.group_pages[g] * page_bytes(info, info.groups[g], plan.options);
    if (num_layers > 0) bytes += 2 * num_layers * Arena::padded(all / (2 * num_layers));
  }
  return bytes;
}

// Pages of a sequence of `len` tokens.
int32_t pages_of(const KvOptions& options, int32_t len) {
  return (len + options.page_size - 1) / options.page_size;
}

}  // namespace

int64_t KvCache::table_bytes(const ModelInfo& info, const KvOptions& options, int32_t len) {
  return static_cast<int64_t>(info.groups.size()) * options.max_num_seqs * pages_of(options, len) *
         static_cast<int64_t>(sizeof(int32_t));
}

KvCache::KvCache(const ModelInfo& info, const KvPlan& plan)
    : plan_(plan),
      max_pages_(pages_of(plan.options, plan.max_len)),
      layer_groups_(info.groups),
      arena_(arena_bytes(info, plan)),
      layers_(info.num_layers),
      slots_(plan.options.max_num_seqs) {
  CHECK(plan.group_pages.size() == layer_groups_.size());
  for (Slot& slot : slots_) slot.extents.resize(layer_groups_.size());
  for (size_t g = 0; g < layer_groups_.size(); ++g) {
    groups_.push_back({.window = layer_groups_[g].window,
                       .pool = PagePool(plan.group_pages[g]),
                       .table = std::vector<int32_t>(slots_.size() * max_pages_, KvLayer::kNoPage),
                       .layers = &layer_groups_[g]});
    for (int32_t l : layer_groups_[g].layers) {
      const std::initializer_list<int64_t> shape = {plan.group_pages[g], info.num_kv_heads,
                                                    plan.options.page_size, info.head_dim};
      layers_[l] = {.k = arena_.take(plan.options.dtype, shape),
                    .v = arena_.take(plan.options.dtype, shape),
                    .page_table = groups_.back().table.data(),
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

void KvCache::close(int32_t slot) {
  Slot& s = slots_[slot];
  CHECK(s.is_open);
  s.length = s.reserved = 0;
  trim(slot);
  s.is_open = false;
}

// The page of the next position is partly filled, and another sequence reads it too.
bool KvCache::writes_shared(const Group& group, int32_t slot, const Extent& extent) const {
  const int32_t p = slots_[slot].length / plan_.options.page_size;
  if (p < extent.first || p >= extent.end) return false;
  return group.pool.references(group.table[int64_t{slot} * max_pages_ + p]) > 1;
}

bool KvCache::reserve(int32_t slot, int32_t n) {
  Slot& s = slots_[slot];
  CHECK(s.is_open && n >= 0 && s.length + n <= plan_.max_len);
  const int32_t end = pages_for(s.length + n);
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int32_t missing = std::max(0, end - s.extents[g].end) +
                            (writes_shared(groups_[g], slot, s.extents[g]) ? 1 : 0);
    if (missing > groups_[g].pool.num_free()) return false;
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    Extent& extent = s.extents[g];
    if (writes_shared(group, slot, extent)) {
      int32_t& shared = row(group, slot)[s.length / plan_.options.page_size];
      const int32_t own = group.pool.take();
      copy_page(group, shared, own);
      group.pool.drop(shared);
      shared = own;
    }
    for (; extent.end < end; ++extent.end) row(group, slot)[extent.end] = group.pool.take();
  }
  s.reserved = std::max(s.reserved, s.length + n);
  return true;
}

void KvCache::commit(int32_t slot, int32_t n) {
  Slot& s = slots_[slot];
  CHECK(s.is_open && n >= 0 && s.length + n <= s.reserved);
  s.length += n;
  s.reserved = s.length;
  trim(slot);
}

void KvCache::rollback(int32_t slot, int32_t n) {
  Slot& s = slots_[slot];
  CHECK(s.is_open && n >= 0 && n <= s.length);
  s.length -= n;
  s.reserved = s.length;
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
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (int32_t p = slots_[slot].extents[g].first; p < slots_[slot].extents[g].end; ++p) {
      row(groups_[g], copy)[p] = row(groups_[g], slot)[p];
      groups_[g].pool.share(row(groups_[g], slot)[p]);
    }
  }
  return copy;
}

// Gives back the pages that hold no position of the sequence, or only ones out of sight.
void KvCache::trim(int32_t slot) {
  Slot& s = slots_[slot];
  const int32_t end = pages_for(s.length);
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    Extent& extent = s.extents[g];
    drop(group, slot, std::max(end, extent.first), extent.end);
    extent.end = std::min(extent.end, end);
    if (s.length == 0) {
      extent = {};
    } else if (group.window != kNoWindow) {
      // The next token, at position `length`, sees itself and window - 1 before it.
      const int32_t oldest = std::max(0, s.length - group.window + 1 - plan_.options.max_rollback);
      const int32_t first = std::min(oldest / plan_.options.page_size, extent.end);
      drop(group, slot, extent.first, first);
      extent.first = std::max(extent.first, first);
    }
  }
}

void KvCache::drop(Group& group, int32_t slot, int32_t first, int32_t end) {
  int32_t* const pages = row(group, slot);
  for (int32_t p = first; p < end; ++p) {
    group.pool.drop(pages[p]);
    pages[p] = KvLayer::kNoPage;
  }
}

void KvCache::copy_page(const Group& group, int32_t from, int32_t to) {
  for (int32_t l : group.layers->layers) {
    for (const Tensor& t : {layers_[l].k, layers_[l].v}) {
      const int64_t bytes = t.size_bytes() / t.dim(0);
      char* const data = static_cast<char*>(t.data);
      std::memcpy(data + to * bytes, data + from * bytes, static_cast<size_t>(bytes));
    }
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
