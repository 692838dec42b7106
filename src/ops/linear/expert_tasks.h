// Work on the experts that a step chose, in blocks of rows, spread over the workers.
#pragma once

#include <algorithm>

#include "cpu/thread_pool.h"
#include "ops/linear/product.h"
#include "ops/routing.h"

namespace nibble::ops {

// Calls body(expert, row, rows, worker) for each block of kRows rows (the last of an expert may be
// shorter) of each expert with slots.
template <int64_t kRows, typename Body>
void for_expert_blocks(Ctx& cx, const Routing& routing, const Weight& w, const Body& body) {
  const int64_t active =
      routing.num_experts - std::count(routing.counts, routing.counts + routing.num_experts, 0);
  const int64_t per_task = std::min(task_rows(active * w.rows, kRows, cx.pool->size()),
                                    (w.rows + kRows - 1) / kRows * kRows);
  const int64_t tasks_each = (w.rows + per_task - 1) / per_task;
  cx.pool->parallel_tasks(active * tasks_each, [&](int64_t task, int worker) {
    int64_t e = -1;
    for (int64_t left = task / tasks_each; left >= 0; --left)
      while (routing.counts[++e] == 0) {
      }
    const int64_t begin = task % tasks_each * per_task, end = std::min(w.rows, begin + per_task);
    for (int64_t row = begin; row < end; row += kRows)
      body(e, row, std::min<int64_t>(kRows, end - row), worker);
  });
}

}  // namespace nibble::ops
