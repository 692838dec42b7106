#include "ops/norm_linear/norm_linear.h"

#include "ops/cpu_rows.h"
#include "ops/gpu_matmul/gemm_sm90.h"
#include "ops/refuse.h"
#include "ops/scratch.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

constexpr MatrixShape matrix_of(const NormLinearDesc& d) { return {d.width, d.hidden}; }
using Cpu = CpuRows<NormLinearKernel, CpuNormLinear, matrix_of>;

template <Format kFormat>
const char* refuse_few(const NormLinearDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_unit_few<kFormat>(d.format, d.width, d.hidden, o)) return reason;
  return d.hidden <= 9216 ? nullptr : "more than 9,216 columns";
}

template <Format kFormat>
const char* refuse_many(const NormLinearDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_few<kFormat>(d, o)) return reason;
  return refuse_gemm<kFormat>({d.format, d.width, d.hidden, d.tokens, kUnitFewest<kFormat>}, o);
}

const char* refuse_many_bf16(const NormLinearDesc& d, const KernelOptions& o) {
  if (d.hidden > 9216) return "more than 9,216 columns";
  return refuse_gemm<Format::kBF16>({d.format, d.width, d.hidden, d.tokens, kDenseFewest}, o);
}

template <Format kFormat>
const char* refuse_by_mma(const NormLinearDesc& d, const KernelOptions& o) {
  if (d.hidden > kAddNormMost) return "more than 8192 columns";
  constexpr int64_t kFewest = kFormat == Format::kBF16 ? kMmaTokens : kUnitFewest<kFormat>;
  return refuse_mma<kFormat>({d.format, d.width, d.hidden, d.tokens, kFewest}, o);
}

const char* refuse_one(const NormLinearDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_few<Format::kNvfp4>(d, o)) return reason;
  return refuse_nvfp4_one(d.format, d.tokens, {gpu::OneWork::kDense, d.width, d.hidden, 1}, o);
}

const char* refuse_f16(const NormLinearDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_few<Format::kNvfp4>(d, o)) return reason;
  return refuse_nvfp4_f16({d.format, d.width, d.hidden, d.tokens, 0}, 1, o);
}

constexpr auto kKernels = joined(
    Cpu::all(),
    std::to_array<NormLinearKernel>({
        {"sm90_nvfp4_f16", refuse_f16, NIBBLE_SM90_KERNEL(gpu::norm_linear_f16),
         Layout::kTiles16x64},
        {"sm90_nvfp4_gemm", refuse_many<Format::kNvfp4>, NIBBLE_SM90_KERNEL(gpu::norm_linear_gemm),
         Layout::kTiles16x64, kAnyTokens},
        {"cuda_nvfp4_gemm", refuse_by_mma<Format::kNvfp4>, NIBBLE_CUDA_KERNEL(gpu::norm_linear_mma),
         Layout::kTiles16x64, kAnyTokens},
        {"cuda_nvfp4_one", refuse_one, NIBBLE_CUDA_KERNEL(gpu::norm_linear_one),
         Layout::kTiles16x64},
        {"cuda_nvfp4_decode", refuse_few<Format::kNvfp4>, NIBBLE_CUDA_KERNEL(gpu::norm_linear_few),
         Layout::kTiles16x64},
        {"sm90_w8a16_gemm", refuse_many<Format::kFp8Row>, NIBBLE_SM90_KERNEL(gpu::norm_linear_gemm),
         Layout::kTiles16x64, kAnyTokens},
        {"cuda_w8a16_gemm", refuse_by_mma<Format::kFp8Row>,
         NIBBLE_CUDA_KERNEL(gpu::norm_linear_mma), Layout::kTiles16x64, kAnyTokens},
        {"cuda_w8a16_decode", refuse_few<Format::kFp8Row>, NIBBLE_CUDA_KERNEL(gpu::norm_linear_few),
         Layout::kTiles16x64},
        {"sm90_bf16_gemm", refuse_many_bf16, NIBBLE_SM90_KERNEL(gpu::norm_linear_gemm),
         Layout::kRows, kAnyTokens},
        {"cuda_bf16_gemm", refuse_by_mma<Format::kBF16>, NIBBLE_CUDA_KERNEL(gpu::norm_linear_mma),
         Layout::kRows, kAnyTokens},
        {"cuda_bf16_decode", refuse_matrix<matrix_of, refuse_gemv_rows>,
         NIBBLE_CUDA_KERNEL(gpu::norm_linear_rows)},
        {"cuda_any", [](const NormLinearDesc&, const KernelOptions& o) { return refuse_cpu(o); },
         NIBBLE_CUDA_KERNEL(gpu::norm_linear_any)},
        {"ref", [](const NormLinearDesc&, const KernelOptions& o) { return refuse_ref(o); },
         ref::norm_linear},
    }));

}  // namespace

std::span<const NormLinearKernel> norm_linear_kernels() { return kKernels; }

void norm_linear(Ctx& cx, const Site& site, const NormLinearOut& out, const Tensor& x,
                 const Tensor& d) {
  run_site<NormLinearKernel>(cx, site, x.dim(0), out, x, d, site.norm, site.weight);
  cx.wrote({out.p.data, out.h.data, out.y.data});
}

// The weights once; x and d read, y, h and p written.
int64_t bytes(const NormLinearDesc& d, int64_t tokens, int64_t act_bytes) {
  return format_bytes(d.format, d.width * d.hidden) + 2 * d.hidden +
         tokens * (12 * d.hidden + act_bytes * d.hidden + 4 * d.width);
}

int64_t flops(const NormLinearDesc& d, int64_t tokens) { return 2 * tokens * d.width * d.hidden; }

// Slices of K.
int64_t gpu::scratch_bytes(const NormLinearDesc& d) {
  Scratch scratch;
  if (has_slices(d.format)) scratch.take<float>(slice_scratch_rows(d.tokens) * d.width);
  return scratch.used_bytes();
}

}  // namespace nibble::ops
