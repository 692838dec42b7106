#include "models/quantization.h"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

#include "base/error.h"
#include "formats/fp8_block.h"

namespace nibble {
namespace {

constexpr const char* kAll = "Linear";

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// "a(b|c)d" as "abd" and "acd": groups that do not nest, as long as that makes no more than
// kMostAlternatives.
constexpr size_t kMostAlternatives = 64;
std::vector<std::string> alternatives(const std::string& regex) {
  std::vector<std::string> all = {regex};
  for (size_t i = 0; i < all.size() && all.size() < kMostAlternatives;) {
    const std::string one = all[i];
    const size_t open = one.find('('), close = one.find(')', open);
    if (open == std::string::npos || close == std::string::npos) {
      ++i;
      continue;
    }
    std::string inner = one.substr(open + 1, close - open - 1);
    if (inner.starts_with("?:")) inner = inner.substr(2);
    for (size_t at = 0; at <= inner.size();) {
      const size_t bar = std::min(inner.find('|', at), inner.size());
      std::string made = one.substr(0, open) + inner.substr(at, bar - at) + one.substr(close + 1);
      if (at == 0)
        all[i] = std::move(made);
      else
        all.push_back(std::move(made));
      at = bar + 1;
    }
  }
  return all;
}

// Of "re:" patterns, which must match from the first character on, those without repetitions but
// ".*" and without classes: "re:.*mlp\.gate$".
std::string glob_of_regex(std::string_view regex) {
  std::string glob;
  bool is_whole = false;
  for (size_t i = 0; i < regex.size(); ++i) {
    const bool is_last = i + 1 == regex.size();
    if (regex[i] == '^' && i == 0) continue;
    if (regex[i] == '$' && is_last)
      is_whole = true;
    else if (regex[i] == '\\' && !is_last)
      glob += regex[++i];
    else if (regex[i] == '.' && !is_last && regex[i + 1] == '*')
      glob += '*', ++i;
    else
      glob += regex[i];
  }
  return is_whole ? glob : glob + '*';
}

// The first or last words of a name, a shell's glob, or a regular expression.
bool is_match(const std::string& pattern, const std::string& module) {
  if (pattern.starts_with("re:"))
    return std::ranges::any_of(alternatives(pattern.substr(3)), [&](const std::string& regex) {
      return fnmatch(glob_of_regex(regex).c_str(), module.c_str(), 0) == 0;
    });
  if (pattern.find_first_of("*?[") != std::string::npos)
    return fnmatch(pattern.c_str(), module.c_str(), 0) == 0;
  const auto has_part = [&](size_t at) {  // of whole words between dots
    return (at == 0 || module[at - 1] == '.') &&
           (at + pattern.size() == module.size() || module[at + pattern.size()] == '.');
  };
  if (pattern.empty() || pattern.size() > module.size()) return false;
  return (module.starts_with(pattern) && has_part(0)) ||
         (module.ends_with(pattern) && has_part(module.size() - pattern.size()));
}

bool is_any(const std::vector<std::string>& patterns, const std::string& module) {
  return std::ranges::any_of(patterns, [&](const std::string& p) { return is_match(p, module); });
}

Format format_of_int4(const Config& q) {
  if (q.integer(q.has("bits") ? "bits" : "num_bits", 1, 16) != 4)
    q.fail(q.has("bits") ? "bits" : "num_bits", "is not 4");
  const int64_t group = q.integer_or("group_size", -1, -1, 1 << 20);
  if (group > 0 && group % 32 != 0) q.fail("group_size", "is not a multiple of 32");
  return group <= 0 || group % 128 == 0 ? Format::kInt4G128 : Format::kInt4G32;
}

Format format_of_awq(const Config& q) {
  if (const std::string version = q.text_or("version", "gemm"); upper(version) != "GEMM")
    q.fail("version", "is " + version + ", expected gemm");
  return format_of_int4(q);
}

Format format_of_fp8(const Config& q) {
  constexpr const char* kSize = "weight_block_size";
  if (!q.has(kSize)) return Format::kFp8Row;
  if (q.integers(kSize, 1, 1 << 20) != std::vector<int64_t>{kFp8BlockElems, kFp8BlockElems})
    q.fail(kSize, "is not [128, 128]");
  return Format::kFp8Block;
}

Format format_of_algorithm(const Config& q) {
  const std::string algorithm = upper(q.text("quant_algo"));
  for (const auto& [name, format] : {std::pair{"NVFP4", Format::kNvfp4},
                                     {"W4A16_NVFP4", Format::kNvfp4},
                                     {"W4A8_NVFP4_FP8", Format::kNvfp4},
                                     {"FP8", Format::kFp8Row},
                                     {"FP8_PER_CHANNEL_PER_TOKEN", Format::kFp8Row},
                                     {"FP8_PB_WO", Format::kFp8Block},
                                     {"FP8_BLOCK_SCALES", Format::kFp8Block},
                                     {"MXFP8", Format::kMxfp8},
                                     {"MXFP4", Format::kMxfp4},
                                     {"W4A8_MXFP4_FP8", Format::kMxfp4}})
    if (algorithm == name) return format;
  q.fail("quant_algo", "is " + algorithm + ", which nibble does not read");
}

Format format_of_group(const Config& q, const Config& group) {
  const std::string format = group.text_or("format", q.text_or("format", ""));
  const auto weights = group.object("weights");
  if (!weights) group.fail("weights", "is missing");
  if (format == "nvfp4-pack-quantized") return Format::kNvfp4;
  if (format == "mxfp4-pack-quantized") return Format::kMxfp4;
  if (format == "mxfp8-quantized") return Format::kMxfp8;
  if (format == "float-quantized" || format == "naive-quantized")
    return weights->text_or("strategy", "") == "block" ? Format::kFp8Block : Format::kFp8Row;
  if (format == "pack-quantized") return format_of_int4(*weights);
  q.fail("format", "is " + (format.empty() ? "missing" : format + ", which nibble does not read"));
}

}  // namespace

void Quantization::ignore(const Config& q, const char* key) {
  if (!q.has(key)) return;
  for (std::string& name : q.texts(key)) ignored_.push_back(std::move(name));
}

void Quantization::add_modelopt(const Config& q) {
  ignore(q, "ignore"), ignore(q, "exclude_modules");
  if (upper(q.text("quant_algo")) != "MIXED_PRECISION") {
    groups_.push_back({{kAll}, format_of_algorithm(q)});
    return;
  }
  const auto layers = q.object("quantized_layers");
  if (!layers) q.fail("quantized_layers", "is missing");
  for (const std::string& module : layers->keys())
    groups_.push_back({{module}, format_of_algorithm(*layers->object(module))});
}

void Quantization::add_compressed_tensors(const Config& q) {
  ignore(q, "ignore");
  const auto groups = q.object("config_groups");
  if (!groups) q.fail("config_groups", "is missing");
  for (const std::string& name : groups->keys()) {
    const auto group = groups->object(name);
    const Format format = format_of_group(q, *group);
    const bool is_symmetric = group->object("weights")->boolean_or("symmetric", true);
    groups_.push_back({group->texts("targets"), format, !is_symmetric});
  }
}

Quantization::Quantization(const Config& config) : origin_(config.origin() + ": ") {
  const auto q = config.object("quantization_config");
  if (!q) return;
  const std::string method = q->text("quant_method");
  if (method == "modelopt" || method == "modelopt_fp4") {
    add_modelopt(*q);
    return;
  }
  if (method == "compressed-tensors") {
    add_compressed_tensors(*q);
    return;
  }
  ignore(*q, "modules_to_not_convert");
  ignored_.emplace_back("lm_head");  // which these leave as it is
  if (method == "fp8")
    groups_.push_back({{kAll}, format_of_fp8(*q)});
  else if (method == "awq")
    groups_.push_back({{kAll}, format_of_awq(*q), q->boolean_or("zero_point", false)});
  else if (method == "mxfp4")
    groups_.push_back({{kAll}, Format::kMxfp4});
  else
    q->fail("quant_method",
            "is " + method + ", expected modelopt, compressed-tensors, fp8, awq or mxfp4");
}

void Quantization::take(std::span<const WeightInfo> weights) {
  for (const WeightInfo& w : weights) {
    on_disk_[w.name] = w.format;
    const bool is_int4 = w.format == Format::kInt4G32 || w.format == Format::kInt4G128;
    if (!is_int4 || w.zeros != nullptr) continue;
    const std::string module = w.name.substr(0, w.name.rfind('.'));
    if (const Group* group = group_of(module); group != nullptr && group->has_zeros)
      throw Error(ErrorKind::kCheckpoint,
                  origin_ + "quantization_config: says that weights have zero points; tensor \"" +
                      module + (w.is_awq ? ".qzeros" : ".weight_zero_point") + "\" is missing");
  }
}

const Quantization::Group* Quantization::group_of(const std::string& module) const {
  if (is_any(ignored_, module)) return nullptr;
  for (const Group& group : groups_)
    if (std::ranges::find(group.targets, kAll) != group.targets.end() ||
        is_any(group.targets, module))
      return &group;
  return nullptr;
}

Format Quantization::format_of(const std::string& module) const {
  if (const auto found = on_disk_.find(module + ".weight"); found != on_disk_.end())
    return found->second;
  const Group* group = group_of(module);
  return group == nullptr ? Format::kBF16 : group->format;
}

}  // namespace nibble
