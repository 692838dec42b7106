#include <algorithm>
#include <cmath>

#include "cpu/thread_pool.h"
#include "ops/cpu_matmul/product.h"
#include "ops/kv_pages.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/norm_qkv/place_qkv.h"
#include "ops/store.h"

namespace nibble::ops {
namespace {

template <typename Product>
struct NormQkvScratch {
  NormQkvScratch(Scratch s, const typename Product::Kernels* kernels, const NormQkvDesc& d,
                 int64_t tokens, int threads)
      : y(s.take<float>(tokens * ((d.has_gates ? 2 : 1) * d.q_heads + 2 * d.kv_heads) *
                        d.head_dim)),
        product(kernels, s, {d.format, d.hidden, tokens, tokens, 1, threads}),
        used_bytes(s.used_bytes()) {}
  float* y;  // [T, (Q + 2G) * D] q, k, v before they are turned
  Product product;
  int64_t used_bytes;
};

void turn(const float* from, const float* cos_sin, int64_t dim, float* to) {
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float a = from[i], b = from[i + half], c = cos_sin[i], s = cos_sin[i + half];
    to[i] = a * c - b * s;
    to[i + half] = b * c + a * s;
  }
}

// Heads of one token, one behind the other.
void norm_heads(float* y, int64_t heads, int64_t dim, const Norm& norm) {
  constexpr int64_t kParts = 8;  // sums side by side
  for (const float* end = y + heads * dim; y < end; y += dim) {
    float squares[kParts] = {}, sum = 0;
    for (int64_t i = 0; i < dim; ++i) squares[i % kParts] += y[i] * y[i];
    for (const float part : squares) sum += part;
    const float inverse = 1 / std::sqrt(sum / static_cast<float>(dim) + norm.eps);
    for (int64_t i = 0; i < dim; ++i)
      y[i] *= inverse * (norm.offset + bf16_to_float(norm.weight[i]));
  }
}

}  // namespace

void place_qkv(Ctx& cx, const Tensor& to, const KvLayer& kv, const QkvNorms& norms,
               const Tensor& cos_sin, float* y, int64_t t, int32_t slot, int32_t pos,
               const Tensor& gates) {
  const int64_t kv_heads = kv.k.dim(1), dim = kv.k.dim(3), width = to.dim(1);
  const int64_t rotary = cos_sin.dim(1);
  const float* angles = cos_sin.as<float>() + t * rotary;
  if (gates.data != nullptr) {  // the heads together, in place
    float* gate = gates.as<float>() + t * width;
    for (int64_t j = 0; j < width; j += dim) {
      std::copy_n(y + 2 * j + dim, dim, gate + j);
      std::copy_n(y + 2 * j, dim, y + j);
    }
  }
  float* k = y + (gates.data != nullptr ? 2 : 1) * width;
  const float* v = k + kv_heads * dim;
  if (norms.q.weight != nullptr) {
    norm_heads(y, width / dim, dim, norms.q);
    norm_heads(k, kv_heads, dim, norms.k);
  }
  float* q = to.as<float>() + t * width;
  for (int64_t j = 0; j < width; j += dim) {
    turn(y + j, angles, rotary, q + j);
    std::copy(y + j + rotary, y + j + dim, q + j + rotary);
  }
  if (cx.activations == DType::kBF16)
    for (int64_t j = 0; j < width; ++j) q[j] = stored(cx.activations, q[j]);
  for (int64_t g = 0; g < kv_heads; ++g, k += dim, v += dim) {
    const int64_t at = kv_index(kv, slot, pos, g);
    // Turned within the row: each pair is read before it is written.
    turn(k, angles, rotary, k);
    kv_put_row(kv.k, at, k, dim, kv.k_scale);
    kv_put_row(kv.v, at, v, dim, kv.v_scale);
  }
}

int64_t scratch_bytes(const NormQkvDesc& desc, int64_t tokens, int threads) {
  return most_scratch_bytes<NormQkvScratch>(desc, tokens, threads);
}

template <typename Product, cpu::Isa kIsa>
void CpuNormQkv<Product, kIsa>::run(Ctx& cx, const NormQkvOut& out, const KvLayer& kv,
                                    const Tensor& x, const Tensor& d, const QkvNorms& norms,
                                    const Weight& qkv, const Tensor& cos_sin, const Step& s) {
  const FloatKernels& floats = float_kernels(float_isa(kIsa));
  const int64_t hidden = qkv.cols, kv_heads = kv.k.dim(1), dim = kv.k.dim(3);
  const bool gated = out.gate.data != nullptr;
  const NormQkvDesc desc{.hidden = hidden,
                         .q_heads = (qkv.rows / dim - 2 * kv_heads) / (gated ? 2 : 1),
                         .kv_heads = kv_heads,
                         .head_dim = dim,
                         .format = qkv.format,
                         .has_gates = gated};
  NormQkvScratch<Product> scratch(Scratch(cx.scratch), &Product::kernels(kIsa), desc, s.num_tokens,
                                  cx.pool->size());
  cx.pool->parallel_for(s.num_tokens, 1, [&](int64_t t, int64_t end, int) {
    for (; t < end; ++t)
      floats.add_norm(out.y.as<float>() + t * hidden, out.h.as<float>() + t * hidden,
                      x.as<float>() + t * hidden, d.as<float>() + t * hidden, norms.input, hidden,
                      cx.activations == DType::kBF16);
  });
  linear(cx, scratch.product, scratch.y, out.h.as<float>(), s.num_tokens, qkv);
  cx.pool->parallel_for(s.num_tokens, 1, [&](int64_t t, int64_t end, int) {
    const Span* span = s.spans;
    for (; t < end; ++t) {
      while (t >= span->q_start + span->q_len) ++span;
      place_qkv(cx, out.q, kv, norms, cos_sin, scratch.y + t * qkv.rows, t, span->slot,
                s.positions[t], out.gate);
    }
  });
}

template struct CpuNormQkv<FloatProduct, cpu::Isa::kAvx512>;
template struct CpuNormQkv<FloatProduct, cpu::Isa::kAvx2>;
template struct CpuNormQkv<FloatProduct, cpu::Isa::kNeon>;
template struct CpuNormQkv<FloatProduct, cpu::Isa::kScalar>;
template struct CpuNormQkv<Bf16Product, cpu::Isa::kAmx>;
template struct CpuNormQkv<Bf16Product, cpu::Isa::kAvx512Bf16>;
template struct CpuNormQkv<Bf16RowProduct, cpu::Isa::kAmx>;
template struct CpuNormQkv<Bf16RowProduct, cpu::Isa::kAvx512Bf16>;
template struct CpuNormQkv<FloatPanelProduct, cpu::Isa::kAvx512>;
template struct CpuNormQkv<FloatPanelProduct, cpu::Isa::kAvx2>;
template struct CpuNormQkv<FloatPanelProduct, cpu::Isa::kNeon>;
template struct CpuNormQkv<Int8Product, cpu::Isa::kAvx512Vnni>;
template struct CpuNormQkv<Int8Product, cpu::Isa::kAvxVnni>;
template struct CpuNormQkv<Int8Product, cpu::Isa::kAvx2>;
template struct CpuNormQkv<Int8Product, cpu::Isa::kNeonDot>;
template struct CpuNormQkv<Int8RowProduct, cpu::Isa::kAmx>;
template struct CpuNormQkv<Int8RowProduct, cpu::Isa::kAvx512Vnni>;

}  // namespace nibble::ops
