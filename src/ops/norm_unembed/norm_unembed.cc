#include "ops/norm_unembed/norm_unembed.h"

#include "ops/cpu_rows.h"
#include "ops/gpu_matmul/e4m3_rows.h"
#include "ops/refuse.h"
#include "ops/scratch.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

constexpr MatrixShape matrix_of(const NormUnembedDesc& d) { return {d.vocab, d.hidden}; }
using Cpu = CpuRows<NormUnembedKernel, CpuNormUnembed, matrix_of>;

template <Format kFormat>
const char* refuse_many(const NormUnembedDesc& d, const KernelOptions& o) {
  return refuse_gemm<kFormat>({d.format, d.vocab, d.hidden, d.tokens, kDenseFewest}, o);
}

template <Format kFormat>
const char* refuse_unit_many(const NormUnembedDesc& d, const KernelOptions& o) {
  return refuse_gemm<kFormat>({d.format, d.vocab, d.hidden, d.tokens, kUnitFewest<kFormat>}, o);
}

const char* refuse_many_fp8(const NormUnembedDesc& d, const KernelOptions& o) {
  return refuse_gemm_fp8({d.format, d.vocab, d.hidden, d.tokens, kDenseFewest, d.facts}, o);
}

template <Format kFormat, ActFormat kInputs = ActFormat::kFp8>
const char* refuse_scaled(const NormUnembedDesc& d, const KernelOptions& o) {
  if (d.hidden > kAddNormMost) return "more than 8192 columns";
  return refuse_block_scaled<kFormat, kInputs>(
      {d.format, d.vocab, d.hidden, d.tokens, kBlockScaledFewest<kFormat>}, o);
}

template <Format kFormat>
const char* refuse_by_mma(const NormUnembedDesc& d, const KernelOptions& o) {
  if (d.hidden > kAddNormMost) return "more than 8192 columns";
  return refuse_mma<kFormat>({d.format, d.vocab, d.hidden, d.tokens, kMmaTokens}, o);
}

template <Format kFormat>
const char* refuse_unit_mma(const NormUnembedDesc& d, const KernelOptions& o) {
  if (d.hidden > kAddNormMost) return "more than 8192 columns";
  return refuse_mma<kFormat>({d.format, d.vocab, d.hidden, d.tokens, kUnitFewest<kFormat>}, o);
}

const char* refuse_one(const NormUnembedDesc& d, const KernelOptions& o) {
  return refuse_nvfp4_one(d.format, d.tokens, {gpu::OneWork::kDense, d.vocab, d.hidden, 1}, o);
}

const char* refuse_f16(const NormUnembedDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_unit_few<Format::kNvfp4>(d.format, d.vocab, d.hidden, o))
    return reason;
  return refuse_nvfp4_f16({d.format, d.vocab, d.hidden, d.tokens, 0}, 1, o);
}

constexpr auto kKernels = joined(
    Cpu::all(),
    std::to_array<NormUnembedKernel>({
        {"sm121_w4a4_gemm", refuse_scaled<Format::kMxfp4, ActFormat::kFp4>,
         NIBBLE_CUDA_KERNEL(gpu::norm_unembed_w4a4), Layout::kTiles16x64},
        {"sm121_w4a8_gemm", refuse_scaled<Format::kMxfp4>,
         NIBBLE_CUDA_KERNEL(gpu::norm_unembed_block_scaled), Layout::kTiles16x64},
        {"sm121_w8a8_gemm", refuse_scaled<Format::kFp8Row>,
         NIBBLE_CUDA_KERNEL(gpu::norm_unembed_block_scaled), Layout::kTiles16x64},
        {"sm90_w4a8_gemm", refuse_many_fp8, NIBBLE_SM90_KERNEL(gpu::norm_unembed_gemm_fp8),
         Layout::kTiles16x64},
        {"sm90_w4a16_gemm", refuse_many<Format::kMxfp4>, NIBBLE_SM90_KERNEL(gpu::norm_unembed_gemm),
         Layout::kTiles16x64},
        {"sm90_bf16_gemm", refuse_many<Format::kBF16>, NIBBLE_SM90_KERNEL(gpu::norm_unembed_gemm)},
        {"sm90_nvfp4_f16", refuse_f16, NIBBLE_SM90_KERNEL(gpu::norm_unembed_f16),
         Layout::kTiles16x64},
        {"sm90_nvfp4_gemm", refuse_unit_many<Format::kNvfp4>,
         NIBBLE_SM90_KERNEL(gpu::norm_unembed_gemm), Layout::kTiles16x64},
        {"cuda_nvfp4_gemm", refuse_unit_mma<Format::kNvfp4>,
         NIBBLE_CUDA_KERNEL(gpu::norm_unembed_mma), Layout::kTiles16x64},
        {"cuda_nvfp4_one", refuse_one, NIBBLE_CUDA_KERNEL(gpu::norm_unembed_one),
         Layout::kTiles16x64},
        {"cuda_nvfp4_decode", refuse_matrix<matrix_of, refuse_unit_few<Format::kNvfp4>>,
         NIBBLE_CUDA_KERNEL(gpu::norm_unembed_few), Layout::kTiles16x64},
        {"sm90_w8a16_gemm", refuse_unit_many<Format::kFp8Row>,
         NIBBLE_SM90_KERNEL(gpu::norm_unembed_gemm), Layout::kTiles16x64},
        {"cuda_w8a16_gemm", refuse_unit_mma<Format::kFp8Row>,
         NIBBLE_CUDA_KERNEL(gpu::norm_unembed_mma), Layout::kTiles16x64},
        {"cuda_w8a16_decode", refuse_matrix<matrix_of, refuse_unit_few<Format::kFp8Row>>,
         NIBBLE_CUDA_KERNEL(gpu::norm_unembed_few), Layout::kTiles16x64},
        {"sm90_int4_gemm", refuse_unit_many<Format::kInt4G128>,
         NIBBLE_SM90_KERNEL(gpu::norm_unembed_gemm), Layout::kTiles16x64},
        {"cuda_int4_gemm", refuse_unit_mma<Format::kInt4G128>,
         NIBBLE_CUDA_KERNEL(gpu::norm_unembed_mma), Layout::kTiles16x64},
        {"cuda_int4_decode", refuse_matrix<matrix_of, refuse_unit_few<Format::kInt4G128>>,
         NIBBLE_CUDA_KERNEL(gpu::norm_unembed_few), Layout::kTiles16x64},
        {"cuda_w4a16_gemm", refuse_by_mma<Format::kMxfp4>,
         NIBBLE_CUDA_KERNEL(gpu::norm_unembed_mma), Layout::kTiles16x64},
        {"cuda_bf16_gemm", refuse_by_mma<Format::kBF16>, NIBBLE_CUDA_KERNEL(gpu::norm_unembed_mma)},
        {"cuda_w4a16_decode", refuse_matrix<matrix_of, refuse_gemv_tiles>,
         NIBBLE_CUDA_KERNEL(gpu::norm_unembed_tiles), Layout::kTiles16x64},
        {"cuda_bf16_decode", refuse_matrix<matrix_of, refuse_gemv_rows>,
         NIBBLE_CUDA_KERNEL(gpu::norm_unembed_rows)},
        {"cuda_any", [](const NormUnembedDesc&, const KernelOptions& o) { return refuse_cpu(o); },
         NIBBLE_CUDA_KERNEL(gpu::norm_unembed_any)},
        {"ref", [](const NormUnembedDesc&, const KernelOptions& o) { return refuse_ref(o); },
         ref::norm_unembed},
    }));

}  // namespace

std::span<const NormUnembedKernel> norm_unembed_kernels() { return kKernels; }

void norm_unembed(Ctx& cx, const Site& site, const Tensor& logits, const Tensor& h, const Tensor& x,
                  const Tensor& d, const Step& s) {
  run_site<NormUnembedKernel>(cx, site, s.num_out, logits, h, x, d, site.norm, site.weight, s);
  cx.wrote({logits.data, h.data});
}

int64_t bytes(const NormUnembedDesc& d, int64_t rows, int64_t act_bytes) {
  return format_bytes(d.format, d.vocab * d.hidden) + 2 * d.hidden +
         rows * (8 * d.hidden + act_bytes * d.hidden + 4 * d.vocab);
}

int64_t flops(const NormUnembedDesc& d, int64_t rows) { return 2 * rows * d.vocab * d.hidden; }

// Its inputs in E4M3.
int64_t gpu::scratch_bytes(const NormUnembedDesc& d) {
  Scratch scratch;
  take_e4m3_rows(scratch, d.tokens, d.hidden);
  return scratch.used_bytes();
}

}  // namespace nibble::ops
