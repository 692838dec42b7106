#include "text/tokenizer/vocabulary.h"

#include <bit>
#include <cstring>

#include "base/check.h"

namespace nibble {
namespace {

uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a ^ b) * 0x9E3779B97F4A7C15u;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

uint64_t hash_bytes(std::string_view bytes) {
  uint64_t h = 0xA0761D6478BD642Fu ^ bytes.size(), word = 0;
  while (bytes.size() > 8) {
    std::memcpy(&word, bytes.data(), 8);
    h = mix(h, word);
    bytes.remove_prefix(8);
  }
  word = 0;
  std::memcpy(&word, bytes.data(), bytes.size());
  return mix(mix(h, word), 0xE7037ED1A0B428DBu);
}

Vocabulary::Vocabulary(int32_t num_ids, size_t num_bytes)
    : entries_(num_ids), slots_(std::bit_ceil(2 * entries_.size() + 1), Slot{0, -1}) {
  bytes_.reserve(num_bytes);
}

void Vocabulary::add(int32_t id, std::string_view bytes, bool from_text) {
  CHECK(in_range(id) && !entries_[id].used);
  entries_[id] = {bytes_.size(), static_cast<uint32_t>(bytes.size()), true};
  bytes_ += bytes;
  if (!from_text) return;
  const uint64_t h = hash_bytes(bytes);
  const size_t mask = slots_.size() - 1;
  size_t i = h & mask;
  while (slots_[i].id >= 0) i = (i + 1) & mask;
  slots_[i] = {static_cast<uint32_t>(h >> 32), id};
}

int32_t Vocabulary::find(std::string_view bytes) const {
  const uint64_t h = hash_bytes(bytes);
  const auto tag = static_cast<uint32_t>(h >> 32);
  const size_t mask = slots_.size() - 1;
  for (size_t i = h & mask; slots_[i].id >= 0; i = (i + 1) & mask) {
    if (slots_[i].tag == tag && this->bytes(slots_[i].id) == bytes) return slots_[i].id;
  }
  return -1;
}

}  // namespace nibble
