#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "formats/bf16.h"
#include "formats/f16.h"
#include "formats/fp8_block.h"
#include "io/checkpoint.h"

namespace nibble {
namespace {

constexpr std::string_view kBlocks = "_blocks", kScales = "_scales";
constexpr std::string_view kWeight = ".weight", kPacked = ".weight_packed", kAwq = ".qweight";

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

std::string text_of(const TensorInfo& t) {
  return std::string(safetensors_dtype_name(t.dtype)) + " " + shape_text(t.shape);
}

[[noreturn]] void fail(const Checkpoint& checkpoint, const std::string& tensor,
                       const std::string& what, ErrorKind kind = ErrorKind::kCheckpoint) {
  throw Error(kind, checkpoint.origin() + ": tensor \"" + tensor + "\": " + what);
}

// gpt-oss: NAME_blocks [..., K/32, 16] and NAME_scales [..., K/32].
WeightInfo pair_mxfp4(const Checkpoint& checkpoint, const TensorInfo& blocks) {
  constexpr FormatRow kFormat = format_row(Format::kMxfp4);
  const std::string name = blocks.name.substr(0, blocks.name.size() - kBlocks.size());
  const TensorInfo* scales = checkpoint.find(name + std::string(kScales));
  if (scales == nullptr) fail(checkpoint, blocks.name, "has no " + name + "_scales beside it");
  if (blocks.dtype != DType::kU8 || blocks.shape.size() < 2 ||
      blocks.shape.back() != kFormat.code_bytes)
    fail(checkpoint, blocks.name, "found " + text_of(blocks) + ", expected U8 [..., 16] for MXFP4");
  std::vector<int64_t> shape(blocks.shape.begin(), blocks.shape.end() - 1);
  if (scales->dtype != DType::kU8 || scales->shape != shape)
    fail(checkpoint, scales->name,
         "found " + text_of(*scales) + ", expected U8 " + shape_text(shape) + " beside its blocks");
  if (__builtin_mul_overflow(shape.back(), kFormat.block_elems, &shape.back()))
    fail(checkpoint, blocks.name, "its shape overflows");
  return {name, std::move(shape), Format::kMxfp4, &blocks, scales};
}

// The tensors of one module, found by the name of its codes.
class Module {
 public:
  Module(const Checkpoint& checkpoint, const TensorInfo& codes, std::string_view suffix)
      : checkpoint_(checkpoint),
        codes_(codes),
        base_(codes.name.substr(0, codes.name.size() - suffix.size())),
        scale_(part("weight_scale")) {
    if (codes.shape.size() == 2) rows_ = codes.shape[0], cols_ = codes.shape[1];
  }

  // What would change the product and is not read: leaving it out would be silent garbage.
  void refuse_unknown_parts() const {
    for (const char* name :
         {"pre_quant_scale", "weight_g_idx", "g_idx", "svdquant_lora_a", "svdquant_lora_b"})
      if (const TensorInfo* found = part(name))
        fail(checkpoint_, found->name, "is part of a format that nibble does not read",
             ErrorKind::kUnsupported);
  }

  // Codes of 4 bits, two a byte along K.
  WeightInfo nibbles() const {
    if (codes_.dtype == DType::kI32) return int4();
    require(codes_.dtype == DType::kU8 && is_matrix(), codes_, "U8 [N, K/2]");
    const TensorInfo& scales = require_part("weight_scale");
    const bool is_nvfp4 = scales.dtype == DType::kF8E4M3;
    const Format format = is_nvfp4 ? Format::kNvfp4 : Format::kMxfp4;
    require_shape(scales, is_nvfp4 ? DType::kF8E4M3 : DType::kU8,
                  {rows_, 2 * cols_ / format_row(format).block_elems});
    require(2 * cols_ % format_row(format).block_elems == 0, codes_, "whole blocks along K");
    WeightInfo info{name(), {rows_, 2 * cols_}, format, &codes_, &scales};
    if (!is_nvfp4) return info;
    const TensorInfo* multiplier = part("weight_scale_2");
    const TensorInfo* divisor = part("weight_global_scale");
    if ((multiplier == nullptr) == (divisor == nullptr))
      fail(checkpoint_, codes_.name,
           "NVFP4 needs one of " + base_ + ".weight_scale_2 and " + base_ +
               ".weight_global_scale beside it");
    info.row_scales = multiplier != nullptr ? multiplier : divisor;
    info.is_divisor = divisor != nullptr;
    require(num_elements(*info.row_scales) == 1 && is_real(*info.row_scales), *info.row_scales,
            "one float");
    return info;
  }

  // compressed-tensors: eight codes a word along K.
  WeightInfo int4() const {
    require(is_matrix(), codes_, "I32 [N, K/8]");
    WeightInfo info{name(), {rows_, 8 * cols_}, Format::kInt4G32, &codes_};
    info.scales = &require_part("weight_scale");
    info.zeros = part("weight_zero_point");
    require_groups(info, {rows_}, /*group_dim=*/1);
    if (info.zeros != nullptr)
      require_shape(*info.zeros, DType::kI32, {(rows_ + 7) / 8, info.scales->shape[1]});
    return info;
  }

  // AWQ: eight codes a word along N.
  WeightInfo awq() const {
    require(codes_.dtype == DType::kI32 && is_matrix(), codes_, "I32 [K, N/8]");
    WeightInfo info{name(), {8 * cols_, rows_}, Format::kInt4G32, &codes_};
    info.is_awq = true;
    info.scales = &require_part("scales");
    info.zeros = part("qzeros");
    if (info.scales->shape.size() == 2 && info.scales->shape[1] == cols_)
      fail(checkpoint_, codes_.name, "is GPTQ, which nibble does not read",
           ErrorKind::kUnsupported);
    require_groups(info, {8 * cols_}, /*group_dim=*/0);
    if (info.zeros != nullptr)
      require_shape(*info.zeros, DType::kI32, {info.scales->shape[0], cols_});
    return info;
  }

  WeightInfo e4m3() const {
    require(is_matrix(), codes_, "F8_E4M3 [N, K]");
    WeightInfo info{name(), {rows_, cols_}, Format::kFp8Block, &codes_, nullptr};
    info.scales = part("weight_scale_inv");
    if (info.scales != nullptr && scale_ != nullptr)
      fail(checkpoint_, scale_->name, "is there beside " + info.scales->name);
    if (info.scales == nullptr) info.scales = &require_part("weight_scale");
    const TensorInfo& scales = *info.scales;
    if (scales.dtype == DType::kU8) {
      require_shape(scales, DType::kU8, {rows_, cols_ / 32});
      require(cols_ % 32 == 0, codes_, "a multiple of 32 columns");
      info.format = Format::kMxfp8;
      return info;
    }
    require(is_real(scales), scales, "F32, BF16 or F16, or U8 for MXFP8");
    const std::vector<int64_t> dims = squeezed(scales.shape);
    const bool is_of_blocks = scales.name.ends_with("_inv");
    const bool is_of_rows = scales.shape == std::vector<int64_t>{rows_} ||
                            scales.shape == std::vector<int64_t>{rows_, 1};
    if (!is_of_blocks && (dims.empty() || is_of_rows)) {
      info.format = Format::kFp8Row;
      info.row_scales = std::exchange(info.scales, nullptr);
      return info;
    }
    const auto blocks = [](int64_t n) { return (n + kFp8BlockElems - 1) / kFp8BlockElems; };
    require(squeezed({blocks(rows_), blocks(cols_)}) == dims, scales,
            "one scale, one a row, or one for each 128 x 128 of " + shape_text({rows_, cols_}));
    return info;
  }

  WeightInfo plain() const {
    if (scale_ != nullptr)
      fail(checkpoint_, scale_->name,
           "is beside a tensor that is not quantized: " + codes_.name + " is " + text_of(codes_));
    return plain_weight(checkpoint_, codes_);
  }

  static WeightInfo plain_weight(const Checkpoint& checkpoint, const TensorInfo& tensor) {
    for (const auto& [dtype, format] : {std::pair{DType::kBF16, Format::kBF16},
                                        {DType::kF16, Format::kF16},
                                        {DType::kF32, Format::kF32}})
      if (tensor.dtype == dtype) return {tensor.name, tensor.shape, format, &tensor};
    fail(checkpoint, tensor.name,
         "no weight format is stored as " + std::string(safetensors_dtype_name(tensor.dtype)) +
             " under this name; nibble reads BF16, F16, F32, FP8, MXFP8, NVFP4, MXFP4 and INT4");
  }

 private:
  // Of sizes that can be multiplied by what a block has.
  bool is_matrix() const {
    return codes_.shape.size() == 2 && rows_ > 0 && cols_ > 0 && rows_ <= INT32_MAX &&
           cols_ <= INT32_MAX;
  }
  const TensorInfo* part(const char* name) const { return checkpoint_.find(base_ + "." + name); }
  std::string name() const { return base_ + std::string(kWeight); }

  static int64_t num_elements(const TensorInfo& t) {
    int64_t n = 1;
    for (const int64_t d : t.shape) n *= d;
    return n;
  }
  static bool is_real(const TensorInfo& t) {
    return t.dtype == DType::kF32 || t.dtype == DType::kBF16 || t.dtype == DType::kF16;
  }
  // Without dimensions of 1.
  static std::vector<int64_t> squeezed(std::vector<int64_t> shape) {
    std::erase(shape, 1);
    return shape;
  }
  const TensorInfo& require_part(const char* name) const {
    const TensorInfo* found = part(name);
    if (found == nullptr)
      fail(checkpoint_, codes_.name, "has no " + base_ + "." + name + " beside it");
    return *found;
  }
  // Scales of groups along K, [N, K/G] or [K/G, N], G a multiple of 32; 128 where that divides it.
  void require_groups(WeightInfo& info, const std::vector<int64_t>& rows, size_t group_dim) const {
    const TensorInfo& scales = *info.scales;
    const int64_t cols = info.shape[1];
    const bool fits = scales.shape.size() == 2 && scales.shape[1 - group_dim] == rows[0] &&
                      scales.shape[group_dim] > 0 && cols % scales.shape[group_dim] == 0 &&
                      (scales.dtype == DType::kF16 || scales.dtype == DType::kBF16);
    require(fits, scales, "F16 or BF16 scales of groups of " + shape_text(info.shape));
    const int64_t group = cols / scales.shape[group_dim];
    require(group % 32 == 0, scales, "groups of a multiple of 32 columns");
    if (group % 128 == 0) info.format = Format::kInt4G128;
  }
  void require(bool fits, const TensorInfo& t, const std::string& expected) const {
    if (!fits) fail(checkpoint_, t.name, "found " + text_of(t) + ", expected " + expected);
  }
  void require_shape(const TensorInfo& t, DType dtype, const std::vector<int64_t>& shape) const {
    require(t.dtype == dtype && t.shape == shape, t,
            std::string(safetensors_dtype_name(dtype)) + " " + shape_text(shape) + " beside " +
                codes_.name + " " + text_of(codes_));
  }

  const Checkpoint& checkpoint_;
  const TensorInfo& codes_;
  std::string base_;
  const TensorInfo* scale_;
  int64_t rows_ = 0, cols_ = 0;
};

// The last part of a tensor's name; empty where it has but one.
std::string_view last_part(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : std::string_view(name).substr(dot + 1);
}

bool is_kv_scale(const std::string& name) {
  const std::string_view last = last_part(name);
  return last == "k_scale" || last == "v_scale" || last == "kv_scale";
}
// Of the queries and weights of an attention in FP8.
bool is_attention_scale(const std::string& name) {
  const std::string_view last = last_part(name);
  return last == "q_scale" || last == "prob_scale";
}

// Parts of a weight that is listed by its codes, scales of activations, and tables of ids.
bool is_companion(const Checkpoint& checkpoint, const std::string& name) {
  const std::string_view last = last_part(name);
  if (name == "d2t" || name == "t2d") return true;  // ids of a vocabulary: see models/eagle3.h
  if (last.empty()) return false;
  if (is_kv_scale(name) || is_attention_scale(name)) return true;
  const std::string base = name.substr(0, name.size() - last.size() - 1);
  if (last == "qzeros" || last == "scales" || last == "g_idx")
    return checkpoint.find(base + std::string(kAwq)) != nullptr;
  constexpr std::string_view kParts[] = {
      "weight_scale",      "weight_scale_2",     "weight_global_scale", "weight_scale_inv",
      "input_scale",       "input_global_scale", "pre_quant_scale",     "weight_g_idx",
      "weight_zero_point", "weight_shape",       "svdquant_lora_a",     "svdquant_lora_b"};
  if (std::ranges::find(kParts, last) == std::end(kParts)) return false;
  if (checkpoint.find(base + std::string(kWeight)) == nullptr &&
      checkpoint.find(base + std::string(kPacked)) == nullptr)
    fail(checkpoint, name, "has neither " + base + ".weight nor .weight_packed beside it");
  return true;
}

WeightInfo weight_of(const Checkpoint& checkpoint, const TensorInfo& t) {
  if (t.name.ends_with(kBlocks)) return pair_mxfp4(checkpoint, t);
  if (t.name.ends_with(kAwq)) {
    const Module module(checkpoint, t, kAwq);
    module.refuse_unknown_parts();
    return module.awq();
  }
  const bool is_packed = t.name.ends_with(kPacked);
  if (!is_packed && !t.name.ends_with(kWeight)) return Module::plain_weight(checkpoint, t);
  const Module module(checkpoint, t, is_packed ? kPacked : kWeight);
  module.refuse_unknown_parts();
  if (is_packed || t.dtype == DType::kU8) return module.nibbles();
  return t.dtype == DType::kF8E4M3 ? module.e4m3() : module.plain();
}

}  // namespace

std::vector<WeightInfo> list_weights(const Checkpoint& checkpoint,
                                     const std::function<bool(const std::string& name)>& wanted) {
  std::vector<WeightInfo> weights;
  for (const TensorInfo& t : checkpoint.tensors()) {
    if (wanted && !wanted(t.name)) continue;
    if (t.name.ends_with(kScales)) {
      const std::string name = t.name.substr(0, t.name.size() - kScales.size());
      if (checkpoint.find(name + std::string(kBlocks)) == nullptr)
        fail(checkpoint, t.name, "has no " + name + "_blocks beside it");
    } else if (!is_companion(checkpoint, t.name)) {
      weights.push_back(weight_of(checkpoint, t));
    }
  }
  std::sort(weights.begin(), weights.end(),
            [](const WeightInfo& a, const WeightInfo& b) { return a.name < b.name; });
  for (size_t i = 1; i < weights.size(); ++i)
    if (weights[i].name == weights[i - 1].name)
      fail(
          checkpoint, weights[i].name,
          "is there twice: as " + weights[i - 1].codes->name + " and as " + weights[i].codes->name);
  return weights;
}

std::vector<KvScale> read_kv_scales(const Checkpoint& checkpoint) {
  std::vector<KvScale> scales;
  for (const TensorInfo& t : checkpoint.tensors()) {
    if (!is_kv_scale(t.name)) continue;
    float value = 0;
    uint16_t bits = 0;
    if (t.dtype == DType::kF32 && t.bytes == 4) {
      const ReadJob job = ReadJob::whole(t, &value);
      checkpoint.read({&job, 1});
    } else if ((t.dtype == DType::kBF16 || t.dtype == DType::kF16) && t.bytes == 2) {
      const ReadJob job = ReadJob::whole(t, &bits);
      checkpoint.read({&job, 1});
      value = t.dtype == DType::kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
    } else {
      fail(checkpoint, t.name, "found " + text_of(t) + ", expected one float");
    }
    if (!std::isfinite(value) || value <= 0)
      fail(checkpoint, t.name,
           "holds " + std::to_string(value) + "; a scale is finite and above zero");
    scales.push_back({t.name, value});
  }
  return scales;
}

std::vector<WeightInfo> match_weights(const Checkpoint& checkpoint,
                                      std::span<const WeightSpec> wanted) {
  const std::vector<WeightInfo> all = list_weights(checkpoint);
  std::vector<WeightInfo> matched;
  std::set<std::string_view> known;
  for (const WeightSpec& spec : wanted) {
    const auto it = std::lower_bound(
        all.begin(), all.end(), spec.name,
        [](const WeightInfo& w, const std::string& name) { return w.name < name; });
    const std::string expected =
        "expected " + std::string(format_name(spec.format)) + " " + shape_text(spec.shape);
    if (it == all.end() || it->name != spec.name)
      fail(checkpoint, spec.name, "is missing; " + expected);
    if (it->format != spec.format || it->shape != spec.shape)
      fail(checkpoint, spec.name,
           "found " + std::string(format_name(it->format)) + " " + shape_text(it->shape) + ", " +
               expected + " by the config");
    known.insert(spec.name);
    matched.push_back(*it);
  }
  for (const WeightInfo& w : all)
    if (!known.contains(w.name))
      LOG_WARN("%s: tensor \"%s\" is not part of this model; not loaded",
               checkpoint.origin().c_str(), w.name.c_str());
  return matched;
}

}  // namespace nibble
