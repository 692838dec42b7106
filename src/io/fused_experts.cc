#include "io/fused_experts.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace nibble {
namespace {

constexpr std::string_view kGateUp = ".experts.gate_up_proj", kDown = ".experts.down_proj";

bool has_floats(const TensorInfo& t) {
  return t.shape.size() == 3 && t.shape[0] > 0 &&
         (t.dtype == DType::kBF16 || t.dtype == DType::kF16 || t.dtype == DType::kF32);
}

// `parts` equal shares of each expert's rows, in their order.
void split(const TensorInfo& fused, const std::vector<std::string>& parts,
           std::vector<TensorInfo>& to) {
  const auto count = static_cast<int64_t>(parts.size()), experts = fused.shape[0];
  const size_t stem = fused.name.rfind('.');
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t i = 0; i < count; ++i) {
      TensorInfo part = fused;
      part.name = fused.name.substr(0, stem + 1) + std::to_string(e) + "." + parts[i] + ".weight";
      part.shape = {fused.shape[1] / count, fused.shape[2]};
      part.bytes = fused.bytes / (experts * count);
      part.offset = fused.offset + (e * count + i) * part.bytes;
      to.push_back(std::move(part));
    }
}

}  // namespace

std::vector<TensorInfo> split_fused_experts(std::vector<TensorInfo> tensors) {
  std::map<std::string, std::pair<const TensorInfo*, const TensorInfo*>> pairs;
  for (const TensorInfo& t : tensors) {
    if (!has_floats(t)) continue;
    const std::string_view name = t.name;
    if (name.ends_with(kGateUp))
      pairs[t.name.substr(0, name.size() - kGateUp.size())].first = &t;
    else if (name.ends_with(kDown))
      pairs[t.name.substr(0, name.size() - kDown.size())].second = &t;
  }
  std::vector<TensorInfo> all;
  for (const TensorInfo& t : tensors) {
    const auto at = std::ranges::find_if(pairs, [&](const auto& pair) {
      return pair.second.first == &t || pair.second.second == &t;
    });
    const auto fits = [&] {
      const auto& [up, down] = at->second;
      return up != nullptr && down != nullptr && up->shape[0] == down->shape[0] &&
             up->shape[1] == 2 * down->shape[2] && up->shape[2] == down->shape[1];
    };
    if (at == pairs.end() || !fits())
      all.push_back(t);
    else if (at->second.first == &t)
      split(t, {"gate_proj", "up_proj"}, all);
    else
      split(t, {"down_proj"}, all);
  }
  return all;
}

}  // namespace nibble
