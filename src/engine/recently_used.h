// RecentlyUsed: values by key, of which the longest unused goes when there is no room for another.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <utility>

#include "base/check.h"

namespace nibble {

template <typename Key, typename Value>
class RecentlyUsed {
 public:
  explicit RecentlyUsed(size_t most) : most_(most) { CHECK(most > 0); }

  // That of `key`, which is the last used now; where there is none, Value{}. Stays where it is
  // until it goes. Allocates nothing for a key that is there.
  Value& use(const Key& key) {
    if (const auto at = by_key_.find(key); at != by_key_.end()) {
      entries_.splice(entries_.begin(), entries_, at->second);
      return at->second->second;
    }
    if (entries_.size() == most_) {
      by_key_.erase(entries_.back().first);
      entries_.pop_back();
    }
    entries_.emplace_front(key, Value{});
    by_key_.emplace(key, entries_.begin());
    return entries_.front().second;
  }

  bool has(const Key& key) const { return by_key_.contains(key); }
  void clear() {
    by_key_.clear();
    entries_.clear();
  }
  size_t size() const { return entries_.size(); }

 private:
  using Entries = std::list<std::pair<Key, Value>>;
  size_t most_;
  Entries entries_;  // the last used first
  std::map<Key, typename Entries::iterator> by_key_;
};

}  // namespace nibble
