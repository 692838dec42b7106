#include "ops/linear/product.h"

#include <algorithm>
#include <cstring>

#include "cpu/thread_pool.h"
#include "formats/int8.h"
#include "formats/mxfp4.h"

namespace nibble::ops {
namespace {

// Vectors that the last tile of a group may have room for beyond those in it: see tile_size().
constexpr int64_t kMostPadding = 3;

void clear_vector(std::byte* tile, int64_t blocks, int size, int m) {
  for (int64_t b = 0; b < blocks; ++b, tile += size * kInt8TileBytes) {
    std::memset(tile + 32 * m, 0, 32);
    std::memset(tile + 32 * size + 4 * m, 0, 4);
    std::memset(tile + 36 * size + 4 * m, 0, 4);
  }
}

}  // namespace

FloatProduct::FloatProduct(const FloatKernels* kernels, Scratch& scratch, const ProductSize& size)
    : kernels_(kernels),
      x_(scratch.take<const float*>(size.inputs)),
      ordered_(scratch.take<float>(size.format == Format::kMxfp4 ? size.sources * size.cols : 0)),
      decoded_(scratch.take<float>(size.threads * kRows * size.cols)),
      cols_(size.cols),
      reorder_(size.format == Format::kMxfp4) {}

void FloatProduct::take(Ctx& cx, const ProductInputs& in) {
  offsets_ = in.offsets;
  const float* x = reorder_ ? ordered_ : in.x;
  for (int64_t i = 0; i < in.inputs(); ++i) x_[i] = x + (in.row == nullptr ? i : in.row[i]) * cols_;
  if (!reorder_) return;
  constexpr int64_t kHalf = kMxfp4BlockElems / 2;
  const int64_t blocks = in.sources * cols_ / kMxfp4BlockElems;
  cx.pool->parallel_for(blocks, 1, [&](int64_t b, int64_t end, int) {
    for (; b < end; ++b) {
      const float* from = in.x + b * kMxfp4BlockElems;
      float* to = ordered_ + b * kMxfp4BlockElems;
      for (int64_t i = 0; i < kHalf; ++i) to[i] = from[2 * i], to[kHalf + i] = from[2 * i + 1];
    }
  });
}

void FloatProduct::multiply(const Weight& rows, int64_t g, int worker, float* y,
                            int64_t ldy) const {
  const float* const* x = x_ + offsets_[g];
  const int64_t count = offsets_[g + 1] - offsets_[g];
  if (count <= kernels_->direct_tokens) return kernels_->dot_weight(rows, x, count, y, ldy);
  float* decoded = decoded_ + worker * kRows * cols_;
  kernels_->decode(rows, decoded);
  kernels_->dot_decoded(rows, decoded, x, count, y, ldy);
}

Int8Product::Int8Product(const Int8Kernels* kernels, Scratch& scratch, const ProductSize& size)
    : kernels_(kernels),
      blocks_(size.cols / kInt8BlockElems),
      first_(scratch.take<int64_t>(size.groups)),
      tiles_(scratch.take<std::byte>(
          (size.inputs + kMostPadding * std::min(size.groups, size.inputs)) * blocks_ *
          kInt8TileBytes)) {}

Int8Product::Tile Int8Product::tile(int64_t g, int64_t index) const {
  const int most = kernels_->most_tokens;
  const int64_t left = offsets_[g + 1] - offsets_[g] - index * most;
  const int tokens = static_cast<int>(std::min<int64_t>(left, most));
  return {tiles_ + (first_[g] + index * most) * blocks_ * kInt8TileBytes, tile_size(tokens, most),
          tokens};
}

// Input i of group g to its place; the last of a tile fills what is left of it with zeros.
void Int8Product::encode(const ProductInputs& in, int64_t g, int64_t i) const {
  const int64_t at = i - in.offsets[g];
  const Tile t = tile(g, at / kernels_->most_tokens);
  const int m = static_cast<int>(at % kernels_->most_tokens);
  const int64_t row = in.row == nullptr ? i : in.row[i];
  kernels_->encode(in.x + row * blocks_ * kInt8BlockElems, blocks_, t.size, m, t.at);
  if (m + 1 < t.tokens) return;
  for (int rest = t.tokens; rest < t.size; ++rest) clear_vector(t.at, blocks_, t.size, rest);
}

void Int8Product::take(Ctx& cx, const ProductInputs& in) {
  offsets_ = in.offsets;
  const int most = kernels_->most_tokens;
  int64_t vectors = 0;
  for (int64_t g = 0; g < in.groups; ++g) {
    first_[g] = vectors;
    const int64_t rest = in.count(g) % most;
    vectors += in.count(g) - rest + (rest == 0 ? 0 : tile_size(rest, most));
  }
  cx.pool->parallel_for(in.inputs(), 1, [&](int64_t i, int64_t end, int) {
    int64_t g = 0;
    for (; i < end; ++i) {
      while (i >= in.offsets[g + 1]) ++g;
      encode(in, g, i);
    }
  });
}

void Int8Product::multiply(const Weight& rows, int64_t g, int, float* y, int64_t ldy) const {
  const int64_t count = offsets_[g + 1] - offsets_[g];
  for (int64_t row = 0; row < rows.rows; row += kPanelRows) {
    const Weight panel = rows.slice(row, kPanelRows);
    PanelTile job{.codes = panel.codes,
                  .scales = panel.scales,
                  .bias = panel.bias,
                  .blocks = blocks_,
                  .ldy = ldy,
                  .from_memory = true};
    for (int64_t first = 0; first < count; first += kernels_->most_tokens) {
      const Tile t = tile(g, first / kernels_->most_tokens);
      job.tile = t.at, job.tile_size = t.size, job.tokens = t.tokens;
      job.y = y + first * ldy + row;
      kernels_->multiply(job);
      job.from_memory = false;
    }
  }
}

int64_t task_rows(int64_t rows, int64_t block, int threads) {
  constexpr int64_t kTasksPerThread = 8;
  const int64_t share = rows / (kTasksPerThread * threads);
  return std::max<int64_t>(block, share / block * block);
}

template <typename Product>
void linear(Ctx& cx, Product& product, float* y, const float* x, int64_t inputs, const Weight& w) {
  const int32_t offsets[] = {0, static_cast<int32_t>(inputs)};
  product.take(cx, {.x = x, .sources = inputs, .groups = 1, .offsets = offsets});
  const int64_t per_task = task_rows(w.rows, Product::kRows, cx.pool->size());
  cx.pool->parallel_tasks((w.rows + per_task - 1) / per_task, [&](int64_t task, int worker) {
    const int64_t end = std::min(w.rows, (task + 1) * per_task);
    for (int64_t r = task * per_task; r < end; r += Product::kRows)
      product.multiply(w.slice(r, std::min<int64_t>(Product::kRows, end - r)), 0, worker, y + r,
                       w.rows);
  });
}

template void linear(Ctx&, FloatProduct&, float*, const float*, int64_t, const Weight&);
template void linear(Ctx&, Int8Product&, float*, const float*, int64_t, const Weight&);

}  // namespace nibble::ops
