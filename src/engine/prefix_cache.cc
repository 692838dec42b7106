#include "engine/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <random>

#include "base/check.h"
#include "models/model.h"

namespace nibble {
namespace {

uint64_t mixed(uint64_t x) {  // the finaliser of SplitMix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

size_t num_buckets(int64_t capacity) {
  return std::bit_ceil(static_cast<size_t>(std::max<int64_t>(capacity, 1)));
}

}  // namespace

PrefixCache::PrefixCache(int32_t capacity, int32_t page_size, int32_t num_groups)
    : page_size_(page_size),
      num_groups_(num_groups),
      seed_(uint64_t{std::random_device{}()} << 32 | std::random_device{}()),
      nodes_(capacity),
      tokens_(static_cast<size_t>(capacity) * page_size),
      pages_(static_cast<size_t>(capacity) * num_groups, KvLayer::kNoPage),
      buckets_(num_buckets(capacity), kNoNode) {
  for (int32_t node = capacity; node-- > 0;) {
    nodes_[node].next = unused_;
    unused_ = node;
  }
}

int64_t PrefixCache::bytes(int64_t capacity, int32_t page_size, int32_t num_groups) {
  constexpr auto kId = static_cast<int64_t>(sizeof(int32_t));
  return capacity * (static_cast<int64_t>(sizeof(Node)) + kId * (page_size + num_groups)) +
         kId * static_cast<int64_t>(num_buckets(capacity));
}

int32_t PrefixCache::root(const std::string& salt) {
  const auto known = roots_.find(salt);
  if (known != roots_.end()) return known->second;
  const int32_t node = take_unused(kNoNode);
  if (node != kNoNode) nodes_[node].salt = &roots_.emplace(salt, node).first->first;
  return node;
}

int32_t PrefixCache::find(int32_t parent, std::span<const int32_t> tokens, int32_t behind,
                          const std::function<bool(int32_t node)>& is_usable) const {
  CHECK(static_cast<int32_t>(tokens.size()) == page_size_);
  int32_t other = kNoNode;
  for (int32_t node = buckets_[bucket(parent, tokens)]; node != kNoNode; node = nodes_[node].next) {
    if (nodes_[node].parent != parent || !std::ranges::equal(tokens_of(node), tokens)) continue;
    if (is_usable && !is_usable(node)) continue;
    if (nodes_[node].behind == behind) return node;
    other = node;
  }
  return other;
}

int32_t PrefixCache::insert(int32_t parent, std::span<const int32_t> tokens, int32_t behind) {
  const int32_t known = find(parent, tokens, behind);
  if (known != kNoNode && nodes_[known].behind == behind) return known;
  const int32_t node = take_unused(parent);
  if (node == kNoNode) return kNoNode;
  nodes_[node].behind = behind;
  share(parent);
  std::ranges::copy(tokens, tokens_.begin() + int64_t{node} * page_size_);
  int32_t& first = buckets_[bucket(parent, tokens)];
  nodes_[node].next = first;
  first = node;
  return node;
}

void PrefixCache::share(int32_t node) { ++nodes_[node].references; }

void PrefixCache::release(int32_t node) {
  while (node != kNoNode) {  // and then, where this was its last child, its parent
    CHECK(nodes_[node].references > 0);
    if (--nodes_[node].references > 0) return;
    const int32_t parent = nodes_[node].parent;
    forget(node);
    node = parent;
  }
}

void PrefixCache::set_page(int32_t node, int32_t group, int32_t page) {
  int32_t& entry = pages_[index(node, group)];
  const bool had_page = entry != KvLayer::kNoPage;
  entry = page;
  if (page != KvLayer::kNoPage) share(node);
  if (had_page) release(node);
}

std::span<const int32_t> PrefixCache::tokens_of(int32_t node) const {
  return {&tokens_[static_cast<size_t>(node) * page_size_], static_cast<size_t>(page_size_)};
}

size_t PrefixCache::bucket(int32_t parent, std::span<const int32_t> tokens) const {
  uint64_t hash = mixed(seed_ + static_cast<uint64_t>(parent));
  for (int32_t token : tokens) hash = mixed(hash + static_cast<uint32_t>(token));
  return hash & (buckets_.size() - 1);
}

int32_t PrefixCache::take_unused(int32_t parent) {
  const int32_t node = unused_;
  if (node == kNoNode) return kNoNode;
  unused_ = nodes_[node].next;
  nodes_[node] = {.parent = parent};
  ++num_nodes_;
  return node;
}

void PrefixCache::forget(int32_t node) {
  if (nodes_[node].salt != nullptr) {
    roots_.erase(roots_.find(*nodes_[node].salt));
  } else {
    int32_t* at = &buckets_[bucket(nodes_[node].parent, tokens_of(node))];
    while (*at != node) at = &nodes_[*at].next;
    *at = nodes_[node].next;
  }
  nodes_[node] = {.next = unused_};
  unused_ = node;
  --num_nodes_;
}

}  // namespace nibble
