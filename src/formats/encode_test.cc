#include "formats/encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "formats/bf16.h"
#include "formats/mxfp4.h"
#include "formats/mxfp8.h"

namespace nibble {
namespace {

constexpr int64_t kRows = 8, kCols = 320;
constexpr Format kTargets[] = {Format::kMxfp4, Format::kMxfp8};

std::vector<uint16_t> normal_rows(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<uint16_t> bf16(kRows * kCols);
  for (uint16_t& v : bf16) v = bf16_from_float(normal(random));
  return bf16;
}

struct Encoded {
  explicit Encoded(Format format)
      : codes(kRows * row_code_bytes(format, Layout::kRows, kCols)), scales(kRows * kCols / 32) {}
  std::vector<uint8_t> codes, scales;
};

std::vector<float> decode(Format format, const Encoded& e) {
  std::vector<float> values(kRows * kCols);
  for (size_t b = 0; b < e.scales.size(); ++b) {
    if (format == Format::kMxfp4)
      mxfp4_decode(*reinterpret_cast<const Mxfp4Codes*>(&e.codes[16 * b]), e.scales[b],
                   &values[32 * b]);
    else
      mxfp8_decode(*reinterpret_cast<const Mxfp8Codes*>(&e.codes[32 * b]), e.scales[b],
                   &values[32 * b]);
  }
  return values;
}

TEST(Encode, CountsWhatItLoses) {
  const std::vector<uint16_t> bf16 = normal_rows(1);
  for (const Format format : kTargets) {
    Encoded e(format);
    const auto loss =
        encode_rows(format, kRows, kCols, bf16.data(), {e.codes.data(), e.scales.data()});
    ASSERT_TRUE(loss.has_value());
    const std::vector<float> decoded = decode(format, e);
    double error = 0, sum = 0;
    for (size_t i = 0; i < decoded.size(); ++i) {
      const double value = bf16_to_float(bf16[i]), off = value - decoded[i];
      error += off * off, sum += value * value;
    }
    EXPECT_NEAR(loss->relative_rms(), std::sqrt(error / sum), 1e-12);
    EXPECT_EQ(loss->blocks, kRows * kCols / 32);
    EXPECT_EQ(loss->flattened, 0);
    // E2M1 steps are at least a third of the value above half a unit, E4M3's an eighth: their
    // uniform errors give 0.1 and 0.026 of the value or so.
    EXPECT_LT(loss->relative_rms(), format == Format::kMxfp4 ? .15 : .04);
  }
}

// An outlier of 50 times the rms in a block: MXFP4 cannot hold it and the rest, which is reported;
// MXFP8 keeps both.
TEST(Encode, ReportsBlocksThatAnOutlierFlattens) {
  std::vector<uint16_t> bf16 = normal_rows(2);
  for (const int64_t block : {0, 7, 40}) bf16[block * 32 + 5] = bf16_from_float(50 * 0.02f);
  for (const Format format : kTargets) {
    Encoded e(format);
    const auto loss =
        encode_rows(format, kRows, kCols, bf16.data(), {e.codes.data(), e.scales.data()});
    ASSERT_TRUE(loss.has_value());
    const std::vector<float> decoded = decode(format, e);
    int64_t flattened = 0;
    for (size_t b = 0; b < e.scales.size(); ++b) {
      int zeroed = 0;
      for (size_t i = 32 * b; i < 32 * (b + 1); ++i) zeroed += decoded[i] == 0;
      flattened += zeroed > 16;
    }
    EXPECT_EQ(loss->flattened, flattened);
    EXPECT_EQ(flattened, format == Format::kMxfp4 ? 3 : 0);
  }
}

TEST(Encode, RowsCanBeSplitAnywhere) {
  const std::vector<uint16_t> bf16 = normal_rows(3);
  for (const Format format : kTargets) {
    Encoded whole(format), parts(format);
    encode_rows(format, kRows, kCols, bf16.data(), {whole.codes.data(), whole.scales.data()});
    for (int64_t r = kRows - 1; r >= 0; --r)
      encode_rows(format, 1, kCols, &bf16[r * kCols],
                  {&parts.codes[r * row_code_bytes(format, Layout::kRows, kCols)],
                   &parts.scales[r * kCols / 32]});
    EXPECT_EQ(whole.codes, parts.codes);
    EXPECT_EQ(whole.scales, parts.scales);
  }
}

TEST(Encode, RefusesWhatIsNotFinite) {
  for (const uint16_t bad : {0x7f80, 0xff80, 0x7fc0}) {
    std::vector<uint16_t> bf16 = normal_rows(4);
    bf16[77] = bad;
    Encoded e(Format::kMxfp4);
    EXPECT_FALSE(
        encode_rows(Format::kMxfp4, kRows, kCols, bf16.data(), {e.codes.data(), e.scales.data()})
            .has_value());
  }
  EXPECT_EQ(refuse_encode(Format::kMxfp8, 320), nullptr);
  EXPECT_STREQ(refuse_encode(Format::kMxfp8, 330), "its columns are not a multiple of 32");
  EXPECT_NE(refuse_encode(Format::kF32, 320), nullptr);
}

}  // namespace
}  // namespace nibble
