#include "text/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <string>

namespace nibble {
namespace {

std::array<int32_t, 256> identity() {
  std::array<int32_t, 256> ids;
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

// The definition: look at all pairs, join the leftmost of the lowest rank, start again.
std::vector<int32_t> by_definition(const std::vector<Bpe::Merge>& merges, std::string_view piece) {
  std::vector<int32_t> ids;
  for (const char c : piece) ids.push_back(static_cast<uint8_t>(c));
  std::map<std::pair<int32_t, int32_t>, size_t> ranks;
  for (size_t r = 0; r < merges.size(); ++r) ranks[{merges[r].left, merges[r].right}] = r;
  for (;;) {
    size_t best = SIZE_MAX, at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto rank = ranks.find({ids[i], ids[i + 1]});
      if (rank == ranks.end() || rank->second >= best) continue;
      best = rank->second;
      at = i;
    }
    if (best == SIZE_MAX) return ids;
    ids[at] = merges[best].product;
    ids.erase(ids.begin() + at + 1);
  }
}

// Random merges, in any order: also such that a merge comes before those that make its parts.
std::vector<Bpe::Merge> random_merges(std::mt19937& rng, std::string_view alphabet) {
  std::vector<std::string> tokens;
  std::vector<int32_t> ids;
  for (const char c : alphabet) {
    tokens.emplace_back(1, c);
    ids.push_back(static_cast<uint8_t>(c));
  }
  std::map<std::string, int32_t> known;
  std::vector<Bpe::Merge> merges;
  for (int i = 0; i < 40; ++i) {
    const size_t left = rng() % tokens.size(), right = rng() % tokens.size();
    const std::string product = tokens[left] + tokens[right];
    if (product.size() > 12) continue;
    const auto [it, is_new] = known.try_emplace(product, 256 + static_cast<int32_t>(known.size()));
    if (is_new) {
      tokens.push_back(product);
      ids.push_back(it->second);
    }
    merges.push_back({ids[left], ids[right], it->second});
  }
  if (rng() % 2) std::shuffle(merges.begin(), merges.end(), rng);
  return merges;
}

// Lengths on both sides of the limit between the two ways of doing it.
TEST(Bpe, AgreesWithTheDefinition) {
  std::mt19937 rng(11);
  Bpe::Space space;
  size_t joined = 0;
  for (int i = 0; i < 400; ++i) {
    const std::string_view alphabet = i % 2 ? "ab" : "abcd";
    const auto merges = random_merges(rng, alphabet);
    const Bpe bpe(identity(), merges);
    for (int k = 0; k < 12; ++k) {
      std::string piece(1 + rng() % (k % 3 == 0 ? 200 : 60), '\0');
      for (char& c : piece) c = alphabet[rng() % alphabet.size()];
      std::vector<int32_t> ids;
      bpe.encode(piece, space, ids);
      ASSERT_EQ(ids, by_definition(merges, piece)) << piece;
      joined += piece.size() - ids.size();
    }
  }
  EXPECT_GT(joined, 10000u);
}

TEST(Bpe, AppendsAndTakesEmptyPieces) {
  const Bpe bpe(identity(), {});
  Bpe::Space space;
  std::vector<int32_t> ids = {7};
  bpe.encode("", space, ids);
  bpe.encode("\xFF", space, ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{7, 255}));
}

TEST(Bpe, OfAPairListedTwiceTheLaterCounts) {
  const std::vector<Bpe::Merge> merges = {{'a', 'b', 256}, {'b', 'c', 257}, {'a', 'b', 256}};
  const Bpe bpe(identity(), merges);
  Bpe::Space space;
  std::vector<int32_t> ids;
  bpe.encode("abc", space, ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{'a', 257}));
}

}  // namespace
}  // namespace nibble
