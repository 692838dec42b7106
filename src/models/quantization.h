// Quantization: what config.json says of quantized weights, in the words of ModelOpt,
// compressed-tensors, AWQ and Hugging Face's own FP8 and MXFP4. It speaks for models that are not
// here; where there is a checkpoint, its tensors say what they are.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/format.h"
#include "io/checkpoint.h"
#include "io/config.h"

namespace nibble {

class Quantization {
 public:
  Quantization() = default;  // none
  // Throws Error(kCheckpoint) naming the key for a method that nibble does not read.
  explicit Quantization(const Config& config);

  // How messages begin: "DIR/config.json: ".
  const std::string& origin() const { return origin_; }

  // From now on the modules that are there are of the formats that they lie in. Throws
  // Error(kCheckpoint) where zero points are missing that the config speaks of.
  void take(std::span<const WeightInfo> weights);

  // Whether tensors were taken, but none of this name.
  bool lacks(const std::string& weight) const {
    return !on_disk_.empty() && !on_disk_.contains(weight);
  }

  // Of the matrix of a linear module: "model.layers.0.mlp.up_proj". kBF16: not quantized.
  Format format_of(const std::string& module) const;

 private:
  struct Group {
    std::vector<std::string> targets;  // "Linear": all
    Format format;
    bool has_zeros = false;  // INT4's are not all 8
  };
  const Group* group_of(const std::string& module) const;  // nullptr: not quantized
  void add_modelopt(const Config& q);
  void add_compressed_tensors(const Config& q);
  void ignore(const Config& q, const char* key);

  std::string origin_;
  std::vector<Group> groups_;  // the first that has it
  std::vector<std::string> ignored_;
  std::map<std::string, Format> on_disk_;  // by tensors
};

}  // namespace nibble
