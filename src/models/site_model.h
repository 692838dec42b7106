// SiteModel: what every model of sites shares. A model derives from it, states in its constructor
// its sites with their weights and its buffers, and has a forward pass; planning, loading, working
// memory and everything that is said of a model before it is loaded follow from those.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "io/checkpoint.h"
#include "io/hub.h"
#include "models/loaded_weights.h"
#include "models/model.h"
#include "models/quantization.h"
#include "ops/routing.h"
#include "ops/site.h"
#include "tensor/buffer.h"

namespace nibble {

// What a Routing points to; see ops/routing.h.
struct RoutingBuffers {
  Tensor ids, p, slot, token, counts, offsets, logits;
  Routing of(int32_t tokens) const;
};

// Of `tokens` tokens, `out` of which give logits: how many SiteModel::out_rows_of() goes on with.
int64_t rows_behind_mixers(int64_t out, int64_t tokens);

// A layer's router and experts beside a shared expert with a gate: that is one more of them, or has
// two sites of its own in front of theirs.
struct GatedExperts {
  std::string in;  // "model.layers.3."
  int64_t hidden, experts, top_k;
  bool over_all;
  Cut width, shared_width;
  bool shared_is_last;
  Format of_bf16;  // what experts in BF16 become
  float norm_eps;
};
struct ExpertSites {
  const ops::Site *route = nullptr, *up = nullptr, *down = nullptr;
  const ops::Site *shared_up = nullptr, *shared_down = nullptr;  // where it is not the last
  const ops::Site* sum = nullptr;  // over the ranks, where there are several
};

class SiteModel : public Model {
 public:
  const ModelInfo& info() const override { return info_; }
  const ops::Sites& sites() const { return sites_; }
  std::vector<WeightSpec> weight_specs() const;

  // Chooses kernels for weights that are not loaded yet.
  void plan(const ops::KernelOptions& options) { ops::plan_sites(sites_, options); }
  // In place of what the config says, what the checkpoint's tensors say of their formats. Throws
  // Error(kUnsupported) naming two matrices that a kernel multiplies as one and that differ.
  void take_formats(const Checkpoint& checkpoint);
  // What of it is this model's.
  std::unique_ptr<Checkpoint> mine(std::unique_ptr<Checkpoint> all) const;
  // Plans and loads; no checkpoint: dummy weights.
  void load(const ops::Ctx& cx, std::unique_ptr<Checkpoint> checkpoint, const LoadOptions& options);
  // Whether a tensor is of the layers that make text, not of an MTP layer or of what sees images.
  static bool is_of_text(const std::string& tensor) {
    return !tensor.starts_with("mtp.") && !is_of_images(tensor);
  }
  // Tensors of what sees images, which no load() reads.
  struct OfImages {
    int64_t tensors = 0, bytes = 0;
  };
  const OfImages& left_on_disk() const { return left_on_disk_; }

  int64_t scratch_bytes(const ops::Ctx& cx, const StepLimits& limits) const override;
  void reserve(const ops::Ctx& cx, const StepLimits& limits) override;
  Tensor forward(ops::Ctx& cx, const Step& step, const SeqState& kv) override;
  void replay(ops::Ctx& cx, const Step& step, const SeqState& kv) override;
  void keep_rows(const std::vector<int32_t>& layers) override;
  std::vector<Tensor> kept_rows() const override;
  const Weight* embedding() const override;
  void agree_on_left_sums(dist::Comm& comm) override { ops::agree_on_left_sums(sites_, comm); }

 protected:
  explicit SiteModel(const DenseFormats& dense, Quantization quantization = {},
                     const Shard& shard = {})
      : shard_(shard), dense_(dense), quantization_(std::move(quantization)) {}

  // What this rank has of what all its like are cut alike: of the columns of a linear module, whose
  // format on disk the config says and --dense-format may change, and of logits.
  Cut cut_columns_of(const std::string& module, int64_t cols, Format encoded) const;
  Cut cut_vocab(int64_t vocab) const;

  // To be called by constructors: in the order in which a step runs them.
  ops::Site& add(int layer, const ops::Problem& problem, std::vector<std::string> reads,
                 std::vector<std::string> writes, const std::string& name = "");
  // Behind a site whose matrix is cut along columns: `buffer` is the sum over the ranks. None where
  // one rank has all.
  const ops::Site* add_sum(int layer, const std::string& buffer, int64_t cols,
                           const std::string& name);
  static void sum(ops::Ctx& cx, const ops::Site* site, const Tensor& t) {
    if (site != nullptr) ops::all_reduce(cx, *site, t);
  }
  // The weights of a site, in the order in which it reads them, under Hugging Face names. Each has
  // a part (ModelInfo::parts).
  struct Rows {
    std::string name;  // NAME.weight, NAME.bias
    Cuts rows;
  };
  // One matrix of the rows of all. Where columns are cut, the first rank alone has the bias.
  void matrix(ops::Site& site, const char* part, const std::vector<Rows>& tensors, const Cut& cols,
              Fill fill = Fill::kScaledNormal, bool has_bias = false);
  // The rows of two matrices of rows.rows each, which alternate: a gate's and an up's.
  void gate_up(ops::Site& site, const char* part, const Rows& gate, const Rows& up, int64_t cols);
  // Experts in tensors of their own, NAME.<e>.<of>.weight [rows, cols]; of two, rows alternate.
  void experts_apart(ops::Site& site, const std::string& name, const std::vector<std::string>& of,
                     const Cut& rows, const Cut& cols, Fill fill);
  // Whether SHARED.<of> can be more of the experts that EXPERT.<of> is one of, so many and so many
  // chosen in all: of the same formats in memory, and no more than the fast rows take. `of_bf16`:
  // what experts in BF16 become.
  bool joins_experts(const std::string& shared, const std::string& expert,
                     const std::vector<std::string>& of, int64_t experts, int64_t top_k,
                     Format of_bf16 = Format::kBF16) const;
  // A shared one behind them, NAME.<of>.weight; or again, of other rows or columns of one tensor.
  void last_expert(ops::Site& site, const std::string& name, const std::vector<std::string>& of,
                   const Cut& rows, const Cut& cols, Fill fill);
  // Names are as Qwen3-Next's.
  ExpertSites gated_experts(int layer, const GatedExperts& e);
  // The head's matrix is `vocab` of the embedding's rows, and lies in memory once unless it is to
  // be encoded.
  void tie(ops::Site& unembed, ops::Site& embed, const Cut& vocab);
  // MXFP4 [E, rows, cols], NAME_blocks and NAME_scales, and NAME_bias [E, rows].
  void experts(ops::Site& site, const std::string& name, const Cut& rows, const Cut& cols,
               Fill fill);
  // With an `offset` of 1 for weights around zero.
  void norm(ops::Site& site, const std::string& name, int64_t hidden, float eps, float offset = 0);
  void head_norm(ops::Site& site, Norm& norm, const std::string& name, int64_t dim, float eps,
                 float offset = 0);
  void sinks(ops::Site& site, const std::string& name, const Cut& heads);
  // Of a shared expert: NAME.weight [1, hidden].
  void gate(ops::Site& site, const std::string& name, int64_t hidden);
  // Of a delta_rule's site: NAME.conv1d, NAME.A_log, NAME.dt_bias, NAME.norm; of the channels of
  // the convolution and of the value heads this rank's.
  void delta(ops::Site& site, const std::string& name, float eps, const Cuts& channels,
             const Cut& heads);

  // Of a mamba2's site: NAME.conv1d with bias, NAME.A_log, NAME.D, NAME.dt_bias, NAME.norm.
  void mamba(ops::Site& site, const std::string& name, float eps, const Cuts& channels,
             const Cut& heads);
  // Of a router of sigmoids: NAME [experts].
  void route_bias(ops::Site& site, const std::string& name, int64_t experts);

  // Buffers: named as sites name them. Those of T tokens are [T, cols].
  void f32(Tensor& t, const char* name, int64_t cols);
  void stored(Tensor& t, const char* name, int64_t cols, int64_t rows_a_token = 1);  // as h, q, u
  void f32_of_logits(Tensor& t, const char* name, int64_t vocab);                    // [R, V]
  void routing(RoutingBuffers& r, int64_t experts, int64_t top_k);

  // To be called last: `info` with all that follows from the sites.
  void describe(ModelInfo info);

  // A matrix that lies in memory already, for another model's site; behind describe().
  void share(ops::Site& site, const ops::Site& other);

  static bool is_of_images(const std::string& tensor) {
    return tensor.starts_with("model.visual.");
  }
  // Whether a tensor of a checkpoint that others read too is this model's. Others' are as good as
  // not there.
  virtual bool reads(const std::string& tensor) const { return is_of_text(tensor); }
  // Throws Error where `checkpoint` is not what the model reads, in clearer words than a list of
  // tensors that are missing.
  virtual void check(const Checkpoint& checkpoint) const { static_cast<void>(checkpoint); }
  // One step; the buffers have its sizes. Returns the logits.
  virtual Tensor run(ops::Ctx& cx, const Step& s, const SeqState& kv) = 0;

  // Where a layer's op writes the residual rows that enter it: a buffer of their own where they are
  // kept, else `shared`.
  const Tensor& entering(int32_t layer, const Tensor& shared);

  // Behind the last op in which tokens meet: of x and d [T, H] only the rows stay whose logits are
  // wanted, where these are few, and all buffers of T tokens have so many. Returns the step of
  // those; `step` itself where all rows are wanted or shown. `room`: a buffer like x.
  Step out_rows_of(ops::Ctx& cx, const Step& step, const Tensor& x, const Tensor& d,
                   const Tensor& room);

  // Where what enters a layer with a state goes: to where it stays for replay(), or, in longer
  // steps, `shared`.
  const ops::DeltaRuleIn& inputs(int32_t layer, const ops::DeltaRuleIn& shared) const;
  const Tensor& inputs(int32_t layer, const Tensor& shared) const;

  using Named = std::pair<const char*, const Tensor*>;
  static void tap(const ops::Ctx& cx, int layer, std::initializer_list<Named> all);

  const Shard shard_;
  const DenseFormats dense_;
  const Quantization quantization_;

 private:
  struct Declared {
    WantedWeight want;
    ops::Site* site;
    const uint16_t** vector = nullptr;  // where it is bound, in bf16
    const float** floats = nullptr;     // or in f32; neither: a part of site->weight
    bool is_matrix() const {
      return vector == nullptr && floats == nullptr && want.spec.shape.size() > 1;
    }
    bool is_first() const { return !want.joined && !want.interleaved; }
  };
  enum class Count : uint8_t { kTokens, kOut, kReplayed, kOne };
  struct Act {
    Tensor* tensor;
    std::string name;
    DType dtype;
    bool is_stored;  // bf16 on GPUs
    Count count;
    int64_t rows, cols;  // of each of them
  };
  struct Sizes {
    int64_t tokens, out, replayed, scratch_bytes;
    bool on_gpu;
  };

  void act(Tensor& t, const std::string& name, DType dtype, Count count, int64_t rows, int64_t cols,
           bool is_stored = false);
  static Tensor shaped(const Act& act, const Sizes& sizes, void* data);
  void begin(ops::Ctx& cx, const Step& step);
  void reserve_first_rows(const ops::Ctx& cx);
  void shape_acts(const ops::Ctx& cx, int64_t tokens, int64_t out);
  Sizes sizes_of(const ops::Ctx& cx, const StepLimits& limits) const;
  Declared& declare(ops::Site& site, const char* part, const std::string& name,
                    std::vector<int64_t> shape, Fill fill);
  WantedWeight& declare_floats(ops::Site& site, const char* part, const std::string& name,
                               std::vector<int64_t> shape, Fill fill, const float*& to);
  Declared& declare_matrix(ops::Site& site, const char* part, const Rows& tensor, const Cut& cols,
                           Fill fill);
  void settle_formats();
  void keep_normed(ops::Ctx& cx);
  const Tensor& buffer(const std::string& name) const;
  void check_cuts() const;
  // Whether it is of the same tensor as the one before.
  bool is_seen(size_t i) const {
    return i > 0 && declared_[i].want.spec.name == declared_[i - 1].want.spec.name;
  }
  void summarize();
  void take_kv_scales(const Checkpoint& checkpoint);
  std::vector<WantedWeight> wanted() const;
  LoadedWeights read(const ops::Ctx& cx, const Checkpoint* checkpoint, const LoadOptions& options);
  void bind();

  ModelInfo info_;
  ops::Sites sites_;
  struct Tied {
    ops::Site* site;
    const ops::Site* other;
    Cut rows;  // of the other's matrix
  };
  std::vector<Tied> tied_;
  std::vector<const ops::Site*> shared_;  // whose matrix is another model's
  std::vector<Declared> declared_;
  std::string table_;  // the embedding's, of which a config of quantization says nothing
  std::vector<Act> acts_;
  std::map<int32_t, Tensor> kept_;  // rows, by the layer that they enter
  size_t num_entered_ = 0;          // of them, in this step
  // Inputs for replay(), by layer.
  std::map<int32_t, ops::DeltaRuleIn> delta_inputs_;
  std::map<int32_t, Tensor> mamba_inputs_;
  Buffer first_rows_;  // 0, 1, ..: out_rows of a step of those alone
  Tensor counters_;    // zeros between ops; GPUs only
  Tensor scratch_;     // working memory within one op
  Tensor left_;        // LeftHeads::products
  LoadedWeights loaded_;
  OfImages left_on_disk_;
  Buffer prepared_;
  StepLimits limits_;
  Arena arena_;
};

// "model.layers.3." + rest, of a prefix of "model."
std::string layer_name(const std::string& prefix, int64_t layer, const std::string& rest);
inline std::string layer_name(int64_t layer, const std::string& rest) {
  return layer_name("model.", layer, rest);
}

}  // namespace nibble
