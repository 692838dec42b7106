#include "ops/cpu_matmul/int8_row_kernels.h"

#include <algorithm>

#include "ops/cpu_matmul/int8_kernels.h"

namespace nibble::ops {
namespace {

// What is left of each row after some passes: the blocks whose exponents are `from` or more. Bytes
// and 0 or 0xff, so that the compiler makes vectors of 16 of them.
struct Rest {
  uint8_t from[kPanelRows] = {}, any[kPanelRows];
  Rest() { std::fill_n(any, kPanelRows, uint8_t{0xff}); }
};

// For each row the least exponent that is left, if `found`. Returns whether there is any.
bool find_least(const uint8_t* scales, int64_t blocks, const Rest& rest, uint8_t* least,
                uint8_t* found) {
  std::fill_n(least, kPanelRows, uint8_t{255});
  std::fill_n(found, kPanelRows, uint8_t{0});
  for (int64_t b = 0; b < blocks; ++b, scales += kPanelRows)
    for (int n = 0; n < kPanelRows; ++n) {
      const uint8_t left = (scales[n] >= rest.from[n] ? 0xff : 0) & rest.any[n];
      const auto e = static_cast<uint8_t>(scales[n] | ~left);
      least[n] = std::min(least[n], e);
      found[n] |= left;
    }
  return std::any_of(found, found + kPanelRows, [](uint8_t f) { return f != 0; });
}

}  // namespace

int panel_bases(const uint8_t* scales, int64_t blocks, PanelBases& bases) {
  constexpr int kStep = kMostExponentSpread + 1;
  Rest rest;
  uint8_t found[kPanelRows];
  int pass = 0;
  for (; pass < kMostPasses && find_least(scales, blocks, rest, bases[pass], found); ++pass)
    for (int n = 0; n < kPanelRows; ++n) {
      uint8_t& base = bases[pass][n];
      if (found[n] == 0) {
        // A row with nothing left: a base that no block of it has, its scale small if there is one.
        base = bases[0][n] >= kStep ? bases[0][n] - kStep : rest.from[n];
        continue;
      }
      rest.any[n] = base <= 255 - kStep ? 0xff : 0;
      rest.from[n] = static_cast<uint8_t>(base + kStep);
    }
  return pass;
}

}  // namespace nibble::ops
