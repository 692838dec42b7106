// The general rows of kernel tables: the last of each, which take any shape and format and end in
// "_any"; "_or_any": those that run prompts alone as it does.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ops/plan.h"

namespace nibble::ops {

// A line for each op that some layer runs by its general row, and why not by the nearest better one
// for this machine, of rows that no size of step would make run if there are such: "moe_up of 24
// layers by cuda_any, which takes any shape; cuda_w4a16_decode: more than 8 experts a token". Not
// where an op has no other row for such a device. All refusals are in the entries; `doctor` lists
// them.
std::vector<std::string> say_general_rows(std::span<const PlanEntry> entries);

}  // namespace nibble::ops
