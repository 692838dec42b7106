#include "ops/cpu_matmul/int8_kernels.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "formats/int8.h"
#include "ops/matmul_ref.h"
#include "ops/test_problem.h"

namespace nibble::ops {
namespace {

std::vector<cpu::Isa> isas_here() {
  std::vector<cpu::Isa> here;
  for (const cpu::Isa isa :
       {cpu::Isa::kAvx512Vnni, cpu::Isa::kAvxVnni, cpu::Isa::kAvx2, cpu::Isa::kNeonDot})
    if (cpu::supports(cpu::detect_isa(), isa)) here.push_back(isa);
  EXPECT_EQ(!here.empty(), runs_here(ActFormat::kInt8));
  return here;
}

constexpr Format kFormats[] = {Format::kMxfp4, Format::kNvfp4, Format::kInt4G32, Format::kInt4G128};

// Products of the rows of x by one panel, in tiles of `size`.
std::vector<float> multiply(const Int8Kernels& kernels, const TestWeight& w, const Floats& x,
                            int size) {
  const int64_t blocks = x.shape[1] / 32, tokens = x.shape[0];
  std::vector<std::byte> tile(size * blocks * int8_tile_bytes(kernels.parts));
  std::vector<float> y(tokens * kPanelRows, -1);
  for (int64_t first = 0; first < tokens; first += size) {
    const int count = static_cast<int>(std::min<int64_t>(size, tokens - first));
    for (int m = 0; m < count; ++m) kernels.encode(x.row(first + m), blocks, size, m, tile.data());
    kernels.multiply({.codes = w.view.codes,
                      .scales = w.view.scales,
                      .row_scales = w.view.row_scales,
                      .bias = w.view.bias,
                      .blocks = blocks,
                      .tile = tile.data(),
                      .tile_size = size,
                      .tokens = count,
                      .y = y.data() + first * kPanelRows,
                      .ldy = kPanelRows,
                      .from_memory = first == 0});
  }
  return y;
}

TEST(Int8Kernels, EncodeAsTheTwin) {
  Random random(1);
  const int64_t blocks = 9;
  Floats x(random, 1, blocks * 32);
  x.values[0] = 50;  // an outlier of its block
  for (int i = 32; i < 64; ++i) x.values[i] *= 0x1p-110f;
  x.values[64] = std::numeric_limits<float>::quiet_NaN();
  x.values[127] = -std::numeric_limits<float>::infinity();
  for (int i = 128; i < 160; ++i) x.values[i] *= 0x1p120f;
  for (const cpu::Isa isa : isas_here()) {
    const int size = 3;
    for (const Format format : kFormats) {
      const Int8Kernels& kernels = int8_kernels(isa).of(format);
      const int64_t block_bytes = size * int8_tile_bytes(kernels.parts);
      std::vector<std::byte> tile(blocks * block_bytes);
      kernels.encode(x.row(0), blocks, size, 1, tile.data());
      for (int64_t b = 0; b < blocks; ++b) {
        const std::byte* at = tile.data() + b * block_bytes;
        int8_t want[32], got[32];
        const float step = int8_encode(x.row(0) + 32 * b, 32, want) / 2;
        float got_step;
        std::memcpy(got, at + 32, 32);
        std::memcpy(&got_step, at + 32 * size + 4, 4);
        EXPECT_TRUE(std::equal(want, want + 32, got)) << cpu::isa_name(isa) << " block " << b;
        EXPECT_TRUE(got_step == step || (std::isnan(step) && std::isnan(got_step)));
      }
    }
  }
}

// Every tile of every instruction set has the same bits, and they are the twin's but for one
// rounding per block (NVFP4: two, and its twin's three per weight), of terms that sum to `abs`, and
// those of the twin's float32 inputs. A wrong block or a wrong scale is a hundred times the bound.
void check_tiles(Format format, int64_t cols) {
  Random random(2);
  TestWeight w(random, format, 1, kPanelRows, cols);
  w.scales[3] = 0;                                                   // 2^-127, or zero
  if (format_row(format).scale_bytes == 4) w.scales[4 * 7 + 3] = 1;  // a scale in float16
  w.pack(Layout::kPanels16);
  const Floats x(random, 16, cols), seen = as_input(x, ActFormat::kInt8);
  std::vector<float> first;
  for (const cpu::Isa isa : isas_here()) {
    const Int8Kernels& kernels = int8_kernels(isa).of(format);
    for (const int size : {1, 2, 3, 4, 6, 8, 12, 16}) {
      if (size > kernels.most_tokens) continue;
      const std::vector<float> y = multiply(kernels, w, x, size);
      if (first.empty()) first = y;
      EXPECT_EQ(y, first) << cpu::isa_name(isa) << " tile of " << size;
    }
  }
  for (int64_t n = 0; n < kPanelRows && !first.empty(); ++n) {
    const ref::Row twin(w.view, 0, n);
    for (int64_t t = 0; t < 16; ++t) {
      double abs;
      const double want = twin.dot(seen.row(t), &abs);
      EXPECT_NEAR(first[t * kPanelRows + n], want,
                  static_cast<double>(int8_parts(format) * cols / 32 + 6) * kEps * abs);
    }
  }
}

TEST(Int8Kernels, EveryTileEqualsTheTwin) {
  for (const Format format : kFormats)
    for (const int64_t cols : {32, 96, 2880})
      check_tiles(format, format == Format::kInt4G128 ? 4 * cols : cols);
}

TEST(Int8Kernels, DamageStaysInItsRowAndItsToken) {
  Random random(3);
  TestWeight w(random, Format::kMxfp4, 1, kPanelRows, 96);
  w.scales[3 * 5 + 1] = 255;  // row 5
  w.pack(Layout::kPanels16);
  Floats x(random, 7, 96);
  x.values[2 * 96 + 40] = std::numeric_limits<float>::infinity();
  for (const cpu::Isa isa : isas_here())
    for (const int size : {1, 4}) {
      const std::vector<float> y = multiply(int8_kernels(isa).mxfp4, w, x, size);
      for (int t = 0; t < 7; ++t)
        for (int n = 0; n < kPanelRows; ++n)
          EXPECT_EQ(std::isnan(y[t * kPanelRows + n]), n == 5 || t == 2) << cpu::isa_name(isa);
    }
}

TEST(Int8Kernels, TileSizesHoldWhatIsAsked) {
  for (int most : {4, 8, 16})
    for (int count = 1; count <= most; ++count) {
      EXPECT_GE(tile_size(count, most), count);
      EXPECT_LE(tile_size(count, most), count + 3);
    }
}

}  // namespace
}  // namespace nibble::ops
