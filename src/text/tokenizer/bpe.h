// Byte-pair encoding of one piece of text: starting from single bytes, the adjacent pair whose
// merge has the lowest rank is joined (the leftmost of equals) until no pair has a merge.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace nibble {

class Bpe {
 public:
  struct Merge {
    int32_t left, right, product;  // token ids
  };
  // Working memory of encode(), reusable.
  struct Space {
    struct Symbol {
      int32_t id;
      uint32_t rank;  // of the merge with the next symbol
      uint32_t previous, next;
    };
    std::vector<Symbol> symbols;
    std::vector<uint64_t> queue;
  };

  // `merges` in rank order; of a pair listed twice the later counts. byte_ids[b] is the token of
  // byte b.
  Bpe(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges);

  // Appends the ids. Cost: O(n log n), below kShort bytes O(n^2) without memory traffic.
  void encode(std::string_view piece, Space& space, std::vector<int32_t>& ids) const;

 private:
  static constexpr size_t kShort = 48;
  static constexpr uint32_t kNoMerge = UINT32_MAX;
  struct Slot {
    uint64_t pair;
    uint32_t rank;
  };

  uint32_t rank_of(int32_t left, int32_t right) const;
  uint32_t rank_of_bytes(char left, char right) const {
    return byte_ranks_[static_cast<uint8_t>(left) << 8 | static_cast<uint8_t>(right)];
  }
  void encode_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void encode_long(std::string_view piece, Space& space, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<int32_t> products_;     // by rank
  std::vector<uint32_t> byte_ranks_;  // of the pairs of single bytes
  std::vector<Slot> slots_;           // open addressing, a power of two
};

}  // namespace nibble
