// Matrix products on the CPU, shared by the ops that have one. Not an op: no table. A product owns
// the working memory of one op: it takes the inputs once, in the form that its kernels read, and
// then multiplies blocks of rows by them, from any worker. Made without kernels it only counts its
// memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cpu_matmul/bf16_kernels.h"
#include "ops/cpu_matmul/bf16_row_kernels.h"
#include "ops/cpu_matmul/float_kernels.h"
#include "ops/cpu_matmul/float_panel_kernels.h"
#include "ops/cpu_matmul/int8_kernels.h"
#include "ops/cpu_matmul/int8_row_kernels.h"
#include "ops/ctx.h"
#include "ops/scratch.h"
#include "ops/weight.h"

namespace nibble::ops {

// The vectors that matrices are multiplied by. Group g (of a matrix each: the experts) has inputs
// offsets[g] .. offsets[g + 1] - 1; input i is row row[i] of x.
struct ProductInputs {
  const float* x = nullptr;  // [sources, K]
  int64_t sources = 0;
  int64_t groups = 0;
  const int32_t* offsets = nullptr;  // [groups + 1]
  const int32_t* row = nullptr;      // [inputs]; none: input i is row i
  float e4m3_scale = 0;              // under --activations fp8; 0: each row has its own

  int64_t inputs() const { return offsets[groups]; }
  int64_t count(int64_t g) const { return offsets[g + 1] - offsets[g]; }
};

// How much a product must have room for.
struct ProductSize {
  Format format;  // of the weights
  int64_t cols;   // K
  int64_t sources, inputs, groups;
  int threads;
};

// The float kernels of a machine whose products are `isa`'s.
constexpr cpu::Isa float_isa(cpu::Isa isa) {
  while (isa != cpu::Isa::kAvx512 && isa != cpu::Isa::kAvx2 && isa != cpu::Isa::kNeon &&
         isa != cpu::Isa::kScalar)
    isa = cpu::lower(isa);
  return isa;
}

// Weights of any format in kRows by float32 inputs: the blocked float path.
class FloatProduct {
 public:
  using Kernels = FloatKernels;
  static const FloatKernels& kernels(cpu::Isa isa) { return float_kernels(float_isa(isa)); }
  static constexpr int64_t kRows = kBlockRows;  // at most, of one multiply()

  FloatProduct(const FloatKernels* kernels, Scratch& scratch, const ProductSize& size);
  void take(Ctx& cx, const ProductInputs& inputs);
  // y[i * ldy + r] for row r of `rows` and input i of group g.
  void multiply(const Weight& rows, int64_t g, int worker, float* y, int64_t ldy) const;

 private:
  const FloatKernels* kernels_;
  const float** x_;  // [inputs]
  float* ordered_;   // [sources, K] where is_in_block_order() or takes_e4m3()
  float* decoded_;   // [threads][kRows, K]
  int64_t cols_;
  Format format_;
  bool reorder_;
  int64_t direct_tokens_;  // inputs that meet weights without decoding whole rows
  const int32_t* offsets_ = nullptr;
};

// MXFP8, NVFP4 and FP8 weights in kPanels16 by float32 inputs.
class FloatPanelProduct {
 public:
  using Kernels = FloatPanelKernels;
  static const FloatPanelKernels& kernels(cpu::Isa isa) { return float_panel_kernels(isa); }
  static constexpr int64_t kRows = 4 * kPanelRows;

  FloatPanelProduct(const FloatPanelKernels* kernels, Scratch& scratch, const ProductSize& size);
  void take(Ctx& cx, const ProductInputs& inputs);
  void multiply(const Weight& rows, int64_t g, int worker, float* y, int64_t ldy) const;

 private:
  FloatPanelKernels::Multiply* multiply_;
  const float** x_;  // [inputs]
  float* rounded_;   // [sources, K] where takes_e4m3()
  float* sums_;      // [threads][inputs, 16]
  int64_t inputs_, cols_;
  Format format_;
  const int32_t* offsets_ = nullptr;
};

// MXFP8, NVFP4 and FP8 weights in kPanels16 by inputs rounded to bf16.
class Bf16Product {
 public:
  using Kernels = Bf16Kernels;
  static const Bf16Kernels& kernels(cpu::Isa isa) { return bf16_kernels(isa); }
  static constexpr int64_t kRows = kBf16Panels * kPanelRows;

  Bf16Product(const Bf16Kernels* kernels, Scratch& scratch, const ProductSize& size);
  void take(Ctx& cx, const ProductInputs& inputs);
  void multiply(const Weight& rows, int64_t g, int worker, float* y, int64_t ldy) const;

 private:
  const Bf16Kernels* kernels_;
  Bf16Kernels::Multiply* multiply_;
  int64_t* first_;      // [groups] rows of x_ of the groups before
  uint16_t* x_;         // [inputs of each group, rounded up to kBf16Inputs][K]
  std::byte* scratch_;  // [threads][bf16_run_scratch_bytes()]
  int64_t cols_;
  const int32_t* offsets_ = nullptr;
};

// Weights in bf16 rows by inputs rounded to bf16.
class Bf16RowProduct {
 public:
  using Kernels = Bf16RowKernels;
  static const Bf16RowKernels& kernels(cpu::Isa isa) { return bf16_row_kernels(isa); }
  static constexpr int64_t kRows = 64;

  Bf16RowProduct(const Bf16RowKernels* kernels, Scratch& scratch, const ProductSize& size);
  void take(Ctx& cx, const ProductInputs& inputs);
  void multiply(const Weight& rows, int64_t g, int worker, float* y, int64_t ldy) const;

 private:
  const Bf16RowKernels* kernels_;
  int64_t* first_;  // [groups + 1] tiles of kTurnedInputs of the groups before
  std::byte* x_;    // [tiles], see Bf16RowRun
  int64_t cols_;
  const int32_t* offsets_ = nullptr;
};

// Inputs rounded to int8, in tiles as Int8Kernels read them; those of a group begin a new tile.
class Int8Inputs {
 public:
  struct Tile {
    std::byte* at;
    int size;    // vectors it has room for
    int tokens;  // vectors in it
  };
  Int8Inputs(Scratch& scratch, const ProductSize& size, int parts);
  // In tiles of kernels.most_tokens, by `encode` of the kernels. Groups of more than `most` vectors
  // are left out.
  using Encode = decltype(Int8Kernels::encode);
  void take(Ctx& cx, const Int8Kernels& kernels, const ProductInputs& inputs, Encode encode,
            int64_t most);
  Tile tile(int64_t g, int64_t index) const;
  int64_t count(int64_t g) const { return offsets_[g + 1] - offsets_[g]; }
  int64_t blocks() const { return blocks_; }  // K / 32

 private:
  int64_t blocks_;
  int parts_;         // scales of weights in a block
  int most_ = 1;      // vectors of a tile
  int64_t* first_;    // [groups] room for vectors that tiles of the groups before take
  std::byte* tiles_;  // see Int8Kernels
  const int32_t* offsets_ = nullptr;
};

// MXFP4, NVFP4 and INT4 weights in kPanels16 by inputs rounded to int8 in blocks of 32.
class Int8Product {
 public:
  using Kernels = Int8KernelSet;
  static const Int8KernelSet& kernels(cpu::Isa isa) { return int8_kernels(isa); }
  static constexpr int64_t kRows = 4 * kPanelRows;

  Int8Product(const Int8KernelSet* kernels, Scratch& scratch, const ProductSize& size)
      : kernels_(kernels == nullptr ? nullptr : &kernels->of(size.format)),
        inputs_(scratch, size, int8_parts(size.format)) {}
  void take(Ctx& cx, const ProductInputs& inputs);
  void multiply(const Weight& rows, int64_t g, int worker, float* y, int64_t ldy) const;

 private:
  const Int8Kernels* kernels_;
  Int8Inputs inputs_;
};

// The same by inputs with one step per row.
class Int8RowProduct {
 public:
  using Kernels = Int8RowKernels;
  static const Int8RowKernels& kernels(cpu::Isa isa) { return int8_row_kernels(isa); }
  static constexpr int64_t kRows = kMostPanels * kPanelRows;

  Int8RowProduct(const Int8RowKernels* kernels, Scratch& scratch, const ProductSize& size);
  void take(Ctx& cx, const ProductInputs& inputs);
  void multiply(const Weight& rows, int64_t g, int worker, float* y, int64_t ldy) const;

 private:
  int8_t* amx_tiles(int64_t g) const { return tiles_ + first_[g] * steps_ * kAmxTileBytes; }

  const Int8RowKernels* kernels_;
  Int8Inputs inputs_;
  int64_t steps_;        // K / 64
  int64_t* first_;       // [groups] tiles of the groups before
  int8_t* codes_;        // [sources][K]
  RowCodes* row_codes_;  // [sources]
  int8_t* tiles_;        // see PanelRun
  float* half_steps_;    // [tiles, 16]
  int32_t* sums_;        // [tiles, 16]
  std::byte* scratch_;   // [threads][run_scratch_bytes()]
};

// Bytes that an op's Work<Product> needs, whichever product its row is made of.
template <template <typename> class Work, typename Desc>
int64_t most_scratch_bytes(const Desc& desc, int64_t tokens, int threads) {
  return std::max({Work<Bf16RowProduct>(Scratch(), nullptr, desc, tokens, threads).used_bytes,
                   Work<Bf16Product>(Scratch(), nullptr, desc, tokens, threads).used_bytes,
                   Work<FloatPanelProduct>(Scratch(), nullptr, desc, tokens, threads).used_bytes,
                   Work<FloatProduct>(Scratch(), nullptr, desc, tokens, threads).used_bytes,
                   Work<Int8Product>(Scratch(), nullptr, desc, tokens, threads).used_bytes,
                   Work<Int8RowProduct>(Scratch(), nullptr, desc, tokens, threads).used_bytes});
}

// y [inputs, N] = x [inputs, K] W^T + b, on all workers.
template <typename Product>
void linear(Ctx& cx, Product& product, float* y, const float* x, int64_t inputs, const Weight& w);

extern template void linear(Ctx&, FloatProduct&, float*, const float*, int64_t, const Weight&);
extern template void linear(Ctx&, Bf16Product&, float*, const float*, int64_t, const Weight&);
extern template void linear(Ctx&, Bf16RowProduct&, float*, const float*, int64_t, const Weight&);
extern template void linear(Ctx&, FloatPanelProduct&, float*, const float*, int64_t, const Weight&);
extern template void linear(Ctx&, Int8Product&, float*, const float*, int64_t, const Weight&);
extern template void linear(Ctx&, Int8RowProduct&, float*, const float*, int64_t, const Weight&);

// Panels of a weight in kPanels16 that Int8RowProduct meets in more than one pass: see PanelRun.
int64_t count_wide_panels(const Weight& w);

}  // namespace nibble::ops
