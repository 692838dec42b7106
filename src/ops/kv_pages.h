// Addresses in the pages of a layer.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "ops/step.h"

namespace nibble::ops {

// Index of element 0 of the key (and value) of position `pos`, KV head g, of the sequence in
// `slot`.
inline int64_t kv_index(const KvLayer& kv, int32_t slot, int32_t pos, int64_t g) {
  const int32_t page =
      kv.page_table[static_cast<int64_t>(slot) * kv.max_pages + pos / kv.page_size];
  CHECK(page != KvLayer::kNoPage);
  const int64_t heads = kv.k.shape[1], dim = kv.k.shape[3];
  return ((page * heads + g) * kv.page_size + pos % kv.page_size) * dim;
}

}  // namespace nibble::ops
