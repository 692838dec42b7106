#include "ops/mamba2/mamba2.h"

#include "ops/refuse.h"
#include "ops/scratch.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

template <cpu::Isa kIsa>
constexpr Mamba2Kernel row(const char* name) {
  return {name, [](const Mamba2Desc&, const KernelOptions& o) { return refuse_isa(kIsa, o); },
          CpuMamba2<kIsa>::run};
}

const char* refuse_any(const Mamba2Desc& d, const KernelOptions& o) {
  if (const char* reason = refuse_cpu(o)) return reason;
  if (d.taps > 8) return "more than 8 taps";
  if (d.heads > 256 * d.groups) return "more than 256 heads to a group";
  return d.state_dim <= 256 ? nullptr : "states of more than 256 rows";
}

// A head's columns in one block, and a group's heads in one cluster.
const char* refuse_decode(const Mamba2Desc& d, const KernelOptions& o) {
  if (const char* reason = refuse_any(d, o)) return reason;
  if (!o.gpu.runs_clusters) return "this GPU runs no clusters of blocks";
  if (d.state_dim > 128 || d.head_dim > 128) return "heads of more than 128 x 128";
  if (d.heads > gpu::kMambaDecodeHeads * d.groups) return "more than 8 heads to a group";
  return d.tokens <= gpu::kMambaDecodeTokens || o.any_size ? nullptr : "more than 8 tokens";
}

bool has_ring(const Mamba2Desc& d) { return d.state_dim == 128 && d.head_dim == 64 && d.taps == 4; }
// Heads as Nemotron's, of which a cluster of blocks has a group's, eight to a block at most.
const char* refuse_heads(const Mamba2Desc& d, const KernelOptions& o) {
  if (const char* reason = refuse_any(d, o)) return reason;
  if (!o.gpu.runs_clusters) return "this GPU runs no clusters of blocks";
  if (!has_ring(d)) return "not heads of 128 x 64 and 4 taps";
  for (int64_t blocks = 1; blocks <= 8; ++blocks)
    if (d.group_heads() % blocks == 0 && d.group_heads() <= 8 * blocks) return nullptr;
  return "a group's heads do not fit 8 blocks of 8";
}

const char* refuse_ring(const Mamba2Desc& d, const KernelOptions& o) {
  if (const char* reason = refuse_heads(d, o)) return reason;
  const bool is_few = d.tokens <= gpu::kMambaFewTokens || o.any_size;
  return is_few || !o.exact ? nullptr : "--exact: more than 31 tokens";
}
// The same kernel where a step is one token of each sequence; cuda_any's, whose bits are its, for
// prompts.
const char* refuse_ring_or_any(const Mamba2Desc& d, const KernelOptions& o) {
  if (const char* reason = refuse_heads(d, o)) return reason;
  return o.exact ? nullptr : "chunks are faster, without --exact";
}

const char* refuse_chunks(const Mamba2Desc& d, const KernelOptions& o) {
  if (const char* reason = refuse_heads(d, o)) return reason;
  if (d.tokens <= gpu::kMambaFewTokens && !o.any_size) return "spans of up to 31 tokens";
  if (o.exact) return "--exact: a state would depend on how its text was cut";
  if (d.heads % 4 != 0) return "heads that are not a multiple of four";
  return d.group_heads() <= gpu::kMambaMostHeads ? nullptr : "more than 32 heads to a group";
}

constexpr Mamba2Kernel kKernels[] = {
    row<cpu::Isa::kAvx512>("avx512_float"),
    row<cpu::Isa::kAvx2>("avx2_float"),
    row<cpu::Isa::kNeon>("neon_float"),
    row<cpu::Isa::kScalar>("plain_any"),
    {"cuda_chunks", refuse_chunks, NIBBLE_CUDA_KERNEL(gpu::mamba2_chunks)},
    {"cuda_ring", refuse_ring, NIBBLE_CUDA_KERNEL(gpu::mamba2_ring)},
    {"cuda_ring_or_any", refuse_ring_or_any, NIBBLE_CUDA_KERNEL(gpu::mamba2_ring)},
    {"cuda_decode", refuse_decode, NIBBLE_CUDA_KERNEL(gpu::mamba2_decode)},
    {"cuda_any", refuse_any, NIBBLE_CUDA_KERNEL(gpu::mamba2_any)},
    {"ref", [](const Mamba2Desc&, const KernelOptions& o) { return refuse_ref(o); }, ref::mamba2},
};

}  // namespace

std::span<const Mamba2Kernel> mamba2_kernels() { return kKernels; }

void mamba2(Ctx& cx, const Site& site, const Tensor& att, const RecurrentLayer& state,
            const Tensor& in, const Step& s) {
  run_site<Mamba2Kernel>(cx, site, s.num_tokens, att, state, in, std::get<Mamba2Desc>(site.problem),
                         site.mamba, s);
  cx.wrote({att.data, state.state.data, state.conv.data});
}

// States read and written, and what passes through.
int64_t bytes(const Mamba2Desc& d, int64_t streams, int64_t tokens, int64_t act_bytes) {
  return streams * (8 * (d.state_size() + d.conv_size()) +
                    tokens * (4 * d.width() + act_bytes * d.inner())) +
         4 * d.taps * d.channels();
}

// Decayed, written and queried.
int64_t flops(const Mamba2Desc& d, int64_t tokens) {
  return tokens * (5 * d.state_size() + 2 * d.taps * d.channels());
}

// Inputs convolved, with outputs in the place of x; decay and dt; of chunks what is made of each.
int64_t gpu::scratch_bytes(const Mamba2Desc& d) {
  Scratch scratch;
  scratch.take<float>(d.tokens * d.channels());
  scratch.take<float>(d.tokens * 2 * d.heads);
  if (!has_ring(d)) return scratch.used_bytes();
  scratch.take<std::byte>(most_mamba_chunks(d.tokens) * d.groups * kMambaGroupBytes);
  scratch.take<std::byte>(most_mamba_chunks(d.tokens) * d.heads * kMambaHeadBytes);
  return scratch.used_bytes();
}

}  // namespace nibble::ops
