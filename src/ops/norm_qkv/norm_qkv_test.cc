#include "ops/norm_qkv/norm_qkv.h"

#include <gtest/gtest.h>

#include "ops/kv_pages.h"
#include "ops/matmul_ref.h"
#include "ops/norm_ref.h"
#include "ops/rope/rope.h"
#include "ops/test_problem.h"

namespace nibble::ops {
namespace {

struct Shape {
  int64_t hidden, q_heads, kv_heads, head_dim;
  bool norms_heads = false, has_gates = false;
  int64_t rotary_dim = 0;
  float offset = 0;  // of the norms

  int64_t rotary() const { return rotary_dim == 0 ? head_dim : rotary_dim; }
  int64_t rows() const { return ((has_gates ? 2 : 1) * q_heads + 2 * kv_heads) * head_dim; }
};
constexpr Shape kShapes[] = {{2880, 8, 1, 64},
                             {96, 6, 2, 16},
                             {160, 8, 1, 32},
                             {64, 3, 3, 24},
                             {96, 6, 2, 22, true},
                             {160, 4, 1, 128, true},
                             {96, 6, 2, 32, true, true, 8, 1},
                             {64, 2, 2, 18, false, true, 6},
                             {64, 4, 1, 256, true, false, 64, 1}};

// Pages of one sequence of up to 64 tokens, 16 to a page, in reverse order.
struct TestPages {
  TestPages(const Shape& s, DType dtype) : k(64 * s.kv_heads * s.head_dim * 4), v(k.size()) {
    const auto tensor = [&](std::vector<uint8_t>& bytes) {
      return make_tensor(bytes.data(), dtype, {4, s.kv_heads, 16, s.head_dim});
    };
    view = {tensor(k), tensor(v), table, 4, 16};
  }
  static double get(const Tensor& t, int64_t at) {
    return t.dtype == DType::kBF16 ? bf16_to_float(t.as<uint16_t>()[at]) : t.as<float>()[at];
  }
  std::vector<uint8_t> k, v;
  int32_t table[4] = {3, 2, 1, 0};
  KvLayer view;
};

// Of the products of each token and head.
double least_rms(const Weight& w, const Floats& h, int64_t heads) {
  double least = 1e30;
  const int64_t dim = w.rows / heads;
  for (int64_t t = 0; t < h.shape[0]; ++t)
    for (int64_t head = 0; head < heads; ++head) {
      double squares = 0;
      for (int64_t n = head * dim; n < (head + 1) * dim; ++n) {
        const double y = ref::Row(w, 0, n).dot(h.row(t));
        squares += y * y;
      }
      least = std::min(least, std::sqrt(squares / static_cast<double>(dim)));
    }
  return least;
}

// Turning mixes two products, each off by its own error; cos and sin are at most c. Every value is
// compared where it was put, with one rounding to the pages' type (the twin's are float32); q is
// rounded by both. The norm of a head divides its products' errors by its rms r; each of its D
// values, at most sqrt(D) r, is off by that of r, too, and weights are at most 2.5.
void check(const Shape& shape, int32_t tokens, DType act, DType kv_dtype) {
  Random random(static_cast<uint32_t>(tokens));
  const int64_t rows = shape.rows();
  const float mean = 1 - shape.offset;
  const TestWeight w(random, Format::kBF16, 1, rows, shape.hidden);
  const std::vector<uint16_t> weight = random.bf16s(shape.hidden, 0.3f, mean);
  const std::vector<uint16_t> q_weight = random.bf16s(shape.head_dim, 0.3f, mean),
                              k_weight = random.bf16s(shape.head_dim, 0.3f, mean);
  QkvNorms norms{.input = {weight.data(), 1e-5f, shape.offset}};
  if (shape.norms_heads)
    norms.q = {q_weight.data(), 1e-5f, shape.offset},
    norms.k = {k_weight.data(), 1e-5f, shape.offset};
  Floats x(random, tokens, shape.hidden, act), d(random, tokens, shape.hidden, act),
      cos_sin(tokens, shape.rotary());
  std::vector<int32_t> positions;
  const Span span{0, tokens, 11, 0};
  for (int32_t t = 0; t < tokens; ++t) positions.push_back(11 + t);
  const Step step{
      .num_tokens = tokens, .num_spans = 1, .positions = positions.data(), .spans = &span};
  const NormQkvDesc desc{.hidden = shape.hidden,
                         .q_heads = shape.q_heads,
                         .kv_heads = shape.kv_heads,
                         .head_dim = shape.head_dim,
                         .norms_heads = shape.norms_heads,
                         .has_gates = shape.has_gates,
                         .rotary_dim = shape.rotary_dim};
  TestCtx test(act, scratch_bytes(desc, tokens, 2));
  const Rope rope = make_rope(static_cast<int>(shape.rotary()), 150000, std::nullopt);
  rope_angles(test.cx, cos_sin.tensor(), rope, step);

  const int64_t width = shape.q_heads * shape.head_dim;
  Floats want_q(tokens, width), want_h(tokens, shape.hidden), want_y(tokens, shape.hidden),
      want_gate(tokens, width);
  const auto gate_of = [&](Floats& gate) { return shape.has_gates ? gate.tensor() : Tensor{}; };
  TestPages want(shape, DType::kF32);
  TestCtx exact(act, 0, 1);
  ref::norm_qkv(exact.cx, {want_q.tensor(), want_h.tensor(), want_y.tensor(), gate_of(want_gate)},
                want.view, x.tensor(), d.tensor(), norms, w.view, cos_sin.tensor(), step);
  double most_abs = 0;  // of sum |terms|, over all outputs
  for (int64_t n = 0; n < rows; ++n) {
    const ref::Row row(w.view, 0, n);
    for (int64_t t = 0; t < tokens; ++t) {
      double abs;
      row.dot(want_h.row(t), &abs);
      most_abs = std::max(most_abs, abs);
    }
  }
  double error =
      2 * most_abs * (dot_error(shape.hidden) + norm_error(act, shape.hidden) + 3 * kEps);
  if (shape.norms_heads) {
    const double root = std::sqrt(static_cast<double>(shape.head_dim));
    error = 2.5 * ((1 + root) * error / least_rms(w.view, want_h, rows / shape.head_dim) +
                   root * norm_error(DType::kF32, shape.head_dim));
  }
  for (const NormQkvKernel* row : kernels_here(norm_qkv_kernels(), desc)) {
    Floats q(tokens, width), h(tokens, shape.hidden), y(tokens, shape.hidden), gate(tokens, width);
    TestPages got(shape, kv_dtype);
    row->run(test.cx, {q.tensor(), h.tensor(), y.tensor(), gate_of(gate)}, got.view, x.tensor(),
             d.tensor(), norms, w.view, cos_sin.tensor(), step);
    ASSERT_EQ(y.values, want_y.values);
    for (size_t i = 0; i < gate.values.size(); ++i)
      ASSERT_NEAR(gate.values[i], want_gate.values[i], error) << row->name << " gate " << i;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < width; ++i)
        ASSERT_NEAR(q.at(t, i), want_q.at(t, i), error + 2 * store_error(act, want_q.at(t, i)))
            << row->name << " token " << t << " column " << i;
      for (int64_t g = 0; g < shape.kv_heads; ++g) {
        const int64_t at = kv_index(got.view, 0, positions[t], g);
        for (int64_t i = at; i < at + shape.head_dim; ++i)
          for (auto [a, b] : {std::pair{&got.view.k, &want.view.k}, {&got.view.v, &want.view.v}}) {
            const double value = TestPages::get(*b, i);
            ASSERT_NEAR(TestPages::get(*a, i), value, error + store_error(kv_dtype, value))
                << row->name << " token " << t;
          }
      }
    }
  }
}

// Rows of the matrix are q of a head, then its gate; dims behind the turned ones pass.
TEST(NormQkv, TheTwinOfGatesAndTurnsByHand) {
  const float values[] = {1, 2, 3, 4, 10, 20, 30, 40, 5, 6, 7, 8, 9, 9, 9, 9};  // q, gate, k, v
  std::vector<uint16_t> rows;
  for (const float v : values) rows.push_back(bf16_from_float(v));
  const Weight w{.rows = 16, .cols = 1, .codes = reinterpret_cast<const uint8_t*>(rows.data())};
  const uint16_t one = bf16_from_float(1);
  const Shape shape{1, 1, 1, 4};
  TestPages pages(shape, DType::kF32);
  Floats x(1, 1), d(1, 1), q(1, 4), h(1, 1), y(1, 1), gate(1, 4), cos_sin(1, 2);
  x.values = {3}, cos_sin.values = {0, 1};  // a quarter turn
  const int32_t position = 5;
  const Span span{0, 1, 5, 0};
  const Step step{.num_tokens = 1, .num_spans = 1, .positions = &position, .spans = &span};
  TestCtx twin(DType::kF32, 0);
  ref::norm_qkv(twin.cx, {q.tensor(), h.tensor(), y.tensor(), gate.tensor()}, pages.view,
                x.tensor(), d.tensor(), {.input = {&one, 0}}, w, cos_sin.tensor(), step);
  EXPECT_EQ(q.values, (std::vector<float>{-2, 1, 3, 4}));
  EXPECT_EQ(gate.values, (std::vector<float>{10, 20, 30, 40}));
  const int64_t at = kv_index(pages.view, 0, 5, 0);
  EXPECT_EQ(TestPages::get(pages.view.k, at), -6);
  EXPECT_EQ(TestPages::get(pages.view.k, at + 1), 5);
  EXPECT_EQ(TestPages::get(pages.view.k, at + 3), 8);
  EXPECT_EQ(TestPages::get(pages.view.v, at), 9);
}

TEST(NormQkv, EveryKernelEqualsTheTwin) {
  for (const Shape& shape : kShapes)
    for (int32_t tokens : {1, 3, 17}) {
      check(shape, tokens, DType::kF32, DType::kF32);
      check(shape, tokens, DType::kF32, DType::kBF16);
      check(shape, tokens, DType::kBF16, DType::kBF16);
    }
}

// Angles of zero: q, k and v are the products themselves. h is what the kernel itself normed: a
// value near the middle of two int8 steps may go to either.
void check_int8(Format format) {
  const Shape shape{160, 6, 2, 16};
  const int32_t tokens = 5;
  const int64_t width = 96, rows = 160;
  Random random(4);
  TestWeight w(random, format, 1, rows, shape.hidden);
  const std::vector<uint16_t> weight = random.bf16s(shape.hidden, 0.3f, 1);
  Floats x(random, tokens, shape.hidden), d(random, tokens, shape.hidden), h(tokens, shape.hidden),
      y(tokens, shape.hidden), q(tokens, width), cos_sin(tokens, shape.head_dim);
  for (int64_t i = 0; i < tokens * shape.head_dim; ++i)
    cos_sin.values[i] = i % shape.head_dim < shape.head_dim / 2 ? 1 : 0;
  const int32_t positions[] = {11, 12, 13, 14, 15};
  const Span span{0, tokens, 11, 0};
  const Step step{.num_tokens = tokens, .num_spans = 1, .positions = positions, .spans = &span};
  const NormQkvDesc desc{shape.hidden, shape.q_heads, shape.kv_heads, shape.head_dim, format};
  TestCtx test(DType::kF32, scratch_bytes(desc, tokens, 2));
  w.pack(Layout::kPanels16);
  const auto kernels = kernels_here(norm_qkv_kernels(), desc, ActFormat::kInt8);
  ASSERT_EQ(!kernels.empty(), runs_here(ActFormat::kInt8));
  for (const auto* row : kernels) {
    TestPages got(shape, DType::kF32);
    row->run(test.cx, {q.tensor(), h.tensor(), y.tensor()}, got.view, x.tensor(), d.tensor(),
             {{weight.data(), 1e-5f}}, w.view, cos_sin.tensor(), step);
    const ActFormat rounded = rounded_by(row->name, ActFormat::kInt8);
    const Floats seen = as_input(h, rounded);
    for (int64_t n = 0; n < rows; ++n) {
      const ref::Row twin(w.view, 0, n);
      for (int64_t t = 0; t < tokens; ++t) {
        double abs;
        const double want = twin.dot(seen.row(t), &abs);
        double value = n < width ? q.at(t, n) : 0;
        if (n >= width) {
          const int64_t i = n - width, head = i / shape.head_dim;
          const int64_t at = kv_index(got.view, 0, positions[t], head % shape.kv_heads);
          value = TestPages::get(head < shape.kv_heads ? got.view.k : got.view.v,
                                 at + i % shape.head_dim);
        }
        ASSERT_NEAR(value, want, dot_error(shape.hidden, rounded) * abs)
            << row->name << " row " << n;
      }
    }
  }
}

TEST(NormQkv, Int8KernelsEqualTheTwin) {
  for (const Format format : {Format::kMxfp4, Format::kNvfp4}) check_int8(format);
}

TEST(NormQkv, TwinTurnsPairsOfHalves) {
  // q = identity rows of a head of 4 over H = 4; no norm to speak of: x has root mean square 1.
  std::vector<uint16_t> bits(12 * 4, 0);
  for (int n = 0; n < 12; ++n) bits[n * 4 + n % 4] = bf16_from_float(1);
  const Weight w{.rows = 12, .cols = 4, .codes = reinterpret_cast<const uint8_t*>(bits.data())};
  const std::vector<uint16_t> ones(4, bf16_from_float(1));
  Floats x(1, 4), y(1, 4), d(1, 4), h(1, 4), q(1, 4), cos_sin(1, 4);
  x.values = {1, 1, -1, 1};
  cos_sin.values = {.5f, 0, .25f, 1};  // cos 0, cos 1, sin 0, sin 1
  std::vector<float> k(4), v(4);
  const int32_t table[] = {0}, positions[] = {0};
  const KvLayer kv{make_tensor(k.data(), DType::kF32, {1, 1, 1, 4}),
                   make_tensor(v.data(), DType::kF32, {1, 1, 1, 4}), table, 1, 1};
  const Span span{0, 1, 0, 0};
  const Step step{.num_tokens = 1, .num_spans = 1, .positions = positions, .spans = &span};
  TestCtx test(DType::kF32, 0, 1);
  ref::norm_qkv(test.cx, {q.tensor(), h.tensor(), y.tensor()}, kv, x.tensor(), d.tensor(),
                {{ones.data(), 0}}, w, cos_sin.tensor(), step);
  // Pairs (x0, x2) = (1, -1) by (.5, .25) and (x1, x3) = (1, 1) by (0, 1).
  EXPECT_EQ(q.values, (std::vector<float>{.75f, -1, -.25f, 1}));
  EXPECT_EQ(k, q.values);
  EXPECT_EQ(v, (std::vector<float>{1, 1, -1, 1}));
}

}  // namespace
}  // namespace nibble::ops
