// Problems for tests of attention: pages of several sequences, and the step that reads them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/kv_pages.h"
#include "ops/test_problem.h"

namespace nibble::ops {

// Pages of several sequences; whatever no sequence has written is NaN.
class Pages {
 public:
  Pages(Random& random, const AttentionDesc& d, DType dtype, int32_t page_size,
        const std::vector<int32_t>& lengths)
      : desc_(d), dtype_(dtype), page_size_(page_size) {
    int32_t most = 0, count = 1;
    for (int32_t len : lengths) most = std::max(most, (len + page_size - 1) / page_size);
    table_.assign(lengths.size() * most, KvLayer::kNoPage);
    for (size_t s = 0; s < lengths.size(); ++s)
      for (int32_t p = 0; p * page_size < lengths[s]; ++p) table_[s * most + p] = count++;
    std::shuffle(table_.begin(), table_.begin() + (lengths[0] + page_size - 1) / page_size,
                 std::mt19937(3));
    const int64_t elements = count * d.kv_heads * page_size * d.head_dim;
    for (auto* side : {&k_, &v_, &v_abs_}) side->resize(elements * dtype_bytes(dtype));
    view_ = {tensor(k_), tensor(v_), table_.data(), most, page_size};
    if (dtype == DType::kF8E4M3) view_.k_scale = 0.7f, view_.v_scale = 1.3f;
    const Tensor magnitudes = tensor(v_abs_);
    for (const Tensor& side : {view_.k, view_.v, magnitudes})
      for (int64_t i = 0; i < elements; ++i)
        kv_put(side, i, std::numeric_limits<float>::quiet_NaN());
    for (size_t s = 0; s < lengths.size(); ++s)
      for (int32_t pos = 0; pos < lengths[s]; ++pos)
        for (int64_t g = 0; g < d.kv_heads; ++g) {
          const int64_t at = kv_index(view_, static_cast<int32_t>(s), pos, g);
          for (int64_t i = at; i < at + d.head_dim; ++i) {
            kv_put(view_.k, i, bf16_to_float(bf16_from_float(random.normal())));
            kv_put(view_.v, i, bf16_to_float(bf16_from_float(random.normal())));
            kv_put(magnitudes, i, std::fabs(kv_get(view_.v, i)));
          }
        }
  }

  const KvLayer& layer() const { return view_; }
  // The same with |v| in place of v.
  KvLayer magnitudes() {
    KvLayer kv = view_;
    kv.v = tensor(v_abs_);
    return kv;
  }
  // Forgets the positions before `pos` of a sequence, as the engine releases pages.
  void release(size_t slot, int32_t pos) {
    for (int32_t p = 0; p < pos / view_.page_size; ++p)
      table_[slot * view_.max_pages + p] = KvLayer::kNoPage;
  }

 private:
  Tensor tensor(std::vector<uint8_t>& bytes) {
    const int64_t page = desc_.kv_heads * page_size_ * desc_.head_dim * dtype_bytes(dtype_);
    return make_tensor(
        bytes.data(), dtype_,
        {static_cast<int64_t>(bytes.size()) / page, desc_.kv_heads, page_size_, desc_.head_dim});
  }

  AttentionDesc desc_;
  DType dtype_;
  int32_t page_size_;
  std::vector<int32_t> table_;
  std::vector<uint8_t> k_, v_, v_abs_;
  KvLayer view_;
};

// Makes the keys of the first sequence at `positions` such that all queries (kept exact in bf16)
// turn to them: scores of 12 and more, where the others' are normal with deviation 1. Among 131,072
// keys each then has a tenth of the weight, and one that is missed is not lost in the others'
// rounding.
inline void plant_needles(Random& random, const KvLayer& kv, const AttentionDesc& d,
                          const std::vector<int32_t>& positions, Floats& q) {
  const std::vector<float> direction = random.normals(d.head_dim);
  for (size_t i = 0; i < q.values.size(); ++i)
    q.values[i] =
        bf16_to_float(bf16_from_float(direction[i % direction.size()] + 0.3f * q.values[i]));
  for (const int32_t pos : positions)
    for (int64_t g = 0; g < d.kv_heads; ++g)
      for (int64_t i = 0; i < d.head_dim; ++i)
        kv_put(kv.k, kv_index(kv, 0, pos, g) + i, 1.5f / kv.k_scale * direction[i]);
}

// Spans (tokens, context) in consecutive slots.
struct TestStep {
  explicit TestStep(const std::vector<std::pair<int32_t, int32_t>>& parts) {
    for (const auto& [len, context] : parts) {
      spans.push_back({static_cast<int32_t>(positions.size()), len, context,
                       static_cast<int32_t>(spans.size())});
      for (int32_t i = 0; i < len; ++i) positions.push_back(context + i);
      lengths.push_back(context + len);
    }
    view = {.num_tokens = static_cast<int32_t>(positions.size()),
            .num_spans = static_cast<int32_t>(spans.size()),
            .max_context = *std::max_element(lengths.begin(), lengths.end()),
            .positions = positions.data(),
            .spans = spans.data()};
  }
  TestStep(const TestStep&) = delete;
  std::vector<Span> spans;
  std::vector<int32_t> positions, lengths;
  Step view;
};

struct AttentionCase {
  AttentionDesc desc;
  DType kv;
  int32_t page_size;
  bool sinks;
  std::vector<std::pair<int32_t, int32_t>> parts;
  std::vector<int32_t> needles = {};  // of the first part
};

// CPU rows against the twin: results are off by at most bound(scale of scores, position, wanted,
// the same of |values|). Each token alone, with workers enough to part the heads of a group, gets
// the same bits.
template <typename Bound>
void check_attention(const AttentionCase& c, Random random, DType queries, DType act,
                     const std::vector<const AttentionKernel*>& rows, const Bound& bound) {
  const TestStep step(c.parts);
  Pages pages(random, c.desc, c.kv, c.page_size, step.lengths);
  const int64_t width = c.desc.q_heads * c.desc.head_dim, tokens = step.view.num_tokens;
  const std::vector<uint16_t> sinks = random.bf16s(c.desc.q_heads);
  const AttentionParams params{.scale = 1 / std::sqrt(static_cast<float>(c.desc.head_dim)),
                               .window = static_cast<int32_t>(c.desc.window),
                               .sinks = c.sinks ? sinks.data() : nullptr};
  Floats q(random, tokens, width, queries), want(tokens, width), abs(tokens, width),
      got(tokens, width), alone(1, width);
  if (!c.needles.empty()) plant_needles(random, pages.layer(), c.desc, c.needles, q);
  TestCtx exact(DType::kF32, 0, 1), test(act, scratch_bytes(c.desc, 2));
  TestCtx many(act, scratch_bytes(c.desc, 12), 12);
  ref::attention(exact.cx, want.tensor(), q.tensor(), pages.layer(), params, step.view);
  ref::attention(exact.cx, abs.tensor(), q.tensor(), pages.magnitudes(), params, step.view);
  for (const AttentionKernel* row : rows) {
    row->run(test.cx, got.tensor(), q.tensor(), pages.layer(), params, step.view);
    for (const Span& span : step.spans)
      for (int64_t t = span.q_start; t < span.q_start + span.q_len; ++t) {
        for (int64_t n = 0; n < width; ++n)
          ASSERT_NEAR(got.at(t, n), want.at(t, n),
                      bound(params.scale, step.positions[t], want.at(t, n), abs.at(t, n)))
              << row->name << " token " << t << " column " << n;
        const Span one{0, 1, step.positions[t], span.slot};
        const Step single{
            .num_tokens = 1, .num_spans = 1, .positions = &step.positions[t], .spans = &one};
        const Tensor qt = make_tensor(q.values.data() + t * width, DType::kF32, {1, width});
        row->run(many.cx, alone.tensor(), qt, pages.layer(), params, single);
        ASSERT_TRUE(std::equal(alone.values.begin(), alone.values.end(), got.row(t)))
            << row->name << " token " << t;
      }
  }
}

}  // namespace nibble::ops
