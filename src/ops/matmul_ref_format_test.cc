// Every weight format against vectors written by tools/write_format_vectors.py, by the twin and by
// the kernels of each instruction set: the same values.
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "ops/cpu_matmul/float_kernels.h"
#include "ops/format_vectors.h"
#include "ops/matmul_ref.h"
#include "ops/test_problem.h"

namespace nibble::ops {
namespace {

// In the order in which kernels decode.
std::vector<float> in_block_order(const std::vector<float>& row) {
  std::vector<float> to = row;
  for (size_t k = 0; k + 32 <= row.size(); k += 32)
    for (size_t i = 0; i < 16; ++i) to[k + i] = row[k + 2 * i], to[k + 16 + i] = row[k + 2 * i + 1];
  return to;
}

std::vector<cpu::Isa> isas_here() {
  std::vector<cpu::Isa> here;
  for (const cpu::Isa isa :
       {cpu::Isa::kScalar, cpu::Isa::kNeon, cpu::Isa::kAvx2, cpu::Isa::kAvx512})
    if (cpu::supports(cpu::detect_isa(), isa)) here.push_back(isa);
  return here;
}

// The same values; rationals have no zero with a sign.
void expect_equal(const std::vector<float>& got, const std::vector<float>& want,
                  const std::string& what) {
  ASSERT_EQ(got, want) << what;
}

TEST(Formats, DecodeToTheVectors) {
  std::ifstream file(std::string(NIBBLE_SOURCE_DIR) + "/tests/data/format_vectors.txt");
  std::set<std::string> seen;
  std::string line;
  while (std::getline(file, line)) {
    const FormatVector v(line);
    const Weight w = v.weight();
    const std::vector<float>& want = v.values;
    std::vector<float> got(w.cols);
    ref::decode_row(w, 0, 0, got.data());
    expect_equal(got, want, line);
    for (const cpu::Isa isa : isas_here()) {
      float_kernels(isa).decode(w, got.data());
      expect_equal(got, is_in_block_order(w.format) ? in_block_order(want) : want,
                   cpu::isa_name(isa) + (" " + line));
    }
    seen.insert(v.name);
  }
  EXPECT_EQ(seen, (std::set<std::string>{"f16", "fp8", "fp8_block", "int4_g128", "int4_g32",
                                         "mxfp4", "mxfp8", "nvfp4"}));
}

// Rows of every format and of odd lengths, each with a scale of its own.
TEST(Formats, KernelsDecodeWhatTheTwinDoes) {
  Random random(1);
  for (const FormatRow& format : kFormats)
    for (const int64_t blocks : {1, 2, 3, 9}) {
      int64_t cols = blocks * format.block_elems;
      if (format.block_elems == 1) cols += 28;
      if (format.format == Format::kFp8Block) cols -= 61;
      const TestWeight w(random, format.format, 1, 5, cols);
      std::vector<float> got(5 * cols), want(cols);
      for (const cpu::Isa isa : isas_here()) {
        float_kernels(isa).decode(w.view, got.data());
        for (int64_t r = 0; r < 5; ++r) {
          ref::decode_row(w.view, 0, r, want.data());
          expect_equal({got.begin() + r * cols, got.begin() + (r + 1) * cols},
                       is_in_block_order(format.format) ? in_block_order(want) : want,
                       cpu::isa_name(isa) + (" " + std::string(format.name)));
        }
      }
    }
}

}  // namespace
}  // namespace nibble::ops
