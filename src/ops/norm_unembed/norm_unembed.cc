#include "ops/norm_unembed/norm_unembed.h"

#include "ops/linear/e4m3_rows.h"
#include "ops/linear/product.h"
#include "ops/refuse.h"
#include "ops/scratch.h"

namespace nibble::ops {
namespace {

template <cpu::Isa kIsa>
constexpr NormUnembedKernel row(const char* name) {
  return {name,
          [](const NormUnembedDesc& d, const KernelOptions& o) {
            return refuse_blocked<kIsa>(d.format, o);
          },
          CpuNormUnembed<FloatProduct, kIsa>::run};
}

template <cpu::Isa kIsa>
constexpr NormUnembedKernel fp8_row(const char* name) {
  return {name,
          [](const NormUnembedDesc& d, const KernelOptions& o) {
            return refuse_fp8<kIsa>(d.format, d.vocab, d.hidden, o);
          },
          CpuNormUnembed<Fp8Product, kIsa>::run, Layout::kPanels16};
}

template <cpu::Isa kIsa>
constexpr NormUnembedKernel bf16_row(const char* name) {
  return {name,
          [](const NormUnembedDesc& d, const KernelOptions& o) {
            return refuse_bf16<kIsa>(d.format, d.vocab, d.hidden, o);
          },
          CpuNormUnembed<Bf16Product, kIsa>::run, Layout::kPanels16};
}

template <cpu::Isa kIsa>
constexpr NormUnembedKernel int8_row(const char* name) {
  return {name,
          [](const NormUnembedDesc& d, const KernelOptions& o) {
            return refuse_int8<kIsa>(d.format, d.vocab, d.hidden, o);
          },
          CpuNormUnembed<Int8Product, kIsa>::run, Layout::kPanels16};
}

template <cpu::Isa kIsa>
constexpr NormUnembedKernel row_scaled(const char* name) {
  return {name,
          [](const NormUnembedDesc& d, const KernelOptions& o) {
            return refuse_int8_row<kIsa>(d.format, d.vocab, d.hidden, o);
          },
          CpuNormUnembed<Int8RowProduct, kIsa>::run, Layout::kPanels16};
}

template <Format kFormat>
const char* refuse_many(const NormUnembedDesc& d, const KernelOptions& o) {
  return refuse_gemm<kFormat>({d.format, d.vocab, d.hidden, d.tokens, kDenseFewest}, o);
}

const char* refuse_many_fp8(const NormUnembedDesc& d, const KernelOptions& o) {
  return refuse_gemm_fp8({d.format, d.vocab, d.hidden, d.tokens, kDenseFewest}, o);
}

constexpr NormUnembedKernel kKernels[] = {
    row_scaled<cpu::Isa::kAmx>("amx_int8row"),
    row_scaled<cpu::Isa::kAvx512Vnni>("avx512_vnni_int8row"),
    int8_row<cpu::Isa::kAvx512Vnni>("avx512_vnni_int8"),
    int8_row<cpu::Isa::kAvxVnni>("avx_vnni_int8"),
    int8_row<cpu::Isa::kAvx2>("avx2_int8"),
    int8_row<cpu::Isa::kNeonDot>("neon_dot_int8"),
    bf16_row<cpu::Isa::kAmx>("amx_mxfp8"),
    bf16_row<cpu::Isa::kAvx512Bf16>("avx512_bf16_mxfp8"),
    {"amx_bf16",
     [](const NormUnembedDesc& d, const KernelOptions& o) {
       return refuse_bf16_rows(d.format, d.vocab, d.hidden, o);
     },
     CpuNormUnembed<Bf16RowProduct, cpu::Isa::kAmx>::run},
    fp8_row<cpu::Isa::kAvx512>("avx512_mxfp8"),
    fp8_row<cpu::Isa::kAvx2>("avx2_mxfp8"),
    fp8_row<cpu::Isa::kNeon>("neon_mxfp8"),
    row<cpu::Isa::kAvx512>("avx512_float"),
    row<cpu::Isa::kAvx2>("avx2_float"),
    row<cpu::Isa::kNeon>("neon_float"),
    {"sm90_w4a8_gemm", refuse_many_fp8, NIBBLE_SM90_KERNEL(gpu::norm_unembed_gemm_fp8),
     Layout::kTiles16x64},
    {"sm90_w4a16_gemm", refuse_many<Format::kMxfp4>, NIBBLE_SM90_KERNEL(gpu::norm_unembed_gemm),
     Layout::kTiles16x64},
    {"sm90_bf16_gemm", refuse_many<Format::kBF16>, NIBBLE_SM90_KERNEL(gpu::norm_unembed_gemm)},
    {"cuda_w4a16_decode",
     [](const NormUnembedDesc& d, const KernelOptions& o) {
       return refuse_gemv_tiles(d.format, d.vocab, d.hidden, o);
     },
     NIBBLE_CUDA_KERNEL(gpu::norm_unembed_tiles), Layout::kTiles16x64},
    {"cuda_bf16_decode",
     [](const NormUnembedDesc& d, const KernelOptions& o) {
       return refuse_gemv_rows(d.format, d.vocab, d.hidden, o);
     },
     NIBBLE_CUDA_KERNEL(gpu::norm_unembed_rows)},
    {"ref", [](const NormUnembedDesc&, const KernelOptions& o) { return refuse_ref(o); },
     ref::norm_unembed},
};

}  // namespace

std::span<const NormUnembedKernel> norm_unembed_kernels() { return kKernels; }

void norm_unembed(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x, const Tensor& d,
                  const Norm& norm, const Weight& unembed, const Step& s) {
  cx.kernel<NormUnembedKernel>(Op::kNormUnembed, s.num_out)
      .run(cx, logits, h, x, d, norm, unembed, s);
}

int64_t bytes(const NormUnembedDesc& d, int64_t rows) {
  return format_bytes(d.format, d.vocab * d.hidden) + 2 * d.hidden +
         rows * 4 * (3 * d.hidden + d.vocab);
}

int64_t flops(const NormUnembedDesc& d, int64_t rows) { return 2 * rows * d.vocab * d.hidden; }

// Its inputs in E4M3.
int64_t gpu::scratch_bytes(const NormUnembedDesc& d) {
  Scratch scratch;
  take_e4m3_rows(scratch, d.tokens, d.hidden);
  return scratch.used_bytes();
}

}  // namespace nibble::ops
