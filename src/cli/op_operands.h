// What `bench ops` and the self check hand to kernels: random weights, activations, choices of
// experts and pages, in the memory of the device that runs them. Everything lives until clear() or
// the end.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "ops/ctx.h"
#include "ops/routing.h"
#include "ops/site.h"
#include "ops/step.h"
#include "ops/weight.h"

namespace nibble::cli {

// What the sequences of a step have before them, and how they lie.
struct OpSequences {
  int64_t context = 0;
  int64_t span = 1;  // tokens of each, of steps up to OpOperands::kMostDecoding
  DType kv = DType::kBF16;
};

class OpOperands {
 public:
  enum class Made : uint8_t {
    kCold,   // as fast as may be, and more weights than caches hold
    kAlike,  // the same values on every device; those of activations and weights exact in bf16
  };
  explicit OpOperands(const ops::Ctx& cx, Made made = Made::kCold) : cx_(cx), made_(made) {}

  void clear() { buffers_.clear(), left_ = {}; }
  void restart() { state_ = kSeed; }  // the values of the beginning again, in other memory

  Tensor floats(int64_t rows, int64_t cols);  // f32
  Tensor stored(int64_t rows, int64_t cols);  // h, q, att, u: bf16 on GPUs, f32 on CPUs
  Tensor output(int64_t rows, int64_t cols) { return no_numbers(DType::kF32, rows, cols); }
  Tensor stored_output(int64_t rows, int64_t cols) {
    return no_numbers(stored_dtype(), rows, cols);
  }
  Norm norm(int64_t hidden);
  const uint16_t* vector(int64_t n);             // bf16
  const int32_t* ids(int64_t n, int64_t below);  // [0, below)
  void* room(int64_t bytes);                     // zeros

  // Sites with matrices of one shape and layout and one bias, as many as leave the caches cold, or
  // one; with E4M3 activations on a GPU also with the exponents of rows. `like` says all but where
  // they lie.
  std::vector<ops::Site> weights(Weight like);

  // Several choices for a step, each of as many distinct experts as it says.
  struct Choice {
    Routing routing;
    int64_t distinct;
  };
  std::vector<Choice> choices(int64_t tokens, int64_t experts, int64_t top_k, int64_t shared);

  // Pages and a step: up to 256 tokens are the next of sequences, more are one prompt. All rows
  // have logits.
  struct Sequences {
    KvLayer kv;
    Step step;
    int64_t count;  // of sequences
  };
  static constexpr int64_t kMostDecoding = 256;
  Sequences sequences(int64_t tokens, const OpSequences& how, int64_t kv_heads, int64_t head_dim);
  // Slots of `count` sequences, each with a state, and weights of a delta rule or a
  // Mamba2 layer.
  RecurrentLayer recurrent(const ops::DeltaRuleDesc& desc, int64_t count);
  ops::DeltaRuleWeights delta_weights(const ops::DeltaRuleDesc& desc);
  RecurrentLayer recurrent(const ops::Mamba2Desc& desc, int64_t count);
  ops::Mamba2Weights mamba_weights(const ops::Mamba2Desc& desc);
  const float* constant(int64_t n, float value);
  static int64_t count_sequences(int64_t tokens, int64_t span) {
    return tokens <= kMostDecoding && tokens % span == 0 ? tokens / span : 1;
  }

 private:
  struct StateShape {
    int64_t heads, rows, columns, taps, channels;
  };
  RecurrentLayer recurrent(const StateShape& shape, int64_t count);

  uint64_t next();
  float unit();  // [-1, 1)
  template <typename T>
  T* put(const std::vector<T>& host);
  void fill(void* data, int64_t bytes, DType dtype);
  Tensor no_numbers(DType dtype, int64_t rows, int64_t cols);  // NaNs, until a kernel writes
  DType stored_dtype() const { return cx_.on_gpu() ? DType::kBF16 : DType::kF32; }
  void fill_codes(Format format, uint8_t* codes, int64_t bytes);
  void fill_scales(Format format, uint8_t* scales, int64_t bytes);
  void put_alike(Weight& weight);
  void fill_on_gpu(const Weight& like, uint8_t* codes, int64_t code_bytes, uint8_t* scales,
                   int64_t scale_bytes);
  void find_row_exponents(ops::Site& site);

  const ops::Ctx& cx_;
  const Made made_;
  std::deque<Buffer> buffers_;
  std::span<uint8_t> left_;  // of the last
  static constexpr uint64_t kSeed = 1;
  uint64_t state_ = kSeed;
};

}  // namespace nibble::cli
