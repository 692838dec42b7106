#include "cli/spark_advice.h"

#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cli/projection.h"
#include "cli/text_table.h"

namespace nibble::cli {
namespace {

constexpr int64_t kContext = 2048, kPrompt = 2048;
// What is projected to gain less is not worth a word.
constexpr double kWorth = 1.02;

struct Projected {
  double decode = 0, prompt = 0;  // tokens a second
};

Projected project_both(const std::string& model, const SparkSettings& s) {
  const auto device = find_projection_device("gb10");
  const int64_t kv_bytes = dtype_bytes(s.kv);
  const auto rate = [&](const ops::StepShape& shape) {
    double seconds = 0;
    for (const ProjectedOp& op : project_step(model, s.dense, s.activations, shape, *device))
      seconds += op.time.seconds();
    return static_cast<double>(shape.streams * shape.tokens) / seconds;
  };
  return {rate({.context = kContext, .kv_bytes = kv_bytes, .act_bytes = 2}),
          rate({.tokens = kPrompt, .kv_bytes = kv_bytes, .act_bytes = 2})};
}

// From the cheapest on, as docs/quality.md measured them on the model that ships.
struct Step {
  std::string_view flags, kl;
  std::optional<Format> dense;
};
constexpr Step kSteps[] = {
    {"--activations fp8 --kv-cache-dtype fp8", "0.0005", {}},
    {"--activations fp8 --kv-cache-dtype fp8 --dense-format mxfp8", "0.0009", Format::kMxfp8},
    {"--activations fp8 --kv-cache-dtype fp8 --dense-format mxfp4", "0.0059", Format::kMxfp4}};

SparkSettings with(const SparkSettings& now, const Step& step) {
  SparkSettings then{now.dense, ops::ActFormat::kFp8, DType::kF8E4M3};
  if (step.dense)
    for (Format DenseFormats::*const of :
         {&DenseFormats::qkv, &DenseFormats::out, &DenseFormats::unembed, &DenseFormats::mlp})
      then.dense.*of = *step.dense;
  return then;
}

}  // namespace

std::string spark_advice(const std::string& model, const SparkSettings& now) try {
  const bool refuses_fp8_kv = !describe_model(model, now.dense).refuses_fp8_kv.empty();
  const Projected before = project_both(model, now);
  TextTable table(
      {"projected on a GB10, not measured", ">one stream", ">a prompt of 2,048", ">KL"});
  const auto add = [&](std::string_view what, const Projected& rates, std::string_view kl) {
    table.add({std::string(what), fixed_digits(rates.decode, 0),
               with_commas(std::llround(rates.prompt)), std::string(kl)});
  };
  add("as set", before, "");
  Projected best = before;
  int faster = 0;
  for (const Step& step : kSteps) {
    if (refuses_fp8_kv) break;
    const Projected after = project_both(model, with(now, step));
    const bool gains = after.decode >= kWorth * best.decode || after.prompt >= kWorth * best.prompt;
    const bool loses = kWorth * after.decode < best.decode || kWorth * after.prompt < best.prompt;
    if (!gains || loses) continue;
    best = after;
    add(step.flags, after, step.kl);
    ++faster;
  }
  if (faster == 0) return "";
  return table.plain() +
         "tokens/s, at a context of 2,048; KL: what it costs the small model that ships "
         "(docs/quality.md; its terms: docs/gpu.md)\n";
} catch (const Error&) {
  return "";  // a row whose cost is not known
}

}  // namespace nibble::cli
