// gpt-oss: attention with sinks on alternating window and full layers, mixture of experts in MXFP4.
#pragma once

#include <memory>

#include "io/hub.h"
#include "models/model.h"
#include "ops/plan.h"

namespace nibble {

ModelInfo describe_gpt_oss(const ModelFiles& files);
int64_t describe_gpt_oss_scratch(const ops::Ctx& cx, const ModelFiles& files,
                                 const StepLimits& limits);
ops::KernelPlan plan_gpt_oss(const ops::Ctx& cx, const ModelFiles& files);
std::unique_ptr<Model> load_gpt_oss(const ops::Ctx& cx, const ModelFiles& files,
                                    const LoadOptions& options);

}  // namespace nibble
