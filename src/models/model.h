// What the engine knows of a model: how large its state is, and how to run one step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "formats/format.h"
#include "models/shard.h"
#include "ops/ctx.h"
#include "ops/plan.h"
#include "ops/step.h"
#include "tensor/buffer.h"
#include "tensor/random_bytes.h"
#include "tensor/tensor.h"

namespace nibble {

struct Weight;      // ops/weight.h
struct WeightSpec;  // io/checkpoint.h

inline constexpr int32_t kNoWindow = 0;

// What a recurrent layer keeps of a sequence, whatever its length: float32 all of it.
struct RecurrentShape {
  int32_t heads = 0;      // HV; 0: the group is not recurrent
  int32_t key_dim = 0;    // DK
  int32_t value_dim = 0;  // DV
  int32_t channels = 0;   // of the short convolution
  int32_t taps = 0;       // of it, the newest input included
  int64_t bytes() const {
    return 4 * (int64_t{heads} * key_dim * value_dim + int64_t{taps - 1} * channels);
  }
};

// Layers whose sequence state lives in the same pages, one page id is P positions of all of them,
// or in the same slots: one slot id is the state of all of them.
struct LayerGroup {
  int32_t window = kNoWindow;     // a token sees the last `window` positions, itself included
  std::vector<int32_t> layers;    // indices, ascending
  int32_t num_kv_heads = 0;       // G of each layer
  int32_t head_dim = 0;           // D
  RecurrentShape recurrent = {};  // slots instead of pages
  bool is_recurrent() const { return recurrent.heads > 0; }
};

// A row of the table that `nibble plan` prints: weights of one kind, all layers together. Each
// token reads `chosen` of `choices` equal units: 1 of 1 for attention, K of E for experts, 1 of V
// rows for the embedding. A step of T tokens whose choices are independent and even is expected to
// read bytes * (1 - (1 - chosen / choices)^T).
struct WeightPart {
  std::string name;          // "embed", "attention", "router", "norms", "experts", "unembed"
  std::string formats = "";  // those that make up a twentieth or more of it: "mxfp4, bf16"
  int64_t bytes = 0;
  int32_t chosen = 1;
  int32_t choices = 1;
};

struct ModelInfo {
  std::string architecture;  // "GptOssForCausalLM"
  int32_t num_layers = 0;
  int32_t vocab_size = 0;     // V
  Cut logits;                 // columns of the logits that forward() returns: of V, this rank's
  int32_t max_positions = 0;  // longest sequence the model was made for
  std::vector<LayerGroup> groups;
  bool replays = false;  // there are recurrent layers, and replay() is there for all of them
  int64_t parameters = 0;
  int64_t weight_bytes = 0;            // resident
  int64_t weight_bytes_per_token = 0;  // read for one token of one stream: experts chosen only
  int64_t flops_per_token = 0;         // of the matrix products, unembed left out
  std::vector<WeightPart> parts;       // sum to weight_bytes
  // Why its keys and values cannot be kept in FP8; empty: they can.
  std::string refuses_fp8_kv;
};

// Largest step the model will be asked for; what it allocates for activations follows from it.
struct StepLimits {
  int32_t max_tokens = 0;    // T
  int32_t max_out = 0;       // R
  int32_t max_replayed = 0;  // T of steps that can be replayed, where layers are recurrent
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelInfo& info() const = 0;

  // Bytes that reserve() will allocate.
  virtual int64_t scratch_bytes(const ops::Ctx& cx, const StepLimits& limits) const = 0;
  // Allocates every activation once. forward() allocates nothing.
  virtual void reserve(const ops::Ctx& cx, const StepLimits& limits) = 0;

  // One step: appends K and V of its tokens to the pages, returns logits [R, V] f32 (of this rank,
  // see ModelInfo::logits), valid until the next call. Needs step.num_tokens <= max_tokens and
  // step.num_out <= max_out.
  virtual Tensor forward(ops::Ctx& cx, const Step& step, const SeqState& kv) = 0;

  // Behind a step of at most max_replayed tokens: the states that it left become those behind fewer
  // tokens of its spans, as `step` has them, computed from the inputs of the same layers: the same
  // bits as if the step had ended there.
  virtual void replay(ops::Ctx&, const Step&, const SeqState&) { CHECK(false); }

  // For heads that draft from a model's hidden rows. Before reserve(): the layers, ascending, whose
  // entering residual rows every later step keeps; num_layers: what the last norm makes of rows.
  // [T, H] f32 of each of them, of the step that ran last. The embedding [V, H], in kRows.
  virtual void keep_rows(const std::vector<int32_t>& layers) { CHECK(layers.empty()); }
  virtual std::vector<Tensor> kept_rows() const { return {}; }
  // Whether somebody looks at rows of all of a step's tokens, with logits or without: a tap, or a
  // head at kept_rows().
  bool shows_all_rows(const ops::Ctx& cx) const { return cx.tap || !kept_rows().empty(); }
  virtual const Weight* embedding() const { return nullptr; }

  // On GPUs of several ranks, on all at once, once loaded: ops::agree_on_left_sums().
  virtual void agree_on_left_sums(dist::Comm&) {}
};

// What the large dense matrices become while they are loaded. Everything else stays as the
// checkpoint has it: experts, router, norms, biases, and the embedding, whose rows are looked up.
struct DenseFormats {
  Format qkv = Format::kBF16;
  Format out = Format::kBF16;
  Format unembed = Format::kBF16;
  Format mlp = Format::kBF16;  // of dense layers
  bool operator==(const DenseFormats&) const = default;
};

// Where weights are put. A device has a `copy` into its memory, called from several threads at
// once; without one, weights are written where they lie.
struct WeightMemory {
  std::function<Buffer(int64_t bytes)> allocate = [](int64_t bytes) { return Buffer(bytes); };
  std::function<Buffer(int64_t bytes)> allocate_staging = allocate;
  std::function<void(void* to, const void* from, int64_t bytes)> copy = {};
  // Makes dummy weights where they lie; without it they come from the host as others do.
  std::function<void(void* to, int64_t bytes, const RandomBytes& what)> random = {};
};

enum class LoadFormat { kAuto, kDummy };

struct LoadOptions {
  LoadFormat format = LoadFormat::kAuto;
  uint64_t seed = 0;  // of dummy weights
  DenseFormats dense = {};
  Shard shard = {};
  WeightMemory memory = {};
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;
};

// What `model` (a directory, a bare config.json or a built-in id, as io/hub.h resolves it) would
// need, without loading it. Throws Error for an architecture that is not there (naming those that
// are), a config that cannot be, or matrices that cannot become what `dense` says or be cut. Of a
// split model bytes and work are those of the rank.
ModelInfo describe_model(const std::string& model, const DenseFormats& dense = {},
                         const Shard& shard = {});
// Which kernels would run it under cx.kernels, and why the better ones would not. Throws where an
// op has none.
std::vector<ops::PlanEntry> plan_kernels(const ops::Ctx& cx, const std::string& model,
                                         const DenseFormats& dense = {}, const Shard& shard = {});
// Model::scratch_bytes() of it that keeps the rows of these layers, for the memory plan before
// anything is loaded.
int64_t describe_scratch(const ops::Ctx& cx, const std::string& model, const StepLimits& limits,
                         const DenseFormats& dense = {},
                         const std::vector<int32_t>& kept_layers = {}, const Shard& shard = {});
// Every weight that loading it reads, by Hugging Face name, for `nibble inspect`.
std::vector<WeightSpec> list_wanted_weights(const std::string& model);
std::unique_ptr<Model> load_model(ops::Ctx& cx, const std::string& model,
                                  const LoadOptions& options);

}  // namespace nibble
