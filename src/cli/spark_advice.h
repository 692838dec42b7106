// What a DGX Spark would gain by rounding more, and what that costs: printed at start-up there, and
// by `nibble plan --device gb10`.
#pragma once

#include <string>

#include "models/model.h"
#include "ops/kernel_table.h"
#include "tensor/dtype.h"

namespace nibble::cli {

struct SparkSettings {
  DenseFormats dense = {};
  ops::ActFormat activations = ops::ActFormat::kBF16;
  DType kv = DType::kBF16;
};

// A line for `now` and one for each setting that is faster, in the order of their cost in quality:
// projected tokens a second (cli/projection.h), and the KL divergence that it costs the model that
// ships (docs/quality.md). Empty where no cost of the model's kernels is known, or nothing is
// faster.
std::string spark_advice(const std::string& model, const SparkSettings& now);

}  // namespace nibble::cli
