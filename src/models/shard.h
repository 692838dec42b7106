// Shards: which part of a model each of several ranks holds that compute every step together.
// Matrices are cut along rows (what makes q, k, v, expert activations, logits) or along columns
// (what multiplies those): then each rank's product is a part of a sum.
#pragma once

#include <cstdint>

#include "formats/format.h"

namespace nibble {

struct Shard {
  int32_t rank = 0;
  int32_t size = 1;  // 1: one rank holds all
  bool is_split() const { return size > 1; }
  bool operator==(const Shard&) const = default;
};

// Rows or columns [begin, begin + size) of `all`. A count alone is all of so many.
struct Cut {
  int64_t all = 0, begin = 0, size = 0;
  Cut() = default;
  Cut(int64_t n) : all(n), size(n) {}  // NOLINT: whole matrices are stated by their sizes
  Cut(int64_t of, int64_t from, int64_t n) : all(of), begin(from), size(n) {}
  int64_t end() const { return begin + size; }
  bool is_whole() const { return size == all; }
  Cut times(int64_t n) const { return {all * n, begin * n, size * n}; }
  bool operator==(const Cut&) const = default;
};

// The shard's part of n in units that are not cut; the first ranks have one more where they do not
// come out even. The last unit may be short.
Cut cut_units(int64_t n, int64_t unit, const Shard& shard);
// The same of a matrix's columns in blocks that share a scale (and of rows that make them): units
// of 64, which is what kernels' tiles have, or smaller ones where a rank would get none. Throws
// Error(kUnsupported) where blocks are too few.
Cut cut_columns(int64_t n, int64_t block, const Shard& shard);
// Everything on the first rank, nothing on the others: what is added to a sum once.
Cut on_first(int64_t n, const Shard& shard);

// Attention by KV heads, query heads with the one that they read; where ranks are more, a KV head
// is on several, each with a part of its query heads. Throws Error(kUnsupported) where a rank would
// get none.
struct HeadCuts {
  Cut q, kv;
};
HeadCuts cut_heads(int64_t q_heads, int64_t kv_heads, const Shard& shard);

}  // namespace nibble
