// Token ids and their bytes, both ways.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

class Vocabulary {
 public:
  // Makes room; `num_ids` is the highest id + 1.
  Vocabulary(int32_t num_ids, size_t num_bytes);

  // The id must be free. `from_text`: find() knows it.
  void add(int32_t id, std::string_view bytes, bool from_text);

  bool has(int32_t id) const { return in_range(id) && entries_[id].used; }
  // Empty where there is none.
  std::string_view bytes(int32_t id) const {
    if (!has(id)) return {};
    return std::string_view(bytes_).substr(entries_[id].begin, entries_[id].size);
  }
  int32_t size() const { return static_cast<int32_t>(entries_.size()); }
  // The id of exactly these bytes, or -1.
  int32_t find(std::string_view bytes) const;

 private:
  struct Entry {
    size_t begin = 0;
    uint32_t size = 0;
    bool used = false;
  };
  struct Slot {
    uint32_t tag;  // of the hash
    int32_t id;    // -1: free
  };
  bool in_range(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < entries_.size(); }

  std::string bytes_;
  std::vector<Entry> entries_;
  std::vector<Slot> slots_;  // open addressing, a power of two
};

// 64 bits that depend on every byte; not against an adversary who chooses the vocabulary.
uint64_t hash_bytes(std::string_view bytes);

}  // namespace nibble
