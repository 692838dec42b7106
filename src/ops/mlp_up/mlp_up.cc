#include "ops/mlp_up/mlp_up.h"

#include "ops/cpu_rows.h"
#include "ops/gpu_matmul/e4m3_rows.h"
#include "ops/gpu_matmul/stream_plan.h"
#include "ops/refuse.h"
#include "ops/scratch.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

constexpr MatrixShape matrix_of(const MlpUpDesc& d) { return {d.rows(), d.hidden}; }
using Cpu = CpuRows<MlpUpKernel, CpuMlpUp, matrix_of>;

// What refuses a row that takes pairs of a gate and an up alone.
template <auto kRefuse>
const char* refuse_gated(const MlpUpDesc& d, const KernelOptions& o) {
  return d.act.is_relu2() ? "the MLP has no gate" : kRefuse(d, o);
}

template <Format kFormat>
const char* refuse_few(const MlpUpDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_unit_few<kFormat>(d.format, d.rows(), d.hidden, o)) return reason;
  return d.hidden <= 9216 ? nullptr : "more than 9,216 columns";
}

template <Format kFormat>
const char* refuse_some(const MlpUpDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_few<kFormat>(d, o)) return reason;
  return refuse_unit_split<kFormat>({d.format, d.rows(), d.hidden, d.tokens, 0}, o);
}

const char* refuse_stream(const MlpUpDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_few<Format::kNvfp4>(d, o)) return reason;
  return refuse_nvfp4_stream({d.format, 2 * d.width, d.hidden, d.tokens, 0}, o);
}

template <Format kFormat>
const char* refuse_many(const MlpUpDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_few<kFormat>(d, o)) return reason;
  return refuse_gemm<kFormat>({d.format, d.rows(), d.hidden, d.tokens, kUnitFewest<kFormat>}, o);
}

template <Format kFormat>
const char* refuse_unit_mma(const MlpUpDesc& d, const KernelOptions& o) {
  if (d.hidden > kAddNormMost) return "more than 8192 columns";
  return refuse_mma<kFormat>({d.format, d.rows(), d.hidden, d.tokens, kUnitFewest<kFormat>}, o);
}

template <Format kFormat, ActFormat kInputs = ActFormat::kFp8>
const char* refuse_scaled(const MlpUpDesc& d, const KernelOptions& o) {
  if (d.hidden > kAddNormMost) return "more than 8192 columns";
  return refuse_block_scaled<kFormat, kInputs>(
      {d.format, d.rows(), d.hidden, d.tokens, kBlockScaledFewest<kFormat>}, o);
}

const char* refuse_fp8(const MlpUpDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_few<Format::kFp8Row>(d, o)) return reason;
  return refuse_w8a8({d.format, d.rows(), d.hidden, d.tokens, 0}, o);
}

const char* refuse_nvfp4_by_fp8(const MlpUpDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_few<Format::kNvfp4>(d, o)) return reason;
  return refuse_nvfp4_fp8({d.format, d.rows(), d.hidden, d.tokens, 0}, 1, o);
}

const char* refuse_bf16(const MlpUpDesc& d, const KernelOptions& o) {
  return refuse_gemv_rows(d.format, d.rows(), d.hidden, o);
}

const char* refuse_many_bf16(const MlpUpDesc& d, const KernelOptions& o) {
  if (d.hidden > 9216) return "more than 9,216 columns";
  return refuse_gemm<Format::kBF16>({d.format, d.rows(), d.hidden, d.tokens, kDenseFewest}, o);
}

const char* refuse_stream_bf16(const MlpUpDesc& d, const KernelOptions& o) {
  if (d.hidden > 9216) return "more than 9,216 columns";
  return refuse_rows_stream({d.format, d.rows(), d.hidden, d.tokens, 0}, o);
}

const char* refuse_one(const MlpUpDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_few<Format::kNvfp4>(d, o)) return reason;
  return refuse_nvfp4_one(d.format, d.tokens, {gpu::OneWork::kDense, d.rows(), d.hidden, 1}, o);
}

const char* refuse_f16(const MlpUpDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_few<Format::kNvfp4>(d, o)) return reason;
  return refuse_nvfp4_f16({d.format, d.rows(), d.hidden, d.tokens, 0}, gpu::kF16MostSlices, o);
}

constexpr auto kKernels = joined(
    Cpu::all(),
    std::to_array<MlpUpKernel>({
        {"sm121_nvfp4a4_gemm", refuse_gated<refuse_scaled<Format::kNvfp4, ActFormat::kFp4>>,
         NIBBLE_CUDA_KERNEL(gpu::mlp_up_w4a4), Layout::kTiles16x64, kAnyTokens},
        {"sm121_nvfp4a8_gemm", refuse_gated<refuse_scaled<Format::kNvfp4>>,
         NIBBLE_CUDA_KERNEL(gpu::mlp_up_block_scaled), Layout::kTiles16x64, kAnyTokens},
        {"sm121_w8a8_gemm", refuse_gated<refuse_scaled<Format::kFp8Row>>,
         NIBBLE_CUDA_KERNEL(gpu::mlp_up_block_scaled), Layout::kTiles16x64, kAnyTokens},
        {"sm90_nvfp4a8_gemm", refuse_gated<refuse_nvfp4_by_fp8>,
         NIBBLE_SM90_KERNEL(gpu::mlp_up_gemm_fp8), Layout::kTiles16x64, kAnyTokens},
        {"sm90_nvfp4_split", refuse_gated<refuse_some<Format::kNvfp4>>,
         NIBBLE_SM90_KERNEL(gpu::mlp_up_split), Layout::kTiles16x64},
        {"sm90_nvfp4_f16", refuse_gated<refuse_f16>, NIBBLE_SM90_KERNEL(gpu::mlp_up_f16),
         Layout::kTiles16x64},
        {"sm90_nvfp4_stream", refuse_gated<refuse_stream>, NIBBLE_SM90_KERNEL(gpu::mlp_up_stream),
         Layout::kTiles16x64},
        {"sm90_nvfp4_gemm", refuse_gated<refuse_many<Format::kNvfp4>>,
         NIBBLE_SM90_KERNEL(gpu::mlp_up_gemm), Layout::kTiles16x64, kAnyTokens},
        {"cuda_nvfp4_gemm", refuse_gated<refuse_unit_mma<Format::kNvfp4>>,
         NIBBLE_CUDA_KERNEL(gpu::mlp_up_mma), Layout::kTiles16x64, kAnyTokens},
        {"cuda_nvfp4_one", refuse_gated<refuse_one>, NIBBLE_CUDA_KERNEL(gpu::mlp_up_one),
         Layout::kTiles16x64},
        {"cuda_nvfp4_decode", refuse_gated<refuse_few<Format::kNvfp4>>,
         NIBBLE_CUDA_KERNEL(gpu::mlp_up_few), Layout::kTiles16x64},
        {"sm90_w8a8_gemm", refuse_gated<refuse_fp8>, NIBBLE_SM90_KERNEL(gpu::mlp_up_gemm_fp8),
         Layout::kTiles16x64, kAnyTokens},
        {"sm90_w8a16_split", refuse_gated<refuse_some<Format::kFp8Row>>,
         NIBBLE_SM90_KERNEL(gpu::mlp_up_split), Layout::kTiles16x64},
        {"sm90_w8a16_gemm", refuse_gated<refuse_many<Format::kFp8Row>>,
         NIBBLE_SM90_KERNEL(gpu::mlp_up_gemm), Layout::kTiles16x64, kAnyTokens},
        {"cuda_w8a16_gemm", refuse_gated<refuse_unit_mma<Format::kFp8Row>>,
         NIBBLE_CUDA_KERNEL(gpu::mlp_up_mma), Layout::kTiles16x64, kAnyTokens},
        {"cuda_w8a16_decode", refuse_gated<refuse_few<Format::kFp8Row>>,
         NIBBLE_CUDA_KERNEL(gpu::mlp_up_few), Layout::kTiles16x64},
        {"sm90_int4_split", refuse_gated<refuse_some<Format::kInt4G128>>,
         NIBBLE_SM90_KERNEL(gpu::mlp_up_split), Layout::kTiles16x64},
        {"sm90_int4_gemm", refuse_gated<refuse_many<Format::kInt4G128>>,
         NIBBLE_SM90_KERNEL(gpu::mlp_up_gemm), Layout::kTiles16x64, kAnyTokens},
        {"cuda_int4_gemm", refuse_gated<refuse_unit_mma<Format::kInt4G128>>,
         NIBBLE_CUDA_KERNEL(gpu::mlp_up_mma), Layout::kTiles16x64, kAnyTokens},
        {"cuda_int4_decode", refuse_gated<refuse_few<Format::kInt4G128>>,
         NIBBLE_CUDA_KERNEL(gpu::mlp_up_few), Layout::kTiles16x64},
        {"sm90_bf16_stream", refuse_gated<refuse_stream_bf16>,
         NIBBLE_SM90_KERNEL(gpu::mlp_up_rows_stream)},
        {"sm90_bf16_gemm", refuse_gated<refuse_many_bf16>, NIBBLE_SM90_KERNEL(gpu::mlp_up_gemm),
         Layout::kRows, kAnyTokens},
        {"cuda_bf16_decode", refuse_gated<refuse_bf16>, NIBBLE_CUDA_KERNEL(gpu::mlp_up_rows)},
        {"cuda_any", [](const MlpUpDesc&, const KernelOptions& o) { return refuse_cpu(o); },
         NIBBLE_CUDA_KERNEL(gpu::mlp_up_any)},
        {"ref", [](const MlpUpDesc&, const KernelOptions& o) { return refuse_ref(o); },
         ref::mlp_up},
    }));

}  // namespace

std::span<const MlpUpKernel> mlp_up_kernels() { return kKernels; }

void mlp_up(Ctx& cx, const Site& site, const MlpUpOut& out, const Tensor& x, const Tensor& d) {
  const Swiglu& act = std::get<MlpUpDesc>(site.problem).act;
  run_site<MlpUpKernel>(cx, site, x.dim(0), out, x, d, site.norm, site.weight, act);
  cx.wrote({out.u.data, out.h.data, out.y.data});
}

// The weights once; x and d read, y, h and u written.
int64_t bytes(const MlpUpDesc& d, int64_t tokens, int64_t act_bytes) {
  return format_bytes(d.format, d.rows() * d.hidden) + 2 * d.hidden +
         tokens * (12 * d.hidden + act_bytes * (d.hidden + d.width));
}

int64_t flops(const MlpUpDesc& d, int64_t tokens) { return 2 * tokens * d.rows() * d.hidden; }

// Its inputs in E4M3, or shares of K.
int64_t gpu::scratch_bytes(const MlpUpDesc& d) {
  Scratch scratch;
  if (d.format == Format::kBF16 || d.format == Format::kNvfp4)
    scratch.take<float>(stream_parts(d.rows(), d.tokens));
  take_e4m3_rows(scratch, d.tokens, d.hidden);
  return scratch.used_bytes();
}

}  // namespace nibble::ops
