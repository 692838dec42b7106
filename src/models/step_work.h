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
  int64_t tokens = 0;              // that its kernel is chosen by
  int64_t bytes = 0;               // read and written
  int64_t flops = 0;               // of its products
  Format weights = Format::kBF16;  // its matrix, if it has one
};

// What each of a model's sites sees of a step: those behind the last op in which tokens meet only
// the rows of a prompt that give logits, as SiteModel::out_rows_of() leaves out the others.
std::vector<StepShape> shapes_at(const ops::Sites& sites, const StepShape& shape);

// Every token choosing its experts evenly and by itself.
std::vector<OpWork> describe_step_work(const std::string& model, const DenseFormats& dense,
                                       const StepShape& shape, const Shard& shard = {});

// What its sites compute, each problem once, in the order of a step.
std::vector<ops::Problem> list_problems(const std::string& model, const DenseFormats& dense = {});

// Its sites, nothing loaded; with the kernels chosen for them.
ops::Sites list_sites(const std::string& model, const DenseFormats& dense = {});
ops::Sites planned_sites(const ops::Ctx& cx, const std::string& model,
                         const DenseFormats& dense = {}, const Shard& shard = {});
// Those of a model that is loaded, whose plan may have changed by what its weights hold.
const ops::Sites& sites_of(const Model& model);

}  // namespace nibble
