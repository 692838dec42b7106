// That json_bytes() is the most that the values of a text take.
#include "text/memory_use.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace nibble {
namespace {

size_t held = 0, peak = 0;

// std::allocator, counted as malloc does it: a header, and multiples of 16 bytes.
template <typename T>
struct Counted {
  using value_type = T;
  Counted() = default;
  template <typename U>
  Counted(const Counted<U>&) {}
  static size_t bytes(size_t n) { return (n * sizeof(T) + 8 + 15) / 16 * 16; }
  T* allocate(size_t n) {
    held += bytes(n);
    peak = std::max(peak, held);
    return std::allocator<T>().allocate(n);
  }
  void deallocate(T* p, size_t n) {
    held -= bytes(n);
    std::allocator<T>().deallocate(p, n);
  }
  bool operator==(const Counted&) const { return true; }
};

template <typename T, typename>
using Values = std::vector<T, Counted<T>>;
template <typename K, typename V, typename Less, typename>
using Pairs = nlohmann::ordered_map<K, V, Less, Counted<std::pair<const K, V>>>;
using Text = std::basic_string<char, std::char_traits<char>, Counted<char>>;
using CountedJson =
    nlohmann::basic_json<Pairs, Values, Text, bool, int64_t, uint64_t, double, Counted>;

TEST(JsonBytes, IsTheMostThatValuesTake) {
  const std::string letters(40, 'x');
  std::vector<std::string> items = {"1",
                                    "null",
                                    "[]",
                                    "{}",
                                    R"("")",
                                    R"("abc")",
                                    R"({"a":[]})",
                                    "[[]]",
                                    "[1]",
                                    R"({"":1})",
                                    "[[],[]]",
                                    R"({"a":"b"})",
                                    "-0.5",
                                    R"("\"")",
                                    R"(["a"])",
                                    "[[[[]]]]",
                                    R"({"a":{"b":{}}})"};
  items.push_back("\"" + letters + "\"");
  items.push_back("{\"" + letters + "\":1}");
  items.push_back("[" + std::string(5'000, '[') + std::string(5'000, ']') + "]");
  for (const std::string& item : items) {
    for (const size_t count : {1, 2, 3, 9, 17, 1'000, 65'537}) {
      if (item.size() * count > (8 << 20)) continue;
      std::string text = "[";
      for (size_t i = 0; i < count; ++i) text.append(i > 0 ? "," : "").append(item);
      text += "]";
      held = peak = 0;
      {
        const auto json = CountedJson::parse(text);
        ASSERT_EQ(json.size(), count);
      }
      EXPECT_EQ(held, 0u);
      EXPECT_LE(peak, json_bytes(text)) << count << " times " << item.substr(0, 80);
    }
  }
}

TEST(JsonBytes, LooksAtNothingInTexts) {
  const size_t quoted = json_bytes(R"(["[[[[,,,,::::{{{{"])");
  EXPECT_EQ(quoted, json_bytes(R"(["xxxxxxxxxxxxxxxx"])"));
  EXPECT_EQ(json_bytes(R"(["\"[[[["])"), json_bytes(R"(["\"xxxx"])"));
  EXPECT_GT(json_bytes("[[[[["), json_bytes("[xxxx"));
}

}  // namespace
}  // namespace nibble
