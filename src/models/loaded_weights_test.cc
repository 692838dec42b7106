#include "models/loaded_weights.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "base/error.h"
#include "formats/bf16.h"
#include "formats/mxfp4.h"
#include "io/bundle_for_test.h"
#include "io/io_test.h"
#include "ops/matmul_ref.h"

namespace nibble {
namespace {

// q, k, v of one fused matrix, one of one row, experts, and a vector; large enough for several
// pieces.
std::vector<WantedWeight> wanted(Format dense, Layout dense_layout, Layout expert_layout) {
  const auto matrix = [&](const char* name, std::vector<int64_t> shape, bool joined) {
    return WantedWeight{.spec = {.name = name, .shape = std::move(shape)},
                        .part = "attention",
                        .joined = joined,
                        .format = dense,
                        .layout = dense_layout};
  };
  return {{.spec = {.name = "norm", .shape = {2880}, .fill = Fill::kNormal}, .part = "norms"},
          matrix("q", {1024, 2880}, false),
          matrix("k", {64, 2880}, true),
          matrix("v", {64, 2880}, true),
          {.spec = {.name = "row", .shape = {1, 96}}, .part = "attention", .format = dense},
          {.spec = {.name = "up", .shape = {3, 48, 128}, .format = Format::kMxfp4},
           .part = "experts",
           .layout = expert_layout},
          {.spec = {.name = "up_bias", .shape = {3, 48}}, .part = "experts"}};
}

std::vector<WeightSpec> specs_of(std::span<const WantedWeight> wanted) {
  std::vector<WeightSpec> specs;
  for (const WantedWeight& w : wanted) specs.push_back(w.spec);
  return specs;
}

// The tensor as the checkpoint has it, as float32.
std::vector<float> floats_of(const Checkpoint& checkpoint, const char* name) {
  const TensorInfo& tensor = *checkpoint.find(name);
  std::vector<uint16_t> bits(tensor.bytes / 2);
  const ReadJob job = ReadJob::whole(tensor, bits.data());
  checkpoint.read({&job, 1});
  std::vector<float> values;
  for (const uint16_t b : bits) values.push_back(bf16_to_float(b));
  return values;
}

// Every row of a weight against rows of the checkpoint encoded one by one.
void expect_rows(const Weight& w, int64_t first, const Checkpoint& checkpoint, const char* name) {
  const std::vector<float> source = floats_of(checkpoint, name);
  const int64_t rows = std::ssize(source) / w.cols;
  std::vector<float> got(w.cols), want(w.cols);
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = source.data() + r * w.cols;
    ops::ref::decode_row(w, 0, first + r, got.data());
    if (w.format == Format::kBF16) {
      want.assign(from, from + w.cols);
    } else {
      std::vector<uint16_t> bits(w.cols);
      for (int64_t k = 0; k < w.cols; ++k) bits[k] = bf16_from_float(from[k]);
      std::vector<uint8_t> codes(row_code_bytes(w.format, Layout::kRows, w.cols));
      std::vector<uint8_t> scales(row_scale_bytes(w.format, Layout::kRows, w.cols));
      float row_scale = 0;
      encode_rows(w.format, 1, w.cols, bits.data(), {codes.data(), scales.data(), &row_scale});
      const Weight row{.format = w.format,
                       .rows = 1,
                       .cols = w.cols,
                       .codes = codes.data(),
                       .scales = scales.data(),
                       .row_scales = format_row(w.format).row_scales ? &row_scale : nullptr};
      ops::ref::decode_row(row, 0, 0, want.data());
    }
    ASSERT_EQ(got, want) << name << " row " << r;
  }
}

struct Case {
  Format dense;
  Layout dense_layout, expert_layout;
};
constexpr Case kCases[] = {{Format::kBF16, Layout::kRows, Layout::kRows},
                           {Format::kMxfp4, Layout::kRows, Layout::kPanels16},
                           {Format::kMxfp4, Layout::kTiles16x64, Layout::kTiles16x64},
                           {Format::kMxfp4, Layout::kPanels16, Layout::kRows},
                           {Format::kMxfp8, Layout::kRows, Layout::kTiles16x64},
                           {Format::kMxfp8, Layout::kPanels16, Layout::kPanels16},
                           {Format::kNvfp4, Layout::kRows, Layout::kRows},
                           {Format::kNvfp4, Layout::kPanels16, Layout::kRows},
                           {Format::kNvfp4, Layout::kTiles16x64, Layout::kTiles16x64}};

void check(const Case& c, const WeightMemory& memory) {
  const std::vector<WantedWeight> all = wanted(c.dense, c.dense_layout, c.expert_layout);
  const auto checkpoint = dummy_checkpoint(specs_of(all), 5);
  const LoadedWeights loaded(*checkpoint, all, memory, 3, {});
  int64_t bytes = 0;  // of each weight once; each array begins at a whole line
  for (const WantedWeight& w : all) bytes += resident_bytes(w);
  EXPECT_GE(loaded.size_bytes(), bytes);
  EXPECT_LE(loaded.size_bytes(), bytes + 3 * std::ssize(all) * Arena::kAlign);
  const Weight qkv = loaded.matrix("q", "", 1024 + 2 * 64);
  EXPECT_EQ(qkv.rows, 1152);
  expect_rows(qkv, 0, *checkpoint, "q");
  expect_rows(qkv, 1024, *checkpoint, "k");
  expect_rows(qkv, 1088, *checkpoint, "v");
  expect_rows(loaded.matrix("row"), 0, *checkpoint, "row");

  const Weight up = loaded.matrix("up", "up_bias");
  const LoadedWeights plain(*checkpoint, wanted(Format::kBF16, Layout::kRows, Layout::kRows), {}, 1,
                            {});
  const Weight want = plain.matrix("up", "up_bias");
  std::vector<float> got_row(128), want_row(128);
  for (int64_t e = 0; e < 3; ++e)
    for (int64_t r = 0; r < 48; ++r) {
      ops::ref::decode_row(up, e, r, got_row.data());
      ops::ref::decode_row(want, e, r, want_row.data());
      ASSERT_EQ(got_row, want_row) << "expert " << e << " row " << r;
    }
  EXPECT_EQ(std::memcmp(up.bias, want.bias, 2 * 3 * 48), 0);
  EXPECT_EQ(std::memcmp(loaded.vector("norm"), plain.vector("norm"), 2 * 2880), 0);
}

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// q and k in NVFP4, joined, each under its own number (a divisor and a multiplier: both dialects of
// one file), v in FP8 by blocks: the formats come from the tensors.
TEST(LoadedWeights, TakesFormatsAsTheyLieOnDisk) {
  const test::TempDir dir;
  test::Bundle bundle;
  const std::vector<uint8_t> codes(4 * 32 / 2, 0x21), scales(4 * 2, 0x40);  // 0.5, 1, ..; 2
  bundle.add("q.weight_packed", DType::kU8, {4, 16}, bytes_of(codes));
  bundle.add("q.weight_scale", DType::kF8E4M3, {4, 2}, bytes_of(scales));
  bundle.add("q.weight_global_scale", DType::kF32, {1}, bytes_of(std::vector{4.f}));
  bundle.add("k.weight", DType::kU8, {4, 16}, bytes_of(codes));
  bundle.add("k.weight_scale", DType::kF8E4M3, {4, 2}, bytes_of(scales));
  bundle.add("k.weight_scale_2", DType::kF32, {}, bytes_of(std::vector{.125f}));
  bundle.add("v.weight", DType::kF8E4M3, {2, 130}, bytes_of(std::vector<uint8_t>(260, 0x38)));
  bundle.add("v.weight_scale_inv", DType::kF32, {1, 2}, bytes_of(std::vector{3.f, 5.f}));
  bundle.write(dir / "model.safetensors");
  const auto checkpoint = open_checkpoint(dir.path());
  std::vector<WantedWeight> all = {
      {.spec = {.name = "q.weight", .shape = {4, 32}}, .part = "p"},
      {.spec = {.name = "k.weight", .shape = {4, 32}}, .part = "p", .joined = true},
      {.spec = {.name = "v.weight", .shape = {2, 130}}, .part = "p"}};
  take_disk_formats(*checkpoint, all);
  EXPECT_EQ(all[0].format, Format::kNvfp4);
  EXPECT_EQ(all[2].format, Format::kFp8Block);
  const LoadedWeights loaded(*checkpoint, all, {}, 2, {});
  const Weight qk = loaded.matrix("q.weight", "", 8), v = loaded.matrix("v.weight");
  std::vector<float> row(130);
  for (int64_t r = 0; r < 8; ++r) {
    const float g = r < 4 ? .25f : .125f;
    ops::ref::decode_row(qk, 0, r, row.data());
    for (int64_t k = 0; k < 32; ++k) EXPECT_EQ(row[k], (k % 2 == 0 ? .5f : 1.f) * 2 * g) << r;
  }
  ops::ref::decode_row(v, 0, 1, row.data());
  for (int64_t k = 0; k < 130; ++k) EXPECT_EQ(row[k], k < 128 ? 3.f : 5.f);
}

TEST(LoadedWeights, EncodesAndPacksWhileReading) {
  for (const Case& c : kCases) check(c, {});
}

// Through staging pieces and a copy, as a device's memory is filled.
TEST(LoadedWeights, FillsOtherMemoryPieceByPiece) {
  std::atomic<int64_t> copied = 0, largest = 0;
  WeightMemory memory;
  memory.copy = [&](void* to, const void* from, int64_t bytes) {
    std::memcpy(to, from, bytes);
    copied += bytes;
    for (int64_t seen = largest; seen < bytes && !largest.compare_exchange_weak(seen, bytes);) {
    }
  };
  for (const Case& c : kCases) {
    copied = 0;
    check(c, memory);
    int64_t bytes = 0;
    for (const WantedWeight& w : wanted(c.dense, c.dense_layout, c.expert_layout))
      bytes += resident_bytes(w);
    EXPECT_EQ(copied, bytes);
  }
  EXPECT_LE(largest, int64_t{4} << 20);
}

// Rows in any order, in every layout and format that they can have.
TEST(LoadedWeights, GathersRows) {
  const std::vector<int32_t> ids = {70, 3, 4, 5, 127, 0, 64, 65, 66, 1, 2, 8, 9, 10, 90, 91};
  const Cuts rows = Cuts::rows(ids, 128);
  EXPECT_EQ(rows.size(), std::ssize(ids));
  EXPECT_EQ(rows.all(), 128);
  EXPECT_LT(std::ssize(rows.parts), std::ssize(ids));
  for (int64_t i = 0; i < std::ssize(ids); ++i) EXPECT_EQ(rows.find(i), ids[i]);
  EXPECT_EQ(rows.run(1), 3);
  EXPECT_EQ(rows.run(3), 1);
  const WeightSpec spec{.name = "w", .shape = {128, 64}};
  const auto checkpoint = dummy_checkpoint({spec}, 5);
  for (const Format format : {Format::kBF16, Format::kMxfp4, Format::kNvfp4, Format::kMxfp8})
    for (const Layout layout : {Layout::kRows, Layout::kTiles16x64, Layout::kPanels16}) {
      if (refuse_layout(layout, format, std::ssize(ids), 64) != nullptr) continue;
      WantedWeight all{.spec = spec, .format = format};
      WantedWeight some = all;
      some.layout = layout, some.rows = rows;
      EXPECT_EQ(resident_bytes(some) * 128, resident_bytes(all) * std::ssize(ids));
      const LoadedWeights whole(*checkpoint, {&all, 1}, {}, 1, {});
      const LoadedWeights part(*checkpoint, {&some, 1}, {}, 1, {});
      const Weight from = whole.matrix("w"), to = part.matrix(0, 1, std::ssize(ids));
      std::vector<float> got(64), want(64);
      for (int64_t i = 0; i < std::ssize(ids); ++i) {
        ops::ref::decode_row(to, 0, i, got.data());
        ops::ref::decode_row(from, 0, ids[i], want.data());
        EXPECT_EQ(got, want) << format_name(format) << " " << layout_name(layout) << " " << i;
      }
    }
}

TEST(LoadedWeights, CountsResidentBytes) {
  const auto sum = [](Format dense) {
    int64_t bytes = 0;
    for (const WeightPart& part : sum_parts(wanted(dense, Layout::kRows, Layout::kRows)))
      bytes += part.bytes;
    return bytes;
  };
  constexpr int64_t kDense = 1152 * 2880 + 96;
  EXPECT_EQ(sum(Format::kBF16) - sum(Format::kMxfp4), kDense * 2 - kDense * 17 / 32);
  EXPECT_EQ(sum(Format::kBF16) - sum(Format::kMxfp8), kDense * 2 - kDense * 33 / 32);
}

// A checkpoint of one weight [32, 64]: in bf16, the same in every place; or in MXFP4, codes of 0
// and one scale.
class Constant : public Checkpoint {
 public:
  explicit Constant(uint16_t bf16)
      : bf16_(bf16), tensors_{{"w", DType::kBF16, {32, 64}, 32 * 64 * 2, 0, 0}} {}
  static Constant of_scale(uint8_t scale) {
    Constant c(scale);
    c.tensors_ = {{"w_blocks", DType::kU8, {32, 2, 16}, 32 * 32, 0, 0},
                  {"w_scales", DType::kU8, {32, 2}, 32 * 2, 0, 32 * 32}};
    return c;
  }
  const std::string& origin() const override { return origin_; }
  std::span<const TensorInfo> tensors() const override { return tensors_; }
  RangeReader make_reader() const override {
    return [this](const ReadJob& job) {
      const auto scale = static_cast<std::byte>(bf16_);
      if (job.tensor->dtype == DType::kU8)
        std::fill_n(job.to, job.bytes, job.tensor->name == "w_scales" ? scale : std::byte{0});
      else
        for (int64_t i = 0; i < job.bytes; i += 2) std::memcpy(job.to + i, &bf16_, 2);
    };
  }
  int num_readers() const override { return 1; }

 private:
  std::string origin_ = "constant";
  uint16_t bf16_;  // or the scale
  std::vector<TensorInfo> tensors_;
};

std::string refusal(const Checkpoint& checkpoint, Format on_disk, Format format, Layout layout) {
  const WantedWeight w{.spec = {.name = "w", .shape = {32, 64}, .format = on_disk},
                       .part = "p",
                       .format = format,
                       .layout = layout};
  try {
    const LoadedWeights loaded(checkpoint, {&w, 1}, {}, 1, {});
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kCheckpoint);
    return e.what();
  }
}

// 40 + 24 rows are whole groups of 16 only together.
TEST(LoadedWeights, RefusesToPackPartsOfGroups) {
  std::vector<WantedWeight> all;
  for (const int64_t rows : {40, 24})
    all.push_back({.spec = {.name = "w" + std::to_string(rows), .shape = {rows, 64}},
                   .part = "attention",
                   .joined = !all.empty(),
                   .format = Format::kMxfp4,
                   .layout = Layout::kPanels16});
  const auto checkpoint = dummy_checkpoint(specs_of(all), 1);
  try {
    const LoadedWeights loaded(*checkpoint, all, {}, 1, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
    EXPECT_EQ(std::string(e.what()).find("w40 cannot lie in panels16: its rows are not"), 0u);
  }
}

TEST(LoadedWeights, RefusesToEncodeWhatIsNotFinite) {
  EXPECT_EQ(refusal(Constant(0x7f80), Format::kBF16, Format::kMxfp4, Layout::kRows),
            "constant: tensor \"w\": rows 0 to 31 hold a value that is infinite or no number; it "
            "cannot become mxfp4");
}

// Kernels that expand to bf16, or sum products of E4M3, would make infinities of them.
TEST(LoadedWeights, RefusesScalesThatKernelsDoNotTake) {
  for (const Layout layout : {Layout::kRows, Layout::kTiles16x64, Layout::kPanels16}) {
    const auto of_scale = [&](int scale) {
      return refusal(Constant::of_scale(static_cast<uint8_t>(scale)), Format::kMxfp4,
                     Format::kMxfp4, layout);
    };
    EXPECT_EQ(of_scale(kLargestE8m0), "");
    EXPECT_EQ(of_scale(kLargestE8m0 + 1),
              "constant: tensor \"w\": rows 0 to 31 hold a block whose scale is 2^34; 2^33 is the "
              "most that kernels take");
    EXPECT_NE(of_scale(255).find("a block whose scale is no number"), std::string::npos);
  }
  // 2^100 in bf16, which both formats would hold.
  for (const Format format : {Format::kMxfp4, Format::kMxfp8}) {
    EXPECT_NE(refusal(Constant((100 + 127) << 7), Format::kBF16, format, Layout::kRows)
                  .find("rows 0 to 31 hold a block whose scale is 2^9"),
              std::string::npos);
    EXPECT_EQ(refusal(Constant(0x3f80), Format::kBF16, format, Layout::kRows), "");
  }
}

}  // namespace
}  // namespace nibble
