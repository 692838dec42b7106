// PageMemory: where the bytes of the pages are, how one page's go to another, and what kernels see
// of the page tables. The KvCache touches them only here, so that pages may live on a device.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>

#include "tensor/buffer.h"

namespace nibble {

class PageMemory {
 public:
  virtual ~PageMemory() = default;
  // Memory for one of K, V of one layer: [pages, ...]. All together at most what was planned.
  virtual Tensor take(DType dtype, std::initializer_list<int64_t> shape) = 0;
  // Ordered after the steps launched before and before those launched later.
  virtual void copy_page(const Tensor& pages, int32_t from, int32_t to) = 0;
  // Of the table whose entries the cache keeps in `host`, which stays where it is, each kNoPage or
  // below num_pages: where kernels read it, and its number. changed() follows each change of one.
  struct Table {
    const int32_t* entries;
    int32_t number;
  };
  virtual Table add_table(std::span<const int32_t> host, int32_t num_pages) = 0;
  virtual void changed(int32_t table, int64_t index) = 0;
};

class HostPages final : public PageMemory {
 public:
  explicit HostPages(int64_t bytes) : arena_(bytes) {}
  Tensor take(DType dtype, std::initializer_list<int64_t> shape) override {
    return arena_.take(dtype, shape);
  }
  void copy_page(const Tensor& pages, int32_t from, int32_t to) override {
    const int64_t bytes = pages.size_bytes() / pages.dim(0);
    char* const data = static_cast<char*>(pages.data);
    std::memcpy(data + to * bytes, data + from * bytes, static_cast<size_t>(bytes));
  }
  Table add_table(std::span<const int32_t> host, int32_t) override { return {host.data(), 0}; }
  void changed(int32_t, int64_t) override {}

 private:
  Arena arena_;
};

}  // namespace nibble
