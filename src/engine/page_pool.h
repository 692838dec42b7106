// PagePool: which pages of one group are free, and how many tables point at each of the others.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "models/model.h"

namespace nibble {

class PagePool {
 public:
  explicit PagePool(int32_t num_pages) : references_(num_pages, 0) {
    free_.reserve(num_pages);
    for (int32_t page = num_pages; page-- > 0;) free_.push_back(page);
  }

  // A page with one reference; KvLayer::kNoPage where none is free.
  int32_t take() {
    if (free_.empty()) return KvLayer::kNoPage;
    const int32_t page = free_.back();
    free_.pop_back();
    references_[page] = 1;
    return page;
  }
  void share(int32_t page) { CHECK(references_[page] > 0), ++references_[page]; }
  void drop(int32_t page) {
    CHECK(references_[page] > 0);
    if (--references_[page] == 0) free_.push_back(page);
  }

  int32_t references(int32_t page) const { return references_[page]; }
  int32_t num_pages() const { return static_cast<int32_t>(references_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }

 private:
  std::vector<int32_t> references_;  // [pages]
  std::vector<int32_t> free_;        // last one is taken next
};

}  // namespace nibble
