// The general CUDA rows (cuda_any) of the ops that are products against the twins, on random odd
// shapes in every format, and those for NVFP4 in tiles on random ones that they take. Those of
// embed, norm_route and attention are tested with the others of their tables.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>

#include "ops/format_vectors.h"
#include "ops/general_rows_gpu_test.h"
#include "ops/kv_pages.h"
#include "ops/moe_down/moe_down.h"
#include "ops/moe_up/moe_up.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/norm_ref.h"
#include "ops/norm_unembed/norm_unembed.h"
#include "ops/out_proj/out_proj.h"

namespace nibble::ops {
namespace {

constexpr Format kFormats[] = {
    Format::kBF16,  Format::kF32,    Format::kMxfp4,    Format::kMxfp8,   Format::kF16,
    Format::kNvfp4, Format::kFp8Row, Format::kFp8Block, Format::kInt4G32, Format::kInt4G128};
constexpr uint32_t kSeeds = 8;  // shapes a format

// Tokens that are also run alone.
bool is_run_alone(int64_t t, int64_t tokens) { return t % 13 == 0 || t + 1 == tokens; }
// Whether a token's bits are then the same: not of products that share K out by the step's size.
bool is_same_alone(const Tested& tested) { return tested.exact || tested.row == "sm90_nvfp4_f16"; }

void check_out_proj(Random& random, const Tested& tested, int64_t rows, int64_t cols,
                    int64_t tokens) {
  const Format format = tested.format;
  if (is_too_slow(tokens * cols)) return;
  SCOPED_TRACE(testing::Message() << rows << " x " << cols << ", " << tokens << " tokens");
  const OutProjDesc desc{rows, cols, format, tokens};
  TestWeight w(random, format, 1, rows, cols);
  const Floats att(random, tokens, cols, DType::kBF16);
  GpuProblem gpu(gpu::scratch_bytes(desc), tested.exact);
  const auto* const row = tested_row(out_proj_kernels(), desc, gpu.cx.kernels, tested, w);
  if (row == nullptr) return;
  const Weight weight = gpu.weight(w);
  const Tensor in = gpu.tensor(att, DType::kBF16);
  const auto run = [&](const Tensor& from) {
    const Tensor d = gpu.output(DType::kF32, {from.dim(0), rows});
    row->run(gpu.cx, d, from, weight, Step{.num_tokens = static_cast<int32_t>(from.dim(0))});
    return gpu.floats(d);
  };
  const Floats got = run(in);
  ASSERT_EQ(got.values, run(in).values);
  for (int64_t t = 0; t < tokens; ++t)
    if (is_run_alone(t, tokens) && is_same_alone(tested)) {
      const Floats alone = run(row_of(in, t));
      ASSERT_TRUE(std::equal(alone.values.begin(), alone.values.end(), got.row(t)))
          << "token " << t;
    }
  Compared compared(cols);
  for (int64_t n = 0; n < rows; ++n) {
    const ref::Row weights(w.view, 0, n);
    for (int64_t t = 0; t < tokens; ++t) {
      double abs;
      const double want = dot_of(tested, weights, att.row(t), cols, &abs);
      ASSERT_NO_FATAL_FAILURE(
          compared.add(t, n, got.at(t, n), want, tested.product_error(cols) * abs));
    }
  }
}

// The norm that ran on the GPU, against the twin's.
void expect_normed(const Floats& got, const Floats& y, const Norm& norm) {
  std::vector<float> want(y.shape[1]);
  for (int64_t t = 0; t < y.shape[0]; ++t) {
    ref::rms_norm(DType::kBF16, want.data(), y.row(t), norm, y.shape[1]);
    for (int64_t k = 0; k < y.shape[1]; ++k)
      ASSERT_NEAR(got.at(t, k), want[k], norm_error(DType::kBF16, y.shape[1]) * std::fabs(want[k]))
          << "token " << t << " column " << k;
  }
}

void check_out_proj(Random& random, const Tested& tested) {
  const int64_t rows = random_rows(random, tested, 300), cols = random_cols(random, tested, 3000);
  check_out_proj(random, tested, rows, cols, random_tokens(random, tested));
}

void check_norm_unembed(Random& random, const Tested& tested) {
  const Format format = tested.format;
  const int64_t hidden = random_cols(random, tested, 2000),
                vocab = random_rows(random, tested, 700);
  const int64_t tokens = 40, rows = 1 + random.below(40);
  if (is_too_slow(rows * hidden)) return;
  SCOPED_TRACE(testing::Message() << vocab << " x " << hidden << ", " << rows << " rows");
  const NormUnembedDesc desc{hidden, vocab, format, rows};
  TestWeight w(random, format, 1, vocab, hidden, /*has_bias=*/false);
  const std::vector<uint16_t> weight = random.bf16s(hidden, 0.3f, 1);
  const Floats x(random, tokens, hidden), d(random, tokens, hidden);
  std::vector<int32_t> out_rows;
  for (int32_t r = 0; r < rows; ++r) out_rows.push_back(39 - r);
  GpuProblem gpu(gpu::scratch_bytes(desc), tested.exact);
  const auto* const row = tested_row(norm_unembed_kernels(), desc, gpu.cx.kernels, tested, w);
  if (row == nullptr) return;
  const Tensor logits = gpu.output(DType::kF32, {rows, vocab});
  const Tensor h = gpu.output(DType::kBF16, {rows, hidden});
  row->run(gpu.cx, logits, h, gpu.tensor(x, DType::kF32), gpu.tensor(d, DType::kF32),
           {gpu.array(weight), 1e-5f}, gpu.weight(w),
           Step{.num_tokens = tokens,
                .num_out = static_cast<int32_t>(rows),
                .out_rows = gpu.array(out_rows)});
  const Floats got = gpu.floats(logits), got_h = gpu.floats(h);
  Floats y(rows, hidden);
  for (int64_t r = 0; r < rows; ++r)
    ref::add(y.values.data() + r * hidden, x.row(out_rows[r]), d.row(out_rows[r]), hidden);
  ASSERT_NO_FATAL_FAILURE(expect_normed(got_h, y, {weight.data(), 1e-5f}));
  std::vector<std::vector<float>> mine;
  for (int64_t r = 0; r < rows; ++r)
    mine.push_back(multiplied_h(row->name, gpu.cx.kernels.gpu, vocab, got_h.row(r), y.row(r),
                                {weight.data(), 1e-5f}, hidden));
  Compared compared(hidden);
  for (int64_t n = 0; n < vocab; ++n) {
    const ref::Row weights(w.view, 0, n);
    for (int64_t r = 0; r < rows; ++r) {
      double abs;
      const double want = dot_of(tested, weights, mine[r].data(), hidden, &abs);
      ASSERT_NO_FATAL_FAILURE(
          compared.add(r, n, got.at(r, n), want, tested.product_error(hidden) * abs));
    }
  }
}

// Two sequences, the second of one token, in pages of NaN that lie in no order.
struct QkvProblem {
  static constexpr int32_t kPageSize = 16, kMaxPages = 16;

  QkvProblem(Random& random, int64_t tokens, int64_t kv_heads, int64_t dim, DType kv_dtype)
      : x(0, 0),
        cos_sin(random, tokens, dim),
        side(2 * kMaxPages * kv_heads * kPageSize * dim * dtype_bytes(kv_dtype), 0xff) {
    if (tokens > 1) spans.push_back({0, static_cast<int32_t>(tokens) - 1, 11, 1});
    spans.push_back({static_cast<int32_t>(tokens) - 1, 1, 40, 0});
    for (int32_t t = 0; t + 1 < tokens; ++t) positions.push_back(11 + t);
    positions.push_back(40);
    for (int32_t i = 0; i < 2 * kMaxPages; ++i)
      table.push_back(2 * kMaxPages - 1 - i * 3 % (2 * kMaxPages));
    const Tensor pages =
        make_tensor(side.data(), kv_dtype, {2 * kMaxPages, kv_heads, kPageSize, dim});
    kv = {pages, pages, table.data(), kMaxPages, kPageSize};
    step = {.num_tokens = static_cast<int32_t>(tokens),
            .num_spans = static_cast<int32_t>(spans.size()),
            .positions = positions.data(),
            .spans = spans.data()};
  }
  Floats x, cos_sin;
  std::vector<uint8_t> side;
  std::vector<Span> spans;
  std::vector<int32_t> positions, table;
  KvLayer kv;
  Step step;
};

// The products of one head, and the magnitudes of their terms.
struct Head {
  Head(const Tested& tested, const std::vector<ref::Row>& weights, int64_t head, int64_t dim,
       const float* h, int64_t hidden)
      : sums(dim), abs(dim) {
    for (int64_t i = 0; i < dim; ++i)
      sums[i] = dot_of(tested, weights[head * dim + i], h, hidden, &abs[i]);
  }
  double rms(double eps) const {
    double squares = 0;
    for (const double x : sums) squares += x * x;
    return std::sqrt(squares / static_cast<double>(sums.size()) + eps);
  }
  std::vector<double> sums, abs;
};

void check_norm_qkv(Random& random, const Tested& tested) {
  const Format format = tested.format;
  const int64_t hidden = random_cols(random, tested, 1000), dim = tested.is_general()
                                                                      ? 2 * (1 + random.below(100))
                                                                      : 16 * (1 + random.below(8));
  const int64_t kv_heads = 1 + random.below(3), q_heads = kv_heads * (1 + random.below(4));
  const int64_t tokens = random_tokens(random, tested), rows = (q_heads + 2 * kv_heads) * dim;
  const DType kv_dtype = random.below(2) == 0 ? DType::kBF16 : DType::kF8E4M3;
  if (is_too_slow(tokens * hidden)) return;
  SCOPED_TRACE(testing::Message() << hidden << " columns, heads " << q_heads << " / " << kv_heads
                                  << " of " << dim << ", " << tokens << " tokens");
  const bool norms_heads = random.below(2) == 0;
  const NormQkvDesc desc{hidden, q_heads, kv_heads, dim, format, tokens, {}, norms_heads};
  TestWeight w(random, format, 1, rows, hidden);
  const std::vector<uint16_t> weight = random.bf16s(hidden, 0.3f, 1);
  const std::vector<uint16_t> q_weight = random.bf16s(dim, 0.3f, 1),
                              k_weight = random.bf16s(dim, 0.3f, 1);
  const Floats x(random, tokens, hidden), d(random, tokens, hidden);
  const QkvProblem p(random, tokens, kv_heads, dim, kv_dtype);
  GpuProblem gpu(gpu::scratch_bytes(desc), tested.exact);
  const auto* const row = tested_row(norm_qkv_kernels(), desc, gpu.cx.kernels, tested, w);
  if (row == nullptr) return;
  const KvLayer kv = gpu.kv(p.kv, 2);
  const NormQkvOut out{gpu.output(DType::kBF16, {tokens, q_heads * dim}),
                       gpu.output(DType::kBF16, {tokens, hidden}),
                       gpu.output(DType::kF32, {tokens, hidden})};
  QkvNorms norms{.input = {gpu.array(weight), 1e-5f}};
  if (norms_heads) norms.q = {gpu.array(q_weight), 1e-5f}, norms.k = {gpu.array(k_weight), 1e-5f};
  row->run(gpu.cx, out, kv, gpu.tensor(x, DType::kF32), gpu.tensor(d, DType::kF32), norms,
           gpu.weight(w), gpu.tensor(p.cos_sin, DType::kF32), gpu.step(p.step));
  Floats y(tokens, hidden);
  ref::add(y.values.data(), x.values.data(), d.values.data(), tokens * hidden);
  EXPECT_EQ(gpu.floats(out.y).values, y.values);
  const Floats h = gpu.floats(out.h), q = gpu.floats(out.q);
  ASSERT_NO_FATAL_FAILURE(expect_normed(h, y, {weight.data(), 1e-5f}));
  std::vector<uint8_t> k = gpu.bytes(kv.k), v = gpu.bytes(kv.v);
  KvLayer got_kv = p.kv;
  got_kv.k.data = k.data(), got_kv.v.data = v.data();

  // What is stored is the products' sums, turned: off by both partners' errors, and its rounding.
  // The norm of a head divides both by its rms r, which is off by no more than the worst of its
  // products; these are at most sqrt(D) r.
  const double rounding = kv_dtype == DType::kBF16 ? 0x1p-8 : 0x1p-4;
  std::vector<ref::Row> weights;
  for (int64_t n = 0; n < rows; ++n) weights.emplace_back(w.view, 0, n);
  Compared compared(hidden);
  Compared stored(kv_dtype == DType::kBF16 ? hidden : 32);  // E4M3 rounds by a thirtieth
  for (int64_t t = 0; t < tokens; ++t) {
    const float* turns = p.cos_sin.row(t);
    const std::vector<float> mine = multiplied_h(row->name, gpu.cx.kernels.gpu, rows, h.row(t),
                                                 y.row(t), {weight.data(), 1e-5f}, hidden);
    const int32_t slot = t + 1 == tokens ? 0 : 1;
    for (int64_t head = 0; head < q_heads + 2 * kv_heads; ++head) {
      const Head products(tested, weights, head, dim, mine.data(), hidden);
      const std::vector<uint16_t>* by = !norms_heads                ? nullptr
                                        : head < q_heads            ? &q_weight
                                        : head < q_heads + kv_heads ? &k_weight
                                                                    : nullptr;
      const double most = *std::max_element(products.abs.begin(), products.abs.end());
      const auto normed = [&](int64_t i, double* abs) {
        *abs = products.abs[i];
        if (by == nullptr) return products.sums[i];
        const double weight_of = bf16_to_float((*by)[i]), r = products.rms(1e-5);
        *abs = std::fabs(weight_of) * (products.abs[i] + std::sqrt(double(dim)) * most) / r;
        return products.sums[i] / r * weight_of;
      };
      for (int64_t i = 0; i < dim / 2; ++i) {
        double a_abs, b_abs, c = turns[i], s = turns[i + dim / 2];
        const double a = normed(i, &a_abs), b = normed(i + dim / 2, &b_abs);
        if (head >= q_heads + kv_heads) c = 1, s = 0;
        const double want[2] = {a * c - b * s, b * c + a * s};
        const double error = (tested.product_error(hidden) + 4 * kEps) * (a_abs + b_abs) *
                             (std::fabs(c) + std::fabs(s));
        for (int half = 0; half < 2; ++half) {
          const int64_t at = i + half * dim / 2;
          if (head < q_heads) {
            const int64_t n = head * dim + at;
            ASSERT_NO_FATAL_FAILURE(
                compared.add(t, n, q.at(t, n), want[half],
                             error + store_error(DType::kBF16, std::fabs(want[half]) + error)));
            continue;
          }
          const bool is_v = head >= q_heads + kv_heads;
          const int64_t g = head - q_heads - (is_v ? kv_heads : 0);
          const double got =
              kv_get(is_v ? got_kv.v : got_kv.k, kv_index(got_kv, slot, p.positions[t], g) + at);
          ASSERT_NO_FATAL_FAILURE(
              stored.add(t, head * dim + at, got, want[half],
                         error + rounding * (std::fabs(want[half]) + error) + 0x1p-10));
        }
      }
    }
  }
}

struct Experts {
  Experts(int64_t hidden, int64_t width, int64_t experts, int64_t top_k)
      : hidden(hidden), width(width), experts(experts), top_k(top_k), tokens(1) {}
  Experts(Random& random, const Tested& tested)
      : hidden(random_cols(random, tested, 800)),
        width(random_cols(random, tested, 300)),
        experts(random.below(4) == 0 ? (tested.is_general() ? 1024 : 512) - random.below(200)
                                     : 1 + random.below(40)),
        top_k(1 + random.below(std::min<int64_t>(experts, tested.is_general() ? 32 : 16))),
        tokens(tested.is_unit_one() ? 1 + random.below(kMostLeft) : random_tokens(random, tested)) {
    if (experts > 100) hidden = width = 64;  // weights of megabytes, not more
  }
  int64_t hidden, width, experts, top_k, tokens;
};

void check_moe_up(Random& random, const Tested& tested) {
  const Format format = tested.format;
  const Experts s(random, tested);
  if (is_too_slow(s.tokens * s.hidden)) return;
  SCOPED_TRACE(testing::Message() << s.experts << " experts, " << s.top_k << " of " << s.hidden
                                  << " x " << s.width << ", " << s.tokens << " tokens");
  const MoeUpDesc desc{s.hidden, s.width, s.experts, s.top_k, format, s.tokens};
  TestWeight w(random, format, s.experts, 2 * s.width, s.hidden);
  const Floats h(random, s.tokens, s.hidden, DType::kBF16);
  TestRouting routing(s.tokens, s.experts, s.top_k);
  routing.randomize(random);
  GpuProblem gpu(gpu::scratch_bytes(desc), tested.exact);
  const auto* const row = tested_row(moe_up_kernels(), desc, gpu.cx.kernels, tested, w);
  if (row == nullptr) return;
  const Weight weight = gpu.weight(w);
  const Tensor in = gpu.tensor(h, DType::kBF16);
  const auto run = [&](const Tensor& from, const TestRouting& r) {
    const Tensor u = gpu.output(DType::kBF16, {r.view.num_tokens * s.top_k, s.width});
    row->run(gpu.cx, u, from, gpu.routing(r), weight, kClampedSwiglu);
    return gpu.floats(u);
  };
  const Floats got = run(in, routing);
  ASSERT_EQ(got.values, run(in, routing).values);
  const double e = tested.product_error(s.hidden);
  Compared compared(s.hidden);
  for (int64_t t = 0; t < s.tokens; ++t) {
    if (!is_run_alone(t, s.tokens)) continue;
    TestRouting one(1, s.experts, s.top_k);
    std::copy_n(routing.ids.begin() + t * s.top_k, s.top_k, one.ids.begin());
    sort_by_expert(one.view);
    const Floats alone = run(row_of(in, t), one);
    for (int64_t k = 0; k < s.top_k; ++k) {
      const int64_t slot = routing.slot[t * s.top_k + k];
      if (is_same_alone(tested)) {
        ASSERT_TRUE(std::equal(got.row(slot), got.row(slot) + s.width, alone.row(one.slot[k])))
            << "token " << t << " choice " << k;
      }
      for (int64_t j = 0; j < s.width; ++j) {
        double gate_abs, up_abs;
        const double gate =
            dot_of(tested, {w.view, one.ids[k], 2 * j}, h.row(t), s.hidden, &gate_abs);
        const double up =
            dot_of(tested, {w.view, one.ids[k], 2 * j + 1}, h.row(t), s.hidden, &up_abs);
        const double want = ref::swiglu(gate, up, kClampedSwiglu);
        const double g = std::min(std::fabs(gate) + e * gate_abs, 7.0),
                     v = std::min(std::fabs(up) + e * up_abs, 7.0) + 1;
        // swiglu's slope is at most 1.1 |v + 1| along the gate and 1.1 |g| (+ the fast
        // exponential's 2^-20) along the other; u is rounded to bf16.
        ASSERT_NO_FATAL_FAILURE(compared.add(slot, j, got.at(slot, j), want,
                                             1.1 * e * (v * gate_abs + g * up_abs) +
                                                 0x1p-20 * g * v + store_error(DType::kBF16, want) +
                                                 1e-6));
      }
    }
  }
}

void check_moe_down(Random& random, const Tested& tested, const Experts& s) {
  const Format format = tested.format;
  if (is_too_slow(s.tokens * s.width)) return;
  SCOPED_TRACE(testing::Message() << s.experts << " experts, " << s.top_k << " of " << s.hidden
                                  << " x " << s.width << ", " << s.tokens << " tokens");
  MoeDownDesc desc{s.hidden, s.width, s.experts, s.top_k, format, s.tokens};
  desc.adds = random.below(2) == 0;
  TestWeight w(random, format, s.experts, s.hidden, s.width);
  const Floats before(random, s.tokens, s.hidden),
      u(random, s.tokens * s.top_k, s.width, DType::kBF16);
  TestRouting routing(s.tokens, s.experts, s.top_k);
  routing.randomize(random);
  GpuProblem gpu(gpu::scratch_bytes(desc), tested.exact);
  const auto* const row = tested_row(moe_down_kernels(), desc, gpu.cx.kernels, tested, w);
  if (row == nullptr) return;
  const Weight weight = gpu.weight(w);
  // Tokens from `first` on.
  const auto run = [&](const Floats& from, const TestRouting& r, int64_t first) {
    Floats there(r.view.num_tokens, s.hidden);
    std::copy_n(before.row(first), there.values.size(), there.values.begin());
    const Tensor d = gpu.tensor(there, DType::kF32);
    Routing on_gpu = gpu.routing(r);
    on_gpu.adds = desc.adds;
    row->run(gpu.cx, d, gpu.tensor(from, DType::kBF16), on_gpu, weight);
    return gpu.floats(d);
  };
  const Floats got = run(u, routing, 0);
  ASSERT_EQ(got.values, run(u, routing, 0).values);
  Compared compared(s.width);
  for (int64_t t = 0; t < s.tokens; ++t) {
    if (!is_run_alone(t, s.tokens)) continue;
    TestRouting one(1, s.experts, s.top_k);
    std::copy_n(routing.ids.begin() + t * s.top_k, s.top_k, one.ids.begin());
    std::copy_n(routing.p.begin() + t * s.top_k, s.top_k, one.p.begin());
    sort_by_expert(one.view);
    Floats one_u(s.top_k, s.width);
    for (int64_t k = 0; k < s.top_k; ++k)
      std::copy_n(u.row(routing.slot[t * s.top_k + k]), s.width,
                  one_u.values.begin() + one.slot[k] * s.width);
    const Floats alone = run(one_u, one, t);
    if (is_same_alone(tested)) {
      ASSERT_TRUE(std::equal(alone.values.begin(), alone.values.end(), got.row(t)))
          << "token " << t;
    }
    // A weighted sum of K products: their errors, and K + 1 roundings more, of what was there too.
    for (int64_t n = 0; n < s.hidden; ++n) {
      double want = desc.adds ? before.at(t, n) : 0;
      double error = (s.top_k + 1) * kEps * std::fabs(want);
      for (int64_t k = 0; k < s.top_k; ++k) {
        double abs;
        const double y =
            dot_of(tested, {w.view, one.ids[k], n}, one_u.row(one.slot[k]), s.width, &abs);
        want += one.p[k] * y;
        error += one.p[k] * (tested.product_error(s.width) + (s.top_k + 1) * kEps) * abs;
        // The GEMM leaves each choice's row in bf16.
        if (tested.row.ends_with("_gemm")) error += one.p[k] * store_error(DType::kBF16, y);
      }
      ASSERT_NO_FATAL_FAILURE(compared.add(t, n, got.at(t, n), want, error));
    }
  }
}

void check_moe_down(Random& random, const Tested& tested) {
  check_moe_down(random, tested, Experts(random, tested));
}

using Check = void(Random&, const Tested&);
void check_shapes(Check* check) {
  std::vector<Tested> all;
  for (const Format format : kFormats) all.push_back({format});
  for (const char* row : {"cuda_nvfp4_one", "cuda_nvfp4_decode", "sm90_nvfp4_f16",
                          "sm90_nvfp4_split", "sm90_nvfp4_gemm"})
    all.push_back({Format::kNvfp4, row, /*exact=*/false});
  all.push_back({Format::kNvfp4, "cuda_nvfp4_decode", /*exact=*/true});
  for (const Format format : {Format::kFp8Row, Format::kFp8Block}) {
    for (const char* row : {"sm90_w8a16_split", "sm90_w8a16_gemm"})
      all.push_back({format, row, /*exact=*/false});
    all.push_back({format, "cuda_w8a16_decode", /*exact=*/true});
  }
  for (const Format format : {Format::kInt4G32, Format::kInt4G128}) {
    for (const char* row : {"sm90_int4_split", "sm90_int4_gemm"})
      all.push_back({format, row, /*exact=*/false});
    all.push_back({format, "cuda_int4_decode", /*exact=*/true});
  }
  for (const auto& [format, row] : {std::pair(Format::kNvfp4, "cuda_nvfp4_gemm"),
                                    {Format::kFp8Row, "cuda_w8a16_gemm"},
                                    {Format::kFp8Block, "cuda_w8a16_gemm"},
                                    {Format::kInt4G32, "cuda_int4_gemm"},
                                    {Format::kInt4G128, "cuda_int4_gemm"}})
    all.push_back({format, row, /*exact=*/false, /*of_gb10=*/true});
  for (const Tested& tested : all)
    for (uint32_t seed = 0; seed < kSeeds; ++seed) {
      SCOPED_TRACE(testing::Message() << format_name(tested.format) << " by " << tested.row
                                      << (tested.exact ? ", exact" : "") << ", seed " << seed);
      Random random(seed);
      check(random, tested);
      if (testing::Test::HasFailure()) return;
    }
}

TEST(GeneralRowsGpu, OutProjEqualsTheTwinAndItselfAlone) { check_shapes(check_out_proj); }
// Of one token parts of K are longer than a chunk, of some tokens K goes in slices.
TEST(GeneralRowsGpu, LongRowsEqualTheTwin) {
  for (const int64_t cols : {8192, 12288, 14336, 16384})
    for (const int64_t tokens : {1, 2, 8, 16, 64}) {
      Random random(static_cast<uint32_t>(cols));
      const auto check = [&](Format format, const char* row) {
        check_out_proj(random, {format, row, /*exact=*/false}, 80, cols, tokens);
      };
      if (tokens >= 8) check(Format::kBF16, "sm90_bf16_stream");
      if (tokens > 32) {
        check(Format::kBF16, "sm90_bf16_gemm");
        continue;
      }
      check(Format::kNvfp4, tokens == 1 ? "cuda_nvfp4_one" : "cuda_nvfp4_decode");
      check(Format::kNvfp4, "sm90_nvfp4_f16");
      check(Format::kFp8Block, "cuda_w8a16_decode");
      check(Format::kInt4G128, "cuda_int4_decode");
    }
}
// Columns of which warps have no even parts.
TEST(GeneralRowsGpu, OddPartsEqualTheTwin) {
  const Tested one{Format::kNvfp4, "cuda_nvfp4_one", /*exact=*/false};
  for (const int64_t units : {17, 29, 37, 67}) {
    Random random(static_cast<uint32_t>(units));
    check_out_proj(random, one, 80, 64 * units, 1);
    check_moe_down(random, one, {80, 64 * units, 5, 3});
    check_moe_down(random, one, {80, 64 * units, 9, 8});
  }
}
TEST(GeneralRowsGpu, NormUnembedEqualsTheTwin) { check_shapes(check_norm_unembed); }
TEST(GeneralRowsGpu, NormQkvEqualsTheTwin) { check_shapes(check_norm_qkv); }
TEST(GeneralRowsGpu, MoeUpEqualsTheTwinAndItselfAlone) { check_shapes(check_moe_up); }
TEST(GeneralRowsGpu, MoeDownEqualsTheTwinAndItselfAlone) { check_shapes(check_moe_down); }

const OutProjKernel& general_row(const OutProjDesc& desc, const KernelOptions& options) {
  for (const auto& row : out_proj_kernels())
    if (std::string_view(row.name) == "cuda_any") {
      CHECK(row.run != nullptr && row.refuse(desc, options) == nullptr);
      return row;
    }
  CHECK(false);
}

// The first values of a matrix of one row: its products with columns of the identity.
Floats values_of(GpuProblem& gpu, const Weight& w, int64_t tokens) {
  Floats identity(w.cols, w.cols);
  for (int64_t k = 0; k < w.cols; ++k) identity.values[k * w.cols + k] = 1;
  const OutProjDesc desc{1, w.cols, w.format, tokens};
  const Tensor d = gpu.output(DType::kF32, {tokens, 1});
  general_row(desc, gpu.cx.kernels)
      .run(gpu.cx, d, gpu.tensor(identity, DType::kBF16), w,
           Step{.num_tokens = static_cast<int32_t>(tokens)});
  return gpu.floats(d);
}

// Each vector as a matrix, its values rounded as often as the format's factors multiply.
TEST(GeneralRowsGpu, DecodeToTheVectors) {
  std::ifstream file(std::string(NIBBLE_SOURCE_DIR) + "/tests/data/format_vectors.txt");
  std::set<std::string> seen;
  std::string line;
  while (std::getline(file, line)) {
    const FormatVector v(line);
    const int64_t cols = std::ssize(v.values);
    GpuProblem gpu;
    Weight w = v.weight();
    w.codes = gpu.array(v.codes);
    w.scales = gpu.array(v.scales);
    if (w.row_scales != nullptr) w.row_scales = gpu.array(v.row_scale);
    for (const int64_t tokens : {cols, int64_t{1}}) {  // many, and few
      const Floats got = values_of(gpu, w, tokens);
      for (int64_t k = 0; k < tokens; ++k) {
        EXPECT_NEAR(got.at(k, 0), v.values[k], 2 * kEps * std::fabs(v.values[k]))
            << line << " at " << k;
      }
    }
    seen.insert(v.name);
  }
  EXPECT_EQ(seen.size(), 8u);
}

TEST(GeneralRowsGpu, F32KeepsAllItsBits) {
  Random random(1);
  for (const int64_t cols : {1, 70, 128})
    for (const int64_t tokens : {cols, int64_t{1}}) {
      GpuProblem gpu;
      const TestWeight w(random, Format::kF32, 1, 1, cols, /*has_bias=*/false);
      const Floats got = values_of(gpu, gpu.weight(w), tokens);
      const auto* const want = reinterpret_cast<const float*>(w.codes.data());
      EXPECT_TRUE(std::equal(got.values.begin(), got.values.end(), want)) << cols << " " << tokens;
    }
}

// A scale that is none shows in its row alone, as does an activation in its token.
TEST(GeneralRowsGpu, DamageShowsWhereItIs) {
  for (const Format format : {Format::kMxfp4, Format::kMxfp8})
    for (const int64_t tokens : {3, 40}) {
      Random random(1);
      TestWeight w(random, format, 1, 37, 96);
      w.scales[5 * 3 + 1] = 255;
      Floats att(random, tokens, 96, DType::kBF16);
      att.values[2 * 96 + 3] = INFINITY;
      GpuProblem gpu;
      const OutProjDesc desc{37, 96, format, tokens};
      const Tensor d = gpu.output(DType::kF32, {tokens, 37});
      general_row(desc, gpu.cx.kernels)
          .run(gpu.cx, d, gpu.tensor(att, DType::kBF16), gpu.weight(w),
               Step{.num_tokens = static_cast<int32_t>(tokens)});
      const Floats got = gpu.floats(d);
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t n = 0; n < 37; ++n)
          EXPECT_EQ(std::isfinite(got.at(t, n)), n != 5 && t != 2) << t << " " << n;
    }
}

}  // namespace
}  // namespace nibble::ops
