// find_row_exponents (see row_exponents.h): once for each weight, when it is loaded. Bytes: 32 of
// each 544.
#include "cuda/launch.cuh"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "ops/gpu_matmul/row_exponents.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kUnitBytes = 544;

struct MisfitCounts {
  unsigned long long rows, too_large;
};

// A thread a row: of a unit, scale bytes 2 (2 g + block) + (row >= 8).
__global__ void find(uint8_t* least, MisfitCounts* misfits, const uint8_t* units, int64_t rows,
                     int num_units) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const auto in_tile = static_cast<int>(row % 16);
  const uint8_t* at =
      units + row / 16 * num_units * kUnitBytes + 512 + in_tile % 8 * 4 + (in_tile >= 8 ? 1 : 0);
  int low = 255, high = 0;
  bool is_too_large = false;
  for (int u = 0; u < num_units; ++u, at += kUnitBytes)
    for (const int scale : {at[0], at[2]}) {
      low = min(low, scale);
      high = max(high, scale);
      is_too_large |= scale > kMostE5m2Exponent && scale != 255;
    }
  if (least != nullptr) least[row] = static_cast<uint8_t>(low);
  // The row's factor is 2^(low - 119): above, float32 has no such power.
  if (high - low > kE4m3Span || high == 255 || low + 8 > 254) atomicAdd(&misfits->rows, 1);
  if (is_too_large) atomicAdd(&misfits->too_large, 1);
}

}  // namespace

ExponentMisfits find_row_exponents(const Ctx& cx, const Weight& w, uint8_t* least) {
  CHECK(w.layout == Layout::kTiles16x64);
  Buffer misfits = cx.allocate(sizeof(MisfitCounts));
  const int64_t rows = w.experts * w.rows;
  constexpr int kThreads = 256;
  cuda::launch(cx.stream, find,
               {.grid = dim3(static_cast<unsigned>((rows + kThreads - 1) / kThreads)),
                .block = dim3(kThreads),
                .pdl = false},
               least, static_cast<MisfitCounts*>(misfits.data()), w.codes, rows,
               static_cast<int>(w.cols / 64));
  cuda::wait(cx.stream);
  MisfitCounts counts{};
  cuda::copy(&counts, misfits.data(), sizeof(counts));
  return {static_cast<int64_t>(counts.rows), static_cast<int64_t>(counts.too_large)};
}

}  // namespace nibble::ops::gpu
