#include "ops/norm_qkv/norm_qkv.h"

#include "ops/cpu_rows.h"
#include "ops/gpu_matmul/e4m3_rows.h"
#include "ops/gpu_matmul/gemm_sm90.h"
#include "ops/refuse.h"
#include "ops/scratch.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

// q, k and v are laid out one by one: the rows of k, which those of q are a multiple of.
constexpr MatrixShape matrix_of(const NormQkvDesc& d) {
  return {d.kv_heads * d.head_dim, d.hidden};
}
using Cpu = CpuRows<NormQkvKernel, CpuNormQkv, matrix_of>;

// Rows whose epilogue turns and stores: two row tiles hold the halves of a pair.
const char* refuse_heads(const NormQkvDesc& d) {
  if (d.norms_heads) return "heads of q and k are normed";
  if (d.has_gates) return "query heads have gates";
  if (d.rotary_dim != 0) return "heads are turned in part";
  return d.head_dim == 64 ? nullptr : "head dim is not 64";
}

// The few-token CUDA rows.
template <auto kRefuse>
const char* refuse_gemv(const NormQkvDesc& d, const KernelOptions& o) {
  if (const char* reason = kRefuse(d.format, rows_of(d), d.hidden, o)) return reason;
  return refuse_heads(d);
}

template <Format kFormat>
const char* refuse_many(const NormQkvDesc& d, const KernelOptions& o) {
  if (const char* reason =
          refuse_gemm<kFormat>({d.format, rows_of(d), d.hidden, d.tokens, kDenseFewest}, o))
    return reason;
  return kFormat == Format::kBF16 ? nullptr : refuse_heads(d);
}

const char* refuse_some(const NormQkvDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_split(d.format, rows_of(d), d.hidden, d.tokens, o)) return reason;
  return refuse_heads(d);
}

const char* refuse_many_fp8(const NormQkvDesc& d, const KernelOptions& o) {
  if (const char* reason =
          refuse_gemm_fp8({d.format, rows_of(d), d.hidden, d.tokens, kDenseFewest, d.facts}, o))
    return reason;
  return refuse_heads(d);
}

template <Format kFormat>
const char* refuse_few(const NormQkvDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_unit_few<kFormat>(d.format, rows_of(d), d.hidden, o))
    return reason;
  if (d.hidden > 9216) return "more than 9,216 columns";
  // q, k and v lie in tiles, each by itself.
  if (d.kv_heads * d.head_dim % 16 != 0 || d.q_heads * d.head_dim % 16 != 0)
    return "rows of q, k or v are not a multiple of 16";
  return d.head_dim % 2 == 0 && d.rotary_dim % 2 == 0 ? nullptr : "head dim is odd";
}

template <Format kFormat>
const char* refuse_unit_some(const NormQkvDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_few<kFormat>(d, o)) return reason;
  return refuse_unit_split<kFormat>({d.format, rows_of(d), d.hidden, d.tokens, 0}, o);
}

template <Format kFormat>
const char* refuse_unit_many(const NormQkvDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_few<kFormat>(d, o)) return reason;
  return refuse_gemm<kFormat>({d.format, rows_of(d), d.hidden, d.tokens, kUnitFewest<kFormat>}, o);
}

template <Format kFormat>
const char* refuse_unit_mma(const NormQkvDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_few<kFormat>(d, o)) return reason;
  if (d.hidden > kAddNormMost) return "more than 8192 columns";
  return refuse_mma<kFormat>({d.format, rows_of(d), d.hidden, d.tokens, kUnitFewest<kFormat>}, o);
}

const char* refuse_unit_fp8(const NormQkvDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_few<Format::kFp8Row>(d, o)) return reason;
  return refuse_w8a8({d.format, rows_of(d), d.hidden, d.tokens, 0}, o);
}

const char* refuse_nvfp4_by_fp8(const NormQkvDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_few<Format::kNvfp4>(d, o)) return reason;
  return refuse_nvfp4_fp8({d.format, rows_of(d), d.hidden, d.tokens, 0}, 1, o);
}

template <Format kFormat, ActFormat kInputs = ActFormat::kFp8>
const char* refuse_scaled(const NormQkvDesc& d, const KernelOptions& o) {
  constexpr int64_t kFewest = kBlockScaledFewest<kFormat>;
  if (d.hidden > kAddNormMost) return "more than 8192 columns";
  if (const char* reason = refuse_block_scaled<kFormat, kInputs>(
          {d.format, rows_of(d), d.hidden, d.tokens, kFewest}, o))
    return reason;
  return kFormat == Format::kMxfp4 ? refuse_heads(d) : refuse_few<kFormat>(d, o);
}

template <Format kFormat>
const char* refuse_by_mma(const NormQkvDesc& d, const KernelOptions& o) {
  if (d.hidden > kAddNormMost) return "more than 8192 columns";
  if (const char* reason =
          refuse_mma<kFormat>({d.format, rows_of(d), d.hidden, d.tokens, kMmaTokens}, o))
    return reason;
  if (kFormat != Format::kBF16) return refuse_heads(d);
  return d.head_dim % 2 == 0 && d.rotary_dim % 2 == 0 ? nullptr : "head dim is odd";
}

const char* refuse_any(const NormQkvDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_cpu(o)) return reason;
  return d.head_dim % 2 == 0 && d.rotary_dim % 2 == 0 ? nullptr : "head dim is odd";
}

const char* refuse_one(const NormQkvDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_few<Format::kNvfp4>(d, o)) return reason;
  return refuse_nvfp4_one(d.format, d.tokens, {gpu::OneWork::kDense, rows_of(d), d.hidden, 1}, o);
}

const char* refuse_f16(const NormQkvDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_few<Format::kNvfp4>(d, o)) return reason;
  return refuse_nvfp4_f16({d.format, rows_of(d), d.hidden, d.tokens, 0}, 1, o);
}

// Heads of any size: the products of few tokens in memory, then turned and stored.
const char* refuse_bf16_rows_few(const NormQkvDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_gemv_rows(d.format, rows_of(d), d.hidden, o)) return reason;
  return d.head_dim % 2 == 0 ? nullptr : "head dim is odd";
}

constexpr auto kKernels = joined(
    Cpu::all(),
    std::to_array<NormQkvKernel>({
        {"sm121_w4a4_gemm", refuse_scaled<Format::kMxfp4, ActFormat::kFp4>,
         NIBBLE_CUDA_KERNEL(gpu::norm_qkv_w4a4), Layout::kTiles16x64, kAnyTokens},
        {"sm121_nvfp4a4_gemm", refuse_scaled<Format::kNvfp4, ActFormat::kFp4>,
         NIBBLE_CUDA_KERNEL(gpu::norm_qkv_w4a4), Layout::kTiles16x64, kAnyTokens},
        {"sm121_w4a8_gemm", refuse_scaled<Format::kMxfp4>,
         NIBBLE_CUDA_KERNEL(gpu::norm_qkv_block_scaled), Layout::kTiles16x64, kAnyTokens},
        {"sm121_nvfp4a8_gemm", refuse_scaled<Format::kNvfp4>,
         NIBBLE_CUDA_KERNEL(gpu::norm_qkv_block_scaled), Layout::kTiles16x64, kAnyTokens},
        {"sm121_w8a8_gemm", refuse_scaled<Format::kFp8Row>,
         NIBBLE_CUDA_KERNEL(gpu::norm_qkv_block_scaled), Layout::kTiles16x64, kAnyTokens},
        {"sm90_w4a16_split", refuse_some, NIBBLE_SM90_KERNEL(gpu::norm_qkv_split),
         Layout::kTiles16x64},
        {"sm90_w4a8_gemm", refuse_many_fp8, NIBBLE_SM90_KERNEL(gpu::norm_qkv_gemm_fp8),
         Layout::kTiles16x64, kAnyTokens},
        {"sm90_w4a16_gemm", refuse_many<Format::kMxfp4>, NIBBLE_SM90_KERNEL(gpu::norm_qkv_gemm),
         Layout::kTiles16x64, kAnyTokens},
        {"sm90_bf16_gemm", refuse_many<Format::kBF16>, NIBBLE_SM90_KERNEL(gpu::norm_qkv_gemm),
         Layout::kRows, kAnyTokens},
        {"sm90_nvfp4a8_gemm", refuse_nvfp4_by_fp8, NIBBLE_SM90_KERNEL(gpu::norm_qkv_unit_gemm_fp8),
         Layout::kTiles16x64, kAnyTokens},
        {"sm90_nvfp4_f16", refuse_f16, NIBBLE_SM90_KERNEL(gpu::norm_qkv_f16), Layout::kTiles16x64},
        {"sm90_nvfp4_split", refuse_unit_some<Format::kNvfp4>,
         NIBBLE_SM90_KERNEL(gpu::norm_qkv_unit_split), Layout::kTiles16x64},
        {"sm90_nvfp4_gemm", refuse_unit_many<Format::kNvfp4>,
         NIBBLE_SM90_KERNEL(gpu::norm_qkv_unit_gemm), Layout::kTiles16x64, kAnyTokens},
        {"cuda_nvfp4_gemm", refuse_unit_mma<Format::kNvfp4>,
         NIBBLE_CUDA_KERNEL(gpu::norm_qkv_unit_mma), Layout::kTiles16x64, kAnyTokens},
        {"cuda_nvfp4_one", refuse_one, NIBBLE_CUDA_KERNEL(gpu::norm_qkv_one), Layout::kTiles16x64},
        {"cuda_nvfp4_decode", refuse_few<Format::kNvfp4>, NIBBLE_CUDA_KERNEL(gpu::norm_qkv_few),
         Layout::kTiles16x64},
        {"sm90_w8a8_gemm", refuse_unit_fp8, NIBBLE_SM90_KERNEL(gpu::norm_qkv_unit_gemm_fp8),
         Layout::kTiles16x64, kAnyTokens},
        {"sm90_w8a16_split", refuse_unit_some<Format::kFp8Row>,
         NIBBLE_SM90_KERNEL(gpu::norm_qkv_unit_split), Layout::kTiles16x64},
        {"sm90_w8a16_gemm", refuse_unit_many<Format::kFp8Row>,
         NIBBLE_SM90_KERNEL(gpu::norm_qkv_unit_gemm), Layout::kTiles16x64, kAnyTokens},
        {"cuda_w8a16_gemm", refuse_unit_mma<Format::kFp8Row>,
         NIBBLE_CUDA_KERNEL(gpu::norm_qkv_unit_mma), Layout::kTiles16x64, kAnyTokens},
        {"cuda_w8a16_decode", refuse_few<Format::kFp8Row>, NIBBLE_CUDA_KERNEL(gpu::norm_qkv_few),
         Layout::kTiles16x64},
        {"sm90_int4_split", refuse_unit_some<Format::kInt4G128>,
         NIBBLE_SM90_KERNEL(gpu::norm_qkv_unit_split), Layout::kTiles16x64},
        {"sm90_int4_gemm", refuse_unit_many<Format::kInt4G128>,
         NIBBLE_SM90_KERNEL(gpu::norm_qkv_unit_gemm), Layout::kTiles16x64, kAnyTokens},
        {"cuda_int4_gemm", refuse_unit_mma<Format::kInt4G128>,
         NIBBLE_CUDA_KERNEL(gpu::norm_qkv_unit_mma), Layout::kTiles16x64, kAnyTokens},
        {"cuda_int4_decode", refuse_few<Format::kInt4G128>, NIBBLE_CUDA_KERNEL(gpu::norm_qkv_few),
         Layout::kTiles16x64},
        {"cuda_w4a16_gemm", refuse_by_mma<Format::kMxfp4>, NIBBLE_CUDA_KERNEL(gpu::norm_qkv_mma),
         Layout::kTiles16x64, kAnyTokens},
        {"cuda_bf16_gemm", refuse_by_mma<Format::kBF16>, NIBBLE_CUDA_KERNEL(gpu::norm_qkv_mma),
         Layout::kRows, kAnyTokens},
        {"cuda_w4a16_decode", refuse_gemv<refuse_gemv_tiles>,
         NIBBLE_CUDA_KERNEL(gpu::norm_qkv_tiles), Layout::kTiles16x64},
        {"cuda_bf16_decode", refuse_gemv<refuse_gemv_rows>, NIBBLE_CUDA_KERNEL(gpu::norm_qkv_rows)},
        {"cuda_bf16_rows", refuse_bf16_rows_few, NIBBLE_CUDA_KERNEL(gpu::norm_qkv_bf16_few)},
        {"cuda_any", refuse_any, NIBBLE_CUDA_KERNEL(gpu::norm_qkv_any)},
        {"ref", [](const NormQkvDesc&, const KernelOptions& o) { return refuse_ref(o); },
         ref::norm_qkv},
    }));

}  // namespace

std::span<const NormQkvKernel> norm_qkv_kernels() { return kKernels; }

bool may_leave_heads(const NormQkvDesc& d) {
  return d.head_dim == 128 && d.rotary_dim == 0 && !d.has_gates;
}

void norm_qkv(Ctx& cx, const Site& site, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
              const Tensor& d, const Tensor& cos_sin, const Step& s) {
  const QkvNorms norms{site.norm, site.q_norm, site.k_norm};
  run_site<NormQkvKernel>(cx, site, s.num_tokens, out, pages_of(site, kv), x, d, norms, site.weight,
                          cos_sin, s);
  cx.wrote({out.q.data, out.h.data, out.y.data, out.gate.data});
}

// The weights once; x and d read, y, h, q, k and v written.
int64_t bytes(const NormQkvDesc& d, int64_t tokens, int64_t act_bytes) {
  return format_bytes(d.format, rows_of(d) * d.hidden) + 2 * rows_of(d) + 2 * d.hidden +
         tokens * (12 * d.hidden + act_bytes * (d.hidden + rows_of(d)));
}

int64_t flops(const NormQkvDesc& d, int64_t tokens) { return 2 * tokens * rows_of(d) * d.hidden; }

// Products before rope, of the rows for many tokens, and their inputs in E4M3.
int64_t gpu::scratch_bytes(const NormQkvDesc& d) {
  Scratch scratch;
  scratch.take<float>(d.tokens * rows_of(d));
  if (has_slices(d.format)) scratch.take<float>(slice_scratch_rows(d.tokens) * rows_of(d));
  take_e4m3_rows(scratch, d.tokens, d.hidden);
  return scratch.used_bytes();
}

}  // namespace nibble::ops
