// The models that nibble knows, by the architecture that config.json names.
#include <algorithm>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "io/checkpoint.h"
#include "io/hub.h"
#include "models/gpt_oss.h"
#include "models/llama.h"
#include "models/model.h"
#include "models/qwen3.h"
#include "models/qwen3_moe.h"
#include "models/step_work.h"
#include "ops/general_rows.h"

namespace nibble {
namespace {

struct Architecture {
  const char* name;
  std::unique_ptr<SiteModel> (*make)(const Config&, const DenseFormats&);
};

constexpr Architecture kArchitectures[] = {
    {"GptOssForCausalLM", make_gpt_oss},
    {"LlamaForCausalLM", make_llama},
    {"Qwen3ForCausalLM", make_qwen3},
    {"Qwen3MoeForCausalLM", make_qwen3_moe},
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

// Nothing of it is loaded. Where there is a checkpoint, its headers are read.
std::unique_ptr<SiteModel> make_model(const ModelFiles& files, const DenseFormats& dense) {
  auto made = architecture_of(files).make(files.config, dense);
  if (!files.weights.empty()) made->take_formats(*open_checkpoint(files.weights));
  return made;
}

}  // namespace

ModelInfo describe_model(const std::string& model, const DenseFormats& dense) {
  return make_model(find_model(model), dense)->info();
}

int64_t describe_scratch(const ops::Ctx& cx, const std::string& model, const StepLimits& limits,
                         const DenseFormats& dense) {
  return make_model(find_model(model), dense)->scratch_bytes(cx, limits);
}

std::vector<WeightSpec> list_wanted_weights(const std::string& model) {
  return make_model(find_model(model), {})->weight_specs();
}

std::vector<ops::PlanEntry> plan_kernels(const ops::Ctx& cx, const std::string& model,
                                         const DenseFormats& dense) {
  const auto made = make_model(find_model(model), dense);
  made->plan(cx.kernels);
  return plan_entries(made->sites());
}

std::vector<OpWork> describe_step_work(const std::string& model, const DenseFormats& dense,
                                       const StepShape& shape) {
  std::vector<OpWork> all;
  const auto made = make_model(find_model(model), dense);
  for (const ops::Site& site : made->sites()) {
    const ops::Work work = work_of(site.problem, shape);
    all.push_back({site.label, op_name(site.key.op), work.bytes, work.flops, site.weight.format});
  }
  return all;
}

std::vector<ops::Problem> list_problems(const std::string& model, const DenseFormats& dense) {
  std::vector<ops::Problem> problems;
  const auto made = make_model(find_model(model), dense);
  for (const ops::Site& site : made->sites())
    if (std::ranges::find(problems, site.problem) == problems.end())
      problems.push_back(site.problem);
  return problems;
}

ops::Sites planned_sites(const ops::Ctx& cx, const std::string& model, const DenseFormats& dense) {
  const auto made = make_model(find_model(model), dense);
  made->plan(cx.kernels);
  return made->sites();
}

const ops::Sites& sites_of(const Model& model) {
  const auto* of_sites = dynamic_cast<const SiteModel*>(&model);
  CHECK(of_sites != nullptr);
  return of_sites->sites();
}

std::unique_ptr<Model> load_model(ops::Ctx& cx, const std::string& model,
                                  const LoadOptions& options) {
  const ModelFiles files = find_model(model);
  auto made = architecture_of(files).make(files.config, options.dense);
  made->load(cx, files, options);
  for (const std::string& line : ops::say_general_rows(plan_entries(made->sites())))
    LOG_INFO("%s", line.c_str());
  return made;
}

}  // namespace nibble
