#include "ops/moe_up/moe_up.h"

#include <algorithm>

#include "ops/cpu_rows.h"
#include "ops/gpu_matmul/e4m3_pairs.h"
#include "ops/gpu_matmul/e4m3_rows.h"
#include "ops/refuse.h"
#include "ops/scratch.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

constexpr MatrixShape matrix_of(const MoeUpDesc& d) { return {d.rows(), d.hidden}; }
using Cpu = CpuRows<MoeUpKernel, CpuMoeUp, matrix_of>;

// What refuses a row that takes pairs of a gate and an up alone.
template <auto kRefuse>
const char* refuse_gated(const MoeUpDesc& d, const KernelOptions& o) {
  return d.act.is_relu2() ? "its experts have no gate" : kRefuse(d, o);
}

// The few-token CUDA row.
const char* refuse_gemv(const MoeUpDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_gemv_tiles(d.format, d.rows(), d.hidden, o)) return reason;
  return refuse_gemv_experts(d, d.rows(), d.hidden);
}

// Each of a few tokens for itself.
const char* refuse_each(const MoeUpDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_gemv(d, o)) return reason;
  return refuse_each_token(d, /*is_sum=*/false, d.rows() / 16, o);
}

// The few-token row for 3 rows an expert and more.
const char* refuse_batch(const MoeUpDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_gemv(d, o)) return reason;
  return refuse_gemv_batch(d.tokens * d.top_k, d.experts, o);
}

const char* refuse_by_narrow(const MoeUpDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_batch(d, o)) return reason;
  return refuse_narrow(d.tokens * d.top_k, d.experts, d.rows(), d.hidden, d.facts, o);
}

// 20 rows an expert: below, a weight's bytes are worth more than its products.
const char* refuse_many(const MoeUpDesc& d, const KernelOptions& o) {
  return refuse_experts_gemm<Format::kMxfp4>(
      {d.format, d.rows(), d.hidden, d.tokens * d.top_k, 20 * d.experts}, d.experts, o);
}

template <Format kFormat>
const char* refuse_unit(const MoeUpDesc& d, const KernelOptions& o) {
  return refuse_unit_experts<kFormat>(d, d.rows(), d.hidden, o);
}

template <Format kFormat>
const char* refuse_unit_many(const MoeUpDesc& d, const KernelOptions& o) {
  return refuse_experts_gemm<kFormat>(
      {d.format, d.rows(), d.hidden, d.tokens * d.top_k, kUnitFewestOfExpert * d.experts},
      d.experts, o);
}

const char* refuse_unit_some(const MoeUpDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_unit<Format::kNvfp4>(d, o)) return reason;
  return refuse_nvfp4_narrow(d, d.rows(), d.hidden, o);
}

const char* refuse_many_fp8(const MoeUpDesc& d, const KernelOptions& o) {
  return refuse_experts_fp8(d, 16, o);
}

template <Format kFormat>
const char* refuse_unit_mma(const MoeUpDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_unit<kFormat>(d, o)) return reason;
  return refuse_mma<kFormat>(
      {d.format, d.rows(), d.hidden, d.tokens * d.top_k, kUnitFewestOfExpert * d.experts}, o);
}

// In tiles only where the rows for few tokens read those, too.
const char* refuse_by_mma(const MoeUpDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_gemv(d, o)) return reason;
  return refuse_mma<Format::kMxfp4>(
      {d.format, d.rows(), d.hidden, d.tokens * d.top_k, kMmaExpertRows * d.experts}, o);
}

const char* refuse_one(const MoeUpDesc& d, const KernelOptions& o) {
  return refuse_nvfp4_one_of(d, {gpu::OneWork::kChosen, d.rows(), d.hidden}, o);
}

const char* refuse_nvfp4_by_fp8(const MoeUpDesc& d, const KernelOptions& o) {
  return refuse_nvfp4_fp8({d.format, 2 * d.width, d.hidden, d.tokens * d.top_k, 0}, d.experts, o);
}

template <ActFormat kInputs>
const char* refuse_scaled_nvfp4(const MoeUpDesc& d, const KernelOptions& o) {
  return refuse_nvfp4_block_scaled<kInputs>(d, d.rows(), d.hidden, o);
}

const char* refuse_w4a4(const MoeUpDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_gemv(d, o)) return reason;
  return refuse_experts_w4a4(d, d.rows(), d.hidden, o);
}

constexpr auto kKernels = joined(
    Cpu::all(),
    std::to_array<MoeUpKernel>({
        {"sm121_w4a8_gemm", refuse_gated<refuse_experts_block_scaled<MoeUpDesc>>,
         NIBBLE_CUDA_KERNEL(gpu::moe_up_block_scaled), Layout::kTiles16x64},
        {"sm121_w4a4_gemm", refuse_gated<refuse_w4a4>, NIBBLE_CUDA_KERNEL(gpu::moe_up_w4a4),
         Layout::kTiles16x64},
        {"sm121_nvfp4a4_gemm", refuse_scaled_nvfp4<ActFormat::kFp4>,
         NIBBLE_CUDA_KERNEL(gpu::moe_up_w4a4), Layout::kTiles16x64},
        {"sm121_nvfp4a8_gemm", refuse_scaled_nvfp4<ActFormat::kFp8>,
         NIBBLE_CUDA_KERNEL(gpu::moe_up_block_scaled), Layout::kTiles16x64},
        {"sm90_w4a8_narrow", refuse_gated<refuse_experts_narrow_fp8<MoeUpDesc>>,
         NIBBLE_SM90_KERNEL(gpu::moe_up_narrow_fp8), Layout::kTiles16x64},
        {"sm90_w4a8_gemm", refuse_gated<refuse_many_fp8>, NIBBLE_SM90_KERNEL(gpu::moe_up_gemm_fp8),
         Layout::kTiles16x64},
        {"cuda_w4a16_each", refuse_gated<refuse_each>, NIBBLE_CUDA_KERNEL(gpu::moe_up_each),
         Layout::kTiles16x64,
         /*takes=*/kMostLeft},
        {"sm90_w4a16_gemm", refuse_gated<refuse_many>, NIBBLE_SM90_KERNEL(gpu::moe_up_gemm),
         Layout::kTiles16x64},
        {"sm90_w4a16_narrow", refuse_gated<refuse_by_narrow>,
         NIBBLE_SM90_KERNEL(gpu::moe_up_narrow), Layout::kTiles16x64},
        {"sm90_nvfp4a8_gemm", refuse_gated<refuse_nvfp4_by_fp8>,
         NIBBLE_SM90_KERNEL(gpu::moe_up_gemm_fp8), Layout::kTiles16x64},
        {"cuda_nvfp4_one", refuse_one, NIBBLE_CUDA_KERNEL(gpu::moe_up_one), Layout::kTiles16x64,
         /*takes=*/kMostLeft},
        {"sm90_nvfp4_narrow", refuse_unit_some, NIBBLE_SM90_KERNEL(gpu::moe_up_narrow),
         Layout::kTiles16x64},
        {"sm90_nvfp4_gemm", refuse_unit_many<Format::kNvfp4>, NIBBLE_SM90_KERNEL(gpu::moe_up_gemm),
         Layout::kTiles16x64},
        {"cuda_nvfp4_gemm", refuse_unit_mma<Format::kNvfp4>, NIBBLE_CUDA_KERNEL(gpu::moe_up_mma),
         Layout::kTiles16x64},
        {"cuda_nvfp4_decode", refuse_unit<Format::kNvfp4>, NIBBLE_CUDA_KERNEL(gpu::moe_up_few),
         Layout::kTiles16x64},
        {"sm90_w8a16_gemm", refuse_gated<refuse_unit_many<Format::kFp8Row>>,
         NIBBLE_SM90_KERNEL(gpu::moe_up_gemm), Layout::kTiles16x64},
        {"cuda_w8a16_gemm", refuse_gated<refuse_unit_mma<Format::kFp8Row>>,
         NIBBLE_CUDA_KERNEL(gpu::moe_up_mma), Layout::kTiles16x64},
        {"cuda_w8a16_decode", refuse_unit<Format::kFp8Row>, NIBBLE_CUDA_KERNEL(gpu::moe_up_few),
         Layout::kTiles16x64},
        {"sm90_int4_gemm", refuse_gated<refuse_unit_many<Format::kInt4G128>>,
         NIBBLE_SM90_KERNEL(gpu::moe_up_gemm), Layout::kTiles16x64},
        {"cuda_int4_gemm", refuse_gated<refuse_unit_mma<Format::kInt4G128>>,
         NIBBLE_CUDA_KERNEL(gpu::moe_up_mma), Layout::kTiles16x64},
        {"cuda_int4_decode", refuse_unit<Format::kInt4G128>, NIBBLE_CUDA_KERNEL(gpu::moe_up_few),
         Layout::kTiles16x64},
        {"cuda_w4a16_gemm", refuse_gated<refuse_by_mma>, NIBBLE_CUDA_KERNEL(gpu::moe_up_mma),
         Layout::kTiles16x64},
        {"cuda_w4a16_batch", refuse_gated<refuse_batch>, NIBBLE_CUDA_KERNEL(gpu::moe_up_batch),
         Layout::kTiles16x64},
        {"cuda_w4a16_decode", refuse_gated<refuse_gemv>, NIBBLE_CUDA_KERNEL(gpu::moe_up),
         Layout::kTiles16x64,
         /*takes=*/1},
        {"cuda_any", [](const MoeUpDesc&, const KernelOptions& o) { return refuse_cpu(o); },
         NIBBLE_CUDA_KERNEL(gpu::moe_up_any)},
        {"ref", [](const MoeUpDesc&, const KernelOptions& o) { return refuse_ref(o); },
         ref::moe_up},
    }));

}  // namespace

std::span<const MoeUpKernel> moe_up_kernels() { return kKernels; }

void moe_up(Ctx& cx, const Site& site, const Tensor& u, const Tensor& h, const Routing& routing) {
  const Swiglu& act = std::get<MoeUpDesc>(site.problem).act;
  run_site<MoeUpKernel>(cx, site, routing.num_tokens, u, h, routing, site.weight, act);
  cx.wrote({u.data});
  if (routing.logits != nullptr) cx.wrote({routing.ids});  // it has made the choice
}

int64_t bytes(const MoeUpDesc& d, int64_t tokens, int64_t distinct, int64_t act_bytes) {
  return distinct * (format_bytes(d.format, d.rows() * d.hidden) + 2 * d.rows()) +
         tokens * act_bytes * (d.hidden + d.top_k * d.width);
}

int64_t flops(const MoeUpDesc& d, int64_t tokens) {
  return 2 * tokens * d.top_k * d.rows() * d.hidden;
}

// Its inputs in E4M3, or in two of them for gemm_narrow of MXFP4.
int64_t gpu::scratch_bytes(const MoeUpDesc& d) {
  Scratch scratch, pairs;
  take_e4m3_rows(scratch, d.tokens, d.hidden);
  if (d.format == Format::kMxfp4)
    take_e4m3_pairs(pairs, std::min(d.tokens, kNarrowMost * d.experts), d.hidden);
  return std::max(scratch.used_bytes(), pairs.used_bytes());
}

}  // namespace nibble::ops
