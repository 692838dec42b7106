// PagePool: which pages of one group are free, and how many tables point at each of the others.
// Pages that nothing points at wait in three queues. Those without content worth keeping are taken
// first; then cached ones, the longest unused first.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "models/model.h"

namespace nibble {

class PagePool {
 public:
  // Where an unreferenced page waits, in the order in which they are taken.
  enum Queue : uint8_t { kBlank, kPassing, kLasting };

  explicit PagePool(int32_t num_pages)
      : references_(num_pages, 0), links_(num_pages + kNumQueues), num_free_(num_pages) {
    for (int32_t q = 0; q < kNumQueues; ++q) links_[num_pages + q] = {num_pages + q, num_pages + q};
    for (int32_t page = 0; page < num_pages; ++page) link_last(page, kBlank);
  }

  // A page with one reference; KvLayer::kNoPage where all have one.
  int32_t take() {
    if (num_free_ == 0) return KvLayer::kNoPage;
    int32_t q = kBlank;
    while (links_[num_pages() + q].next == num_pages() + q) ++q;
    const int32_t page = links_[num_pages() + q].next;
    share(page);
    return page;
  }
  // One more reference; of a waiting page, the first.
  void share(int32_t page) {
    if (references_[page]++ == 0) unlink(page), --num_free_;
  }
  void drop(int32_t page, Queue queue = kBlank) {
    CHECK(references_[page] > 0);
    if (--references_[page] == 0) link_last(page, queue), ++num_free_;
  }
  // A waiting page is not worth keeping any more.
  void blank(int32_t page) {
    CHECK(references_[page] == 0);
    unlink(page);
    link_last(page, kBlank);
  }

  int32_t references(int32_t page) const { return references_[page]; }
  int32_t num_pages() const { return static_cast<int32_t>(references_.size()); }
  int32_t num_free() const { return num_free_; }  // those that wait, cached ones included
  int32_t num_used() const { return num_pages() - num_free_; }

  static constexpr int64_t bytes(int64_t num_pages) {
    return num_pages * static_cast<int64_t>(sizeof(int32_t) + sizeof(Link));
  }

 private:
  static constexpr int32_t kNumQueues = 3;
  struct Link {
    int32_t previous, next;
  };

  void link_last(int32_t page, Queue queue) {
    Link& end = links_[num_pages() + queue];
    links_[page] = {end.previous, num_pages() + queue};
    links_[end.previous].next = page;
    end.previous = page;
  }
  void unlink(int32_t page) {
    const Link link = links_[page];
    links_[link.previous].next = link.next;
    links_[link.next].previous = link.previous;
  }

  std::vector<int32_t> references_;  // [pages]
  std::vector<Link> links_;          // [pages + queues]: rings, each through its queue's own entry
  int32_t num_free_;
};

}  // namespace nibble
