// RoutingBalance: how evenly a model's tokens spread over its experts. Speeds of random weights
// mean little without it: routing that prefers a few experts reads fewer bytes than a real model's.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace nibble::cli {

class RoutingBalance {
 public:
  // A tap of the model (ops/ctx.h): counts the chosen experts in buffers named "ids", [T, K].
  void observe(std::string_view name, int layer, const Tensor& value);

  struct Report {
    int64_t choices = 0;  // of one layer
    // Experts used, as exp(entropy) of their shares, over experts there are: 1 is even.
    double mean = 0;
    double worst_layer = 0;
    // What so few choices at random, each expert as likely as another, would show: chance takes
    // about (E - 1) / (2 choices) off the entropy.
    double at_random = 0;
  };
  // num_experts: E of every layer.
  Report report(int32_t num_experts) const;

 private:
  std::vector<std::vector<int64_t>> counts_;  // [layer][expert]
};

}  // namespace nibble::cli
