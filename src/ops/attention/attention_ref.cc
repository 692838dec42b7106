#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/kv_pages.h"
#include "ops/store.h"

namespace nibble::ops::ref {
void attention(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
               const AttentionParams& params, const Step& s) {
  const int64_t kv_heads = kv.k.dim(1), dim = kv.k.dim(3), width = q.dim(1);
  const int64_t q_heads = width / dim, group = q_heads / kv_heads;
  std::vector<double> p;
  for (int32_t i = 0; i < s.num_spans; ++i) {
    const Span& span = s.spans[i];
    for (int64_t t = span.q_start; t < span.q_start + span.q_len; ++t) {
      const int32_t pos = s.positions[t];
      const int32_t first = params.window > 0 ? std::max(0, pos - params.window + 1) : 0;
      for (int64_t h = 0; h < q_heads; ++h) {
        const float* qh = q.as<float>() + t * width + h * dim;
        const double sink = params.sinks ? bf16_to_float(params.sinks[h]) : -INFINITY;
        double top = sink;
        p.assign(pos - first + 1, 0);
        for (int32_t j = first; j <= pos; ++j) {
          const int64_t at = kv_index(kv, span.slot, j, h / group);
          for (int64_t e = 0; e < dim; ++e) p[j - first] += double{qh[e]} * kv_get(kv.k, at + e);
          p[j - first] *= double{params.scale} * kv.k_scale;
          top = std::max(top, p[j - first]);
        }
        double sum = std::exp(sink - top);
        for (double& pj : p) sum += pj = std::exp(pj - top);
        std::vector<double> o(dim, 0);
        for (int32_t j = first; j <= pos; ++j) {
          const int64_t at = kv_index(kv, span.slot, j, h / group);
          for (int64_t e = 0; e < dim; ++e) o[e] += p[j - first] / sum * kv_get(kv.v, at + e);
        }
        for (int64_t e = 0; e < dim; ++e)
          att.as<float>()[t * width + h * dim + e] = stored(cx.activations, o[e] * kv.v_scale);
      }
    }
  }
}

}  // namespace nibble::ops::ref
