#include "ops/blocked/int8_row_kernels.h"

#include <algorithm>

#include "ops/blocked/int8_kernels.h"

namespace nibble::ops {
namespace {

constexpr int kNone = 256;  // no exponent left

// For each row the least exponent above `limit`, or kNone. Returns whether there is any.
bool least_above(const uint8_t* scales, int64_t blocks, const int* limit, int* least) {
  std::fill_n(least, kPanelRows, kNone);
  for (int64_t b = 0; b < blocks; ++b, scales += kPanelRows)
    for (int n = 0; n < kPanelRows; ++n)
      least[n] = scales[n] > limit[n] ? std::min<int>(least[n], scales[n]) : least[n];
  return std::any_of(least, least + kPanelRows, [](int e) { return e != kNone; });
}

}  // namespace

int panel_bases(const uint8_t* scales, int64_t blocks, PanelBases& bases) {
  int limit[kPanelRows], least[kPanelRows];
  std::fill_n(limit, kPanelRows, -1);
  int pass = 0;
  for (; least_above(scales, blocks, limit, least); ++pass)
    for (int n = 0; n < kPanelRows; ++n) {
      // A row with nothing left: a base that no block of it has, with a small scale if there is
      // one.
      constexpr int kStep = kMostExponentSpread + 1;
      if (least[n] == kNone)
        least[n] = pass > 0 && bases[0][n] >= kStep ? bases[0][n] - kStep : limit[n] + 1;
      bases[pass][n] = static_cast<uint8_t>(least[n]);
      limit[n] = std::max(limit[n], least[n] + kMostExponentSpread);
    }
  return pass;
}

}  // namespace nibble::ops
