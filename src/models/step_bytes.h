// What each op of a decode step must move, for the floor of its time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.h"

namespace nibble {

struct DecodeShape {
  int64_t streams = 1;   // one token of each
  int64_t context = 0;   // positions before it
  int64_t kv_bytes = 2;  // of a stored element
};

struct OpBytes {
  std::string op;     // as ops::op_name() calls it
  int64_t bytes = 0;  // read and written by all its launches in a step
};

// Every stream choosing its experts evenly and by itself.
std::vector<OpBytes> describe_step_bytes(const std::string& model, const DenseFormats& dense,
                                         const DecodeShape& shape);

}  // namespace nibble
