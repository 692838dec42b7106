// SuffixIndex: where in a text the last tokens of another came before, and what followed. A ring of
// the latest `capacity` tokens, with a link from each to the one before whose last two tokens hash
// alike: 16 to 24 bytes a token, allocated once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

struct SuffixLimits {
  int32_t depth;                 // tokens of a match that count
  double factor;                 // drafts for each token of the match
  double min_token_probability;  // of a draft and all before it, among the places that match
};

class SuffixIndex {
 public:
  explicit SuffixIndex(int32_t capacity);
  static int64_t bytes(int32_t capacity);

  // An id below 0 ends a text: no match goes over it, and nothing is drafted behind it.
  void append(int32_t id);
  int64_t size() const { return size_; }
  // What is before the position is not found any more.
  void forget_before(int64_t position) { begin_ = position; }

  // Up to k ids that may follow `text`, by how often they did: of the suffixes of it that are
  // found, the one whose drafts are likeliest to come true in sum. Returns that sum; `ids` is
  // replaced where it is above `least`.
  double draft(std::span<const int32_t> text, int32_t k, const SuffixLimits& limits, double least,
               std::vector<int32_t>& ids);

 private:
  struct Place {
    int64_t position;  // behind the match
    int32_t length;    // of the match
  };
  void find_places(std::span<const int32_t> text, int32_t depth);
  double follow(int32_t length, int32_t k, const SuffixLimits& limits);
  int32_t at(int64_t position) const { return text_[position % std::ssize(text_)]; }
  bool holds(int64_t position) const {
    return position >= begin_ && position >= size_ - std::ssize(text_) && position < size_;
  }
  size_t bucket(int32_t before, int32_t last) const;

  std::vector<int32_t> text_;   // [capacity]
  std::vector<int32_t> back_;   // [capacity] how far back the one that hashes alike is; 0: none
  std::vector<int64_t> heads_;  // by hash: the latest position + 1; 0: none
  int64_t size_ = 0;            // ever appended
  int64_t begin_ = 0;
  std::vector<Place> places_, left_;  // in draft()
  std::vector<int32_t> path_;
};

}  // namespace nibble
