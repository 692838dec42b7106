// A token's rows are a few kilobytes: element by element they cost nothing next to a layer.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/thread_pool.h"
#include "ops/draft_head/draft_head.h"
#include "ops/norm_qkv/place_qkv.h"
#include "ops/store.h"

namespace nibble::ops::cpu_rows {
namespace {

void norm(double* row, int64_t n, const Norm& by) {
  if (by.weight == nullptr) return;
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += row[i] * row[i];
  const double inverse = 1 / std::sqrt(squares / static_cast<double>(n) + by.eps);
  for (int64_t i = 0; i < n; ++i)
    row[i] *= inverse * (by.offset + double{bf16_to_float(by.weight[i])});
}

}  // namespace

void join_rows(Ctx& cx, const JoinOut& out, std::span<const RowPart> parts, const Norm& all) {
  const int64_t width = parts[0].x.dim(1);
  const int64_t tokens = out.y.data == nullptr ? out.joined.dim(0) : out.y.dim(0);
  const auto n = static_cast<int64_t>(parts.size()) * width;
  cx.pool->parallel_for(tokens, 1, [&](int64_t t, int64_t end, int) {
    std::vector<double> row(n);
    for (; t < end; ++t) {
      for (size_t p = 0; p < parts.size(); ++p) {
        const RowPart& part = parts[p];
        const int64_t from = (part.rows == nullptr ? t : part.rows[t]) * width;
        double* const to = &row[p * width];
        for (int64_t i = 0; i < width; ++i) {
          const float d = part.d.data == nullptr ? 0 : part.d.as<float>()[from + i];
          to[i] = part.x.as<float>()[from + i] + d;
        }
        norm(to, width, part.first);
        const bool is_last = p + 1 == parts.size() && out.y.data != nullptr;
        float* const y = is_last ? out.y.as<float>() + t * width : nullptr;
        if (is_last && !out.y_is_normed) std::copy_n(to, width, y);
        norm(to, width, part.norm);
        if (is_last && out.y_is_normed) std::copy_n(to, width, y);
      }
      if (out.joined.data == nullptr) continue;
      norm(row.data(), n, all);
      for (int64_t i = 0; i < n; ++i)
        out.joined.as<float>()[t * n + i] = stored(cx.activations, row[i]);
    }
  });
}

void store_heads(Ctx& cx, const Tensor& q, const KvLayer& kv, const Tensor& qkv,
                 const Tensor& cos_sin, const Step& s) {
  cx.pool->parallel_for(s.num_tokens, 1, [&](int64_t t, int64_t end, int) {
    const Span* span = s.spans;
    for (; t < end; ++t) {
      while (t >= span->q_start + span->q_len) ++span;
      place_qkv(cx, q, kv, {}, cos_sin, qkv.as<float>() + t * qkv.dim(1), t, span->slot,
                s.positions[t]);
    }
  });
}

void put_rows_by(Ctx& /*cx*/, std::span<const Tensor> to, std::span<const Tensor> from,
                 int32_t length, const Step& s) {
  for (size_t p = 0; p < to.size(); ++p) {
    const int64_t width = from[p].dim(1);
    for (const Span& span : std::span(s.spans, s.num_spans)) {
      for (int32_t i = std::max(0, span.q_len - length); i < span.q_len; ++i) {
        const int64_t row = int64_t{span.slot} * length + (span.context + i) % length;
        std::copy_n(from[p].as<float>() + (span.q_start + i) * width, width,
                    to[p].as<float>() + row * width);
      }
    }
  }
}

}  // namespace nibble::ops::cpu_rows
