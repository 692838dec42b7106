#include "ops/out_proj/out_proj.h"

#include "ops/cpu_rows.h"
#include "ops/gpu_matmul/e4m3_rows.h"
#include "ops/gpu_matmul/gemm_dense_sm90.h"
#include "ops/gpu_matmul/gemm_sm90.h"
#include "ops/gpu_matmul/stream_plan.h"
#include "ops/refuse.h"
#include "ops/scratch.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

constexpr MatrixShape matrix_of(const OutProjDesc& d) { return {d.hidden, d.width}; }
using Cpu = CpuRows<OutProjKernel, CpuOutProj, matrix_of>;

template <Format kFormat>
const char* refuse_many(const OutProjDesc& d, const KernelOptions& o) {
  return refuse_gemm<kFormat>({d.format, d.hidden, d.width, d.tokens, kDenseFewest}, o);
}

template <Format kFormat>
const char* refuse_unit_many(const OutProjDesc& d, const KernelOptions& o) {
  return refuse_gemm<kFormat>({d.format, d.hidden, d.width, d.tokens, kUnitFewest<kFormat>}, o);
}
template <Format kFormat>
const char* refuse_unit_some(const OutProjDesc& d, const KernelOptions& o) {
  return refuse_unit_split<kFormat>({d.format, d.hidden, d.width, d.tokens, 0}, o);
}

template <Format kFormat>
const char* refuse_unit_mma(const OutProjDesc& d, const KernelOptions& o) {
  return refuse_mma<kFormat>({d.format, d.hidden, d.width, d.tokens, kUnitFewest<kFormat>}, o);
}

const char* refuse_many_fp8(const OutProjDesc& d, const KernelOptions& o) {
  return refuse_gemm_fp8({d.format, d.hidden, d.width, d.tokens, kDenseFewest, d.facts}, o);
}

template <Format kFormat, ActFormat kInputs = ActFormat::kFp8>
const char* refuse_scaled(const OutProjDesc& d, const KernelOptions& o) {
  return refuse_block_scaled<kFormat, kInputs>(
      {d.format, d.hidden, d.width, d.tokens, kBlockScaledFewest<kFormat>}, o);
}

template <Format kFormat>
const char* refuse_by_mma(const OutProjDesc& d, const KernelOptions& o) {
  return refuse_mma<kFormat>({d.format, d.hidden, d.width, d.tokens, kMmaTokens}, o);
}

const char* refuse_one(const OutProjDesc& d, const KernelOptions& o) {
  return refuse_nvfp4_one(d.format, d.tokens, {gpu::OneWork::kDense, d.hidden, d.width, 1}, o);
}

// Of fewer rows an SM has one row tile: by it a step of 8 tokens of Qwen3-Next is 2% slower.
constexpr int64_t kF16FewestRows = 4096;
const char* refuse_f16(const OutProjDesc& d, const KernelOptions& o) {
  if (d.hidden < kF16FewestRows && !o.any_size) return "fewer than 4,096 rows";
  return refuse_nvfp4_f16({d.format, d.hidden, d.width, d.tokens, 0}, gpu::kF16MostSlices, o);
}

constexpr const char* kSendingRow = "sm90_bf16_gemm";

constexpr auto kKernels = joined(
    Cpu::all(),
    std::to_array<OutProjKernel>({
        {"sm121_w4a4_gemm", refuse_scaled<Format::kMxfp4, ActFormat::kFp4>,
         NIBBLE_CUDA_KERNEL(gpu::out_proj_w4a4), Layout::kTiles16x64},
        {"sm121_nvfp4a4_gemm", refuse_scaled<Format::kNvfp4, ActFormat::kFp4>,
         NIBBLE_CUDA_KERNEL(gpu::out_proj_w4a4), Layout::kTiles16x64},
        {"sm121_w4a8_gemm", refuse_scaled<Format::kMxfp4>,
         NIBBLE_CUDA_KERNEL(gpu::out_proj_block_scaled), Layout::kTiles16x64},
        {"sm121_nvfp4a8_gemm", refuse_scaled<Format::kNvfp4>,
         NIBBLE_CUDA_KERNEL(gpu::out_proj_block_scaled), Layout::kTiles16x64},
        {"sm121_w8a8_gemm", refuse_scaled<Format::kFp8Row>,
         NIBBLE_CUDA_KERNEL(gpu::out_proj_block_scaled), Layout::kTiles16x64},
        {"sm90_w4a16_split",
         [](const OutProjDesc& d, const KernelOptions& o) {
           return refuse_split(d.format, d.hidden, d.width, d.tokens, o);
         },
         NIBBLE_SM90_KERNEL(gpu::out_proj_split), Layout::kTiles16x64},
        {"sm90_w4a8_gemm", refuse_many_fp8, NIBBLE_SM90_KERNEL(gpu::out_proj_gemm_fp8),
         Layout::kTiles16x64},
        {"sm90_w4a16_gemm", refuse_many<Format::kMxfp4>, NIBBLE_SM90_KERNEL(gpu::out_proj_gemm),
         Layout::kTiles16x64},
        {"sm90_bf16_stream",
         [](const OutProjDesc& d,
            const KernelOptions&
                o) { return refuse_rows_stream({d.format, d.hidden, d.width, d.tokens, 0}, o); },
         NIBBLE_SM90_KERNEL(gpu::out_proj_stream)},
        {kSendingRow, refuse_many<Format::kBF16>, NIBBLE_SM90_KERNEL(gpu::out_proj_gemm_slices)},
        {"sm90_nvfp4a8_gemm",
         [](const OutProjDesc& d,
            const KernelOptions&
                o) { return refuse_nvfp4_fp8({d.format, d.hidden, d.width, d.tokens, 0}, 1, o); },
         NIBBLE_SM90_KERNEL(gpu::out_proj_gemm_fp8), Layout::kTiles16x64},
        {"sm90_nvfp4_f16", refuse_f16, NIBBLE_SM90_KERNEL(gpu::out_proj_f16), Layout::kTiles16x64},
        {"sm90_nvfp4_stream",
         [](const OutProjDesc& d,
            const KernelOptions&
                o) { return refuse_nvfp4_stream({d.format, d.hidden, d.width, d.tokens, 0}, o); },
         NIBBLE_SM90_KERNEL(gpu::out_proj_unit_stream), Layout::kTiles16x64},
        {"sm90_nvfp4_split", refuse_unit_some<Format::kNvfp4>,
         NIBBLE_SM90_KERNEL(gpu::out_proj_unit_split), Layout::kTiles16x64},
        {"sm90_nvfp4_gemm", refuse_unit_many<Format::kNvfp4>,
         NIBBLE_SM90_KERNEL(gpu::out_proj_gemm_slices), Layout::kTiles16x64},
        {"cuda_nvfp4_gemm", refuse_unit_mma<Format::kNvfp4>, NIBBLE_CUDA_KERNEL(gpu::out_proj_mma),
         Layout::kTiles16x64},
        {"cuda_nvfp4_one", refuse_one, NIBBLE_CUDA_KERNEL(gpu::out_proj_one), Layout::kTiles16x64},
        {"cuda_nvfp4_decode", refuse_matrix<matrix_of, refuse_unit_few<Format::kNvfp4>>,
         NIBBLE_CUDA_KERNEL(gpu::out_proj_few), Layout::kTiles16x64},
        {"sm90_w8a8_gemm",
         [](const OutProjDesc& d,
            const KernelOptions&
                o) { return refuse_w8a8({d.format, d.hidden, d.width, d.tokens, 0}, o); },
         NIBBLE_SM90_KERNEL(gpu::out_proj_gemm_fp8), Layout::kTiles16x64},
        {"sm90_w8a16_split", refuse_unit_some<Format::kFp8Row>,
         NIBBLE_SM90_KERNEL(gpu::out_proj_unit_split), Layout::kTiles16x64},
        {"sm90_w8a16_gemm", refuse_unit_many<Format::kFp8Row>,
         NIBBLE_SM90_KERNEL(gpu::out_proj_gemm_slices), Layout::kTiles16x64},
        {"cuda_w8a16_gemm", refuse_unit_mma<Format::kFp8Row>, NIBBLE_CUDA_KERNEL(gpu::out_proj_mma),
         Layout::kTiles16x64},
        {"cuda_w8a16_decode", refuse_matrix<matrix_of, refuse_unit_few<Format::kFp8Row>>,
         NIBBLE_CUDA_KERNEL(gpu::out_proj_few), Layout::kTiles16x64},
        {"sm90_int4_split", refuse_unit_some<Format::kInt4G128>,
         NIBBLE_SM90_KERNEL(gpu::out_proj_unit_split), Layout::kTiles16x64},
        {"sm90_int4_gemm", refuse_unit_many<Format::kInt4G128>,
         NIBBLE_SM90_KERNEL(gpu::out_proj_gemm_slices), Layout::kTiles16x64},
        {"cuda_int4_gemm", refuse_unit_mma<Format::kInt4G128>,
         NIBBLE_CUDA_KERNEL(gpu::out_proj_mma), Layout::kTiles16x64},
        {"cuda_int4_decode", refuse_matrix<matrix_of, refuse_unit_few<Format::kInt4G128>>,
         NIBBLE_CUDA_KERNEL(gpu::out_proj_few), Layout::kTiles16x64},
        {"cuda_w4a16_gemm", refuse_by_mma<Format::kMxfp4>, NIBBLE_CUDA_KERNEL(gpu::out_proj_mma),
         Layout::kTiles16x64},
        {"cuda_bf16_gemm", refuse_by_mma<Format::kBF16>, NIBBLE_CUDA_KERNEL(gpu::out_proj_mma)},
        {"cuda_w4a16_decode", refuse_matrix<matrix_of, refuse_gemv_tiles>,
         NIBBLE_CUDA_KERNEL(gpu::out_proj_tiles), Layout::kTiles16x64},
        {"cuda_bf16_decode",
         [](const OutProjDesc& d,
            const KernelOptions&
                o) { return refuse_gemv_long_rows({d.format, d.hidden, d.width, d.tokens}, o); },
         NIBBLE_CUDA_KERNEL(gpu::out_proj_rows)},
        {"cuda_any", [](const OutProjDesc&, const KernelOptions& o) { return refuse_cpu(o); },
         NIBBLE_CUDA_KERNEL(gpu::out_proj_any)},
        {"ref", [](const OutProjDesc&, const KernelOptions& o) { return refuse_ref(o); },
         ref::out_proj},
    }));

}  // namespace

std::span<const OutProjKernel> out_proj_kernels() { return kKernels; }

void out_proj(Ctx& cx, const Site& site, const Tensor& d, const Tensor& att, const Step& s) {
  run_site<OutProjKernel>(cx, site, s.num_tokens, d, att, site.weight, s);
  cx.wrote({d.data});
}

int64_t sends_from(const OutProjDesc& d, std::string_view row, const KernelOptions& o) {
  return row == kSendingRow ? gpu::gemm_dense_from(d.hidden, o.gpu.num_sms) : INT64_MAX;
}

int64_t bytes(const OutProjDesc& d, int64_t tokens, int64_t act_bytes) {
  return format_bytes(d.format, d.hidden * d.width) + 2 * d.hidden +
         tokens * (4 * d.hidden + act_bytes * d.width);
}

int64_t flops(const OutProjDesc& d, int64_t tokens) { return 2 * tokens * d.hidden * d.width; }

// Its inputs in E4M3, or slices of K.
int64_t gpu::scratch_bytes(const OutProjDesc& d) {
  Scratch scratch;
  if (has_slices(d.format)) scratch.take<float>(slice_scratch_rows(d.tokens) * d.hidden);
  if (d.format == Format::kBF16 || d.format == Format::kNvfp4)
    scratch.take<float>(stream_parts(d.hidden, d.tokens));
  take_e4m3_rows(scratch, d.tokens, d.width);
  return scratch.used_bytes();
}

}  // namespace nibble::ops
