// The emulated GPU against plain C++: each group of instructions by its definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "cuda/device_probe.h"
#include "formats/bf16.h"
#include "formats/fp8.h"
#include "kernels.h"

namespace nibble::emulated {
namespace {

using Words = uint32_t[32];

std::mt19937 generator(7);
uint32_t bits() { return static_cast<uint32_t>(generator()); }
float value(uint32_t word) { return std::bit_cast<float>(word); }
uint16_t f16_of(float v) { return std::bit_cast<uint16_t>(static_cast<_Float16>(v)); }
uint32_t word(float v) { return std::bit_cast<uint32_t>(v); }

// ---- matrix products: small integers, so that every sum is exact

struct Format {
  Mma what;
  int k, bits;                        // of an element
  std::function<uint32_t(int)> code;  // of an integer that it holds
  int most;
};
uint32_t e2m1_code(int v) {
  static constexpr int kValues[] = {0, 0, 1, 0, 2, 3, 4, 6};
  for (uint32_t c = 0; c < 8; ++c)
    if (c != 1 && c != 3 && kValues[c] == std::abs(v)) return v < 0 ? c | 8 : c;
  return 0;
}
uint32_t e4m3_code(int v) {
  for (uint32_t c = 0; c < 256; ++c)
    if (kE4m3[c] == static_cast<float>(v)) return c;
  return 0;
}
Format format(Mma what) {
  switch (what) {
    case Mma::kBf16:
      return {what, 16, 16, [](int v) { return word(static_cast<float>(v)) >> 16; }, 9};
    case Mma::kF16:
      return {what, 16, 16, [](int v) { return uint32_t{f16_of(static_cast<float>(v))}; }, 9};
    case Mma::kTf32:
      return {what, 8, 32, [](int v) { return word(static_cast<float>(v)); }, 9};
    case Mma::kS8:
      return {what, 32, 8, [](int v) { return static_cast<uint32_t>(v) & 255; }, 127};
    case Mma::kE4m3:
    case Mma::kScaledE4m3:
      return {what, 32, 8, e4m3_code, 8};
    case Mma::kE2m1E4m3:
      return {what, 32, 8, e4m3_code, 4};
    default:
      return {what, 64, 4, e2m1_code, 4};
  }
}
int drawn(const Format& f, bool is_e2m1) {
  for (;;) {
    const int v = static_cast<int>(bits() % (2 * static_cast<uint32_t>(f.most) + 1)) - f.most;
    if (!is_e2m1 || std::abs(v) != 5) return v;
  }
}

// Element (row, k) of A lies in lane 4 (row % 8) + ..., PTX ISA 9.7.14: each register holds 32 /
// bits consecutive k; four lanes side by side, then rows 8 on, then the upper half of k.
void put(uint32_t (&fragment)[32][4], const Format& f, int row, int k, uint32_t code) {
  const int in_word = 32 / f.bits, lane = 4 * (row % 8) + k / in_word % 4;
  fragment[lane][row / 8 + 2 * (k / (4 * in_word))] |= code << f.bits * (k % in_word);
}
void put_b(uint32_t (&fragment)[32][2], const Format& f, int column, int k, uint32_t code) {
  const int in_word = 32 / f.bits, lane = 4 * column + k / in_word % 4;
  fragment[lane][k / (4 * in_word)] |= code << f.bits * (k % in_word);
}

TEST(Mma, MultipliesMatricesInTheLayoutOfTheIsa) {
  for (const Mma what : {Mma::kBf16, Mma::kF16, Mma::kTf32, Mma::kS8, Mma::kE4m3, Mma::kE2m1E4m3,
                         Mma::kScaledE4m3, Mma::kNvfp4, Mma::kMxfp4}) {
    const bool is_e2m1 = what == Mma::kNvfp4 || what == Mma::kMxfp4;
    const Format f = format(what);
    MatrixProblem p{};
    std::vector<std::vector<int>> a(16, std::vector<int>(64)), b(8, std::vector<int>(64));
    for (int r = 0; r < 16; ++r)
      for (int k = 0; k < f.k; ++k) {
        a[r][k] = drawn(f, what == Mma::kE2m1E4m3 || is_e2m1);
        put(p.a, f, r, k, what == Mma::kE2m1E4m3 ? e2m1_code(a[r][k]) << 2 : f.code(a[r][k]));
      }
    for (int n = 0; n < 8; ++n)
      for (int k = 0; k < f.k; ++k) {
        b[n][k] = drawn(f, is_e2m1);
        put_b(p.b, f, n, k, f.code(b[n][k]));
      }
    // Scales: 2^(row % 4) of A's rows, for NVFP4 by group of 16 (E4M3: 2^0 is 0x38), 1 of B's; for
    // MXFP4 by half, of B's 1 and 8.
    for (int r = 0; r < 16; ++r)
      p.scale_a[4 * (r % 8) + r / 8] =
          what == Mma::kNvfp4
              ? 0x48403838u
              : 127u + static_cast<uint32_t>(r % 4) + (128u + static_cast<uint32_t>(r % 2)) * 256;
    for (int l = 0; l < 32; ++l) p.scale_b[l] = what == Mma::kMxfp4 ? 0x827f : 0x38383838u;
    uint32_t d[32][4] = {};
    for (int l = 0; l < 32; ++l)
      for (int i = 0; i < 4; ++i)
        p.c[l][i] =
            what == Mma::kS8 ? static_cast<uint32_t>(l - i) : word(static_cast<float>(l - i));
    run_mma(what, p, d);
    for (int l = 0; l < 32; ++l)
      for (int i = 0; i < 4; ++i) {
        const int row = l / 4 + 8 * (i / 2), column = 2 * (l % 4) + i % 2;
        int sum = l - i;
        for (int k = 0; k < f.k; ++k) {
          int term = a[row][k] * b[column][k];
          if (what == Mma::kE2m1E4m3 || what == Mma::kScaledE4m3) term *= 1 << row % 4;
          if (what == Mma::kNvfp4) term *= k / 16 == 2 ? 2 : k / 16 == 3 ? 4 : 1;
          if (what == Mma::kMxfp4) term *= k < 32 ? 1 << row % 4 : 16 << row % 2;
          sum += term;
        }
        const uint32_t want =
            what == Mma::kS8 ? static_cast<uint32_t>(sum) : word(static_cast<float>(sum));
        ASSERT_EQ(d[l][i], want) << "instruction " << static_cast<int>(what) << " lane " << l << " "
                                 << i;
      }
  }
}

// What is below 2^-25 of the largest term is cut, and the sum is cut, not rounded.
TEST(Mma, CutsWhatLiesBehind25Bits) {
  const Format f = format(Mma::kBf16);
  const auto sum = [&](float c, float x, float y) {
    MatrixProblem p{};
    for (int k = 0; k < 2; ++k) {
      put(p.a, f, 0, k, word(k == 0 ? x : y) >> 16);
      put_b(p.b, f, 0, k, 0x3f80);
    }
    p.c[0][0] = word(c);
    uint32_t d[32][4] = {};
    run_mma(Mma::kBf16, p, d);
    return value(d[0][0]);
  };
  EXPECT_EQ(sum(1, 0x1p-24f, 0x1p-24f), 1 + 0x1p-23f);  // float32 would lose each
  EXPECT_EQ(sum(1, 0x1p-26f, 0x1p-26f), 1);             // cut before they are added
  EXPECT_EQ(sum(1, 0x1.8p-24f, 0), 1);                  // the nearest would be more
  EXPECT_EQ(sum(-1, -0x1.8p-24f, 0), -1);
  EXPECT_TRUE(std::isnan(sum(1, INFINITY, -INFINITY)));
  EXPECT_EQ(sum(1, INFINITY, 1), INFINITY);
}

// The native block-scaled instructions against the project's model of their bits.
TEST(Mma, HasTheBitsOfTheModelOfBlockScaledSums) {
  for (const auto& check : cuda::check_bit_models()) {
    EXPECT_TRUE(check.is_native) << check.name;
    EXPECT_GT(check.sums, 100000) << check.name;
    EXPECT_EQ(check.differ, 0) << check.name << ", worst " << check.worst;
  }
}

// ---- lanes

void fill(Words& x) {
  for (uint32_t& v : x) v = bits();
}
void fill_floats(Words& x, double spread) {
  for (uint32_t& v : x) {
    const double scale = std::exp2(spread * (bits() % 2001 / 1000.0 - 1));
    v = word(static_cast<float>((bits() % 2 == 0 ? 1 : -1) * scale));
  }
}
template <typename F>
void expect_lanes(Lanes what, const Words& x, const Words& y, F want) {
  Words out;
  run_lanes(what, x, y, out);
  for (int i = 0; i < 32; ++i)
    ASSERT_EQ(out[i], static_cast<uint32_t>(want(i)))
        << "function " << static_cast<int>(what) << " lane " << i << " of " << std::hex << x[i]
        << " " << y[i];
}

TEST(Lanes, ConvertAsTheFormatsOfTheProjectDo) {
  for (int round = 0; round < 200; ++round) {
    Words x, y;
    fill_floats(x, round % 40), fill_floats(y, round % 12);
    if (round % 50 == 0) x[3] = word(INFINITY), x[4] = 0x7fffffff, x[5] = 0x80000000;
    const auto pair = [](uint32_t high, uint32_t low, int n) { return high << n | low; };
    expect_lanes(Lanes::kE4m3, x, y, [&](int i) {
      return pair(e4m3_from_float(value(y[i])), e4m3_from_float(value(x[i])), 8);
    });
    expect_lanes(Lanes::kBf16x2, x, y, [&](int i) {
      const auto of = [](float v) {
        return std::isnan(v) ? 0x7fffu : uint32_t{bf16_from_float(v)};
      };
      return pair(of(value(y[i])), of(value(x[i])), 16);
    });
    expect_lanes(Lanes::kF16x2, x, y, [&](int i) {
      const auto of = [](float v) { return std::isnan(v) ? 0x7fffu : uint32_t{f16_of(v)}; };
      return pair(of(value(y[i])), of(value(x[i])), 16);
    });
    expect_lanes(Lanes::kTf32, x, y, [&](int i) {
      const float v = value(x[i]);
      if (!std::isfinite(v)) return std::isnan(v) ? 0x7fffffffu : x[i];
      int exponent;
      const double fraction = std::frexp(static_cast<double>(v), &exponent);
      if (std::fabs(v) < 0x1p-126f) return x[i] == 0x80000000u ? x[i] : (x[i] + 0x1000) & ~0x1fffu;
      return word(
          static_cast<float>(std::ldexp(std::round(std::ldexp(fraction, 11)), exponent - 11)));
    });
  }
}

TEST(Lanes, DecodeAllCodesOfE4m3) {
  for (uint32_t first = 0; first < 256; first += 32) {
    Words x, y = {};
    for (uint32_t i = 0; i < 32; ++i) x[i] = first + i;
    expect_lanes(Lanes::kE4m3ToF16, x, y, [&](int i) {
      const float v = kE4m3[x[i]];
      return std::isnan(v) ? 0x7fffu : uint32_t{f16_of(v)};
    });
  }
}

TEST(Lanes, CountAndMoveBits) {
  for (int round = 0; round < 50; ++round) {
    Words x, y;
    fill(x), fill(y);
    y[0] = 0, x[0] = 0;
    for (uint32_t& v : y) v |= 16;  // no division by zero
    expect_lanes(Lanes::kPermute, x, y, [&](int i) {
      uint32_t r = 0;
      for (int b = 0; b < 4; ++b) {
        const uint32_t select = y[i] >> 4 * b & 7;
        r |= ((select < 4 ? x[i] >> 8 * select : ~x[i] >> 8 * (select - 4)) & 255) << 8 * b;
      }
      return r;
    });
    expect_lanes(Lanes::kDot4, x, y, [&](int i) {
      int sum = 17;
      for (int b = 0; b < 4; ++b)
        sum += static_cast<int8_t>(x[i] >> 8 * b) * static_cast<int8_t>(y[i] >> 8 * b);
      return sum;
    });
    expect_lanes(Lanes::kFunnel, x, y, [&](int i) {
      const uint32_t n = y[i] % 32;
      return n == 0 ? ~x[i] : ~x[i] << n | x[i] >> (32 - n);
    });
    expect_lanes(Lanes::kPopulation, x, y,
                 [&](int i) { return std::popcount(x[i]) * 64 + std::countl_zero(y[i]); });
    expect_lanes(Lanes::kDivision, x, y, [&](int i) {
      return x[i] / y[i] + 7 * (x[i] % y[i]) +
             static_cast<uint32_t>(static_cast<int>(x[i]) / static_cast<int>(y[i] | 1));
    });
    expect_lanes(Lanes::kHighProduct, x, y, [&](int i) { return uint64_t{x[i]} * y[i] >> 32; });
  }
}

TEST(Lanes, RoundOnce) {
  for (int round = 0; round < 200; ++round) {
    Words x, y;
    fill_floats(x, 6), fill_floats(y, 3);
    for (uint32_t& v : x) v = (v & 0xffff0000u) | word(value(bits() & 0x3fffffff)) >> 16;
    // Long doubles hold sums and products of pairs of bf16 that lie close by exactly.
    const auto rounded = [](long double v) {
      if (v == 0) return uint32_t{0};
      int exponent;
      const long double f = std::frexp(v, &exponent);
      return word(static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(f, 8)), exponent - 8))) >>
             16;
    };
    Words a, b;
    for (int i = 0; i < 32; ++i) {
      const auto near = [&] { return word(1 + static_cast<float>(bits() % 128) / 128) >> 16; };
      a[i] = near() | near() << 16, b[i] = near() | (near() | 0x8000) << 16;
    }
    const auto half = [](uint32_t v, int h) { return value(v >> 16 * h << 16); };
    expect_lanes(Lanes::kFma2, a, b, [&](int i) {
      const auto of = [&](int h) {
        return rounded(static_cast<long double>(half(a[i], h)) * half(b[i], h) + half(b[i], h));
      };
      return of(0) | of(1) << 16;
    });
    expect_lanes(Lanes::kSub2, a, b, [&](int i) {
      const auto of = [&](int h) {
        return rounded(static_cast<long double>(half(a[i], h)) - half(b[i], h));
      };
      return of(0) | of(1) << 16;
    });
    expect_lanes(Lanes::kLargest2, a, b, [&](int i) {
      const auto of = [&](int h) {
        const uint32_t m = a[i] >> 16 * h & 0xffff, n = b[i] >> 16 * h & 0xffff;
        return std::max(m & 0x7fff, n & 0x7fff) | ((m ^ n) & 0x8000);
      };
      return of(0) | of(1) << 16;
    });
    expect_lanes(Lanes::kRoundDown, x, y, [&](int i) {
      const long double exact = static_cast<long double>(value(x[i])) * value(y[i]) + value(x[i]);
      if (exact == 0) return 0x80000000u;
      float v = static_cast<float>(exact);
      if (v > exact) v = std::nextafter(v, -INFINITY);
      return word(v);
    });
    expect_lanes(Lanes::kExp2, y, x, [&](int i) {
      return word(static_cast<float>(std::exp2(static_cast<double>(value(y[i])))));
    });
  }
}

TEST(Lanes, TalkToEachOther) {
  for (int round = 0; round < 20; ++round) {
    Words x, y;
    fill(x), fill(y);
    for (int i = 0; i < 32; ++i) x[i] = round % 2 == 0 ? x[i] : x[i] % 5;
    expect_lanes(Lanes::kShuffleUp, x, y, [&](int i) { return x[i < 3 ? i : i - 3]; });
    expect_lanes(Lanes::kShuffleXor, x, y, [&](int i) { return x[i ^ 5]; });
    expect_lanes(Lanes::kShuffleIndex, x, y, [&](int i) { return x[(i & 16) | (y[i] & 15)]; });
    const auto count = [&](auto is_in, uint32_t bit) {
      uint32_t r = 0;
      for (int i = 0; i < 32; ++i) r |= (is_in(i) && (x[i] & bit) != 0 ? 1u : 0u) << i;
      return r;
    };
    expect_lanes(Lanes::kBallot, x, y, [&](int) { return count([](int) { return true; }, 1); });
    expect_lanes(Lanes::kPartedVote, x, y, [&](int i) {
      return i % 3 == 0 ? count([](int j) { return j % 3 == 0; }, 2)
                        : count([](int j) { return j % 3 != 0; }, 4);
    });
    expect_lanes(Lanes::kMatch, x, y, [&](int i) {
      uint32_t same = 0;
      for (int j = 0; j < 32; ++j) same |= (x[i] == x[j] ? 1u : 0u) << j;
      return same;
    });
    uint32_t most = 0, sum = 0;
    for (const uint32_t v : x) most = std::max(most, v), sum += v;
    expect_lanes(Lanes::kReduceMax, x, y, [&](int) { return most; });
    expect_lanes(Lanes::kReduceAdd, x, y, [&](int) { return sum; });
  }
}

TEST(Lanes, PartAndMeetAgain) {
  Words x, y = {};
  for (uint32_t i = 0; i < 32; ++i) x[i] = 1 + 7 * i;
  expect_lanes(Lanes::kCollatz, x, y, [&](int i) {
    uint32_t n = x[i], steps = 0;
    for (; n > 1; ++steps) n = n % 2 == 0 ? n / 2 : 3 * n + 1;
    return steps;
  });
}

TEST(Lanes, LoadAndTransposeMatrices) {
  Words x, y;
  fill(x), fill(y);
  const auto element = [](const Words& m, int row, int column) {
    return m[4 * row + column / 2] >> 16 * (column % 2) & 0xffff;
  };
  const auto transposed = [&](const Words& m, int l) {
    return element(m, 2 * (l % 4), l / 4) | element(m, 2 * (l % 4) + 1, l / 4) << 16;
  };
  expect_lanes(Lanes::kTranspose, x, y, [&](int l) { return transposed(x, l); });
  expect_lanes(Lanes::kLoadMatrix, x, y,
               [&](int l) { return x[l] + 3 * y[l] + 5 * ~x[l] + 7 * ~y[l]; });
  expect_lanes(Lanes::kLoadMatrixTransposed, x, y, [&](int l) {
    const uint32_t a = transposed(x, l), b = transposed(y, l);
    return a + 3 * b + 5 * ~a + 7 * ~b;
  });
}

// ---- blocks

TEST(Blocks, MeetThoughNoneHasEnded) {
  std::vector<int> out(200);
  run_meeting(200, out.data());
  for (const int sum : out) ASSERT_EQ(sum, 200 * 201 / 2);
}

TEST(Blocks, OfAClusterWriteToEachOther) {
  uint32_t out[2] = {};
  run_cluster(out);
  EXPECT_EQ(out[0], 11u);
  EXPECT_EQ(out[1], 10u);
}

TEST(Blocks, CountTogether) {
  uint32_t counters[3] = {5, 0, 0};
  run_atomics(counters, 7);
  EXPECT_EQ(counters[0], 5u + 7 * (95 * 96 / 2));
  EXPECT_EQ(counters[1], 6095u);
  EXPECT_EQ(value(counters[2]), 7 * 96 * 0.5f);
}

// Copies land when they are waited for: who does not wait reads NaNs.
TEST(Copies, LandWhereTheyAreWaitedFor) {
  std::vector<uint32_t> in(2048), out(2048);
  for (uint32_t i = 0; i < 2048; ++i) in[i] = i;
  for (const bool by_engine : {false, true}) {
    run_copies(by_engine, true, in.data(), out.data(), 2048);
    for (uint32_t i = 0; i < 2048; ++i) ASSERT_EQ(out[i], i / 512 * 512 + 511 - i % 512);
    run_copies(by_engine, false, in.data(), out.data(), 2048);
    for (const uint32_t v : out) ASSERT_EQ(v, 0xffffffffu);
  }
}
// And stores read when they are waited for: who does not wait stores what came later.
TEST(Copies, ReadWhereTheyAreWaitedFor) {
  std::vector<uint32_t> in(2048), out(2048);
  for (uint32_t i = 0; i < 2048; ++i) in[i] = i;
  for (const bool waits : {false, true}) {
    run_stores(waits, in.data(), out.data(), 2048);
    for (uint32_t i = 0; i < 2048; ++i) ASSERT_EQ(out[i], waits ? i : ~i);
  }
}

// What of a box lies beyond the matrix is left out.
TEST(Copies, BoxesGoToTheirPlaceInAMatrix) {
  std::vector<uint32_t> in(1024);
  for (uint32_t i = 0; i < 1024; ++i) in[i] = i;
  for (const auto& [x, y] : {std::pair{0, 0}, {8, 3}, {20, 30}, {44, 60}}) {
    std::vector<uint32_t> out(size_t{50} * 48, ~0u);
    run_box_store(in.data(), out.data(), 50, 48, x, y);
    for (int row = 0; row < 50; ++row)
      for (int col = 0; col < 48; ++col) {
        const bool is_in = row >= y && row < y + 32 && col >= x && col < x + 32;
        ASSERT_EQ(out[row * 48 + col], is_in ? (row - y) * 32 + (col - x) : ~0u);
      }
  }
}

// ---- faults, each in a process of its own

TEST(Faults, NameWhatWasWrongAndWhere) {
  uint32_t memory[64] = {};
  const auto code = [](int n) { return testing::ExitedWithCode(n); };
  EXPECT_EXIT(run_wrong(Wrong::kGlobal, memory), code(1),
              "no memory at .* 0 bytes behind one of 256; block .0, 0, 0., thread .63, 0, 0., PTX "
              "line .*st.global");
  EXPECT_EXIT(run_wrong(Wrong::kFreed, memory), code(1), "no memory at");
  EXPECT_EXIT(run_wrong(Wrong::kShared, memory), code(1), "outside of the block's.*thread .63");
  EXPECT_EXIT(run_wrong(Wrong::kMisaligned, memory), code(1), "misaligned address");
  EXPECT_EXIT(run_wrong(Wrong::kNoCluster, memory), code(1), "st.async of a block of no cluster");
  EXPECT_EXIT(run_wrong(Wrong::kBarrier, memory), code(1), "waits without end(.|\n)*bar.sync");
  EXPECT_EXIT(run_wrong(Wrong::kEndless, memory), code(1),
              "waits without end(.|\n)*block .0, 0, 0.");
  EXPECT_EXIT(run_wrong(Wrong::kUnread, memory), code(1), "ends before its bulk stores");
}

}  // namespace
}  // namespace nibble::emulated
