#include "text/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/check.h"

namespace nibble {
namespace {

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// The high bits of a product with an odd constant depend on all bits of the pair.
size_t spread(uint64_t pair, size_t mask) {
  return static_cast<size_t>((pair * 0x9E3779B97F4A7C15u) >> 32) & mask;
}

}  // namespace

Bpe::Bpe(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges)
    : byte_ids_(byte_ids), products_(merges.size()), byte_ranks_(1 << 16) {
  slots_.assign(std::bit_ceil(2 * merges.size() + 1), Slot{0, kNoMerge});
  const size_t mask = slots_.size() - 1;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& m = merges[rank];
    products_[rank] = m.product;
    const uint64_t pair = pair_of(m.left, m.right);
    size_t i = spread(pair, mask);
    while (slots_[i].rank != kNoMerge && slots_[i].pair != pair) i = (i + 1) & mask;
    slots_[i] = {pair, static_cast<uint32_t>(rank)};
  }
  for (size_t i = 0; i < byte_ranks_.size(); ++i) {
    byte_ranks_[i] = rank_of(byte_ids_[i >> 8], byte_ids_[i & 255]);
  }
}

uint32_t Bpe::rank_of(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  const size_t mask = slots_.size() - 1;
  for (size_t i = spread(pair, mask);; i = (i + 1) & mask) {
    if (slots_[i].rank == kNoMerge || slots_[i].pair == pair) return slots_[i].rank;
  }
}

void Bpe::encode(std::string_view piece, Space& space, std::vector<int32_t>& ids) const {
  // Positions in a queue entry are 32 bits.
  constexpr size_t kLongest = size_t{1} << 31;
  for (; piece.size() > kLongest; piece.remove_prefix(kLongest)) {
    encode_long(piece.substr(0, kLongest), space, ids);
  }
  if (piece.size() <= kShort) {
    encode_short(piece, ids);
  } else {
    encode_long(piece, space, ids);
  }
}

// One scan for the lowest rank per merge.
void Bpe::encode_short(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.empty()) return;
  std::array<int32_t, kShort> id;
  std::array<uint32_t, kShort> rank;  // rank[i]: of the merge of symbols i and i + 1
  size_t n = piece.size();
  for (size_t i = 0; i < n; ++i) id[i] = byte_ids_[static_cast<uint8_t>(piece[i])];
  for (size_t i = 0; i + 1 < n; ++i) rank[i] = rank_of_bytes(piece[i], piece[i + 1]);
  while (n > 1) {
    const size_t at = std::min_element(rank.begin(), rank.begin() + n - 1) - rank.begin();
    if (rank[at] == kNoMerge) break;
    id[at] = products_[rank[at]];
    std::copy(id.begin() + at + 2, id.begin() + n, id.begin() + at + 1);
    std::copy(rank.begin() + at + 1, rank.begin() + n - 1, rank.begin() + at);
    --n;
    if (at > 0) rank[at - 1] = rank_of(id[at - 1], id[at]);
    if (at + 1 < n) rank[at] = rank_of(id[at], id[at + 1]);
  }
  ids.insert(ids.end(), id.begin(), id.begin() + n);
}

// Symbols in a linked list, candidates in a heap of (rank, position). A candidate whose pair has
// changed since is recognised by the rank stored with the symbol.
void Bpe::encode_long(std::string_view piece, Space& space, std::vector<int32_t>& ids) const {
  auto& symbols = space.symbols;
  auto& queue = space.queue;
  const auto n = static_cast<uint32_t>(piece.size());
  symbols.resize(n);
  queue.clear();
  const auto entry = [&](uint32_t i) { return uint64_t{symbols[i].rank} << 32 | i; };
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t rank = i + 1 < n ? rank_of_bytes(piece[i], piece[i + 1]) : kNoMerge;
    symbols[i] = {byte_ids_[static_cast<uint8_t>(piece[i])], rank, i - 1, i + 1};
    if (rank != kNoMerge) queue.push_back(entry(i));
  }
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  const auto update = [&](uint32_t i) {  // symbol i or its successor is new
    Space::Symbol& s = symbols[i];
    s.rank = s.next < n ? rank_of(s.id, symbols[s.next].id) : kNoMerge;
    if (s.rank == kNoMerge) return;
    queue.push_back(entry(i));
    std::push_heap(queue.begin(), queue.end(), std::greater<>());
  };
  while (!queue.empty()) {
    const uint64_t best = queue.front();
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    queue.pop_back();
    const auto at = static_cast<uint32_t>(best);
    Space::Symbol& left = symbols[at];
    if (left.rank != best >> 32) continue;
    Space::Symbol& right = symbols[left.next];
    left.id = products_[left.rank];
    left.next = right.next;
    right.rank = kNoMerge;  // gone: its candidates are stale
    if (left.next < n) symbols[left.next].previous = at;
    update(at);
    if (at > 0) update(left.previous);
  }
  for (uint32_t i = 0; i < n; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace nibble
