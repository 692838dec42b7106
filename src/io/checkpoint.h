// Checkpoint: named tensors, on disk or made up. A model asks for Hugging Face names only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"
#include "io/safetensors.h"

namespace nibble {

// Copy bytes [begin, begin + bytes) of a tensor to `to`. Row-major: whole rows are byte ranges.
struct ReadJob {
  const TensorInfo* tensor = nullptr;
  int64_t begin = 0;
  int64_t bytes = 0;
  std::byte* to = nullptr;

  static ReadJob whole(const TensorInfo& tensor, void* to) {
    return {&tensor, 0, tensor.bytes, static_cast<std::byte*>(to)};
  }
};

// Fills a job's destination. May own buffers: one for each thread.
using RangeReader = std::function<void(const ReadJob&)>;

// Called with bytes done so far and in all, from one thread at a time, not always the caller's.
using ReadProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  // Where it comes from, for messages: a directory, or "dummy weights, seed 1".
  virtual const std::string& origin() const = 0;
  // Sorted by name; stays valid as long as the checkpoint.
  virtual std::span<const TensorInfo> tensors() const = 0;
  // The reader throws Error(kCheckpoint) where a file has become short or cannot be read.
  virtual RangeReader make_reader() const = 0;
  // Threads that bytes are best read by where nothing else is done with them.
  virtual int num_readers() const = 0;

  // Runs all jobs on num_readers() threads. Throws as a reader does.
  void read(std::span<const ReadJob> jobs, const ReadProgress& progress = {}) const;
  // nullptr where there is no such tensor.
  const TensorInfo* find(std::string_view name) const;
};

// Opens the safetensors files of a directory: model.safetensors, or those that
// model.safetensors.index.json names. Never looks into sub-directories. Tensors under OpenAI's
// original names (block.0.attn.qkv.weight ...) are given Hugging Face names, the fused qkv as three
// row ranges. Files stay open. Throws Error: kNotFound where there are no weights, kCheckpoint for
// a missing or bad shard, an index that leads out of the directory, disagrees with the shards or
// with its total_size.
std::unique_ptr<Checkpoint> open_checkpoint(const std::filesystem::path& directory);

// Those tensors of `all` that are `wanted`, as if there were no others.
std::unique_ptr<Checkpoint> select_tensors(
    std::unique_ptr<Checkpoint> all, const std::function<bool(const std::string& name)>& wanted);

// ---- Weights: what tensors mean -----------------------------------------------------------------

// How dummy weights are made. kScaledNormal has deviation 1 / sqrt(K), K the last dimension, for
// MXFP4 random codes under scales that give the same root mean square; kRouter has 2 / sqrt(K), so
// that logits of a normed input have deviation 2 and tokens spread over the experts; kResidual has
// 1 / (8 sqrt(K)), for products that are added to the residual stream: over some forty layers that
// stays what its token's embedding made it, where full deviations pull all tokens towards what they
// have in common, and so to the same experts.
enum class Fill : uint8_t { kZero, kOne, kNormal, kScaledNormal, kRouter, kResidual };

// A weight that a model wants, by the name of its elements: "x.weight", whatever tensors it is made
// of on disk (see list_weights()).
struct WeightSpec {
  std::string name;
  std::vector<int64_t> shape;  // of the elements; K last
  Format format = Format::kBF16;
  Fill fill = Fill::kScaledNormal;
};

// A weight that a checkpoint has; its format is what the tensors on disk say.
struct WeightInfo {
  std::string name;
  std::vector<int64_t> shape;
  Format format = Format::kBF16;
  const TensorInfo* codes = nullptr;   // the tensor itself where the format has no scales
  const TensorInfo* scales = nullptr;  // of blocks; nullptr where the format has none
  // One number, or one a row, that all else is multiplied by, or divided where is_divisor; nullptr
  // where the format has none.
  const TensorInfo* row_scales = nullptr;
  bool is_divisor = false;
  const TensorInfo* zeros = nullptr;  // zero points of INT4; nullptr: all 8
  bool is_awq = false;                // INT4 by columns: see formats/int4.h
  int64_t bytes() const {
    return codes->bytes + (scales ? scales->bytes : 0) + (row_scales ? row_scales->bytes : 0) +
           (zeros ? zeros->bytes : 0);
  }
};

// All weights by name, each in the format that its own tensors say, whatever the config thinks:
//   NAME_blocks, NAME_scales                                    MXFP4 of gpt-oss
//   M.weight u8, M.weight_scale, M.weight_scale_2               NVFP4 of ModelOpt
//   M.weight_packed, M.weight_scale, M.weight_global_scale      NVFP4 of compressed-tensors
//   M.weight or M.weight_packed u8, M.weight_scale u8           MXFP4
//   M.weight E4M3, M.weight_scale u8                            MXFP8
//   M.weight E4M3, M.weight_scale [], [1], [N] or [N, 1]        FP8 by tensor or channel
//   M.weight E4M3, M.weight_scale_inv or M.weight_scale, 2-D    FP8 by blocks of 128 x 128
//   M.weight_packed i32, M.weight_scale, M.weight_zero_point    INT4 of compressed-tensors
//   M.qweight, M.scales, M.qzeros                               INT4 of AWQ
//   NAME                                                        BF16, F16, F32
// Scales of activations are left out: weights alone are quantized here; so are those of keys and
// values, for which see read_kv_scales(). Throws Error(kCheckpoint)
// for tensors that do not fit together, a part that is missing, a dtype that no weight format has,
// and kUnsupported for parts that would change the product (pre_quant_scale, ...).
// Of the tensors that are `wanted`, where that says any.
std::vector<WeightInfo> list_weights(
    const Checkpoint& checkpoint,
    const std::function<bool(const std::string& name)>& wanted = nullptr);

// Scales of keys and values for a cache in FP8: M.k_scale, M.v_scale, M.kv_scale. Throws
// Error(kCheckpoint) for one that is no single finite number above zero.
struct KvScale {
  std::string name;
  float value;
};
std::vector<KvScale> read_kv_scales(const Checkpoint& checkpoint);

// Exactly the wanted weights, in the order of `wanted`. Throws Error(kCheckpoint) naming what is
// missing, has another shape or another format. Weights that nobody wants are logged, not loaded.
std::vector<WeightInfo> match_weights(const Checkpoint& checkpoint,
                                      std::span<const WeightSpec> wanted);

// Root mean square of a dummy weight's elements, but for kOne: 0 where they are constant.
double dummy_deviation(const WeightSpec& spec);
// The same of MXFP4's scales 2^(byte - 127): all 16 codes alike have a mean square of 68.5 / 8.
double dummy_scale_rms(const WeightSpec& spec);

// A checkpoint without files that has exactly the wanted weights, made when they are read: the same
// bytes for the same seed and name, however reading is split.
std::unique_ptr<Checkpoint> dummy_checkpoint(const std::vector<WeightSpec>& wanted, uint64_t seed);

}  // namespace nibble
