#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/kv_pages.h"
#include "ops/matmul_ref.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/norm_ref.h"

namespace nibble::ops::ref {
namespace {

// Pairs (i, i + D/2) of one head.
void turn(double* head, const float* cos_sin, int64_t dim) {
  for (int64_t i = 0; i < dim / 2; ++i) {
    const double a = head[i], b = head[i + dim / 2];
    const double c = cos_sin[i], s = cos_sin[i + dim / 2];
    head[i] = a * c - b * s;
    head[i + dim / 2] = b * c + a * s;
  }
}

// One head. Not rounded: it is turned next.
void norm_head(double* head, const Norm& norm, int64_t dim) {
  double squares = 0;
  for (int64_t i = 0; i < dim; ++i) squares += head[i] * head[i];
  const double inverse = 1 / std::sqrt(squares / static_cast<double>(dim) + norm.eps);
  for (int64_t i = 0; i < dim; ++i)
    head[i] *= inverse * (norm.offset + double{bf16_to_float(norm.weight[i])});
}

}  // namespace

void norm_qkv(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x, const Tensor& d,
              const QkvNorms& norms, const Weight& qkv, const Tensor& cos_sin, const Step& s) {
  const int64_t hidden = qkv.cols, kv_heads = kv.k.dim(1), dim = kv.k.dim(3);
  const bool gated = out.gate.data != nullptr;
  const int64_t q_heads = (qkv.rows / dim - 2 * kv_heads) / (gated ? 2 : 1);
  const int64_t rotary = cos_sin.dim(1);
  float *y = out.y.as<float>(), *h = out.h.as<float>(), *q = out.q.as<float>();
  add(y, x.as<float>(), d.as<float>(), s.num_tokens * hidden);
  for (int64_t t = 0; t < s.num_tokens; ++t)
    rms_norm(cx.activations, h + t * hidden, y + t * hidden, norms.input, hidden);

  std::vector<double> qkvs(s.num_tokens * qkv.rows);
  for (int64_t n = 0; n < qkv.rows; ++n) {
    const Row row(qkv, 0, n);
    for (int64_t t = 0; t < s.num_tokens; ++t) qkvs[t * qkv.rows + n] = row.dot(h + t * hidden);
  }
  for (int32_t i = 0; i < s.num_spans; ++i) {
    const Span& span = s.spans[i];
    for (int64_t t = span.q_start; t < span.q_start + span.q_len; ++t) {
      double* yt = qkvs.data() + t * qkv.rows;
      for (int64_t j = 0; gated && j < q_heads; ++j) {  // gates out, the heads together
        for (int64_t i = 0; i < dim; ++i)
          out.gate.as<float>()[(t * q_heads + j) * dim + i] =
              static_cast<float>(yt[(2 * j + 1) * dim + i]);
        std::copy_n(yt + 2 * j * dim, dim, yt + j * dim);
      }
      if (gated) std::copy_n(yt + 2 * q_heads * dim, 2 * kv_heads * dim, yt + q_heads * dim);
      for (int64_t j = 0; norms.q.weight != nullptr && j < q_heads + kv_heads; ++j)
        norm_head(yt + j * dim, j < q_heads ? norms.q : norms.k, dim);
      for (int64_t j = 0; j < q_heads + kv_heads; ++j)
        turn(yt + j * dim, cos_sin.as<float>() + t * rotary, rotary);
      for (int64_t j = 0; j < q_heads * dim; ++j)
        q[t * q_heads * dim + j] = stored(cx.activations, yt[j]);
      for (int64_t g = 0; g < kv_heads; ++g) {
        const int64_t at = kv_index(kv, span.slot, s.positions[t], g);
        for (int64_t j = 0; j < dim; ++j) {
          const double k = yt[(q_heads + g) * dim + j], v = yt[(q_heads + kv_heads + g) * dim + j];
          kv_put(kv.k, at + j, static_cast<float>(k / kv.k_scale));
          kv_put(kv.v, at + j, static_cast<float>(v / kv.v_scale));
        }
      }
    }
  }
}

}  // namespace nibble::ops::ref
