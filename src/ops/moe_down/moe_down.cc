#include "ops/moe_down/moe_down.h"

#include <algorithm>

#include "ops/cpu_rows.h"
#include "ops/gpu_matmul/e2m1_rows.h"
#include "ops/gpu_matmul/e4m3_pairs.h"
#include "ops/gpu_matmul/e4m3_rows.h"
#include "ops/refuse.h"
#include "ops/scratch.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

constexpr MatrixShape matrix_of(const MoeDownDesc& d) { return {d.hidden, d.width}; }
using Cpu = CpuRows<MoeDownKernel, CpuMoeDown, matrix_of>;

// The few-token CUDA row.
const char* refuse_gemv(const MoeDownDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_gemv_tiles(d.format, d.hidden, d.width, o)) return reason;
  return refuse_gemv_experts(d, d.hidden, d.width);
}

// A token's sum over experts is shared by two blocks.
const char* refuse_clusters(const KernelOptions& o) {
  return o.gpu.runs_clusters ? nullptr : "this GPU runs no clusters of blocks";
}
const char* refuse_decode(const MoeDownDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_gemv(d, o)) return reason;
  return d.tokens > 1 ? nullptr : refuse_clusters(o);
}

// Each of a few tokens for itself.
const char* refuse_each(const MoeDownDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_gemv(d, o)) return reason;
  if (const char* reason = refuse_clusters(o)) return reason;
  return refuse_each_token(d, /*is_sum=*/true, d.hidden / 16, o);
}

// The few-token row for 3 rows an expert and more.
const char* refuse_batch(const MoeDownDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_gemv(d, o)) return reason;
  return refuse_gemv_batch(d.tokens * d.top_k, d.experts, o);
}

const char* refuse_by_narrow(const MoeDownDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_batch(d, o)) return reason;
  return refuse_narrow(d.tokens * d.top_k, d.experts, d.hidden, d.width, d.facts, o);
}

// 20 rows an expert, as moe_up.
const char* refuse_many(const MoeDownDesc& d, const KernelOptions& o) {
  return refuse_experts_gemm<Format::kMxfp4>(
      {d.format, d.hidden, d.width, d.tokens * d.top_k, 20 * d.experts}, d.experts, o);
}

template <Format kFormat>
const char* refuse_unit(const MoeDownDesc& d, const KernelOptions& o) {
  return refuse_unit_experts<kFormat>(d, d.hidden, d.width, o);
}

template <Format kFormat>
const char* refuse_unit_many(const MoeDownDesc& d, const KernelOptions& o) {
  return refuse_experts_gemm<kFormat>(
      {d.format, d.hidden, d.width, d.tokens * d.top_k, kUnitFewestOfExpert * d.experts}, d.experts,
      o);
}

const char* refuse_unit_some(const MoeDownDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_unit<Format::kNvfp4>(d, o)) return reason;
  return refuse_nvfp4_narrow(d, d.hidden, d.width, o);
}

const char* refuse_many_fp8(const MoeDownDesc& d, const KernelOptions& o) {
  return refuse_experts_fp8(d, 16, o);
}

template <Format kFormat>
const char* refuse_unit_mma(const MoeDownDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_unit<kFormat>(d, o)) return reason;
  return refuse_mma<kFormat>(
      {d.format, d.hidden, d.width, d.tokens * d.top_k, kUnitFewestOfExpert * d.experts}, o);
}

// In tiles only where the rows for few tokens read those, too.
const char* refuse_by_mma(const MoeDownDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_gemv(d, o)) return reason;
  return refuse_mma<Format::kMxfp4>(
      {d.format, d.hidden, d.width, d.tokens * d.top_k, kMmaExpertRows * d.experts}, o);
}

const char* refuse_one(const MoeDownDesc& d, const KernelOptions& o) {
  return refuse_nvfp4_one_of(d, {gpu::OneWork::kSum, d.hidden, d.width}, o);
}

template <ActFormat kInputs>
const char* refuse_scaled_nvfp4(const MoeDownDesc& d, const KernelOptions& o) {
  return refuse_nvfp4_block_scaled<kInputs>(d, d.hidden, d.width, o);
}

const char* refuse_w4a4(const MoeDownDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_gemv(d, o)) return reason;
  return refuse_experts_w4a4(d, d.hidden, d.width, o);
}

constexpr auto kKernels =
    joined(Cpu::all(), std::to_array<MoeDownKernel>(
                           {
                               {"sm121_w4a8_gemm", refuse_experts_block_scaled<MoeDownDesc>,
                                NIBBLE_CUDA_KERNEL(gpu::moe_down_block_scaled),
                                Layout::kTiles16x64},
                               {"sm121_w4a4_gemm", refuse_w4a4,
                                NIBBLE_CUDA_KERNEL(gpu::moe_down_w4a4), Layout::kTiles16x64},
                               {"sm121_nvfp4a4_gemm", refuse_scaled_nvfp4<ActFormat::kFp4>,
                                NIBBLE_CUDA_KERNEL(gpu::moe_down_w4a4), Layout::kTiles16x64},
                               {"sm121_nvfp4a8_gemm", refuse_scaled_nvfp4<ActFormat::kFp8>,
                                NIBBLE_CUDA_KERNEL(gpu::moe_down_unit_block_scaled),
                                Layout::kTiles16x64},
                               {"sm90_w4a8_narrow", refuse_experts_narrow_fp8<MoeDownDesc>,
                                NIBBLE_SM90_KERNEL(gpu::moe_down_narrow_fp8), Layout::kTiles16x64},
                               {"sm90_w4a8_gemm", refuse_many_fp8,
                                NIBBLE_SM90_KERNEL(gpu::moe_down_gemm_fp8), Layout::kTiles16x64},
                               {"cuda_w4a16_each", refuse_each,
                                NIBBLE_CUDA_KERNEL(gpu::moe_down_each), Layout::kTiles16x64,
                                /*takes=*/kMostLeft},
                               {"sm90_w4a16_gemm", refuse_many,
                                NIBBLE_SM90_KERNEL(gpu::moe_down_gemm), Layout::kTiles16x64},
                               {"sm90_w4a16_narrow", refuse_by_narrow,
                                NIBBLE_SM90_KERNEL(gpu::moe_down_narrow), Layout::kTiles16x64},
                               {"cuda_nvfp4_one", refuse_one, NIBBLE_CUDA_KERNEL(gpu::moe_down_one),
                                Layout::kTiles16x64, /*takes=*/kMostLeft},
                               {"sm90_nvfp4_narrow", refuse_unit_some,
                                NIBBLE_SM90_KERNEL(gpu::moe_down_narrow), Layout::kTiles16x64},
                               {"sm90_nvfp4a8_gemm",
                                [](const MoeDownDesc& d, const KernelOptions& o) {
                                  return refuse_nvfp4_fp8(
                                      {d.format, d.hidden, d.width, d.tokens * d.top_k, 0},
                                      d.experts, o);
                                },
                                NIBBLE_SM90_KERNEL(gpu::moe_down_unit_gemm_fp8),
                                Layout::kTiles16x64},
                               {"sm90_nvfp4_gemm", refuse_unit_many<Format::kNvfp4>,
                                NIBBLE_SM90_KERNEL(gpu::moe_down_gemm), Layout::kTiles16x64},
                               {"cuda_nvfp4_gemm", refuse_unit_mma<Format::kNvfp4>,
                                NIBBLE_CUDA_KERNEL(gpu::moe_down_mma), Layout::kTiles16x64},
                               {"cuda_nvfp4_decode", refuse_unit<Format::kNvfp4>,
                                NIBBLE_CUDA_KERNEL(gpu::moe_down_few), Layout::kTiles16x64},
                               {"sm90_w8a16_gemm", refuse_unit_many<Format::kFp8Row>,
                                NIBBLE_SM90_KERNEL(gpu::moe_down_gemm), Layout::kTiles16x64},
                               {"cuda_w8a16_gemm", refuse_unit_mma<Format::kFp8Row>,
                                NIBBLE_CUDA_KERNEL(gpu::moe_down_mma), Layout::kTiles16x64},
                               {"cuda_w8a16_decode", refuse_unit<Format::kFp8Row>,
                                NIBBLE_CUDA_KERNEL(gpu::moe_down_few), Layout::kTiles16x64},
                               {"sm90_int4_gemm", refuse_unit_many<Format::kInt4G128>,
                                NIBBLE_SM90_KERNEL(gpu::moe_down_gemm), Layout::kTiles16x64},
                               {"cuda_int4_gemm", refuse_unit_mma<Format::kInt4G128>,
                                NIBBLE_CUDA_KERNEL(gpu::moe_down_mma), Layout::kTiles16x64},
                               {"cuda_int4_decode", refuse_unit<Format::kInt4G128>,
                                NIBBLE_CUDA_KERNEL(gpu::moe_down_few), Layout::kTiles16x64},
                               {"cuda_w4a16_gemm", refuse_by_mma,
                                NIBBLE_CUDA_KERNEL(gpu::moe_down_mma), Layout::kTiles16x64},
                               {"cuda_w4a16_batch", refuse_batch,
                                NIBBLE_CUDA_KERNEL(gpu::moe_down_batch), Layout::kTiles16x64},
                               {"cuda_w4a16_decode", refuse_decode,
                                NIBBLE_CUDA_KERNEL(gpu::moe_down), Layout::kTiles16x64,
                                /*takes=*/1},
                               {"cuda_w4a16_slots", refuse_gemv,
                                NIBBLE_CUDA_KERNEL(gpu::moe_down_slots), Layout::kTiles16x64},
                               {"cuda_any",
                                [](const MoeDownDesc&,
                                   const KernelOptions& o) { return refuse_cpu(o); },
                                NIBBLE_CUDA_KERNEL(gpu::moe_down_any)},
                               {"ref",
                                [](const MoeDownDesc&,
                                   const KernelOptions& o) { return refuse_ref(o); },
                                ref::moe_down},
                           }));

}  // namespace

std::span<const MoeDownKernel> moe_down_kernels() { return kKernels; }

void moe_down(Ctx& cx, const Site& site, const Tensor& d, const Tensor& u, const Routing& routing) {
  Routing r = routing;
  r.adds = std::get<MoeDownDesc>(site.problem).adds;
  run_site<MoeDownKernel>(cx, site, r.num_tokens, d, u, r, site.weight);
  cx.wrote({d.data});
}

int64_t bytes(const MoeDownDesc& d, int64_t tokens, int64_t distinct, int64_t act_bytes) {
  return distinct * (format_bytes(d.format, d.width * d.hidden) + 2 * d.hidden) +
         tokens * (4 * d.hidden + act_bytes * d.top_k * d.width);
}

int64_t flops(const MoeDownDesc& d, int64_t tokens) {
  return 2 * tokens * d.top_k * d.width * d.hidden;
}

// What each slot's expert says, [T * K, H], before it is weighed: f32, or bf16 from the GEMMs,
// beside their inputs; and its inputs for gemm_narrow of MXFP4.
int64_t gpu::scratch_bytes(const MoeDownDesc& d) {
  Scratch scratch, w4a4;
  w4a4.take<uint16_t>(d.tokens * d.top_k * d.hidden);
  w4a4.take<uint8_t>(d.tokens * d.top_k * e2m1_pitch(d.width));
  scratch.take<float>(d.tokens * d.top_k * d.hidden);
  if (d.format == Format::kNvfp4) take_e4m3_rows(scratch, d.tokens * d.top_k, d.width);
  if (d.format == Format::kMxfp4)
    take_e4m3_pairs(scratch, std::min(d.tokens * d.top_k, kNarrowMost * d.experts), d.width);
  return std::max(scratch.used_bytes(), w4a4.used_bytes());
}

}  // namespace nibble::ops
