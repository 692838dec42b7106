// The blocked float path: what the CPU's ops are made of, written once over vectors of floats and
// compiled for each instruction set.
//
// One reduction order per output, whatever the batch: the sum over k of one (row, input) pair runs
// through one vector accumulator, lane k mod kLanes, in ascending k; its lanes are added in a fixed
// tree. Tiles only choose how many such sums run side by side. So a token has the same bits alone,
// in a batch, or in a chunk; instruction sets with other vector lengths differ in rounding.
#pragma once

#include <cstdint>

#include "cpu/isa.h"
#include "ops/step.h"
#include "ops/swiglu.h"
#include "ops/weight.h"

namespace nibble::ops {

// Rows that are decoded together: kBlockRows x K floats stay in L2. A multiple of every tile's
// rows.
inline constexpr int kBlockRows = 24;

// Queries of consecutive tokens of one sequence that share a KV head, against all their keys.
// Keys are met in blocks of kKeyBlock positions, aligned to absolute positions, with the usual
// rescaling when the largest score grows: the order depends on positions alone.
inline constexpr int kKeyBlock = 32;
struct AttendTile {
  const KvLayer* kv;
  int32_t slot;
  int32_t kv_head;
  int32_t group;       // query heads of this KV head
  int32_t num_tokens;  // rows are num_tokens x group
  int32_t first_pos;   // of the first token
  int32_t window;      // 0: none
  float scale;
  const uint16_t* sinks;  // [group] or none
  const float* q;         // token t, head j of the group: q + t * ld + j * D
  float* att;             // alike
  int64_t ld;
  float* scratch;  // attend_scratch_floats()
};

// Some columns of the state of a head of delta_rule or mamba2, through tokens of one sequence.
// Strides are in floats. mamba2's C, B and x are q, k and v.
inline constexpr int kDeltaColumns = 32;  // that stay in L1 from token to token
// Floats of a layer's state from which on it is written past the caches: other layers come before
// it is read again, and its lines are not read to be written.
inline constexpr int64_t kStatePastCaches = 1 << 18;
struct DeltaBlock {
  int64_t tokens, key_dim, columns;
  const float* qkv;  // [tokens] rows of which q, k and v lie at their places
  int64_t ld_qkv, q, k, v;
  const float* gates;  // [tokens] of two: decay, beta or dt
  int64_t ld_gates;
  const float* from;  // [DK] rows of the state; none: zeros
  float* to;
  int64_t ld_state;
  bool past_caches;  // is `to` written
  float* block;      // [columns in tiles, DK, kDeltaColumns] to work in
  float* values;     // [kDeltaColumns]
  float* out;        // [tokens] rows
  int64_t ld_out;
};
struct DeltaKernels {
  // out[c] = silu(sum over taps j of weights[c][j] inputs[j][c])
  void (*convolve)(const float* const* inputs, const float* weights, int64_t taps, int64_t n,
                   float* out);
  void (*l2_norm)(float* x, int64_t n, float factor);  // x = x / sqrt(|x|^2 + 1e-6) * factor
  void (*run)(const DeltaBlock& block);
  // x = weight * x / sqrt(mean(x^2) + eps) * silu(z)
  void (*norm_gated)(float* x, const float* z, const float* weight, float eps, int64_t n);
};

struct Mamba2Kernels {
  // out[c] = silu(bias[c] + sum over taps j of weights[c][j] inputs[j][c])
  void (*convolve)(const float* const* inputs, const float* weights, const float* bias,
                   int64_t taps, int64_t n, float* out);
  void (*run)(const DeltaBlock& block);
  void (*gate)(float* y, const float* x, float d, const float* z, int64_t n);  // (y + d x) silu(z)
  void (*norm)(float* y, const float* weight, float eps, int64_t n);
};

// Codes of 4 bits are met in block order: per 32 the even elements, then the odd ones; what is left
// of a row behind its last 32 is in its own order.
constexpr bool is_in_block_order(Format format) {
  return format == Format::kMxfp4 || format == Format::kNvfp4 || format == Format::kInt4G32 ||
         format == Format::kInt4G128;
}
// Formats that few inputs meet without decoding whole rows.
constexpr bool has_direct_dot(Format format) {
  return format == Format::kMxfp4 || format == Format::kBF16;
}

struct FloatKernels {
  // Inputs up to which dot_weight() is as good as decode() and dot_decoded().
  int direct_tokens, direct_bf16_tokens;

  // y[m * ldy + r] = sum_k w[r][k] x[m][k] + bias[r]. Where is_in_block_order(), inputs are. The
  // two ways, of which dot_weight() is for has_direct_dot(), give the same bits.
  void (*dot_weight)(const Weight& w, const float* const* x, int64_t tokens, float* y, int64_t ldy);
  void (*decode)(const Weight& w, float* decoded);  // [rows][K], of any format in kRows
  // At most kBlockRows rows.
  void (*dot_decoded)(const Weight& w, const float* decoded, const float* const* x, int64_t tokens,
                      float* y, int64_t ldy);

  // y = x + d; h = norm(y), stored as bf16 where `bf16`.
  void (*add_norm)(float* y, float* h, const float* x, const float* d, const Norm& norm, int64_t n,
                   bool bf16);
  // u[j] = swiglu(y[2j], y[2j + 1]), or of y[j] alone, for n of them
  void (*swiglu)(const float* y, float* u, int64_t n, const Swiglu& act);
  // x *= sigmoid(gate)
  void (*gate)(float* x, const float* gate, int64_t n);
  DeltaKernels delta;
  Mamba2Kernels mamba2;
  void (*attend)(const AttendTile& tile);
};

// Those compiled for `isa`; isa is one of this architecture's.
const FloatKernels& float_kernels(cpu::Isa isa);

int64_t attend_scratch_floats(int64_t rows, int64_t head_dim);

}  // namespace nibble::ops
