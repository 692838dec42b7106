// Work on the experts that a step chose, in blocks of rows, spread over the workers.
#pragma once

#include <algorithm>

#include "cpu/thread_pool.h"
#include "ops/cpu_matmul/product.h"
#include "ops/routing.h"

namespace nibble::ops {

// Calls body(expert, row, rows, worker) for each block of kRows rows (the last of an expert may be
// shorter) of each expert with slots.
template <int64_t kRows, typename Body>
void for_expert_blocks(Ctx& cx, const Routing& routing, const Weight& w, const Body& body) {
  const int64_t active =
      routing.num_experts - std::count(routing.counts, routing.counts + routing.num_experts, 0);
  const int64_t blocks = (w.rows + kRows - 1) / kRows;  // of an expert
  cx.pool->parallel_blocks(active * blocks, [&](int64_t block, int64_t end, int worker) {
    int64_t e = -1;
    const auto next_expert = [&] {
      while (routing.counts[++e] == 0) {
      }
    };
    for (int64_t left = block / blocks; left >= 0; --left) next_expert();
    while (true) {
      const int64_t row = block % blocks * kRows;
      body(e, row, std::min<int64_t>(kRows, w.rows - row), worker);
      if (++block == end) return;
      if (block % blocks == 0) next_expert();
    }
  });
}

}  // namespace nibble::ops
