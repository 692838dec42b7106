#include "cli/routing_balance.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace nibble::cli {

void RoutingBalance::observe(std::string_view name, int layer, const Tensor& value) {
  if (name != "ids" || layer < 0) return;
  if (counts_.size() <= static_cast<size_t>(layer)) counts_.resize(static_cast<size_t>(layer) + 1);
  auto& counts = counts_[static_cast<size_t>(layer)];
  const int32_t* ids = value.as<int32_t>();
  for (int64_t i = 0; i < value.num_elements(); ++i) {
    const auto id = static_cast<size_t>(ids[i]);
    if (counts.size() <= id) counts.resize(id + 1);
    ++counts[id];
  }
}

RoutingBalance::Report RoutingBalance::report(int32_t num_experts) const {
  Report report{.choices = 0, .mean = 0, .worst_layer = 1, .at_random = 1};
  int layers = 0;
  for (const auto& all : counts_) {
    // A shared expert, the last, is not chosen.
    const std::span counts(all.data(), std::min(all.size(), static_cast<size_t>(num_experts)));
    int64_t total = 0;
    for (const int64_t n : counts) total += n;
    if (total == 0) continue;
    double entropy = 0;
    for (const int64_t n : counts) {
      if (n == 0) continue;
      const double share = static_cast<double>(n) / static_cast<double>(total);
      entropy -= share * std::log(share);
    }
    const double balance = std::exp(entropy) / num_experts;
    report.choices = total;
    report.mean += balance;
    report.worst_layer = std::min(report.worst_layer, balance);
    ++layers;
  }
  if (layers > 0) {
    report.mean /= layers;
    report.at_random = std::exp(-(num_experts - 1) / (2.0 * static_cast<double>(report.choices)));
  }
  return report;
}

}  // namespace nibble::cli
