#include "ops/embed/embed.h"

#include "ops/refuse.h"

namespace nibble::ops {
namespace {

constexpr EmbedKernel kKernels[] = {
    {"cpu_copy", [](const EmbedDesc& d, const KernelOptions&) { return refuse_format(d.format); },
     copy::embed},
    {"ref", [](const EmbedDesc&, const KernelOptions& o) { return refuse_ref(o); }, ref::embed},
};

}  // namespace

std::span<const EmbedKernel> embed_kernels() { return kKernels; }

void embed(Ctx& cx, const Tensor& x, const Weight& table, const Step& s) {
  cx.plan->row<EmbedKernel>(Op::kEmbed, cx.layer).run(cx, x, table, s);
}

int64_t bytes(const EmbedDesc& desc, int64_t tokens) {
  return tokens * (format_bytes(desc.format, desc.hidden) + 4 * desc.hidden);
}

}  // namespace nibble::ops
