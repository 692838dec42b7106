#include "engine/suffix_index.h"

#include <algorithm>
#include <bit>

namespace nibble {
namespace {

constexpr int32_t kMostPlaces = 64;  // that are looked at, the latest first
constexpr int32_t kMostLinks = 512;  // that are followed to find them
constexpr int32_t kLeastMatch = 2;   // tokens: what the links go by

}  // namespace

SuffixIndex::SuffixIndex(int32_t capacity)
    : text_(std::max(capacity, 1)), back_(text_.size()), heads_(std::bit_ceil(text_.size())) {
  places_.reserve(kMostPlaces);
  left_.reserve(kMostPlaces);
}

int64_t SuffixIndex::bytes(int32_t capacity) {
  const auto n = static_cast<size_t>(std::max(capacity, 1));
  return static_cast<int64_t>(2 * n * sizeof(int32_t) + std::bit_ceil(n) * sizeof(int64_t));
}

size_t SuffixIndex::bucket(int32_t before, int32_t last) const {
  const uint64_t key = uint64_t{static_cast<uint32_t>(before)} << 32 | static_cast<uint32_t>(last);
  return (key * 0x9E3779B97F4A7C15u >> 32) & (heads_.size() - 1);
}

void SuffixIndex::append(int32_t id) {
  const int64_t position = size_++;
  const auto slot = static_cast<size_t>(position % std::ssize(text_));
  text_[slot] = id;
  back_[slot] = 0;
  if (id < 0 || position == 0 || at(position - 1) < 0 || text_.size() < 2) return;
  int64_t& head = heads_[bucket(at(position - 1), id)];
  const int64_t back = position + 1 - head;
  if (head > 0 && back < std::ssize(text_)) back_[slot] = static_cast<int32_t>(back);
  head = position + 1;
}

// Of the latest places whose last tokens are those of `text`: how many are.
void SuffixIndex::find_places(std::span<const int32_t> text, int32_t depth) {
  places_.clear();
  if (std::ssize(text) < kLeastMatch || size_ < kLeastMatch) return;
  int64_t position = heads_[bucket(text[text.size() - 2], text.back())] - 1;
  for (int32_t links = 0; links < kMostLinks && holds(position); ++links) {
    int32_t length = 0;
    const auto most = std::min<int64_t>(depth, std::ssize(text));
    while (length < most && holds(position - length) &&
           at(position - length) == text[text.size() - 1 - length]) {
      ++length;
    }
    if (length >= kLeastMatch && holds(position + 1)) places_.push_back({position + 1, length});
    const int32_t back = back_[position % std::ssize(text_)];
    if (back == 0 || std::ssize(places_) == kMostPlaces) break;
    position -= back;
  }
}

// The likeliest way on from the places that match `length` tokens, into path_; the sum of its
// drafts' probabilities.
double SuffixIndex::follow(int32_t length, int32_t k, const SuffixLimits& limits) {
  left_.clear();
  path_.clear();
  for (const Place& place : places_) {
    if (place.length >= length) left_.push_back(place);
  }
  double probability = 1, sum = 0;
  while (std::ssize(path_) < std::min<double>(k, limits.factor * length)) {
    int32_t best = -1;
    int64_t best_count = 0;
    for (const Place& place : left_) {
      const int32_t id = holds(place.position) ? at(place.position) : -1;
      if (id < 0 || id == best) continue;
      const auto follows = [&](const Place& p) {
        return holds(p.position) && at(p.position) == id;
      };
      const int64_t count = std::ranges::count_if(left_, follows);
      if (count > best_count) best = id, best_count = count;
    }
    probability *= static_cast<double>(best_count) / std::max<double>(1, std::ssize(left_));
    if (best < 0 || probability < limits.min_token_probability) break;
    path_.push_back(best);
    sum += probability;
    std::erase_if(left_,
                  [&](const Place& p) { return !holds(p.position) || at(p.position) != best; });
    for (Place& place : left_) ++place.position;
  }
  return sum;
}

double SuffixIndex::draft(std::span<const int32_t> text, int32_t k, const SuffixLimits& limits,
                          double least, std::vector<int32_t>& ids) {
  find_places(text, limits.depth);
  std::ranges::stable_sort(places_, std::greater{}, &Place::length);
  int32_t tried = 0;
  for (const Place& place : places_) {
    if (place.length == tried) continue;
    tried = place.length;
    const double sum = follow(tried, k, limits);
    if (sum > least) least = sum, ids = path_;
  }
  return least;
}

}  // namespace nibble
