// GpuPages: pages and page tables in the GPU's memory. The tables follow the host's by single
// entries. Both these and copies of pages go with the next step, so that planning one does not fail
// where the GPU has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/caps.h"
#include "cuda/scatter.h"
#include "engine/page_memory.h"

namespace nibble {

class GpuPages final : public PageMemory {
 public:
  // `bytes` of pages; tables of `entries` in all.
  GpuPages(int64_t bytes, int64_t entries, cuda::StreamHandle stream);
  static int64_t table_bytes(int64_t entries);  // on the device, beside the pages

  Tensor take(DType dtype, std::initializer_list<int64_t> shape) override;
  void copy_page(const Tensor& pages, int32_t from, int32_t to) override;
  Table add_table(std::span<const int32_t> host, int32_t num_pages) override;
  void changed(int32_t table, int64_t index) override;

  // Copies pages and sends the entries that changed since the last call. The work of the call
  // before that must be done.
  void flush();

 private:
  static constexpr int64_t kMaxUpdates = int64_t{1} << 16;
  struct HostTable {
    std::span<const int32_t> entries;
    int64_t offset;  // of its first entry in entries_
  };

  struct Copy {
    char* to;
    const char* from;
    int64_t bytes;
  };

  cuda::StreamHandle stream_;
  Arena arena_;
  std::vector<Copy> copies_;  // to be done
  Buffer entries_, updates_;  // on the device: int32_t [entries], Update [kMaxUpdates]
  Buffer sent_;               // pinned: Update [2, kMaxUpdates], in turns
  int turn_ = 0;
  std::vector<HostTable> tables_;
  std::vector<bool> is_dirty_;  // [entries]
  std::vector<int32_t> dirty_;  // indices into entries_, each once; full: all are sent
  int64_t num_entries_ = 0;
};

}  // namespace nibble
