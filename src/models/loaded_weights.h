// LoadedWeights: the weights of a model in one buffer, each read once: read, encoded, packed and
// put in its final place piece by piece, on several threads side by side.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/encode.h"
#include "io/checkpoint.h"
#include "models/model.h"
#include "models/shard.h"
#include "ops/weight.h"
#include "tensor/buffer.h"

namespace nibble {

// Parts of so many rows or columns, one behind the other, of which a rank has no more.
struct Cuts {
  std::vector<Cut> parts;
  std::vector<int64_t> ends;                                   // of each part, among what there is
  Cuts(const Cut& cut) { add(cut); }                           // NOLINT: most are of one part
  Cuts(int64_t n) { add(n); }                                  // NOLINT: as of a Cut
  Cuts(std::initializer_list<Cut> all);                        // those that lie together become one
  static Cuts rows(std::span<const int32_t> ids, int64_t of);  // in that order
  void add(const Cut& part);
  int64_t all() const { return parts[0].all; }
  int64_t size() const { return ends.back(); }
  bool is_whole() const { return parts.size() == 1 && size() == all(); }
  const Cut& only() const;        // where there is one
  int64_t find(int64_t i) const;  // of all, the i-th that there is
  int64_t run(int64_t i) const;   // so many from there on lie together
  bool operator==(const Cuts&) const = default;

 private:
  size_t part_of(int64_t i) const;
};

// A weight that a model wants, and the part of ModelInfo::parts that its bytes count towards.
struct WantedWeight {
  WeightSpec spec;  // as the checkpoint has it
  std::string part;
  bool joined = false;  // lies right behind the one before: more rows of one matrix, or experts
  // Its rows alternate with those of the one before, which has as many and comes first.
  bool interleaved = false;
  Format format = spec.format;     // to which it is encoded; from bf16 only
  Format encoded = Format::kBF16;  // that, where it should turn out to lie in bf16
  Layout layout = Layout::kRows;   // in which its bytes lie
  // No matrix: kernels read its elements in `format`, bf16 or f32, whatever they are on disk. In
  // f32 each is a finite number.
  bool is_vector = spec.shape.size() < 2;
  // What of each matrix this rank has; none: all. Columns are of one part; the elements of vectors
  // are columns, too, and may be of several.
  std::optional<Cuts> rows = {}, cols = {};
  // Of WeightPart: a token reads `chosen` of `choices` equal units of it.
  int32_t chosen = 1, choices = 1;
};

// Sets spec.format to what the checkpoint's own tensors say, and `format` to that or, of what lies
// in bf16, to `encoded`. Vectors keep the format that they are wanted in. Before kernels are
// planned. Throws as list_weights() does.
void take_disk_formats(const Checkpoint& checkpoint, std::span<WantedWeight> wanted);

int64_t num_elements(const WeightSpec& spec);
int64_t num_elements(const WantedWeight& weight);    // of this rank
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
  // The i-th of those wanted: as [experts, rows, K] with all that is joined behind it, or a vector.
  Weight matrix(size_t i, int64_t experts, int64_t rows) const;
  const uint16_t* vector(size_t i) const;
  const float* floats(size_t i) const;  // of those wanted in f32

  int64_t size_bytes() const { return buffer_.size_bytes(); }

 private:
  struct Placed {
    WantedWeight weight;
    uint8_t* codes = nullptr;
    uint8_t* scales = nullptr;
    float* row_scales = nullptr;
  };
  void put(std::span<const WantedWeight> wanted, const WeightMemory& memory);
  static void fill_fp8(const Placed& p, int64_t rows, RandomBytes like, const WeightMemory& memory);
  const Placed& find(const std::string& name) const;

  Buffer buffer_;
  std::vector<Placed> placed_;  // as wanted
  std::map<std::string, size_t> index_;
};

}  // namespace nibble
