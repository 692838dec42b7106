// embed: starts a step. x[t] = table[tokens[t]]; nothing is pending; the angles of its positions.
#pragma once

#include "ops/ctx.h"
#include "ops/rope/rope.h"
#include "ops/step.h"
#include "ops/weight.h"

namespace nibble::ops {

struct EmbedDesc {
  int64_t vocab = 0;
  int64_t hidden = 0;
  Format format = Format::kBF16;
  int64_t tokens = 1;  // the most of a step that it is to serve
  bool operator==(const EmbedDesc&) const = default;
};

struct EmbedOut {
  Tensor x;        // [T, H] f32
  Tensor d;        // [T, H] f32, zeros
  Tensor cos_sin;  // [T, D] f32: see rope_angles()
};

// table [V, H]. Tokens are within [0, V).
using EmbedFn = void(Ctx& cx, const EmbedOut& out, const Weight& table, const Rope& rope,
                     const Step& s);
using EmbedKernel = Kernel<EmbedDesc, EmbedFn>;

// site.weight: the table.
void embed(Ctx& cx, const Site& site, const EmbedOut& out, const Rope& rope, const Step& s);
std::span<const EmbedKernel> embed_kernels();

// Bytes moved and floating-point operations for `tokens` tokens.
int64_t bytes(const EmbedDesc& desc, int64_t tokens);
inline int64_t flops(const EmbedDesc&, int64_t) { return 0; }

// Copies rows; needs no vectors.
namespace copy {
EmbedFn embed;
}
namespace ref {
EmbedFn embed;
}
namespace gpu {
EmbedFn embed;
EmbedFn embed_any;  // any shape
}  // namespace gpu
}  // namespace nibble::ops
