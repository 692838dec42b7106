// What a block has of a dense matrix whose weights stream (gemm_stream_sm90.cuh,
// gemm_rows_sm90.cuh): rows, and a share of K. Blocks that share K meet, so all run at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace nibble::ops::gpu {

inline constexpr int kStreamMostRows = 256, kStreamMostShares = 8;

struct StreamPlan {
  int of_block = kStreamMostRows;
  int shares = 1;
  int64_t blocks = 0;
};

// Tokens that a product of so many, up to 64, is made for.
inline int stream_width(int64_t tokens) { return tokens <= 16 ? 16 : tokens <= 32 ? 32 : 64; }
// Float32 of the shares' sums, at most.
inline int64_t stream_parts(int64_t rows, int64_t tokens) {
  return kStreamMostShares * (rows + kStreamMostRows) * stream_width(tokens);
}

// Of NVFP4: blocks of 192 or 256 rows, shares in chunks of 256. For the fewest chunks to the
// warpgroups of an SM; meeting takes as long as four.
inline StreamPlan plan_unit_stream(int64_t rows, int64_t cols, int num_sms) {
  StreamPlan best;
  int64_t least = std::numeric_limits<int64_t>::max();
  const int64_t chunks = cols / 256;
  for (const int of_block : {192, 256})
    for (int shares = 1; shares <= std::min<int64_t>(kStreamMostShares, chunks); ++shares) {
      const int64_t blocks = (rows + of_block - 1) / of_block * shares;
      if (shares > 1 && blocks > num_sms) break;
      const int64_t rounds = (blocks + num_sms - 1) / num_sms;
      const int64_t each = (chunks + shares - 1) / shares * (of_block / 64);
      const int64_t cost = rounds * (each + (shares > 1 ? 4 : 0));
      if (cost < least) least = cost, best = {of_block, shares, blocks};
    }
  return best;
}

// Of BF16 rows: any 16, or of shares, in units of 64, any 64. For the fewest bytes to an SM, so
// many tokens of x among them; meeting costs as much as 40 KB, and what is left for the others.
inline StreamPlan plan_rows_stream(int64_t rows, int64_t cols, int width, int num_sms) {
  StreamPlan best;
  int64_t least = std::numeric_limits<int64_t>::max();
  const int64_t units = cols / 64;
  for (int shares = 1; shares <= std::min<int64_t>(4, units); shares *= 2) {
    const int64_t step = shares == 1 ? 16 : 64, tiles = std::max(1, num_sms / shares);
    const int64_t even = ((rows + tiles - 1) / tiles + step - 1) / step * step;
    const int64_t of_block = std::min<int64_t>(even, kStreamMostRows);
    const int64_t blocks = (rows + of_block - 1) / of_block * shares;
    const int64_t rounds = (blocks + num_sms - 1) / num_sms;
    if (shares > 1 && rounds > 1) break;
    int64_t cost = (of_block + width) * ((units + shares - 1) / shares) * 128;
    if (shares > 1) cost += 40 * 1024 + shares * of_block * width * 4;
    if (rounds * cost < least)
      least = rounds * cost, best = {static_cast<int>(of_block), shares, blocks};
  }
  return best;
}

}  // namespace nibble::ops::gpu
