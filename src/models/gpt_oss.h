// gpt-oss: attention with sinks on alternating window and full layers, mixture of experts in MXFP4.
#pragma once

#include <memory>
#include <vector>

#include "io/checkpoint.h"
#include "io/hub.h"
#include "models/model.h"
#include "models/step_work.h"
#include "ops/plan.h"

namespace nibble {

ModelInfo describe_gpt_oss(const ModelFiles& files, const DenseFormats& dense);
int64_t describe_gpt_oss_scratch(const ops::Ctx& cx, const ModelFiles& files,
                                 const StepLimits& limits, const DenseFormats& dense);
std::vector<WeightSpec> list_gpt_oss_weights(const ModelFiles& files);
ops::KernelPlan plan_gpt_oss(const ops::Ctx& cx, const ModelFiles& files,
                             const DenseFormats& dense);
std::vector<OpWork> describe_gpt_oss_step_work(const ModelFiles& files, const DenseFormats& dense,
                                               const StepShape& shape);
std::unique_ptr<Model> load_gpt_oss(const ops::Ctx& cx, const ModelFiles& files,
                                    const LoadOptions& options);

}  // namespace nibble
