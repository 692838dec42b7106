#include "ops/out_proj/out_proj.h"

#include "ops/linear/e4m3_rows.h"
#include "ops/linear/product.h"
#include "ops/refuse.h"
#include "ops/scratch.h"

namespace nibble::ops {
namespace {

template <cpu::Isa kIsa>
constexpr OutProjKernel row(const char* name) {
  return {name,
          [](const OutProjDesc& d, const KernelOptions& o) {
            return refuse_blocked<kIsa>(d.format, o);
          },
          CpuOutProj<FloatProduct, kIsa>::run};
}

template <cpu::Isa kIsa>
constexpr OutProjKernel fp8_row(const char* name) {
  return {name,
          [](const OutProjDesc& d, const KernelOptions& o) {
            return refuse_fp8<kIsa>(d.format, d.hidden, d.width, o);
          },
          CpuOutProj<Fp8Product, kIsa>::run, Layout::kPanels16};
}

template <cpu::Isa kIsa>
constexpr OutProjKernel bf16_row(const char* name) {
  return {name,
          [](const OutProjDesc& d, const KernelOptions& o) {
            return refuse_bf16<kIsa>(d.format, d.hidden, d.width, o);
          },
          CpuOutProj<Bf16Product, kIsa>::run, Layout::kPanels16};
}

template <cpu::Isa kIsa>
constexpr OutProjKernel int8_row(const char* name) {
  return {name,
          [](const OutProjDesc& d, const KernelOptions& o) {
            return refuse_int8<kIsa>(d.format, d.hidden, d.width, o);
          },
          CpuOutProj<Int8Product, kIsa>::run, Layout::kPanels16};
}

template <cpu::Isa kIsa>
constexpr OutProjKernel row_scaled(const char* name) {
  return {name,
          [](const OutProjDesc& d, const KernelOptions& o) {
            return refuse_int8_row<kIsa>(d.format, d.hidden, d.width, o);
          },
          CpuOutProj<Int8RowProduct, kIsa>::run, Layout::kPanels16};
}

template <Format kFormat>
const char* refuse_many(const OutProjDesc& d, const KernelOptions& o) {
  return refuse_gemm<kFormat>({d.format, d.hidden, d.width, d.tokens, kDenseFewest}, o);
}

const char* refuse_many_fp8(const OutProjDesc& d, const KernelOptions& o) {
  return refuse_gemm_fp8({d.format, d.hidden, d.width, d.tokens, kDenseFewest}, o);
}

constexpr OutProjKernel kKernels[] = {
    row_scaled<cpu::Isa::kAmx>("amx_int8row"),
    row_scaled<cpu::Isa::kAvx512Vnni>("avx512_vnni_int8row"),
    int8_row<cpu::Isa::kAvx512Vnni>("avx512_vnni_int8"),
    int8_row<cpu::Isa::kAvxVnni>("avx_vnni_int8"),
    int8_row<cpu::Isa::kAvx2>("avx2_int8"),
    int8_row<cpu::Isa::kNeonDot>("neon_dot_int8"),
    bf16_row<cpu::Isa::kAmx>("amx_mxfp8"),
    bf16_row<cpu::Isa::kAvx512Bf16>("avx512_bf16_mxfp8"),
    {"amx_bf16",
     [](const OutProjDesc& d, const KernelOptions& o) {
       return refuse_bf16_rows(d.format, d.hidden, d.width, o);
     },
     CpuOutProj<Bf16RowProduct, cpu::Isa::kAmx>::run},
    fp8_row<cpu::Isa::kAvx512>("avx512_mxfp8"),
    fp8_row<cpu::Isa::kAvx2>("avx2_mxfp8"),
    fp8_row<cpu::Isa::kNeon>("neon_mxfp8"),
    row<cpu::Isa::kAvx512>("avx512_float"),
    row<cpu::Isa::kAvx2>("avx2_float"),
    row<cpu::Isa::kNeon>("neon_float"),
    {"sm90_w4a16_split",
     [](const OutProjDesc& d, const KernelOptions& o) {
       return refuse_split(d.format, d.hidden, d.width, d.tokens, o);
     },
     NIBBLE_SM90_KERNEL(gpu::out_proj_split), Layout::kTiles16x64},
    {"sm90_w4a8_gemm", refuse_many_fp8, NIBBLE_SM90_KERNEL(gpu::out_proj_gemm_fp8),
     Layout::kTiles16x64},
    {"sm90_w4a16_gemm", refuse_many<Format::kMxfp4>, NIBBLE_SM90_KERNEL(gpu::out_proj_gemm),
     Layout::kTiles16x64},
    {"sm90_bf16_gemm", refuse_many<Format::kBF16>, NIBBLE_SM90_KERNEL(gpu::out_proj_gemm)},
    {"cuda_w4a16_decode",
     [](const OutProjDesc& d, const KernelOptions& o) {
       return refuse_gemv_tiles(d.format, d.hidden, d.width, o);
     },
     NIBBLE_CUDA_KERNEL(gpu::out_proj_tiles), Layout::kTiles16x64},
    {"cuda_bf16_decode",
     [](const OutProjDesc& d, const KernelOptions& o) {
       return refuse_gemv_rows(d.format, d.hidden, d.width, o);
     },
     NIBBLE_CUDA_KERNEL(gpu::out_proj_rows)},
    {"ref", [](const OutProjDesc&, const KernelOptions& o) { return refuse_ref(o); },
     ref::out_proj},
};

}  // namespace

std::span<const OutProjKernel> out_proj_kernels() { return kKernels; }

void out_proj(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out, const Step& s) {
  cx.kernel<OutProjKernel>(Op::kOutProj, s.num_tokens).run(cx, d, att, out, s);
}

int64_t bytes(const OutProjDesc& d, int64_t tokens) {
  return format_bytes(d.format, d.hidden * d.width) + 2 * d.hidden +
         tokens * 4 * (d.hidden + d.width);
}

int64_t flops(const OutProjDesc& d, int64_t tokens) { return 2 * tokens * d.hidden * d.width; }

// Its inputs in E4M3.
int64_t gpu::scratch_bytes(const OutProjDesc& d) {
  Scratch scratch;
  take_e4m3_rows(scratch, d.tokens, d.width);
  return scratch.used_bytes();
}

}  // namespace nibble::ops
