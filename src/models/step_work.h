// What each op of a step must move and multiply, for the floor of its time.
#pragma once

#include <string>
#include <vector>

#include "models/model.h"
#include "ops/site.h"

namespace nibble {

using ops::StepShape;

// Of one site, of a split model on this rank.
struct OpWork {
  std::string site, op;            // its label; as ops::op_name() calls its op
  int64_t bytes = 0;               // read and written
  int64_t flops = 0;               // of its products
  Format weights = Format::kBF16;  // its matrix, if it has one
};

// Every token choosing its experts evenly and by itself.
std::vector<OpWork> describe_step_work(const std::string& model, const DenseFormats& dense,
                                       const StepShape& shape, const Shard& shard = {});

// What its sites compute, each problem once, in the order of a step.
std::vector<ops::Problem> list_problems(const std::string& model, const DenseFormats& dense = {});

// Its sites with the kernels chosen for them, nothing loaded.
ops::Sites planned_sites(const ops::Ctx& cx, const std::string& model,
                         const DenseFormats& dense = {}, const Shard& shard = {});
// Those of a model that is loaded, whose plan may have changed by what its weights hold.
const ops::Sites& sites_of(const Model& model);

}  // namespace nibble
