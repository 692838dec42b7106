// LoadedWeights: the weights of a model in one buffer, each read once: read, encoded, packed and
// put in its final place piece by piece, on several threads side by side.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/encode.h"
#include "io/checkpoint.h"
#include "models/model.h"
#include "ops/weight.h"
#include "tensor/buffer.h"

namespace nibble {

// A weight that a model wants, and the part of ModelInfo::parts that its bytes count towards.
struct WantedWeight {
  WeightSpec spec;  // as the checkpoint has it
  std::string part;
  bool joined = false;            // lies right behind the one before: rows of one fused matrix
  Format format = spec.format;    // to which it is encoded; from bf16 only
  Layout layout = Layout::kRows;  // in which its bytes lie
  // Of WeightPart: a token reads `chosen` of `choices` equal units of it.
  int32_t chosen = 1, choices = 1;
};

// The formats that the checkpoint's own tensors say, in place of those that `wanted` came with: of
// matrices that are not encoded. Before kernels are planned. Throws as list_weights() does.
void take_disk_formats(const Checkpoint& checkpoint, std::span<WantedWeight> wanted);

int64_t num_elements(const WeightSpec& spec);
int64_t resident_bytes(const WantedWeight& weight);  // codes and scales in its final format
// Adds up the parts in order of first appearance.
std::vector<WeightPart> sum_parts(std::span<const WantedWeight> wanted);

class LoadedWeights {
 public:
  LoadedWeights() = default;
  // Throws Error as match_weights() and readers do; kCheckpoint for a value to be encoded that is
  // not finite. Logs what encoding lost. `threads` do all the work: each has staging memory of a
  // few pieces of 4 MiB.
  LoadedWeights(const Checkpoint& checkpoint, std::span<const WantedWeight> wanted,
                const WeightMemory& memory, int threads, const ReadProgress& progress);

  // Dummy weights, made by memory.random.
  LoadedWeights(std::span<const WantedWeight> wanted, const WeightMemory& memory, uint64_t seed);

  // A matrix [N, K] or one per expert [E, N, K], with its bias if a name is given. `rows` > N takes
  // the rows joined behind it as well.
  Weight matrix(const std::string& name, const std::string& bias = "", int64_t rows = 0) const;
  // A bf16 vector.
  const uint16_t* vector(const std::string& name) const;

  int64_t size_bytes() const { return buffer_.size_bytes(); }

 private:
  struct Placed {
    WantedWeight weight;
    uint8_t* codes = nullptr;
    uint8_t* scales = nullptr;
    float* row_scales = nullptr;
  };
  std::vector<Placed> put(std::span<const WantedWeight> wanted, const WeightMemory& memory);
  const Placed& find(const std::string& name) const;

  Buffer buffer_;
  std::map<std::string, Placed> placed_;
};

}  // namespace nibble
