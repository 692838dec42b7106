#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "io/checkpoint.h"

namespace nibble {
namespace {

constexpr std::string_view kBlocks = "_blocks";
constexpr std::string_view kScales = "_scales";
constexpr int64_t kCodeBytes = format_row(Format::kMxfp4).code_bytes;
constexpr int64_t kBlockElems = format_row(Format::kMxfp4).block_elems;

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

[[noreturn]] void fail(const Checkpoint& checkpoint, const std::string& tensor,
                       const std::string& what) {
  throw Error(ErrorKind::kCheckpoint, checkpoint.origin() + ": tensor \"" + tensor + "\": " + what);
}

WeightInfo pair_mxfp4(const Checkpoint& checkpoint, const TensorInfo& blocks) {
  const std::string name = blocks.name.substr(0, blocks.name.size() - kBlocks.size());
  const TensorInfo* scales = checkpoint.find(name + std::string(kScales));
  if (scales == nullptr) fail(checkpoint, blocks.name, "has no " + name + "_scales beside it");
  if (blocks.dtype != DType::kU8 || blocks.shape.size() < 2 || blocks.shape.back() != kCodeBytes)
    fail(checkpoint, blocks.name,
         "found " + std::string(safetensors_dtype_name(blocks.dtype)) + " " +
             shape_text(blocks.shape) + ", expected U8 [..., 16] for MXFP4");
  std::vector<int64_t> shape(blocks.shape.begin(), blocks.shape.end() - 1);
  if (scales->dtype != DType::kU8 || scales->shape != shape)
    fail(checkpoint, scales->name,
         "found " + std::string(safetensors_dtype_name(scales->dtype)) + " " +
             shape_text(scales->shape) + ", expected U8 " + shape_text(shape) +
             " beside its blocks");
  if (__builtin_mul_overflow(shape.back(), kBlockElems, &shape.back()))
    fail(checkpoint, blocks.name, "its shape overflows");
  return {name, std::move(shape), Format::kMxfp4, &blocks, scales};
}

WeightInfo plain_weight(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  for (const auto& [dtype, format] :
       {std::pair{DType::kBF16, Format::kBF16}, {DType::kF32, Format::kF32}})
    if (tensor.dtype == dtype) return {tensor.name, tensor.shape, format, &tensor, nullptr};
  fail(checkpoint, tensor.name,
       "no weight format is stored as " + std::string(safetensors_dtype_name(tensor.dtype)) +
           " under this name; nibble reads BF16, F32 and MXFP4 (_blocks, _scales)");
}

}  // namespace

std::vector<WeightInfo> list_weights(const Checkpoint& checkpoint) {
  std::vector<WeightInfo> weights;
  for (const TensorInfo& t : checkpoint.tensors()) {
    if (t.name.ends_with(kBlocks)) {
      weights.push_back(pair_mxfp4(checkpoint, t));
    } else if (t.name.ends_with(kScales)) {
      const std::string name = t.name.substr(0, t.name.size() - kScales.size());
      if (checkpoint.find(name + std::string(kBlocks)) == nullptr)
        fail(checkpoint, t.name, "has no " + name + "_blocks beside it");
    } else {
      weights.push_back(plain_weight(checkpoint, t));
    }
  }
  std::sort(weights.begin(), weights.end(),
            [](const WeightInfo& a, const WeightInfo& b) { return a.name < b.name; });
  for (size_t i = 1; i < weights.size(); ++i)
    if (weights[i].name == weights[i - 1].name)
      fail(checkpoint, weights[i].name, "is there both plain and as _blocks and _scales");
  return weights;
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
