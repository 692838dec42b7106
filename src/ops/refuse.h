// Reasons that kernels of several ops share. nullptr: no objection.
#pragma once

#include "formats/format.h"
#include "ops/gpu_matmul/chosen_plan.h"
#include "ops/gpu_matmul/e2m1_rows.h"
#include "ops/gpu_matmul/expert_limits.h"
#include "ops/gpu_matmul/gemm_items.h"
#include "ops/gpu_matmul/stream_plan.h"
#include "ops/gpu_matmul/unit_f16.h"
#include "ops/gpu_matmul/unit_one.h"
#include "ops/kernel_table.h"
#include "ops/routing.h"
#include "ops/weight.h"

namespace nibble::ops {

// Reasons that say nothing about the row: the model runs on another kind of device.
inline constexpr char kRunsOnCpus[] = "runs on CPUs";
inline constexpr char kNeedsGpu[] = "needs an NVIDIA GPU";

// Whether a row has nothing against a problem but the size of the step: the tokens that it has, or
// the rows that an expert has of them.
inline bool is_of_step_size(std::string_view reason) {
  const auto has = [&](std::string_view part) { return reason.find(part) != reason.npos; };
  if (reason.starts_with("--exact")) return false;
  return has("tokens") || has("rows an expert") || reason.ends_with("one token");
}

// Rows of host code.
inline const char* refuse_gpu(const KernelOptions& options) {
  return options.gpu.sm == 0 ? nullptr : kRunsOnCpus;
}

// Rows of CUDA code.
inline const char* refuse_cpu(const KernelOptions& options) {
  return options.gpu.sm != 0 ? nullptr : kNeedsGpu;
}

inline const char* refuse_ref(const KernelOptions& options) {
  if (const char* reason = refuse_gpu(options)) return reason;
  return options.allow_ref ? nullptr : "a reference twin; only with --allow-ref";
}

inline const char* refuse_isa(cpu::Isa want, const KernelOptions& options) {
  if (const char* reason = refuse_gpu(options)) return reason;
  if (cpu::supports(options.isa, want)) return nullptr;
  switch (want) {
    case cpu::Isa::kAvx512:
      return "needs AVX-512 F, BW, VL and DQ";
    case cpu::Isa::kAvx2:
      return "needs AVX2 and FMA";
    case cpu::Isa::kAvx512Vnni:
      return "needs AVX-512 VNNI and VBMI";
    case cpu::Isa::kAvx512Bf16:
      return "needs fast AVX-512 BF16";
    case cpu::Isa::kAvxVnni:
      return "needs AVX-VNNI";
    case cpu::Isa::kAmx:
      return "needs AMX (tile, int8, bf16)";
    case cpu::Isa::kNeonDot:
      return "needs an arm64 CPU with dot products";
    case cpu::Isa::kNeon:
      return "needs an arm64 CPU";
    case cpu::Isa::kScalar:
      return nullptr;
  }
  return "unknown instruction set";
}

inline const char* refuse_format(Format format) {
  return format == Format::kBF16 || format == Format::kMxfp4 ? nullptr
                                                             : "weights are neither bf16 nor mxfp4";
}

// The blocked float path on `isa`, for weights of `format`.
template <cpu::Isa kIsa>
const char* refuse_blocked(Format format, const KernelOptions& options) {
  if (const char* reason = refuse_isa(kIsa, options)) return reason;
  return refuse_format(format);
}

// Panels with float32 activations on `isa`, for a weight of `rows` x `cols`.
template <cpu::Isa kIsa>
const char* refuse_float_panels(Format format, int64_t rows, int64_t cols,
                                const KernelOptions& options) {
  if (const char* reason = refuse_isa(kIsa, options)) return reason;
  if (format != Format::kMxfp8 && format != Format::kNvfp4 && format != Format::kFp8Row &&
      format != Format::kFp8Block)
    return "weights are not nvfp4, mxfp8 or fp8";
  return refuse_layout(Layout::kPanels16, format, rows, cols);
}

// Panels with activations rounded to bf16, on AMX or AVX-512 BF16, where they may be int8.
template <cpu::Isa kIsa>
const char* refuse_bf16(Format format, int64_t rows, int64_t cols, const KernelOptions& options) {
  if (const char* reason = refuse_isa(kIsa, options)) return reason;
  if (options.activations != ActFormat::kInt8 && options.activations != ActFormat::kInt8Row)
    return "activations are not int8";
  if (format != Format::kMxfp8 && format != Format::kNvfp4 && format != Format::kFp8Row &&
      format != Format::kFp8Block)
    return "weights are not nvfp4, mxfp8 or fp8";
  return refuse_layout(Layout::kPanels16, format, rows, cols);
}

// bf16 weights in rows, likewise.
template <cpu::Isa kIsa>
const char* refuse_bf16_rows(Format format, int64_t rows, int64_t cols,
                             const KernelOptions& options) {
  if (const char* reason = refuse_isa(kIsa, options)) return reason;
  if (options.activations != ActFormat::kInt8 && options.activations != ActFormat::kInt8Row)
    return "activations are not int8";
  if (format != Format::kBF16) return "weights are not bf16";
  if (rows % 16 != 0) return "rows are not a multiple of 16";
  return cols % 32 == 0 ? nullptr : "columns are not a multiple of 32";
}

// Products with int8 activations on `isa`, for a weight of `rows` x `cols`.
template <cpu::Isa kIsa>
const char* refuse_int8(Format format, int64_t rows, int64_t cols, const KernelOptions& options) {
  if (const char* reason = refuse_isa(kIsa, options)) return reason;
  // Their scales are no powers of two: one step per token would gain nothing.
  const bool has_floats =
      format == Format::kNvfp4 || format == Format::kInt4G32 || format == Format::kInt4G128;
  if (options.activations != ActFormat::kInt8 &&
      !(has_floats && options.activations == ActFormat::kInt8Row))
    return "activations are not int8";
  if (format != Format::kMxfp4 && !has_floats) return "int8 activations are for weights of 4 bits";
  return refuse_layout(Layout::kPanels16, format, rows, cols);
}

struct GemvProblem {
  Format format;
  int64_t rows, cols;  // of the weight
  int64_t tokens;
};

// The few-token CUDA products (ops/gpu_matmul/gemv.cuh) with a weight of `rows` x `cols`. Digits of
// 8 rows of activations and the rings must fit in a block's shared memory.
inline const char* refuse_gemv_shape(int64_t rows, int64_t cols) {
  if (rows % 16 != 0) return "rows are not a multiple of 16";
  if (cols % 64 != 0) return "columns are not a multiple of 64";
  return cols <= 4608 ? nullptr : "more than 4608 columns";
}
inline const char* refuse_gemv_tiles(Format format, int64_t rows, int64_t cols,
                                     const KernelOptions& options) {
  if (const char* reason = refuse_cpu(options)) return reason;
  if (format != Format::kMxfp4) return "weights are not mxfp4";
  return refuse_gemv_shape(rows, cols);
}
// Of ops/gpu_matmul/expert_limits.h.
inline const char* refuse_listed(int64_t experts) {
  static_assert(gpu::kMaxExperts == 513);
  return experts <= gpu::kMaxExperts ? nullptr : "more than 513 experts";
}
inline const char* refuse_counted(int64_t experts) {
  static_assert(gpu::kMaxCountedExperts == 256);
  return experts <= gpu::kMaxCountedExperts ? nullptr : "more than 256 experts";
}
inline const char* refuse_choices(int64_t top_k) {
  static_assert(gpu::kMaxChoices == 16);
  return top_k <= gpu::kMaxChoices ? nullptr : "more than 16 experts a token";
}
// A thread counts the slots of one expert; one token's choices fit at once.
inline const char* refuse_gemv_counts(int64_t experts, int64_t top_k) {
  return top_k > 8 ? "more than 8 experts a token" : refuse_counted(experts);
}
template <typename Desc>
const char* refuse_gemv_experts(const Desc& d, int64_t rows, int64_t cols) {
  if (const char* reason = refuse_gemv_shape(rows, cols)) return reason;
  return refuse_gemv_counts(d.experts, d.top_k);
}
// Experts with so many rows of activations in all: those with more than 4 go by f16.
inline const char* refuse_gemv_batch(int64_t rows, int64_t experts, const KernelOptions& options) {
  if (options.exact) return "--exact: its sums depend on the batch";
  return rows >= 3 * experts || options.any_size ? nullptr : "fewer than 3 rows an expert";
}
// The same by wgmma in FP8 (ops/gpu_matmul/gemm_narrow_sm90.cuh).
inline constexpr int64_t kNarrowMost = 64;  // rows an expert
inline const char* refuse_narrow_shape(int64_t rows, int64_t cols, const KernelOptions& options) {
  if (options.gpu.sm != 90) return "needs wgmma: a Hopper GPU";
  if (rows % 64 != 0) return "rows are not a multiple of 64";
  return cols <= 4096 ? nullptr : "more than 4096 columns";
}
inline const char* refuse_narrow(int64_t met, int64_t experts, int64_t rows, int64_t cols,
                                 const WeightFacts& facts, const KernelOptions& options) {
  if (const char* reason = refuse_narrow_shape(rows, cols, options)) return reason;
  if (!facts.fits_e5m2) return "its weights have block scales above 2, which E5M2 has no room for";
  if (met > kNarrowMost * experts) return "more than 64 rows an expert";
  return met >= 3 * experts ? nullptr : "fewer than 3 rows an expert";
}
inline const char* refuse_gemv_rows(Format format, int64_t rows, int64_t cols,
                                    const KernelOptions& options) {
  if (const char* reason = refuse_cpu(options)) return reason;
  if (format != Format::kBF16) return "weights are not bf16";
  return refuse_gemv_shape(rows, cols);
}
// One token alone may be longer, if that of more tokens is served by rows in the same layout.
inline const char* refuse_gemv_long_rows(const GemvProblem& p, const KernelOptions& options) {
  if (p.tokens > 1 || p.cols <= 4608) return refuse_gemv_rows(p.format, p.rows, p.cols, options);
  if (const char* reason = refuse_gemv_rows(p.format, p.rows, 64, options)) return reason;
  if (p.cols % 64 != 0) return "columns are not a multiple of 64";
  return p.cols <= 16384 ? nullptr : "more than 16384 columns";
}

// The same with one step per token.
template <cpu::Isa kIsa>
const char* refuse_int8_row(Format format, int64_t rows, int64_t cols,
                            const KernelOptions& options) {
  if (const char* reason = refuse_isa(kIsa, options)) return reason;
  if (options.activations != ActFormat::kInt8Row) return "activations are not int8-row";
  if (format != Format::kMxfp4) return "int8-row activations are for mxfp4 weights";
  if (cols % 64 != 0) return "its columns are not a multiple of 64";
  return refuse_layout(Layout::kPanels16, format, rows, cols);
}

// The wgmma products of many rows (ops/gpu_matmul/gemm_sm90.cuh), as a row of a table that reads
// weights of kFormat.
struct GemmProblem {
  Format format;
  int64_t rows, cols;  // of the weight
  int64_t met;         // rows of activations that meet each, at most
  int64_t fewest;      // below, the few-token rows win
  WeightFacts facts = {};
};
// For dense weights. At 64 tokens of gpt-oss-120b the few-token rows take 86 us for qkv, whose
// passes of 8 tokens each read the weights anew.
inline constexpr int64_t kDenseFewest = 32;

// kFp8Row stands for FP8 in blocks and MXFP8, too, and kInt4G128 for other groups.
template <Format kFormat>
const char* refuse_other(Format format) {
  if (format == kFormat) return nullptr;
  switch (kFormat) {
    case Format::kMxfp4:
      return "weights are not mxfp4";
    case Format::kNvfp4:
      return "weights are not nvfp4";
    case Format::kFp8Row:
      return format == Format::kFp8Block || format == Format::kMxfp8 ? nullptr
                                                                     : "weights are not fp8";
    case Format::kInt4G128:
      return format == Format::kInt4G32 ? nullptr : "weights are not int4";
    default:
      return "weights are not bf16";
  }
}
template <Format kFormat>
const char* refuse_gemm(const GemmProblem& p, const KernelOptions& options) {
  if (const char* reason = refuse_cpu(options)) return reason;
  if (options.gpu.sm != 90) return "needs wgmma: a Hopper GPU";
  if (options.exact) return "--exact: its sums differ from those of the rows for few tokens";
  if (const char* reason = refuse_other<kFormat>(p.format)) return reason;
  if (p.rows % 16 != 0) return "rows are not a multiple of 16";
  if (p.cols % 64 != 0) return "columns are not a multiple of 64";
  return p.met >= p.fewest || options.any_size ? nullptr : "too few tokens to fill its tiles";
}

// BF16 rows that stream (ops/gpu_matmul/gemm_rows_sm90.cuh), where the few-token rows do not take
// the columns, or read them again.
inline constexpr int64_t kRowsFewest = 9;
inline const char* refuse_rows_stream(GemmProblem p, const KernelOptions& options) {
  p.fewest = p.cols > 4608 ? 2 : kRowsFewest;
  if (const char* reason = refuse_gemm<Format::kBF16>(p, options)) return reason;
  return p.met <= 64 ? nullptr : "more than 64 tokens";
}

// The wgmma product of some tokens with a dense matrix (ops/gpu_matmul/gemm_split_sm90.cuh): below
// 5, the few-token rows win.
inline constexpr int64_t kSplitTokens = 256;
inline const char* refuse_split(Format format, int64_t rows, int64_t cols, int64_t tokens,
                                const KernelOptions& options) {
  if (const char* reason = refuse_gemm<Format::kMxfp4>({format, rows, cols, tokens, 5}, options))
    return reason;
  if (cols > 16384) return "more than 16384 columns";
  return tokens <= kSplitTokens ? nullptr : "more than 256 tokens";
}

// NVFP4, FP8, MXFP8 or INT4 weights in kTiles16x64 with few tokens (ops/gpu_matmul/unit_gemv.cuh):
// a row of activations and the rings must fit in a block's shared memory.
template <Format kFormat>
const char* refuse_unit_few(Format format, int64_t rows, int64_t cols,
                            const KernelOptions& options) {
  if (const char* reason = refuse_cpu(options)) return reason;
  if (const char* reason = refuse_other<kFormat>(format)) return reason;
  if (rows % 16 != 0) return "rows are not a multiple of 16";
  if (cols % 64 != 0) return "columns are not a multiple of 64";
  return cols <= 16384 ? nullptr : "more than 16384 columns";
}
// The same of experts, whose lists lie in a block's shared memory.
template <Format kFormat, typename Desc>
const char* refuse_unit_experts(const Desc& d, int64_t rows, int64_t cols,
                                const KernelOptions& options) {
  if (const char* reason = refuse_unit_few<kFormat>(d.format, rows, cols, options)) return reason;
  if (const char* reason = refuse_choices(d.top_k)) return reason;
  return refuse_listed(d.experts);
}
// One token with NVFP4, by digits (ops/gpu_matmul/unit_one.cuh).
inline const char* refuse_nvfp4_one(Format format, int64_t tokens, const gpu::UnitOneShape& shape,
                                    const KernelOptions& options) {
  if (const char* reason = refuse_unit_few<Format::kNvfp4>(format, shape.rows, shape.cols, options))
    return reason;
  if (tokens > shape.tokens) return "more than one token";
  if (options.exact) return "--exact: its sums are not those of the row for few tokens";
  return gpu::plan_unit_one(shape, options.gpu) ? nullptr : "more columns than its warps share";
}
// Of experts: also few tokens, each for itself. An expert of two tokens is then read twice, and
// each token has its own blocks, which share its row tiles.
template <typename Desc>
bool goes_token_by_token(const Desc& d, const KernelOptions& options) {
  if (d.tokens <= 1 || d.tokens > kMostLeft) return d.tokens <= 1;
  if (options.any_size) return true;
  if (options.gpu.sm != 90 || 5 * (d.tokens - 1) * d.top_k > d.experts) return false;
  const int64_t tiles = d.hidden / 16, blocks = std::min(options.gpu.num_sms / d.tokens, tiles);
  const int64_t most = (tiles + blocks - 1) / blocks;  // of a block
  return 10 * most * blocks <= 11 * tiles;
}
template <typename Desc>
const char* refuse_nvfp4_one_of(const Desc& d, gpu::UnitOneShape shape,
                                const KernelOptions& options) {
  if (const char* reason = refuse_choices(d.top_k)) return reason;
  if (const char* reason =
          refuse_unit_few<Format::kNvfp4>(d.format, shape.rows, shape.cols, options))
    return reason;
  if (!goes_token_by_token(d, options))
    return "its tokens would read too many experts twice, or blocks have uneven shares";
  shape.top_k = static_cast<int>(d.top_k), shape.tokens = static_cast<int>(d.tokens);
  if (const char* reason = refuse_nvfp4_one(d.format, d.tokens, shape, options)) return reason;
  // Steps of fewer tokens run by it, too, whose blocks have other shares.
  for (--shape.tokens; shape.tokens > 1; --shape.tokens)
    if (!gpu::plan_unit_one(shape, options.gpu)) return "more columns than its warps share";
  return nullptr;
}
// The same with MXFP4 (ops/gpu_matmul/gemv_chosen.cuh), whose sums are those of the other rows for
// few tokens; 16 row_tiles rows of an expert. The kernel for one token is that row's, too.
template <typename Desc>
const char* refuse_each_token(const Desc& d, bool is_sum, int64_t row_tiles,
                              const KernelOptions& options) {
  if (d.tokens > kMostLeft) return "more than 8 tokens";
  if (options.any_size) return nullptr;
  if (d.tokens <= 1) return "of more than one token";
  if (options.gpu.sm != 90) return "its tokens wait for memory, not for each other";
  if (4 * (d.tokens - 1) * d.top_k > d.experts)
    return "its tokens would read too many experts twice";
  // Steps of fewer tokens run by it, too.
  gpu::ChosenShape shape{is_sum, static_cast<int>(row_tiles), static_cast<int>(d.top_k),
                         static_cast<int>(d.tokens)};
  for (; shape.tokens > 1; --shape.tokens)
    if (!plan_chosen(shape, options.gpu.num_sms).fits(shape, options.gpu.num_sms))
      return "blocks of each of its tokens would have too many row tiles";
  return nullptr;
}
// From how many tokens on the wgmma products win over those of few tokens: by shares of K, up to
// 64, where row tiles are too few to fill the GPU, and at large. Of FP8 those of few tokens hold
// few rows of activations beside their rings. Of experts: rows of each.
template <Format kFormat>
inline constexpr int64_t kUnitFewest = kFormat == Format::kFp8Row ? 9 : 17;
inline constexpr int64_t kUnitSplitMost = 64, kUnitFewestOfExpert = 12;
inline bool splits_units(const GemmProblem& p) {
  return p.met <= kUnitSplitMost && p.rows * p.cols < int64_t{1} << 25;
}
// NVFP4 by gemm_narrow, between the rows for few tokens and the GEMM.
template <typename Desc>
const char* refuse_nvfp4_narrow(const Desc& d, int64_t rows, int64_t cols,
                                const KernelOptions& options) {
  if (options.exact) return "--exact: its sums are not those of the row for few tokens";
  if (const char* reason = refuse_narrow_shape(rows, cols, options)) return reason;
  const int64_t met = d.tokens * d.top_k;
  if (met > kNarrowMost * d.experts) return "more than 64 rows an expert";
  if (options.any_size) return nullptr;
  if (d.tokens <= 1) return "one token";
  return met < kUnitFewestOfExpert * d.experts ? nullptr : "12 rows an expert or more";
}
// Of experts, whose lists lie in shared memory.
template <Format kFormat>
const char* refuse_experts_gemm(const GemmProblem& p, int64_t experts,
                                const KernelOptions& options) {
  if (const char* reason = refuse_gemm<kFormat>(p, options)) return reason;
  return refuse_listed(experts);
}
// A block holds its share of the weights.
template <Format kFormat>
const char* refuse_unit_split(GemmProblem p, const KernelOptions& options) {
  p.fewest = kFormat == Format::kNvfp4 ? 9 : kUnitFewest<kFormat>;
  if (const char* reason = refuse_gemm<kFormat>(p, options)) return reason;
  if (p.cols > 14336) return "more than 14336 columns";
  if (kFormat == Format::kFp8Row && p.cols > 7168) return "more than 7168 columns";
  if (p.format == Format::kInt4G32 && p.cols > 12288) return "more than 12288 columns";
  return splits_units(p) || (options.any_size && p.met <= kSplitTokens)
             ? nullptr
             : "more than 64 tokens, or row tiles enough to fill the GPU";
}
// NVFP4 that streams (ops/gpu_matmul/gemm_stream_sm90.cuh), where its blocks are most of a GPU's.
inline constexpr int64_t kStreamTokens = 64;
inline const char* refuse_nvfp4_stream(GemmProblem p, const KernelOptions& options) {
  p.fewest = 9;
  if (const char* reason = refuse_gemm<Format::kNvfp4>(p, options)) return reason;
  if (p.cols % 256 != 0) return "columns are not a multiple of 256";
  if (p.met > kStreamTokens) return "more than 64 tokens";
  const int64_t sms = options.gpu.num_sms,
                blocks = gpu::plan_unit_stream(p.rows, p.cols, options.gpu.num_sms).blocks;
  return (blocks <= sms && 10 * blocks >= 7 * sms) || options.any_size
             ? nullptr
             : "its rows fill no GPU once";
}
// NVFP4 unfolded to f16 (ops/gpu_matmul/unit_f16_sm90.cuh); `slices`: of K that meet in memory, at
// most.
inline const char* refuse_nvfp4_f16(GemmProblem p, int slices, const KernelOptions& options) {
  p.fewest = 2;
  if (const char* reason = refuse_gemm<Format::kNvfp4>(p, options)) return reason;
  if (p.met > gpu::kF16Tokens) return "more than 8 tokens";
  const auto plan = gpu::plan_unit_f16(p.rows, p.cols, options.gpu);
  return plan && plan->slices <= slices ? nullptr : "more columns than its warps hold";
}

// The same with E4M3 activations (ops/gpu_matmul/gemm_fp8_sm90.cuh).
inline const char* refuse_gemm_fp8(const GemmProblem& p, const KernelOptions& options) {
  if (const char* reason = refuse_cpu(options)) return reason;
  if (options.activations != ActFormat::kFp8) return "activations are not fp8";
  if (!p.facts.fits_e4m3) return "rows of its weights have exponents too far apart for E4M3";
  return refuse_gemm<Format::kMxfp4>(p, options);
}
// Of FP8, dense.
inline constexpr int64_t kW8a8Fewest = 129;
inline const char* refuse_w8a8(GemmProblem p, const KernelOptions& options) {
  p.fewest = kW8a8Fewest;
  if (const char* reason = refuse_cpu(options)) return reason;
  if (options.activations != ActFormat::kFp8) return "activations are not fp8";
  if (p.format == Format::kFp8Block || p.format == Format::kMxfp8)
    return "E4M3 activations are for fp8 with scales of rows";
  return refuse_gemm<Format::kFp8Row>(p, options);
}
// Of NVFP4, dense or experts' (from 32 rows of each), whose weights are rounded once more.
inline constexpr int64_t kNvfp4Fp8FewestOfExpert = 32;
inline const char* refuse_nvfp4_fp8(GemmProblem p, int64_t experts, const KernelOptions& options) {
  p.fewest = experts > 1 ? kNvfp4Fp8FewestOfExpert * experts : kW8a8Fewest;
  if (const char* reason = refuse_cpu(options)) return reason;
  if (options.activations != ActFormat::kFp8) return "activations are not fp8";
  return refuse_experts_gemm<Format::kNvfp4>(p, experts, options);
}
// The same by SM12x's block-scaled mma (ops/gpu_matmul/gemm_scaled_sm12x.cuh), which takes any
// weights of MXFP4, NVFP4, and of kFp8Row: FP8 by row and MXFP8. kInputs: E4M3 or E2M1.
template <Format kFormat, ActFormat kInputs = ActFormat::kFp8>
const char* refuse_block_scaled(const GemmProblem& p, const KernelOptions& options) {
  if (const char* reason = refuse_cpu(options)) return reason;
  if (options.gpu.sm / 10 != 12) return "needs block-scaled mma: a GB10";
  if (rounded_inputs(options.activations, kFormat) != kInputs)
    return kInputs == ActFormat::kFp4 ? "activations are not fp4" : "activations are not fp8";
  if (options.exact) return "--exact: its sums differ from those of the rows for few tokens";
  if (const char* reason = refuse_other<kFormat>(p.format)) return reason;
  if (p.format == Format::kFp8Block) return "scales of its blocks are no powers of two";
  if (p.rows % 16 != 0) return "rows are not a multiple of 16";
  if (p.cols % 64 != 0) return "columns are not a multiple of 64";
  return p.met >= p.fewest || options.any_size ? nullptr : "too few tokens to fill its tiles";
}
// Of dense weights: few-token rows read them again for every 4 to 8 tokens, those of NVFP4 for
// every 16.
template <Format kFormat>
inline constexpr int64_t kBlockScaledFewest = kFormat == Format::kNvfp4 ? 17 : 5;

// Columns that the norm in front of the GEMMs by mma takes (ops/norm/add_norm.h).
inline constexpr int64_t kAddNormMost = 8192;

// The GEMM by mma.sync of many rows (ops/gpu_matmul/gemm_mma.cuh). From 8 rows an expert on, and 9
// tokens of a dense matrix, the rows for few tokens read matrices again.
inline constexpr int64_t kMmaExpertRows = 8, kMmaTokens = 9;
template <Format kFormat>
const char* refuse_mma(const GemmProblem& p, const KernelOptions& options) {
  if (const char* reason = refuse_cpu(options)) return reason;
  if (options.gpu.sm == 90) return "for GPUs without wgmma";
  if (options.exact) return "--exact: its sums differ from those of the rows for few tokens";
  if (const char* reason = refuse_other<kFormat>(p.format)) return reason;
  if (p.rows % 16 != 0) return "rows are not a multiple of 16";
  if (p.cols % 64 != 0) return "columns are not a multiple of 64";
  return p.met >= p.fewest || options.any_size ? nullptr : "too few tokens to fill its tiles";
}

// An expert op with E4M3 activations. moe_up leaves them for moe_down: both ask the same, of both
// products' shapes and of what the user names, so that neither takes it without the other.
inline bool is_experts_fp8(std::string_view kernel) {
  return kernel.find("_w4a8_") != std::string_view::npos;
}
template <typename Desc>
const char* refuse_unpaired_fp8(const Desc& d, const KernelOptions& options) {
  if (!d.act.is_clamped()) return "its activation is not clamped, which E4M3 has no room for";
  if (d.width % 64 != 0) return "the experts' width is not a multiple of 64";
  // Both lie in tiles only where both have kernels of that layout for steps of every size.
  if (const char* reason = refuse_gemv_experts(d, 2 * d.width, d.hidden)) return reason;
  if (const char* reason = refuse_gemv_experts(d, d.hidden, d.width)) return reason;
  for (const auto& [op, name] : options.forced)
    if ((op == "moe_up" || op == "moe_down") && !is_experts_fp8(name))
      return "it goes with its like for moe_up and moe_down, and another kernel is forced";
  int tuned = 0, tuned_fp8 = 0;
  for (const Op op : {Op::kMoeUp, Op::kMoeDown})
    if (const auto* name = internal::tuned_name(op, format_name(d.format), d.tokens, options))
      ++tuned, tuned_fp8 += is_experts_fp8(*name);
  if (tuned_fp8 < 2 && tuned > 0)
    return "it goes with its like for moe_up and moe_down, and the kernel table has not both";
  return nullptr;
}
// moe_up's product, from `fewest` rows an expert on.
template <typename Desc>
GemmProblem up_problem(const Desc& d, int64_t fewest) {
  return {d.format, 2 * d.width, d.hidden, d.tokens * d.top_k, fewest * d.experts, d.facts};
}
template <typename Desc>
const char* refuse_experts_fp8(const Desc& d, int64_t fewest, const KernelOptions& options) {
  if (const char* reason = refuse_gemm_fp8(up_problem(d, fewest), options)) return reason;
  return refuse_unpaired_fp8(d, options);
}
// Below 3 rows an expert the rows with bf16 activations read no more.
template <typename Desc>
const char* refuse_experts_block_scaled(const Desc& d, const KernelOptions& options) {
  if (const char* reason = refuse_block_scaled<Format::kMxfp4>(up_problem(d, 3), options))
    return reason;
  return refuse_unpaired_fp8(d, options);
}
// Experts whose moe_up leaves bf16: each product by itself.
template <ActFormat kInputs, typename Desc>
const char* refuse_nvfp4_block_scaled(const Desc& d, int64_t rows, int64_t cols,
                                      const KernelOptions& options) {
  if (const char* reason = refuse_unit_experts<Format::kNvfp4>(d, rows, cols, options))
    return reason;
  return refuse_block_scaled<Format::kNvfp4, kInputs>(
      {d.format, rows, cols, d.tokens * d.top_k, kUnitFewestOfExpert * d.experts}, options);
}
template <typename Desc>
const char* refuse_experts_w4a4(const Desc& d, int64_t rows, int64_t cols,
                                const KernelOptions& options) {
  return refuse_block_scaled<Format::kMxfp4, ActFormat::kFp4>(
      {d.format, rows, cols, d.tokens * d.top_k, 3 * d.experts}, options);
}
// The same for few rows an expert (ops/gpu_matmul/gemm_narrow_sm90.cuh).
template <typename Desc>
const char* refuse_experts_narrow_fp8(const Desc& d, const KernelOptions& options) {
  if (const char* reason = refuse_experts_fp8(d, 3, options)) return reason;
  if (const char* reason = refuse_narrow_shape(2 * d.width, d.hidden, options)) return reason;
  if (const char* reason = refuse_narrow_shape(d.hidden, d.width, options)) return reason;
  return d.tokens * d.top_k <= 28 * d.experts || options.any_size ? nullptr
                                                                  : "more than 28 rows an expert";
}

}  // namespace nibble::ops
