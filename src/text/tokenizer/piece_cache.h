// A small cache in front of the vocabulary and the merges.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace nibble {

// Pieces met before and their ids. Each has one place, and a newer one takes it: bounded, and words
// that come often stay for most of the time.
class PieceCache {
 public:
  PieceCache() : entries_(kNumEntries) {}

  static bool fits(std::string_view piece) { return piece.size() <= kMaxBytes; }

  // Appends the ids of a piece that fits; false where it is not there.
  bool get(std::string_view piece, uint64_t hash, std::vector<int32_t>& ids) const {
    const Entry& e = entries_[hash % kNumEntries];
    if (e.num_bytes != piece.size() || std::memcmp(e.bytes, piece.data(), piece.size()) != 0) {
      return false;
    }
    ids.insert(ids.end(), e.ids, e.ids + e.num_ids);
    return true;
  }
  void put(std::string_view piece, uint64_t hash, std::span<const int32_t> ids) {
    if (ids.size() > kMaxIdsEach) return;
    Entry& e = entries_[hash % kNumEntries];
    e.num_bytes = static_cast<uint8_t>(piece.size());
    e.num_ids = static_cast<uint8_t>(ids.size());
    std::copy(piece.begin(), piece.end(), e.bytes);
    std::copy(ids.begin(), ids.end(), e.ids);
  }

 private:
  static constexpr size_t kNumEntries = 1 << 14, kMaxBytes = 30, kMaxIdsEach = 8;
  struct Entry {
    int32_t ids[kMaxIdsEach];
    char bytes[kMaxBytes];
    uint8_t num_bytes = 0;  // 0: free
    uint8_t num_ids = 0;
  };
  static_assert(sizeof(Entry) == 64);
  std::vector<Entry> entries_;
};

}  // namespace nibble
