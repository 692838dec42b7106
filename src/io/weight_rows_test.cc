#include "io/weight_rows.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "formats/bf16.h"
#include "formats/int4.h"
#include "io/bundle_for_test.h"
#include "io/io_test.h"

namespace nibble {
namespace {

using test::Bundle;
using test::error_of;
using test::TempDir;
using testing::AllOf;
using testing::HasSubstr;

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// `n` bytes below `end`, E4M3's NaNs left out.
std::vector<uint8_t> some_bytes(int64_t n, int end = 256) {
  std::mt19937 random(static_cast<uint32_t>(n));
  std::vector<uint8_t> bytes(n);
  for (uint8_t& b : bytes) do
      b = static_cast<uint8_t>(random() % end);
    while ((b & 0x7f) == 0x7f);
  return bytes;
}
std::vector<float> some_floats(int64_t n) {
  std::mt19937 random(static_cast<uint32_t>(n));
  std::vector<float> values(n);
  for (float& v : values) v = static_cast<float>(1 + random() % 1000) * 1e-4f;
  return values;
}

// The one weight of a file, and rows of it.
struct Loaded {
  explicit Loaded(const Bundle& bundle) {
    bundle.write(dir / "model.safetensors");
    checkpoint = open_checkpoint(dir.path());
    const std::vector<WeightInfo> all = list_weights(*checkpoint);
    if (all.size() != 1) throw std::runtime_error("not one weight");
    info = all[0];
  }
  void read(int64_t row, int64_t n) {
    const int64_t cols = info.shape.back();
    codes.resize(n * row_code_bytes(info.format, Layout::kRows, cols));
    scales.resize(n * row_scale_bytes(info.format, Layout::kRows, cols));
    row_scales.resize(n);
    WeightRows(*checkpoint, checkpoint->make_reader())
        .read(info, row, n, {codes.data(), scales.data(), row_scales.data()});
  }
  TempDir dir;
  std::unique_ptr<Checkpoint> checkpoint;
  WeightInfo info;
  std::vector<uint8_t> codes, scales;
  std::vector<float> row_scales;
};

std::string damage(const Bundle& bundle) {
  Loaded loaded(bundle);
  return error_of([&] { loaded.read(0, loaded.info.shape[0]); });
}

constexpr int64_t kRows = 6, kCols = 48;

Bundle nvfp4(bool is_packed, std::vector<uint8_t> scales, float g) {
  Bundle b;
  b.add(is_packed ? "m.weight_packed" : "m.weight", DType::kU8, {kRows, kCols / 2},
        bytes_of(some_bytes(kRows * kCols / 2)));
  b.add("m.weight_scale", DType::kF8E4M3, {kRows, kCols / 16}, bytes_of(scales));
  b.add(is_packed ? "m.weight_global_scale" : "m.weight_scale_2", DType::kF32,
        is_packed ? std::vector<int64_t>{1} : std::vector<int64_t>{}, bytes_of(std::vector{g}));
  b.add(is_packed ? "m.input_global_scale" : "m.input_scale", DType::kF32, {1},
        bytes_of(std::vector{3.f}));
  return b;
}

TEST(WeightRows, Nvfp4OfBothDialects) {
  const std::vector<uint8_t> scales = some_bytes(kRows * kCols / 16, 0x7f);
  for (const bool is_packed : {false, true}) {
    Loaded loaded(nvfp4(is_packed, scales, is_packed ? 1024.f : 0x1p-10f));
    EXPECT_EQ(loaded.info.name, "m.weight");
    ASSERT_EQ(loaded.info.format, Format::kNvfp4);
    EXPECT_EQ(loaded.info.shape, (std::vector<int64_t>{kRows, kCols}));
    loaded.read(2, 3);
    const std::vector<uint8_t> codes = some_bytes(kRows * kCols / 2);
    EXPECT_TRUE(std::equal(loaded.codes.begin(), loaded.codes.end(), codes.begin() + kCols));
    EXPECT_TRUE(
        std::equal(loaded.scales.begin(), loaded.scales.end(), scales.begin() + 2 * kCols / 16));
    EXPECT_EQ(loaded.row_scales, std::vector<float>(3, 0x1p-10f));
  }
}

TEST(WeightRows, RefusesDamagedScalesByName) {
  const std::vector<uint8_t> fine(kRows * kCols / 16, 0x38);
  const float inf = std::numeric_limits<float>::infinity();
  for (const bool is_packed : {false, true})
    for (const float g : {0.f, -1.f, inf, -inf, std::nanf("")})
      EXPECT_THAT(damage(nvfp4(is_packed, fine, g)),
                  AllOf(HasSubstr(is_packed ? "\"m.weight_global_scale\"" : "\"m.weight_scale_2\""),
                        HasSubstr("finite and above zero")))
          << g;
  std::vector<uint8_t> bad = fine;
  bad[7] = 0x7f;
  EXPECT_THAT(damage(nvfp4(true, bad, 1)),
              AllOf(HasSubstr("\"m.weight_scale\""), HasSubstr("no number")));
  bad[7] = 0xb8;
  EXPECT_THAT(damage(nvfp4(false, bad, 1)),
              AllOf(HasSubstr("\"m.weight_scale\""), HasSubstr("negative")));

  const auto fp8 = [&](std::vector<uint8_t> codes, std::vector<float> scales, const char* name,
                       std::vector<int64_t> shape) {
    Bundle b;
    b.add("m.weight", DType::kF8E4M3, {kRows, kCols}, bytes_of(codes));
    b.add(name, DType::kF32, std::move(shape), bytes_of(scales));
    return damage(b);
  };
  const std::vector<uint8_t> codes = some_bytes(kRows * kCols);
  for (const float bad_scale : {-1.f, inf, std::nanf("")}) {
    EXPECT_THAT(fp8(codes, {bad_scale}, "m.weight_scale", {}), HasSubstr("\"m.weight_scale\""));
    EXPECT_THAT(fp8(codes, {1, 1, 1, bad_scale, 1, 1}, "m.weight_scale", {kRows, 1}),
                HasSubstr("for row 3"));
    EXPECT_THAT(fp8(codes, {bad_scale}, "m.weight_scale_inv", {1, 1}),
                HasSubstr("\"m.weight_scale_inv\""));
  }
  std::vector<uint8_t> nan = codes;
  nan[100] = 0xff;
  EXPECT_THAT(fp8(nan, {1}, "m.weight_scale", {1}), HasSubstr("\"m.weight\": rows 0 to 5 hold"));
}

TEST(WeightRows, Fp8ByTensorAndByChannel) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{}, {1}, {1, 1}, {kRows}, {kRows, 1}})
    for (const bool is_bf16 : {false, true}) {
      const bool is_one = shape.empty() || shape[0] == 1;
      const std::vector<float> scales = some_floats(is_one ? 1 : kRows);
      std::vector<uint16_t> bits;
      for (const float s : scales) bits.push_back(bf16_from_float(s));
      Bundle b;
      b.add("m.weight", DType::kF8E4M3, {kRows, kCols}, bytes_of(some_bytes(kRows * kCols)));
      b.add("m.weight_scale", is_bf16 ? DType::kBF16 : DType::kF32, shape,
            is_bf16 ? bytes_of(bits) : bytes_of(scales));
      Loaded loaded(b);
      ASSERT_EQ(loaded.info.format, Format::kFp8Row);
      loaded.read(1, 4);
      for (int64_t r = 0; r < 4; ++r) {
        const int64_t at = is_one ? 0 : r + 1;
        EXPECT_EQ(loaded.row_scales[r], is_bf16 ? bf16_to_float(bits[at]) : scales[at]);
      }
    }
}

// 200 x 300: the last blocks are partial in both directions.
TEST(WeightRows, Fp8ByBlocks) {
  const int64_t rows = 200, cols = 300;
  const std::vector<float> scales = some_floats(6);
  std::vector<uint16_t> bits;
  for (const float s : scales) bits.push_back(bf16_from_float(s));
  for (const auto& [name, shape, is_bf16] :
       {std::tuple{"m.weight_scale_inv", std::vector<int64_t>{2, 3}, false},
        {"m.weight_scale_inv", {2, 3}, true},
        {"m.weight_scale", {2, 3}, false},
        {"m.weight_scale", {2, 1, 3, 1}, false}}) {
    Bundle b;
    b.add("m.weight", DType::kF8E4M3, {rows, cols}, bytes_of(some_bytes(rows * cols)));
    b.add(name, is_bf16 ? DType::kBF16 : DType::kF32, shape,
          is_bf16 ? bytes_of(bits) : bytes_of(scales));
    Loaded loaded(b);
    ASSERT_EQ(loaded.info.format, Format::kFp8Block) << name;
    loaded.read(126, 5);
    ASSERT_EQ(loaded.scales.size(), 5u * 3 * 4);
    for (int64_t r = 0; r < 5; ++r)
      for (int64_t k = 0; k < 3; ++k) {
        float got;
        std::memcpy(&got, loaded.scales.data() + 4 * (3 * r + k), 4);
        const int64_t at = (126 + r) / 128 * 3 + k;
        EXPECT_EQ(got, is_bf16 ? bf16_to_float(bits[at]) : scales[at]) << r << " " << k;
      }
  }
}

// A matrix of numbers in both dialects of INT4, groups of 64 along K (two of 32 here) and of 128.
class Int4Matrix {
 public:
  Int4Matrix(int64_t group, bool has_zeros) : group_(group), has_zeros_(has_zeros) {
    std::mt19937 random(static_cast<uint32_t>(group));
    for (int64_t i = 0; i < kN * kK; ++i) codes.push_back(random() % 16);
    for (int64_t i = 0; i < kN * kK / group; ++i) {
      zeros.push_back(has_zeros ? random() % 16 : 8);
      scales.push_back(bf16_from_float(static_cast<float>(1 + random() % 100) / 64));
    }
  }
  static constexpr int64_t kN = 24, kK = 256;
  int code(int64_t n, int64_t k) const { return codes[n * kK + k]; }
  double value(int64_t n, int64_t k) const {
    const int64_t g = n * (kK / group_) + k / group_;
    return (code(n, k) - zeros[g]) * double{bf16_to_float(scales[g])};
  }
  Bundle packed() const {
    const int64_t groups = kK / group_;
    std::vector<uint32_t> words(kN * kK / 8), zero_words(kN / 8 * groups);
    for (int64_t n = 0; n < kN; ++n) {
      for (int64_t k = 0; k < kK; ++k)
        words[(n * kK + k) / 8] |= static_cast<uint32_t>(code(n, k)) << (4 * (k % 8));
      for (int64_t g = 0; g < groups; ++g)
        zero_words[n / 8 * groups + g] |= static_cast<uint32_t>(zeros[n * groups + g])
                                          << (4 * (n % 8));
    }
    Bundle b;
    b.add("m.weight_packed", DType::kI32, {kN, kK / 8}, bytes_of(words));
    b.add("m.weight_scale", DType::kBF16, {kN, groups}, bytes_of(scales));
    b.add("m.weight_shape", DType::kI64, {2});
    if (has_zeros_)
      b.add("m.weight_zero_point", DType::kI32, {kN / 8, groups}, bytes_of(zero_words));
    return b;
  }
  Bundle awq() const {
    const int order[] = {0, 4, 1, 5, 2, 6, 3, 7};
    const int64_t groups = kK / group_;
    std::vector<uint32_t> words(kN * kK / 8), zero_words(kN / 8 * groups);
    std::vector<uint16_t> turned(kN * groups);
    for (int64_t n = 0; n < kN; ++n) {
      for (int64_t k = 0; k < kK; ++k)
        words[k * (kN / 8) + n / 8] |= static_cast<uint32_t>(code(n, k)) << (4 * order[n % 8]);
      for (int64_t g = 0; g < groups; ++g) {
        zero_words[g * (kN / 8) + n / 8] |= static_cast<uint32_t>(zeros[n * groups + g])
                                            << (4 * order[n % 8]);
        turned[g * kN + n] = scales[n * groups + g];
      }
    }
    Bundle b;
    b.add("m.qweight", DType::kI32, {kK, kN / 8}, bytes_of(words));
    b.add("m.scales", DType::kBF16, {groups, kN}, bytes_of(turned));
    if (has_zeros_) b.add("m.qzeros", DType::kI32, {groups, kN / 8}, bytes_of(zero_words));
    return b;
  }

 private:
  int64_t group_;
  bool has_zeros_;
  std::vector<int> codes, zeros;
  std::vector<uint16_t> scales;
};

TEST(WeightRows, Int4OfBothDialects) {
  for (const int64_t group : {32, 64, 128, 256})
    for (const bool has_zeros : {false, true}) {
      const Int4Matrix matrix(group, has_zeros);
      for (const Bundle& bundle : {matrix.packed(), matrix.awq()}) {
        Loaded loaded(bundle);
        EXPECT_EQ(loaded.info.name, "m.weight");
        EXPECT_EQ(loaded.info.shape, (std::vector<int64_t>{Int4Matrix::kN, Int4Matrix::kK}));
        ASSERT_EQ(loaded.info.format, group < 128 ? Format::kInt4G32 : Format::kInt4G128);
        for (const auto& [row, rows] : {std::pair{0, 24}, {8, 16}, {16, 8}}) {
          loaded.read(row, rows);
          std::vector<float> got(Int4Matrix::kK);
          const int elems = format_row(loaded.info.format).block_elems;
          for (int64_t r = 0; r < rows; ++r) {
            int4_decode(loaded.codes.data() + r * 128, loaded.scales.data() + r * 4 * 256 / elems,
                        256, elems, got.data());
            for (int64_t k = 0; k < 256; ++k) ASSERT_EQ(got[k], matrix.value(row + r, k)) << r;
          }
        }
      }
    }
}

TEST(WeightRows, SeveralFormatsOfOneCheckpoint) {
  Bundle b = nvfp4(true, std::vector<uint8_t>(kRows * kCols / 16, 0x38), 1);
  b.add("fp8.weight", DType::kF8E4M3, {4, 64});
  b.add("fp8.weight_scale", DType::kF32, {1}, bytes_of(std::vector{1.f}));
  b.add("mx8.weight", DType::kF8E4M3, {4, 64});
  b.add("mx8.weight_scale", DType::kU8, {4, 2});
  b.add("mx4.weight_packed", DType::kU8, {4, 32});
  b.add("mx4.weight_scale", DType::kU8, {4, 2});
  b.add("norm.weight", DType::kBF16, {64});
  b.add("half.weight", DType::kF16, {4, 64});
  b.add("bias", DType::kF32, {4});
  const TempDir dir;
  b.write(dir / "model.safetensors");
  const auto checkpoint = open_checkpoint(dir.path());
  std::string text;
  for (const WeightInfo& w : list_weights(*checkpoint))
    text += w.name + " " + std::string(format_name(w.format)) + ", ";
  EXPECT_EQ(text,
            "bias f32, fp8.weight fp8, half.weight f16, m.weight nvfp4, mx4.weight mxfp4, "
            "mx8.weight mxfp8, norm.weight bf16, ");
}

TEST(WeightRows, RefusesWhatDoesNotBelongTogether) {
  const auto error = [](const std::function<void(Bundle&)>& add) {
    Bundle b;
    add(b);
    const TempDir dir;
    b.write(dir / "model.safetensors");
    const auto checkpoint = open_checkpoint(dir.path());
    return error_of([&] { list_weights(*checkpoint); });
  };
  const auto packed = [](Bundle& b) { b.add("m.weight_packed", DType::kU8, {4, 32}); };
  EXPECT_THAT(error(packed), HasSubstr("has no m.weight_scale beside it"));
  EXPECT_THAT(error([&](Bundle& b) {
                packed(b);
                b.add("m.weight_scale", DType::kF8E4M3, {4, 4});
              }),
              HasSubstr("NVFP4 needs one of m.weight_scale_2 and m.weight_global_scale"));
  EXPECT_THAT(error([&](Bundle& b) {
                packed(b);
                b.add("m.weight_scale", DType::kF8E4M3, {4, 3});
              }),
              HasSubstr("found F8_E4M3 [4, 3], expected F8_E4M3 [4, 4]"));
  // ModelOpt's INT4: two output rows a byte. The scales tell of twice the rows.
  EXPECT_THAT(error([](Bundle& b) {
                b.add("m.weight", DType::kU8, {4, 128});
                b.add("m.weight_scale", DType::kF32, {8, 1});
              }),
              HasSubstr("expected U8 [4, 8]"));
  EXPECT_THAT(error([](Bundle& b) {
                b.add("m.weight", DType::kF8E4M3, {4, 64});
                b.add("m.weight_scale", DType::kF32, {3});
              }),
              HasSubstr("expected one scale, one a row, or one for each 128 x 128"));
  EXPECT_THAT(error([](Bundle& b) {
                b.add("m.weight", DType::kBF16, {4, 64});
                b.add("m.weight_scale", DType::kF32, {1});
              }),
              HasSubstr("is beside a tensor that is not quantized"));
  for (const char* part : {"pre_quant_scale", "weight_g_idx", "svdquant_lora_a"})
    EXPECT_THAT(error([&](Bundle& b) {
                  b.add("m.weight", DType::kBF16, {4, 64});
                  b.add(std::string("m.") + part, DType::kBF16, {64});
                }),
                HasSubstr("is part of a format that nibble does not read"))
        << part;
  EXPECT_THAT(error([](Bundle& b) { b.add("m.weight_scale", DType::kF32, {1}); }),
              HasSubstr("has neither m.weight nor .weight_packed beside it"));
  EXPECT_THAT(error([](Bundle& b) {
                b.add("m.qweight", DType::kI32, {8, 64});
                b.add("m.scales", DType::kF16, {2, 64});
              }),
              HasSubstr("is GPTQ, which nibble does not read"));
  EXPECT_THAT(error([](Bundle& b) {
                b.add("m.qweight", DType::kI32, {64, 8});
              }),
              HasSubstr("has no m.scales beside it"));
}

}  // namespace
}  // namespace nibble
