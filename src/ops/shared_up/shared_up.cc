#include "ops/shared_up/shared_up.h"

#include "ops/cpu_rows.h"
#include "ops/gpu_matmul/gemm_sm90.h"
#include "ops/refuse.h"
#include "ops/scratch.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

constexpr MatrixShape matrix_of(const SharedUpDesc& d) { return {d.rows(), d.hidden}; }
using Cpu = CpuRows<SharedUpKernel, CpuSharedUp, matrix_of>;

template <Format kFormat>
const char* refuse_few(const SharedUpDesc& d, const KernelOptions& o) {
  return refuse_unit_few<kFormat>(d.format, d.rows(), d.hidden, o);
}

template <Format kFormat>
const char* refuse_many(const SharedUpDesc& d, const KernelOptions& o) {
  return refuse_gemm<kFormat>({d.format, d.rows(), d.hidden, d.tokens, kUnitFewest<kFormat>}, o);
}

const char* refuse_many_bf16(const SharedUpDesc& d, const KernelOptions& o) {
  return refuse_gemm<Format::kBF16>({d.format, d.rows(), d.hidden, d.tokens, kDenseFewest}, o);
}

template <Format kFormat>
const char* refuse_by_mma(const SharedUpDesc& d, const KernelOptions& o) {
  constexpr int64_t kFewest = kFormat == Format::kBF16 ? kMmaTokens : kUnitFewest<kFormat>;
  return refuse_mma<kFormat>({d.format, d.rows(), d.hidden, d.tokens, kFewest}, o);
}

const char* refuse_one(const SharedUpDesc& d, const KernelOptions& o) {
  return refuse_nvfp4_one(d.format, d.tokens, {gpu::OneWork::kDense, d.rows(), d.hidden, 1}, o);
}

constexpr auto kKernels = joined(
    Cpu::all(),
    std::to_array<SharedUpKernel>({
        {"sm90_nvfp4_gemm", refuse_many<Format::kNvfp4>, NIBBLE_SM90_KERNEL(gpu::shared_up_gemm),
         Layout::kTiles16x64},
        {"cuda_nvfp4_gemm", refuse_by_mma<Format::kNvfp4>, NIBBLE_CUDA_KERNEL(gpu::shared_up_mma),
         Layout::kTiles16x64},
        {"cuda_nvfp4_one", refuse_one, NIBBLE_CUDA_KERNEL(gpu::shared_up_one), Layout::kTiles16x64},
        {"cuda_nvfp4_decode", refuse_few<Format::kNvfp4>, NIBBLE_CUDA_KERNEL(gpu::shared_up_few),
         Layout::kTiles16x64},
        {"sm90_w8a16_gemm", refuse_many<Format::kFp8Row>, NIBBLE_SM90_KERNEL(gpu::shared_up_gemm),
         Layout::kTiles16x64},
        {"cuda_w8a16_gemm", refuse_by_mma<Format::kFp8Row>, NIBBLE_CUDA_KERNEL(gpu::shared_up_mma),
         Layout::kTiles16x64},
        {"cuda_w8a16_decode", refuse_few<Format::kFp8Row>, NIBBLE_CUDA_KERNEL(gpu::shared_up_few),
         Layout::kTiles16x64},
        {"sm90_bf16_gemm", refuse_many_bf16, NIBBLE_SM90_KERNEL(gpu::shared_up_gemm)},
        {"cuda_bf16_gemm", refuse_by_mma<Format::kBF16>, NIBBLE_CUDA_KERNEL(gpu::shared_up_mma)},
        {"cuda_any", [](const SharedUpDesc&, const KernelOptions& o) { return refuse_cpu(o); },
         NIBBLE_CUDA_KERNEL(gpu::shared_up_any)},
        {"ref", [](const SharedUpDesc&, const KernelOptions& o) { return refuse_ref(o); },
         ref::shared_up},
    }));

}  // namespace

std::span<const SharedUpKernel> shared_up_kernels() { return kKernels; }

void shared_up(Ctx& cx, const Site& site, const Tensor& u, const Tensor& h) {
  const Swiglu& act = std::get<SharedUpDesc>(site.problem).act;
  run_site<SharedUpKernel>(cx, site, h.dim(0), u, h, site.weight, site.gate, act);
  cx.wrote({u.data});
}

int64_t bytes(const SharedUpDesc& d, int64_t tokens, int64_t act_bytes) {
  return format_bytes(d.format, d.rows() * d.hidden) + 2 * d.hidden +
         tokens * act_bytes * (d.hidden + d.width);
}

int64_t flops(const SharedUpDesc& d, int64_t tokens) { return 2 * tokens * d.rows() * d.hidden; }

// Products before the activation, and slices of K.
int64_t gpu::scratch_bytes(const SharedUpDesc& d) {
  Scratch scratch;
  scratch.take<float>(d.tokens * d.rows());
  if (has_slices(d.format)) scratch.take<float>(slice_scratch_rows(d.tokens) * d.rows());
  return scratch.used_bytes();
}

}  // namespace nibble::ops
