#include "cli/dense_flags.h"

#include <CLI/App.hpp>
#include <algorithm>

#include "base/error.h"
#include "cli/text_table.h"

namespace nibble::cli {
namespace {

struct DenseLayer {
  const char* name;
  Format DenseFormats::*format;
};
constexpr DenseLayer kDenseLayers[] = {{"qkv", &DenseFormats::qkv},
                                       {"o", &DenseFormats::out},
                                       {"mlp", &DenseFormats::mlp},
                                       {"lm_head", &DenseFormats::unembed}};

// Ever smaller, but for nvfp4, which is for its own sake.
constexpr Format kDenseFormats[] = {Format::kBF16, Format::kMxfp8, Format::kMxfp4, Format::kNvfp4};

Format dense_format(const std::string& name) {
  for (const Format format : kDenseFormats)
    if (format_name(format) == name) return format;
  throw Error(ErrorKind::kUsage,
              "--dense-format " + name + ": expected bf16, mxfp8, mxfp4 or nvfp4");
}

// Kernels made for it, not those that take everything.
bool has_kernels(const ops::Ctx& cx, const std::string& model, const DenseFormats& dense) {
  try {
    return std::ranges::none_of(plan_kernels(cx, model, dense), [](const ops::PlanEntry& entry) {
      return ops::is_general(entry.kernel);
    });
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

void add_dense_flags(CLI::App& command, DenseFlags& flags, const std::string& group) {
  command
      .add_option("--dense-format", flags.dense_format,
                  "of attention's, dense MLPs' and the head's matrices: bf16, mxfp8, mxfp4 or "
                  "nvfp4, encoded on load")
      ->capture_default_str()
      ->check(CLI::IsMember({"bf16", "mxfp8", "mxfp4", "nvfp4"}))
      ->group(group);
  command
      .add_option("--mxfp4-layers", flags.mxfp4_layers,
                  "those of qkv, o, mlp and lm_head that become mxfp4 whatever --dense-format says")
      ->delimiter(',')
      ->group(group);
}

DenseFormats dense_formats(const DenseFlags& flags) {
  const Format all = dense_format(flags.dense_format);
  DenseFormats dense{all, all, all, all};
  for (const std::string& layer : flags.mxfp4_layers) {
    const auto* known = std::find_if(std::begin(kDenseLayers), std::end(kDenseLayers),
                                     [&](const DenseLayer& l) { return l.name == layer; });
    if (known == std::end(kDenseLayers))
      throw Error(ErrorKind::kUsage,
                  "--mxfp4-layers " + layer + ": expected some of qkv, o, mlp, lm_head");
    dense.*known->format = Format::kMxfp4;
  }
  return dense;
}

std::string dense_text(const DenseFormats& dense) {
  if (dense.qkv == dense.out && dense.out == dense.mlp && dense.mlp == dense.unembed)
    return std::string(format_name(dense.qkv));
  std::string text;
  for (const DenseLayer& layer : kDenseLayers) {
    if (layer.format == &DenseFormats::mlp && dense.mlp == dense.out) continue;
    text += (text.empty() ? "" : ", ") + std::string(layer.name) + " " +
            std::string(format_name(dense.*layer.format));
  }
  return text;
}

std::string faster_dense_advice(const ops::Ctx& cx, const std::string& model,
                                const DenseFormats& dense) {
  const int64_t now = describe_model(model, dense).weight_bytes_per_token;
  for (const Format format : kDenseFormats) {
    const DenseFormats faster{format, format, format, format};
    if (!has_kernels(cx, model, faster)) continue;
    const int64_t then = describe_model(model, faster).weight_bytes_per_token;
    if (then >= now) continue;
    const bool is_large = now >= 1'000'000'000;
    const auto amount = [&](int64_t bytes) {
      return fixed_digits(static_cast<double>(bytes) / (is_large ? 1e9 : 1e6), is_large ? 2 : 1);
    };
    return "faster: --dense-format " + std::string(format_name(format)) + " reads " + amount(then) +
           (is_large ? " GB" : " MB") + " a token instead of " + amount(now) + ", at most " +
           fixed_digits(static_cast<double>(now) / static_cast<double>(then), 2) +
           " times the tokens/s of one stream; its cost in quality: docs/quality.md";
  }
  return "";
}

}  // namespace nibble::cli
