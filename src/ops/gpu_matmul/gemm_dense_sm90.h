// The wgmma GEMM of a prompt's tokens with dense BF16 rows, as gemm() calls it. Kernel:
// gemm_dense_sm90.cuh.
#pragma once

#include <algorithm>

#include "ops/all_reduce/one_shot.h"
#include "ops/gpu_matmul/gemm_sm90.h"

namespace nibble::ops::gpu {

// Of a work item.
inline constexpr int kDenseRows = 128, kDenseTokens = 256;

// From so many tokens on a matrix of `rows` rows is cut into items that keep the SMs busy: a
// prompt's, and not a router's rows.
constexpr int64_t gemm_dense_from(int64_t rows, int num_sms) {
  const int64_t row_tiles = (rows + kDenseRows - 1) / kDenseRows;
  return std::max<int64_t>(1024, num_sms / (2 * row_tiles) * kDenseTokens + 1);
}
inline bool has_items_of_gemm_dense(const Weight& w, int64_t tokens, int num_sms) {
  return w.format == Format::kBF16 && tokens >= gemm_dense_from(w.rows, num_sms);
}

// kF32 or kSwiglu.
void gemm_dense(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args);

// y [T, N] bf16 = x [T, K] W^T + b, here and where all other ranks find it in the next exchange of
// rows, which add_norm_of_sent makes: it says that they have come. N % 16 == 0; T at most
// most_rows(peers.row_bytes, N).
void gemm_over_ranks(Ctx& cx, const PeerMemory& peers, const Weight& w, const uint16_t* x,
                     int64_t tokens, uint16_t* y);

}  // namespace nibble::ops::gpu
