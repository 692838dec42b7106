#include "ops/cpu_matmul/product.h"

#include <algorithm>
#include <cstring>

#include "cpu/thread_pool.h"
#include "formats/int8.h"
#include "formats/mxfp4.h"
#include "formats/mxfp8.h"
#include "ops/gpu_matmul/e2m1_rows.h"

namespace nibble::ops {
namespace {

// Vectors that the last tile of a group may have room for beyond those in it: see tile_size().
constexpr int64_t kMostPadding = 3;
constexpr int64_t kAmxTilesBehind = 1;  // that may be read behind the last: see PanelRun

int64_t most_amx_tiles(const ProductSize& size) {
  return size.inputs / kAmxTileTokens + std::min(size.groups, size.inputs);
}

void clear_vector(std::byte* tile, int64_t blocks, int parts, int size, int m) {
  for (int64_t b = 0; b < blocks; ++b, tile += size * int8_tile_bytes(parts)) {
    std::memset(tile + 32 * m, 0, 32);
    for (int i = 0; i < 1 + parts; ++i) std::memset(tile + (32 + 4 * i) * size + 4 * m, 0, 4);
  }
}

// See is_in_block_order(). In place.
void to_block_order(int64_t cols, float* x) {
  constexpr int64_t kBlock = 32, kHalf = kBlock / 2;
  for (int64_t k = 0; k + kBlock <= cols; k += kBlock, x += kBlock) {
    float odd[kHalf];
    for (int64_t i = 0; i < kHalf; ++i) odd[i] = x[2 * i + 1], x[i] = x[2 * i];
    std::copy_n(odd, kHalf, x + kHalf);
  }
}

// A row of inputs to E4M3 or E2M1 and back, as the kernels of GPUs round it.
void round_row(const Ctx& cx, const ProductInputs& in, Format weights, int64_t cols, float* x) {
  if (rounded_inputs(cx.kernels.activations, weights) == ActFormat::kFp4)
    round_to_e2m1(x, cols, weights);
  else
    round_to_e4m3(x, cols, in.e4m3_scale);
}
bool rounds(const Ctx& cx, Format weights) {
  return rounded_inputs(cx.kernels.activations, weights) != ActFormat::kFloat;
}

// Calls body(i, g, at) for each input i, the at-th of group g, on all workers.
template <typename Body>
void for_inputs(Ctx& cx, const ProductInputs& in, const Body& body) {
  cx.pool->parallel_for(in.inputs(), 1, [&](int64_t i, int64_t end, int) {
    int64_t g = 0;
    for (; i < end; ++i) {
      while (i >= in.offsets[g + 1]) ++g;
      body(i, g, i - in.offsets[g]);
    }
  });
}

}  // namespace

FloatProduct::FloatProduct(const FloatKernels* kernels, Scratch& scratch, const ProductSize& size)
    : kernels_(kernels),
      x_(scratch.take<const float*>(size.inputs)),
      ordered_(scratch.take<float>(is_in_block_order(size.format) || takes_e4m3(size.format)
                                       ? size.sources * size.cols
                                       : 0)),
      decoded_(scratch.take<float>(size.threads * kRows * size.cols)),
      cols_(size.cols),
      format_(size.format),
      reorder_(is_in_block_order(size.format)),
      direct_tokens_(kernels == nullptr || !has_direct_dot(size.format) ? 0
                     : size.format == Format::kBF16 ? kernels->direct_bf16_tokens
                                                    : kernels->direct_tokens) {}

void FloatProduct::take(Ctx& cx, const ProductInputs& in) {
  offsets_ = in.offsets;
  const bool is_rounded = rounds(cx, format_);
  const float* x = reorder_ || is_rounded ? ordered_ : in.x;
  for (int64_t i = 0; i < in.inputs(); ++i) x_[i] = x + (in.row == nullptr ? i : in.row[i]) * cols_;
  if (x == in.x) return;
  cx.pool->parallel_for(in.sources, 1, [&](int64_t row, int64_t end, int) {
    for (; row < end; ++row) {
      float* const to = ordered_ + row * cols_;
      std::copy_n(in.x + row * cols_, cols_, to);
      if (is_rounded) round_row(cx, in, format_, cols_, to);
      if (reorder_) to_block_order(cols_, to);
    }
  });
}

void FloatProduct::multiply(const Weight& rows, int64_t g, int worker, float* y,
                            int64_t ldy) const {
  const float* const* x = x_ + offsets_[g];
  const int64_t count = offsets_[g + 1] - offsets_[g];
  if (count <= direct_tokens_) return kernels_->dot_weight(rows, x, count, y, ldy);
  float* decoded = decoded_ + worker * kRows * cols_;
  kernels_->decode(rows, decoded);
  kernels_->dot_decoded(rows, decoded, x, count, y, ldy);
}

FloatPanelProduct::FloatPanelProduct(const FloatPanelKernels* kernels, Scratch& scratch,
                                     const ProductSize& size)
    : multiply_(kernels == nullptr ? nullptr : kernels->of(size.format)),
      x_(scratch.take<const float*>(size.inputs)),
      rounded_(scratch.take<float>(takes_e4m3(size.format) ? size.sources * size.cols : 0)),
      sums_(scratch.take<float>(size.threads * size.inputs * kPanelRows)),
      inputs_(size.inputs),
      cols_(size.cols),
      format_(size.format) {}

void FloatPanelProduct::take(Ctx& cx, const ProductInputs& in) {
  offsets_ = in.offsets;
  const bool is_rounded = rounds(cx, format_);
  const float* const x = is_rounded ? rounded_ : in.x;
  for (int64_t i = 0; i < in.inputs(); ++i) x_[i] = x + (in.row == nullptr ? i : in.row[i]) * cols_;
  if (!is_rounded) return;
  cx.pool->parallel_for(in.sources, 1, [&](int64_t row, int64_t end, int) {
    for (; row < end; ++row) {
      std::copy_n(in.x + row * cols_, cols_, rounded_ + row * cols_);
      round_row(cx, in, format_, cols_, rounded_ + row * cols_);
    }
  });
}

void FloatPanelProduct::multiply(const Weight& rows, int64_t g, int worker, float* y,
                                 int64_t ldy) const {
  for (int64_t row = 0; row < rows.rows; row += kPanelRows) {
    const Weight panel = rows.slice(row, kPanelRows);
    multiply_({.codes = panel.codes,
               .scales = panel.scales,
               .row_scales = panel.row_scales,
               .bias = panel.bias,
               .units = cols_ / 32,
               .x = x_ + offsets_[g],
               .tokens = offsets_[g + 1] - offsets_[g],
               .y = y + row,
               .ldy = ldy,
               .sums = sums_ + worker * inputs_ * kPanelRows});
  }
}

Bf16Product::Bf16Product(const Bf16Kernels* kernels, Scratch& scratch, const ProductSize& size)
    : kernels_(kernels),
      multiply_(kernels == nullptr ? nullptr : kernels->of(size.format)),
      first_(scratch.take<int64_t>(size.groups)),
      x_(scratch.take<uint16_t>(
          (size.inputs + std::min(size.groups, size.inputs) * (kBf16Inputs - 1)) * size.cols)),
      scratch_(scratch.take<std::byte>(size.threads * bf16_run_scratch_bytes(size.cols / 32))),
      cols_(size.cols) {}

void Bf16Product::take(Ctx& cx, const ProductInputs& in) {
  offsets_ = in.offsets;
  int64_t rows = 0;
  for (int64_t g = 0; g < in.groups; ++g) {
    first_[g] = rows;
    rows += (in.count(g) + kBf16Inputs - 1) / kBf16Inputs * kBf16Inputs;
  }
  for_inputs(cx, in, [&](int64_t i, int64_t g, int64_t at) {
    uint16_t* to = x_ + (first_[g] + at) * cols_;
    kernels_->encode(in.x + (in.row == nullptr ? i : in.row[i]) * cols_, cols_, to);
    // The last of a group fills what is left of its rows with zeros.
    const int64_t behind = at + 1 < in.count(g) ? 0 : kBf16Inputs - 1 - at % kBf16Inputs;
    std::fill_n(to + cols_, behind * cols_, uint16_t{0});
  });
}

void Bf16Product::multiply(const Weight& rows, int64_t g, int worker, float* y, int64_t ldy) const {
  const int64_t steps = cols_ / 32;
  multiply_({.codes = rows.codes,
             .scales = rows.scales,
             .row_scales = rows.row_scales,
             .bias = rows.bias,
             .panels = rows.rows / kPanelRows,
             .steps = steps,
             .x = x_ + first_[g] * cols_,
             .tokens = offsets_[g + 1] - offsets_[g],
             .y = y,
             .ldy = ldy,
             .scratch = scratch_ + worker * bf16_run_scratch_bytes(steps)});
}

Bf16RowProduct::Bf16RowProduct(const Bf16RowKernels* kernels, Scratch& scratch,
                               const ProductSize& size)
    : kernels_(kernels),
      first_(scratch.take<int64_t>(size.groups + 1)),
      x_(scratch.take<std::byte>(
          (size.inputs / kTurnedInputs + std::min(size.groups, size.inputs)) * kTurnedInputs * 2 *
          size.cols)),
      cols_(size.cols) {}

void Bf16RowProduct::take(Ctx& cx, const ProductInputs& in) {
  offsets_ = in.offsets;
  first_[0] = 0;
  for (int64_t g = 0; g < in.groups; ++g)
    first_[g + 1] = first_[g] + (in.count(g) + kTurnedInputs - 1) / kTurnedInputs;
  cx.pool->parallel_for(first_[in.groups], 1, [&](int64_t tile, int64_t end, int) {
    for (int64_t g = 0; tile < end; ++tile) {
      while (tile >= first_[g + 1]) ++g;
      const float* rows[kTurnedInputs];
      const int64_t first = (tile - first_[g]) * kTurnedInputs;
      const int64_t count = std::min(kTurnedInputs, in.count(g) - first);
      for (int64_t m = 0; m < count; ++m) {
        const int64_t i = in.offsets[g] + first + m;
        rows[m] = in.x + (in.row == nullptr ? i : in.row[i]) * cols_;
      }
      kernels_->turn(rows, count, cols_ / 32, x_ + tile * kTurnedInputs * 2 * cols_);
    }
  });
}

void Bf16RowProduct::multiply(const Weight& rows, int64_t g, int, float* y, int64_t ldy) const {
  kernels_->multiply({.w = reinterpret_cast<const uint16_t*>(rows.codes),
                      .bias = rows.bias,
                      .rows = rows.rows,
                      .steps = cols_ / 32,
                      .x = x_ + first_[g] * kTurnedInputs * 2 * cols_,
                      .tokens = offsets_[g + 1] - offsets_[g],
                      .y = y,
                      .ldy = ldy});
}

Int8Inputs::Int8Inputs(Scratch& scratch, const ProductSize& size, int parts)
    : blocks_(size.cols / kInt8BlockElems),
      parts_(parts),
      first_(scratch.take<int64_t>(size.groups)),
      tiles_(scratch.take<std::byte>(
          (size.inputs + kMostPadding * std::min(size.groups, size.inputs)) * blocks_ *
          int8_tile_bytes(parts))) {}

Int8Inputs::Tile Int8Inputs::tile(int64_t g, int64_t index) const {
  const int64_t left = count(g) - index * most_;
  const int tokens = static_cast<int>(std::min<int64_t>(left, most_));
  return {tiles_ + (first_[g] + index * most_) * blocks_ * int8_tile_bytes(parts_),
          tile_size(tokens, most_), tokens};
}

void Int8Inputs::take(Ctx& cx, const Int8Kernels& kernels, const ProductInputs& in, Encode encode,
                      int64_t most) {
  offsets_ = in.offsets;
  CHECK(kernels.parts == parts_);
  most_ = kernels.most_tokens;
  int64_t vectors = 0;
  for (int64_t g = 0; g < in.groups; ++g) {
    first_[g] = vectors;
    if (count(g) > most) continue;
    const int64_t rest = count(g) % most_;
    vectors += count(g) - rest + (rest == 0 ? 0 : tile_size(rest, most_));
  }
  for_inputs(cx, in, [&](int64_t i, int64_t g, int64_t at) {
    if (count(g) > most) return;
    const Tile t = tile(g, at / most_);
    const int m = static_cast<int>(at % most_);
    const int64_t row = in.row == nullptr ? i : in.row[i];
    encode(in.x + row * blocks_ * kInt8BlockElems, blocks_, t.size, m, t.at);
    if (m + 1 < t.tokens) return;
    // The last of a tile fills what is left of it with zeros.
    for (int rest = t.tokens; rest < t.size; ++rest)
      clear_vector(t.at, blocks_, parts_, t.size, rest);
  });
}

void Int8Product::take(Ctx& cx, const ProductInputs& in) {
  inputs_.take(cx, *kernels_, in, kernels_->encode, in.inputs());
}

void Int8Product::multiply(const Weight& rows, int64_t g, int, float* y, int64_t ldy) const {
  for (int64_t row = 0; row < rows.rows; row += kPanelRows) {
    const Weight panel = rows.slice(row, kPanelRows);
    PanelTile job{.codes = panel.codes,
                  .scales = panel.scales,
                  .row_scales = panel.row_scales,
                  .bias = panel.bias,
                  .blocks = inputs_.blocks(),
                  .ldy = ldy,
                  .from_memory = true};
    for (int64_t first = 0; first < inputs_.count(g); first += kernels_->most_tokens) {
      const Int8Inputs::Tile t = inputs_.tile(g, first / kernels_->most_tokens);
      job.tile = t.at, job.tile_size = t.size, job.tokens = t.tokens;
      job.y = y + first * ldy + row;
      kernels_->multiply(job);
      job.from_memory = false;
    }
  }
}

Int8RowProduct::Int8RowProduct(const Int8RowKernels* kernels, Scratch& scratch,
                               const ProductSize& size)
    : kernels_(kernels),
      inputs_(scratch, size, int8_parts(Format::kMxfp4)),
      steps_(size.cols / kAmxStepElems),
      first_(scratch.take<int64_t>(size.groups)),
      codes_(scratch.take<int8_t>(size.sources * steps_ * kAmxStepElems)),
      row_codes_(scratch.take<RowCodes>(size.sources)),
      tiles_(
          scratch.take<int8_t>((most_amx_tiles(size) + kAmxTilesBehind) * steps_ * kAmxTileBytes)),
      half_steps_(scratch.take<float>(most_amx_tiles(size) * kAmxTileTokens)),
      sums_(scratch.take<int32_t>(most_amx_tiles(size) * kAmxTileTokens)),
      scratch_(scratch.take<std::byte>(size.threads * run_scratch_bytes(steps_))) {}

void Int8RowProduct::take(Ctx& cx, const ProductInputs& in) {
  const Int8Kernels& blocks = int8_kernels(cpu::Isa::kAvx512Vnni).mxfp4;
  inputs_.take(cx, blocks, in, blocks.encode_row, kernels_->few);
  int64_t tiles = 0;
  for (int64_t g = 0; g < in.groups; ++g) {
    first_[g] = tiles;
    if (in.count(g) > kernels_->few) tiles += (in.count(g) + kAmxTileTokens - 1) / kAmxTileTokens;
  }
  if (tiles == 0) return;
  const int64_t cols = steps_ * kAmxStepElems;
  cx.pool->parallel_for(in.sources, 1, [&](int64_t row, int64_t end, int) {
    for (; row < end; ++row)
      row_codes_[row] = kernels_->encode(in.x + row * cols, cols, codes_ + row * cols);
  });
  for_inputs(cx, in, [&](int64_t i, int64_t g, int64_t at) {
    if (in.count(g) <= kernels_->few) return;
    const int64_t row = in.row == nullptr ? i : in.row[i], m = at % kAmxTileTokens;
    half_steps_[first_[g] * kAmxTileTokens + at] = row_codes_[row].half_step;
    sums_[first_[g] * kAmxTileTokens + at] = row_codes_[row].sum;
    int8_t* to = amx_tiles(g) + at / kAmxTileTokens * steps_ * kAmxTileBytes + m * kAmxStepElems;
    const int8_t* from = codes_ + row * cols;
    // The last of a tile fills what is left of it with zeros.
    const int64_t behind = at + 1 < in.count(g) ? 0 : kAmxTileTokens - m - 1;
    for (int64_t s = 0; s < steps_; ++s, to += kAmxTileBytes, from += kAmxStepElems) {
      std::memcpy(to, from, kAmxStepElems);
      if (behind > 0) std::memset(to + kAmxStepElems, 0, behind * kAmxStepElems);
    }
  });
}

void Int8RowProduct::multiply(const Weight& rows, int64_t g, int worker, float* y,
                              int64_t ldy) const {
  if (inputs_.count(g) == 0) return;
  PanelRun run{.codes = rows.codes,
               .scales = rows.scales,
               .bias = rows.bias,
               .panels = rows.rows / kPanelRows,
               .steps = steps_,
               .tokens = inputs_.count(g),
               .y = y,
               .ldy = ldy,
               .scratch = scratch_ + worker * run_scratch_bytes(steps_)};
  if (run.tokens <= kernels_->few) {
    run.block_tile = inputs_.tile(g, 0).at;
  } else {
    run.tiles = amx_tiles(g);
    run.half_steps = half_steps_ + first_[g] * kAmxTileTokens;
    run.sums = sums_ + first_[g] * kAmxTileTokens;
  }
  kernels_->multiply(run);
}

int64_t count_wide_panels(const Weight& w) {
  CHECK(w.layout == Layout::kPanels16 && w.format == Format::kMxfp4);
  const int64_t blocks = w.cols / kInt8BlockElems, panels = w.experts * w.rows / kPanelRows;
  int64_t wide = 0;
  for (int64_t p = 0; p < panels; ++p) {
    PanelBases bases;
    wide += panel_bases(w.scales + p * blocks * kPanelRows, blocks, bases) > 1;
  }
  return wide;
}

template <typename Product>
void linear(Ctx& cx, Product& product, float* y, const float* x, int64_t inputs, const Weight& w) {
  const int32_t offsets[] = {0, static_cast<int32_t>(inputs)};
  product.take(cx, {.x = x, .sources = inputs, .groups = 1, .offsets = offsets});
  const int64_t blocks = (w.rows + Product::kRows - 1) / Product::kRows;
  cx.pool->parallel_blocks(blocks, [&](int64_t block, int64_t end, int worker) {
    for (; block < end; ++block) {
      const int64_t r = block * Product::kRows,
                    rows = std::min<int64_t>(Product::kRows, w.rows - r);
      product.multiply(w.slice(r, rows), 0, worker, y + r, w.rows);
    }
  });
}

template void linear(Ctx&, FloatProduct&, float*, const float*, int64_t, const Weight&);
template void linear(Ctx&, Bf16Product&, float*, const float*, int64_t, const Weight&);
template void linear(Ctx&, Bf16RowProduct&, float*, const float*, int64_t, const Weight&);
template void linear(Ctx&, FloatPanelProduct&, float*, const float*, int64_t, const Weight&);
template void linear(Ctx&, Int8Product&, float*, const float*, int64_t, const Weight&);
template void linear(Ctx&, Int8RowProduct&, float*, const float*, int64_t, const Weight&);

}  // namespace nibble::ops
