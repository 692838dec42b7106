#include "ops/embed/embed.h"

#include "ops/refuse.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

const char* refuse_copy(const EmbedDesc&, const KernelOptions& o) { return refuse_gpu(o); }

const char* refuse_cuda(const EmbedDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_cpu(o)) return reason;
  if (d.format != Format::kBF16) return "needs a bf16 table";
  return d.hidden % 8 == 0 ? nullptr : "needs a multiple of 8 columns";
}

constexpr EmbedKernel kKernels[] = {
    {"cuda_bf16", refuse_cuda, NIBBLE_CUDA_KERNEL(gpu::embed)},
    {"cpu_copy", refuse_copy, copy::embed},
    {"cuda_any", [](const EmbedDesc&, const KernelOptions& o) { return refuse_cpu(o); },
     NIBBLE_CUDA_KERNEL(gpu::embed_any)},
    {"ref", [](const EmbedDesc&, const KernelOptions& o) { return refuse_ref(o); }, ref::embed},
};

}  // namespace

std::span<const EmbedKernel> embed_kernels() { return kKernels; }

void embed(Ctx& cx, const Site& site, const EmbedOut& out, const Rope& rope, const Step& s) {
  run_site<EmbedKernel>(cx, site, s.num_tokens, out, site.weight, rope, s);
  cx.wrote({out.x.data, out.d.data, out.cos_sin.data});
}

int64_t bytes(const EmbedDesc& desc, int64_t tokens) {
  return tokens * (format_bytes(desc.format, desc.hidden) + 8 * desc.hidden);
}

}  // namespace nibble::ops
