// What each op of a step must move and multiply, for the floor of its time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.h"

namespace nibble {

struct StepShape {
  int64_t streams = 1;
  int64_t tokens = 1;     // of each, one after the other
  int64_t context = 0;    // positions before them
  int64_t kv_bytes = 2;   // of an element of keys and values
  int64_t act_bytes = 4;  // of one of h, q, att and u
  bool logits = true;     // of the last token of each
};

struct OpWork {
  std::string op;                  // as ops::op_name() calls it
  int64_t bytes = 0;               // read and written by all its launches in a step
  int64_t flops = 0;               // of its products
  Format weights = Format::kBF16;  // its matrix, if it has one
};

// Every token choosing its experts evenly and by itself.
std::vector<OpWork> describe_step_work(const std::string& model, const DenseFormats& dense,
                                       const StepShape& shape);

}  // namespace nibble
