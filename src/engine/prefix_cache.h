// PrefixCache: which pages hold which text. A tree: a node is a whole number of pages of text from
// its start, its children go on for one page more. Where the keys and values of a draft head lie in
// the pages too, the last ones of a page were made with the token behind it: a node then is of a
// text and that token, and others with the same text are beside it. Tokens are compared one by one,
// never by hash alone, so that no collision passes one text off as another. The tree of every
// tenant (salt) has a root of its own. One cache serves one model with one KV format and lives no
// longer, so neither is part of the key.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace nibble {

class PrefixCache {
 public:
  static constexpr int32_t kNoNode = -1, kAnyToken = -1;

  // Room for `capacity` nodes; nothing is allocated later but the salts.
  PrefixCache(int32_t capacity, int32_t page_size, int32_t num_groups);
  static int64_t bytes(int64_t capacity, int32_t page_size, int32_t num_groups);

  // The node of the empty text; kNoNode where there is no room for another.
  int32_t root(const std::string& salt);
  // The text of `parent` and one page more, `tokens` [page_size], and the token behind them, if
  // that matters. find(): of those that is_usable says, where it is given; one of any other token
  // where there is none of this; kNoNode where the text is not known. insert(): kNoNode where there
  // is no room for another.
  int32_t find(int32_t parent, std::span<const int32_t> tokens, int32_t behind = kAnyToken,
               const std::function<bool(int32_t node)>& is_usable = {}) const;
  int32_t insert(int32_t parent, std::span<const int32_t> tokens, int32_t behind = kAnyToken);
  int32_t parent(int32_t node) const { return nodes_[node].parent; }
  int32_t behind(int32_t node) const { return nodes_[node].behind; }

  // A node stays while it has children, pages or references. New ones have nothing: reference them
  // before anything else is released.
  void share(int32_t node);
  void release(int32_t node);

  // The last page of the node's text in a group; KvLayer::kNoPage where none holds it.
  int32_t page(int32_t node, int32_t group) const { return pages_[index(node, group)]; }
  void set_page(int32_t node, int32_t group, int32_t page);

  int32_t num_nodes() const { return num_nodes_; }

 private:
  struct Node {
    int32_t parent = kNoNode;
    int32_t next = kNoNode;  // in its bucket, or in the list of unused ones
    int32_t references = 0;  // children, pages and sequences
    int32_t behind = kAnyToken;
    const std::string* salt = nullptr;  // of roots
  };

  size_t index(int32_t node, int32_t group) const {
    return static_cast<size_t>(node) * num_groups_ + group;
  }
  std::span<const int32_t> tokens_of(int32_t node) const;
  size_t bucket(int32_t parent, std::span<const int32_t> tokens) const;
  int32_t take_unused(int32_t parent);
  void forget(int32_t node);

  int32_t page_size_;
  int32_t num_groups_;
  uint64_t seed_;  // of the hash, so that nobody outside can fill one bucket
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;   // [nodes, page_size]
  std::vector<int32_t> pages_;    // [nodes, groups]
  std::vector<int32_t> buckets_;  // first node of each; a power of two
  std::map<std::string, int32_t> roots_;
  int32_t unused_ = kNoNode;  // first of the list
  int32_t num_nodes_ = 0;
};

}  // namespace nibble
