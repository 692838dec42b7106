#include "engine/gpu_pages.h"

#include <algorithm>

#include "base/check.h"
#include "cuda/memory.h"

namespace nibble {

GpuPages::GpuPages(int64_t bytes, int64_t entries, cuda::StreamHandle stream)
    : stream_(stream),
      arena_(cuda::device_buffer(bytes)),
      entries_(cuda::device_buffer(entries * static_cast<int64_t>(sizeof(int32_t)))),
      updates_(cuda::device_buffer(kMaxUpdates * static_cast<int64_t>(sizeof(cuda::Update)))),
      sent_(cuda::pinned_buffer(2 * updates_.size_bytes())),
      is_dirty_(entries, false) {
  // Positions never written are masked by a factor of zero, which a NaN would survive.
  if (bytes > 0) cuda::zero_async(arena_.data(), bytes, stream_);
  dirty_.reserve(kMaxUpdates);
}

int64_t GpuPages::table_bytes(int64_t entries) {
  return entries * static_cast<int64_t>(sizeof(int32_t)) +
         kMaxUpdates * static_cast<int64_t>(sizeof(cuda::Update));
}

Tensor GpuPages::take(DType dtype, std::initializer_list<int64_t> shape) {
  return arena_.take(dtype, shape);
}

void GpuPages::copy_page(const Tensor& pages, int32_t from, int32_t to) {
  const int64_t bytes = pages.size_bytes() / pages.dim(0);
  char* const data = static_cast<char*>(pages.data);
  copies_.push_back({data + to * bytes, data + from * bytes, bytes});
}

PageMemory::Table GpuPages::add_table(std::span<const int32_t> host, int32_t) {
  const auto n = static_cast<int64_t>(host.size());
  CHECK((num_entries_ + n) * static_cast<int64_t>(sizeof(int32_t)) <= entries_.size_bytes());
  tables_.push_back({host, num_entries_});
  int32_t* const entries = static_cast<int32_t*>(entries_.data()) + num_entries_;
  if (n > 0) cuda::copy(entries, host.data(), static_cast<int64_t>(host.size_bytes()));
  num_entries_ += n;
  return {entries, static_cast<int32_t>(tables_.size()) - 1};
}

void GpuPages::changed(int32_t table, int64_t index) {
  const int64_t entry = tables_[table].offset + index;
  if (is_dirty_[entry] || static_cast<int64_t>(dirty_.size()) == kMaxUpdates) return;
  is_dirty_[entry] = true;
  dirty_.push_back(static_cast<int32_t>(entry));
}

void GpuPages::flush() {
  for (const Copy& c : copies_) cuda::copy_async(c.to, c.from, c.bytes, stream_);
  copies_.clear();
  if (dirty_.empty()) return;
  auto* const entries = static_cast<int32_t*>(entries_.data());
  if (static_cast<int64_t>(dirty_.size()) == kMaxUpdates) {
    for (const HostTable& t : tables_)
      cuda::copy_async(entries + t.offset, t.entries.data(),
                       static_cast<int64_t>(t.entries.size_bytes()), stream_);
    std::fill(is_dirty_.begin(), is_dirty_.end(), false);
    dirty_.clear();
    return;
  }
  auto* const sent = static_cast<cuda::Update*>(sent_.data()) + turn_ * kMaxUpdates;
  turn_ = 1 - turn_;
  int64_t n = 0;
  for (const int32_t entry : dirty_) {
    const auto after = std::upper_bound(tables_.begin(), tables_.end(), entry,
                                        [](int32_t e, const HostTable& t) { return e < t.offset; });
    const HostTable& t = *(after - 1);
    sent[n++] = {entry, t.entries[entry - t.offset]};
    is_dirty_[entry] = false;
  }
  dirty_.clear();
  auto* const updates = static_cast<cuda::Update*>(updates_.data());
  cuda::copy_async(updates, sent, n * static_cast<int64_t>(sizeof(cuda::Update)), stream_);
  cuda::scatter(entries, updates, n, stream_);
}

}  // namespace nibble
