// What `bench ops` hands to kernels: random weights, activations, choices of experts and pages, in
// the memory of the device that runs them. Everything lives until clear() or the end.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "ops/ctx.h"
#include "ops/routing.h"
#include "ops/site.h"
#include "ops/step.h"
#include "ops/weight.h"

namespace nibble::cli {

class OpOperands {
 public:
  explicit OpOperands(const ops::Ctx& cx) : cx_(cx) {}

  void clear() { buffers_.clear(); }

  Tensor floats(int64_t rows, int64_t cols);  // f32
  Tensor stored(int64_t rows, int64_t cols);  // h, q, att, u: bf16 on GPUs, f32 on CPUs
  Norm norm(int64_t hidden);
  void* room(int64_t bytes);  // zeros

  // Sites with matrices of one shape and layout, as many as leave the caches cold; with E4M3
  // activations on a GPU also with the exponents of rows. `like` says all but where they lie.
  std::vector<ops::Site> weights(Weight like);

  // Several choices for a step, each of as many distinct experts as it says.
  struct Choice {
    Routing routing;
    int64_t distinct;
  };
  std::vector<Choice> choices(int64_t tokens, int64_t experts, int64_t top_k);

  // Pages and a step: up to 256 tokens are the next `span` of sequences, more are one prompt, with
  // `context` tokens before in each. All rows have logits.
  struct Sequences {
    KvLayer kv;
    Step step;
    int64_t count;  // of sequences
  };
  static constexpr int64_t kMostDecoding = 256;
  Sequences sequences(int64_t tokens, int64_t context, int64_t kv_heads, int64_t head_dim,
                      int64_t span = 1);
  static int64_t count_sequences(int64_t tokens, int64_t span) {
    return tokens <= kMostDecoding && tokens % span == 0 ? tokens / span : 1;
  }

 private:
  uint64_t next();
  float unit();  // [-1, 1)
  template <typename T>
  T* put(const std::vector<T>& host);
  void fill(void* data, int64_t bytes, DType dtype);
  void fill_scales(Format format, uint8_t* scales, int64_t bytes);
  void fill_on_gpu(const Weight& like, uint8_t* codes, int64_t code_bytes, uint8_t* scales,
                   int64_t scale_bytes);
  void find_row_exponents(ops::Site& site);

  const ops::Ctx& cx_;
  std::deque<Buffer> buffers_;
  uint64_t state_ = 1;
};

}  // namespace nibble::cli
