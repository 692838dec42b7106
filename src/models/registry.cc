// The models that nibble knows, by the architecture that config.json names.
#include <string>

#include "base/error.h"
#include "io/checkpoint.h"
#include "io/hub.h"
#include "models/gpt_oss.h"
#include "models/model.h"
#include "models/step_work.h"

namespace nibble {
namespace {

struct Architecture {
  const char* name;
  ModelInfo (*describe)(const ModelFiles&, const DenseFormats&);
  int64_t (*scratch)(const ops::Ctx&, const ModelFiles&, const StepLimits&, const DenseFormats&);
  std::vector<WeightSpec> (*wanted)(const ModelFiles&);
  ops::KernelPlan (*plan)(const ops::Ctx&, const ModelFiles&, const DenseFormats&);
  std::vector<OpWork> (*step_work)(const ModelFiles&, const DenseFormats&, const StepShape&);
  std::unique_ptr<Model> (*load)(const ops::Ctx&, const ModelFiles&, const LoadOptions&);
};

constexpr Architecture kArchitectures[] = {
    {"GptOssForCausalLM", describe_gpt_oss, describe_gpt_oss_scratch, list_gpt_oss_weights,
     plan_gpt_oss, describe_gpt_oss_step_work, load_gpt_oss},
};

const Architecture& architecture_of(const ModelFiles& files) {
  const std::vector<std::string> names = files.config.texts("architectures");
  std::string known;
  for (const Architecture& a : kArchitectures) {
    for (const std::string& name : names)
      if (name == a.name) return a;
    known += std::string(known.empty() ? "" : ", ") + a.name;
  }
  throw Error(ErrorKind::kUnsupported,
              files.config.origin() + ": architectures: " + (names.empty() ? "none" : names[0]) +
                  " is not one that nibble has (" + known + ")");
}

}  // namespace

ModelInfo describe_model(const std::string& model, const DenseFormats& dense) {
  const ModelFiles files = find_model(model);
  return architecture_of(files).describe(files, dense);
}

int64_t describe_scratch(const ops::Ctx& cx, const std::string& model, const StepLimits& limits,
                         const DenseFormats& dense) {
  const ModelFiles files = find_model(model);
  return architecture_of(files).scratch(cx, files, limits, dense);
}

std::vector<WeightSpec> list_wanted_weights(const std::string& model) {
  const ModelFiles files = find_model(model);
  return architecture_of(files).wanted(files);
}

ops::KernelPlan plan_kernels(const ops::Ctx& cx, const std::string& model,
                             const DenseFormats& dense) {
  const ModelFiles files = find_model(model);
  return architecture_of(files).plan(cx, files, dense);
}

std::vector<OpWork> describe_step_work(const std::string& model, const DenseFormats& dense,
                                       const StepShape& shape) {
  const ModelFiles files = find_model(model);
  return architecture_of(files).step_work(files, dense, shape);
}

std::unique_ptr<Model> load_model(ops::Ctx& cx, const std::string& model,
                                  const LoadOptions& options) {
  const ModelFiles files = find_model(model);
  return architecture_of(files).load(cx, files, options);
}

}  // namespace nibble
