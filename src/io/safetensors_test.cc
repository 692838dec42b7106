#include "io/safetensors.h"

#include <gmock/gmock.h>

#include "io/io_test.h"

namespace nibble {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

// A header of the given tensors in a file with `data_bytes` after it.
std::vector<TensorInfo> parse(const std::string& header, int64_t data_bytes) {
  return parse_safetensors_header(header, 8 + std::ssize(header) + data_bytes, "m.safetensors");
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}";
}

TEST(SafetensorsHeader, ReadsTensorsInOrderOfOffset) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},)" + tensor("b", "BF16", "[2,3]", "[4,16]") + "," +
      tensor("a", "F32", "[]", "[0,4]") + "," + tensor("empty", "U8", "[0,7]", "[16,16]") + "}   ";
  const std::vector<TensorInfo> tensors = parse(header, 16);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].bytes, 4);
  EXPECT_EQ(tensors[0].offset, 8 + std::ssize(header));
  EXPECT_EQ(tensors[1].name, "b");
  EXPECT_EQ(tensors[1].dtype, DType::kBF16);
  EXPECT_EQ(tensors[1].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(tensors[2].bytes, 0);
  EXPECT_TRUE(parse("{}", 0).empty());
}

struct Hostile {
  std::string what;  // expected in the message
  std::string header;
  int64_t data_bytes;
};

TEST(SafetensorsHeader, RefusesHostileOnesByName) {
  const std::vector<Hostile> cases = {
      {"overlaps",
       "{" + tensor("a", "U8", "[4]", "[0,4]") + "," + tensor("w", "U8", "[4]", "[2,6]") + "}", 6},
      {"gap of 2 bytes",
       "{" + tensor("a", "U8", "[4]", "[0,4]") + "," + tensor("w", "U8", "[4]", "[6,10]") + "}",
       10},
      {"gap of 1 bytes", "{" + tensor("w", "U8", "[4]", "[1,5]") + "}", 5},
      {"truncated", "{" + tensor("w", "U8", "[4]", "[0,4]") + "}", 3},
      {"run backwards", "{" + tensor("w", "U8", "[4]", "[4,0]") + "}", 4},
      {"span 4 bytes, dtype and shape need 8", "{" + tensor("w", "BF16", "[4]", "[0,4]") + "}", 4},
      {"named twice",
       "{" + tensor("w", "U8", "[4]", "[0,4]") + "," + tensor("w", "U8", "[4]", "[4,8]") + "}", 8},
      {"dtype \"F3\"", "{" + tensor("w", "F3", "[4]", "[0,4]") + "}", 4},
      {"dtype \"bf16\"", "{" + tensor("w", "bf16", "[2]", "[0,4]") + "}", 4},
      {"the number -4", "{" + tensor("w", "U8", "[-4]", "[0,4]") + "}", 4},
      {"the number 4.0", "{" + tensor("w", "U8", "[4.0]", "[0,4]") + "}", 4},
      {"too large", "{" + tensor("w", "U8", "[18446744073709551615]", "[0,4]") + "}", 4},
      {"overflows", "{" + tensor("w", "U8", "[4294967296,4294967296]", "[0,4]") + "}", 4},
      {"overflows", "{" + tensor("w", "F64", "[2305843009213693952]", "[0,4]") + "}", 4},
      {"more than 8", "{" + tensor("w", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") + "}", 1},
      {"more than 2", "{" + tensor("w", "U8", "[1]", "[0,1,2]") + "}", 1},
      {"two entries", "{" + tensor("w", "U8", "[1]", "[0]") + "}", 1},
      {"too large",
       "{" + tensor("w", "U8", "[9223372036854775807]", "[0,9223372036854775807]") + "}", 4},
      {"a list does not belong", R"({"w":[1]})", 0},
      {"a list does not belong", "{" + tensor("w", "U8", "[[1]]", "[0,1]") + "}", 1},
      {"a string does not belong", R"({"w":"x"})", 0},
      {"a string does not belong", "{" + tensor("w", "U8", R"(["1"])", "[0,1]") + "}", 1},
      {"null does not belong", R"({"w":null})", 0},
      {"an object does not belong", R"({"w":{"dtype":{}}})", 0},
      {"unknown field \"extra\"", R"({"w":{"extra":1}})", 0},
      {"dtype twice", R"({"w":{"dtype":"U8","dtype":"F32"}})", 0},
      {"needs dtype, shape", R"({"w":{"dtype":"U8","shape":[1]}})", 0},
  };
  for (const Hostile& c : cases)
    EXPECT_THAT(error_of([&] { parse(c.header, c.data_bytes); }),
                AllOf(HasSubstr("m.safetensors: tensor \"w\""), HasSubstr(c.what)))
        << c.header;
}

TEST(SafetensorsHeader, RefusesBadFiles) {
  EXPECT_THAT(error_of([] { parse("{" + tensor("w", "U8", "[4]", "[0,4]") + "}", 9); }),
              HasSubstr("m.safetensors: 5 bytes follow the last tensor"));
  EXPECT_THAT(error_of([] { parse("", 0); }), HasSubstr("does not start with '{'"));
  EXPECT_THAT(error_of([] { parse("[]", 0); }), HasSubstr("does not start with '{'"));
  EXPECT_THAT(error_of([] { parse("{\"w\":", 0); }), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of([] { parse("{} x", 0); }), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of([] { parse(std::string("{}\0", 3), 0); }), HasSubstr("has a NUL byte"));
  EXPECT_THAT(error_of([] { parse("{" + tensor("w", "U8", "[1e400]", "[0,4]") + "}", 4); }),
              HasSubstr("number overflow"));
  EXPECT_THAT(error_of([] { parse("{\"\xff\":{}}", 0); }), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of([] { parse("{\"w\":" + std::string(1000000, '['), 0); }),
              HasSubstr("a list does not belong"));
}

// Log lines must stay one line, and short, whatever a file calls its tensors.
TEST(SafetensorsHeader, MessagesShowNamesHarmlessly) {
  const std::string message = error_of([] {
    parse("{" + tensor("a\\n\\u001b[31m" + std::string(5000, 'x'), "U9", "[1]", "[0,1]") + "}", 1);
  });
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  EXPECT_LT(message.size(), 300u);
}

TEST(SafetensorsHeader, ReadsAHundredThousandTensors) {
  std::string header = "{";
  for (int i = 0; i < 100000; ++i) {
    const std::string at = std::to_string(i), end = std::to_string(i + 1);
    header += (i == 0 ? "" : ",") + tensor("t" + at, "U8", "[1]", "[" + at + "," + end + "]");
  }
  EXPECT_EQ(parse(header + "}", 100000).size(), 100000u);
}

std::string header_length_error(uint64_t length, int64_t file_bytes) {
  std::byte start[8];
  for (int i = 0; i < 8; ++i) start[i] = static_cast<std::byte>(length >> (8 * i));
  return error_of([&] { safetensors_header_bytes(start, file_bytes, "m.safetensors"); });
}

TEST(SafetensorsHeader, LimitsItsLength) {
  EXPECT_EQ(header_length_error(100, 108), "no error");
  EXPECT_THAT(header_length_error(101, 108), HasSubstr("has only 108 in all: truncated"));
  EXPECT_THAT(header_length_error(100'000'001, 1'000'000'000), HasSubstr("more than 100000000"));
  EXPECT_THAT(header_length_error(uint64_t{1} << 63, 108), HasSubstr("not a safetensors file"));
  EXPECT_THAT(header_length_error(~uint64_t{0}, 108), HasSubstr("not a safetensors file"));
  // "version https://git-lfs..." read as a number
  EXPECT_THAT(header_length_error(0x206e6f6973726576u, 130), HasSubstr("Git LFS pointer"));
}

TEST(SafetensorsIndex, ReadsFilesAndTotal) {
  const SafetensorsIndex index = parse_safetensors_index(
      R"({"metadata":{"total_size":12.0},"weight_map":{"a":"m1.safetensors","b":"m2"}})", "index");
  EXPECT_EQ(index.file_of.at("b"), "m2");
  EXPECT_EQ(index.total_bytes, 12);
  EXPECT_FALSE(
      parse_safetensors_index(R"({"weight_map":{"a":"m"}})", "index").total_bytes.has_value());
}

// What is beside the map may be anything, and names need no order.
TEST(SafetensorsIndex, ReadsWhatIsAroundTheMap) {
  const SafetensorsIndex index = parse_safetensors_index(
      R"({"weight_map":{"b":"2","a":"1","c":"2"},"metadata":{"a":[{"total_size":7}],"b":null},
          "more":{"total_size":"x","w":3}})",
      "index");
  EXPECT_EQ(index.file_of,
            (std::map<std::string, std::string>{{"a", "1"}, {"b", "2"}, {"c", "2"}}));
  EXPECT_FALSE(index.total_bytes);
}

TEST(SafetensorsIndex, RefusesHostileOnes) {
  const auto error = [](const std::string& text) {
    return error_of([&] { parse_safetensors_index(text, "index"); });
  };
  for (const char* shard : {"../m", "/etc/passwd", "a/b", "..", ".", "", "a\\\\b", "a\\u0000b"})
    EXPECT_THAT(error(std::string(R"({"weight_map":{"w":")") + shard + "\"}}"),
                AllOf(HasSubstr("index: tensor \"w\""), HasSubstr("same directory")))
        << shard;
  EXPECT_THAT(error(R"({"weight_map":{"w":3}})"), HasSubstr("found 3"));
  EXPECT_THAT(error(R"({"weight_map":{"w":"a","w":"b"}})"), HasSubstr("named twice"));
  EXPECT_THAT(error(R"({"weight_map":{}})"), HasSubstr("names no tensor"));
  EXPECT_THAT(error(R"({"weight_map":[]})"), HasSubstr("no object"));
  EXPECT_THAT(error("[]"), HasSubstr("no object"));
  EXPECT_THAT(error("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error(R"({"metadata":{"total_size":-1},"weight_map":{"w":"a"}})"),
              HasSubstr("total_size: found -1"));
  EXPECT_THAT(error(R"({"metadata":{"total_size":"9"},"weight_map":{"w":"a"}})"),
              HasSubstr("total_size: found \"9\""));
  EXPECT_THAT(error(R"({"metadata":{"total_size":9e18},"weight_map":{"w":"a"}})"),
              HasSubstr("total_size: found 9e+18"));
  EXPECT_THAT(error(R"({"weight_map":{"w":["a"]}})"), HasSubstr("\"w\": found a list"));
  EXPECT_THAT(error(R"({"other":{"w":"a"}})"), HasSubstr("no object \"weight_map\""));
  EXPECT_THAT(error(R"({"weight_map":{"a":"1"},"weight_map":{"b":"2"}})"),
              HasSubstr("has \"weight_map\" twice"));
  EXPECT_THAT(error(R"([{"weight_map":{"w":"a"}}])"), HasSubstr("no object \"weight_map\""));
  EXPECT_THAT(error("{\"weight_map\":" + std::string(100000, '[')), HasSubstr("nested deeper"));
}

}  // namespace
}  // namespace nibble
