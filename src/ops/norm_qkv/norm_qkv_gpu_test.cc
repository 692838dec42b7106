#include <gtest/gtest.h>

#include "ops/gpu_matmul/gemv_gpu_test.h"
#include "ops/kv_pages.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/refuse.h"
#include "ops/wrong_blocks.h"

namespace nibble::ops {
namespace {

struct Shape {
  int64_t hidden, q_heads, kv_heads;
};
// gpt-oss's own, the tiny model's, one head of each, and units of 64 columns that fill no chunk.
constexpr Shape kShapes[] = {{2880, 64, 8}, {256, 8, 2}, {64, 1, 1}, {320, 3, 1}};
constexpr int64_t kDim = 64;
constexpr int32_t kPageSize = 16, kMaxPages = 16;

// Two sequences, their pages mixed and in reverse order. Values are garbage until written.
struct TestPages {
  TestPages(const Shape& s, DType dtype)
      : bytes(2 * kMaxPages * s.kv_heads * kPageSize * kDim * dtype_bytes(dtype), 0xff), v(bytes) {
    for (int i = 0; i < 2 * kMaxPages; ++i)
      table.push_back(2 * kMaxPages - 1 - (i * 3) % (2 * kMaxPages));
    const auto tensor = [&](std::vector<uint8_t>& b) {
      return make_tensor(b.data(), dtype, {2 * kMaxPages, s.kv_heads, kPageSize, kDim});
    };
    view = {tensor(bytes), tensor(v), table.data(), kMaxPages, kPageSize};
  }
  std::vector<uint8_t> bytes, v;
  std::vector<int32_t> table;
  KvLayer view;
};

struct Problem {
  Problem(const Shape& shape, int32_t tokens)
      : random(static_cast<uint32_t>(tokens)),
        weight(random.bf16s(shape.hidden, 0.3f, 1)),
        x(random, tokens, shape.hidden),
        d(random, tokens, shape.hidden),
        cos_sin(random, tokens, kDim) {
    // The second sequence gets the last token.
    if (tokens > 1) spans.push_back({0, tokens - 1, 11, 1});
    spans.push_back({tokens - 1, 1, 40, 0});
    for (int32_t t = 0; t + 1 < tokens; ++t) positions.push_back(11 + t);
    positions.push_back(40);
    step = {.num_tokens = tokens,
            .num_spans = static_cast<int32_t>(spans.size()),
            .positions = positions.data(),
            .spans = spans.data()};
  }
  Random random;
  std::vector<uint16_t> weight;
  Floats x, d, cos_sin;
  std::vector<Span> spans;
  std::vector<int32_t> positions;
  Step step;
  DType pages = DType::kBF16;
  float k_scale = 1, v_scale = 1;
};

struct Result {
  Floats q, y;
  std::vector<uint8_t> k, v;
};

Result run_on_gpu(GpuProblem& gpu, const NormQkvKernel& row, const Shape& shape, const Problem& p,
                  const Step& step, const Floats& x, const Floats& d, const Floats& cos_sin,
                  const Weight& weight) {
  const int64_t tokens = step.num_tokens;
  TestPages pages(shape, p.pages);
  pages.view.k_scale = p.k_scale, pages.view.v_scale = p.v_scale;
  const KvLayer kv = gpu.kv(pages.view, 2);
  const NormQkvOut out{gpu.output(DType::kBF16, {tokens, shape.q_heads * kDim}),
                       gpu.output(DType::kBF16, {tokens, shape.hidden}),
                       gpu.output(DType::kF32, {tokens, shape.hidden})};
  row.run(gpu.cx, out, kv, gpu.tensor(x, DType::kF32), gpu.tensor(d, DType::kF32),
          {gpu.array(p.weight), 1e-5f}, weight, gpu.tensor(cos_sin, DType::kF32), gpu.step(step));
  return {gpu.floats(out.q), gpu.floats(out.y), gpu.bytes(kv.k), gpu.bytes(kv.v)};
}

Floats row_of(const Floats& from, int64_t t) {
  Floats to(1, from.shape[1]);
  std::copy_n(from.row(t), from.shape[1], to.values.begin());
  return to;
}

// Turning mixes two products by factors of at most c = max |cos_sin|, each off by its own error and
// by h's (a unit of bf16 near rounding boundaries: 2^-7).
void check(const Shape& shape, Format format, int32_t tokens, std::string_view suffix,
           bool as_gb10 = false) {
  Problem p(shape, tokens);
  const int64_t rows = (shape.q_heads + 2 * shape.kv_heads) * kDim;
  const NormQkvDesc desc{shape.hidden, shape.q_heads, shape.kv_heads,
                         kDim,         format,        suffix == "_split" ? kSplitTokens : 1 << 20};
  TestWeight w(p.random, format, 1, rows, shape.hidden);
  Floats want_q(tokens, shape.q_heads * kDim), want_h(tokens, shape.hidden),
      want_y(tokens, shape.hidden);
  TestPages want(shape, DType::kF32);
  TestCtx exact(DType::kBF16, 0, 1);
  ref::norm_qkv(exact.cx, {want_q.tensor(), want_h.tensor(), want_y.tensor()}, want.view,
                p.x.tensor(), p.d.tensor(), {p.weight.data(), 1e-5f}, w.view, p.cos_sin.tensor(),
                p.step);
  double product_error = 0, most_turn = 1;  // the largest of all outputs
  for (const float c : p.cos_sin.values) most_turn = std::max<double>(most_turn, std::fabs(c));
  for (int64_t t = 0; t < tokens; ++t) {
    const std::vector<float> maxima = block_maxima(want_h.row(t), shape.hidden);
    for (int64_t n = 0; n < rows; n += row_step(rows)) {
      const ref::Row row(w.view, 0, n);
      double value, abs;
      row.dot(want_h.row(t), &abs);
      product_error = std::max(
          product_error, gemv_error(row, want_h.row(t), maxima, format, &value) + 0x1p-7 * abs);
    }
  }
  const double error = 2 * most_turn * product_error;
  NormQkvDesc here = desc;
  here.tokens = tokens;
  GpuProblem gpu(gpu::scratch_bytes(here));
  KernelOptions options = gpu.cx.kernels;
  if (as_gb10) options.gpu = cuda::gb10();  // rows that run on any GPU, and that a GB10 would take
  for (const auto* row : gemv_rows_and(suffix, norm_qkv_kernels(), desc, options, w)) {
    const Weight weight = gpu.weight(w);
    gpu.cx.stream.order.allow_dependent(true);
    const Result got = run_on_gpu(gpu, *row, shape, p, p.step, p.x, p.d, p.cos_sin, weight);
    const Result again = run_on_gpu(gpu, *row, shape, p, p.step, p.x, p.d, p.cos_sin, weight);
    ASSERT_EQ(got.q.values, again.q.values) << row->name;
    ASSERT_EQ(got.k, again.k) << row->name;
    ASSERT_EQ(got.y.values, want_y.values) << row->name;
    WrongBlocks blocks(shape.hidden);
    const auto bf16_at = [](const std::vector<uint8_t>& bytes, int64_t i) {
      uint16_t bits;
      std::memcpy(&bits, bytes.data() + 2 * i, 2);
      return bf16_to_float(bits);
    };
    for (int32_t t = 0; t < tokens; t += static_cast<int32_t>(alone_step(tokens))) {
      for (int64_t i = 0; i < shape.q_heads * kDim; ++i) {
        ASSERT_NEAR(got.q.at(t, i), want_q.at(t, i),
                    error + 2 * store_error(DType::kBF16, want_q.at(t, i)))
            << row->name << " token " << t << " column " << i;
        blocks.add(t, i, got.q.at(t, i), want_q.at(t, i));
      }
      const int32_t slot = t + 1 == tokens ? 0 : 1;
      const Span span{0, 1, p.positions[t], slot};
      const Step one{
          .num_tokens = 1, .num_spans = 1, .positions = p.positions.data() + t, .spans = &span};
      gpu.cx.stream.order.allow_dependent(false);  // x is complete beforehand
      const Result alone = run_on_gpu(gpu, *row, shape, p, one, row_of(p.x, t), row_of(p.d, t),
                                      row_of(p.cos_sin, t), weight);
      ASSERT_TRUE(std::equal(alone.q.values.begin(), alone.q.values.end(), got.q.row(t)))
          << row->name << " token " << t << " of " << tokens;
      for (int64_t g = 0; g < shape.kv_heads; ++g) {
        const int64_t at = kv_index(want.view, slot, p.positions[t], g);
        for (int64_t i = at; i < at + kDim; ++i) {
          const double k = want.view.k.as<float>()[i], v = want.view.v.as<float>()[i];
          ASSERT_NEAR(bf16_at(got.k, i), k, error + store_error(DType::kBF16, k)) << row->name;
          ASSERT_NEAR(bf16_at(got.v, i), v, error + store_error(DType::kBF16, v)) << row->name;
          ASSERT_EQ(bf16_at(got.k, i), bf16_at(alone.k, i)) << row->name;
          ASSERT_EQ(bf16_at(got.v, i), bf16_at(alone.v, i)) << row->name;
        }
      }
    }
    EXPECT_LT(blocks.worst(), 1) << row->name;
  }
}

TEST(NormQkvGpu, EqualsTheTwinAndItselfAlone) {
  for (const Shape& shape : kShapes)
    for (Format format : {Format::kMxfp4, Format::kBF16})
      for (int32_t tokens : {1, 2, 4, 9, 19, 70, 150}) {
        if (shape.hidden == 2880 && tokens > 9) continue;
        if (is_too_slow(shape.hidden * tokens)) continue;
        check(shape, format, tokens, "_gemm");
        if (tokens % 2 == 1 || tokens > 100) check(shape, format, tokens, "_gemm", true);
        if (format == Format::kMxfp4) check(shape, format, tokens, "_split");
      }
}

// By powers of two codes are of the same values, but for those that are no normal numbers.
TEST(NormQkvGpu, Fp8PagesAreDividedByTheirScales) {
  constexpr Shape kShape{256, 8, 2};
  constexpr int32_t kTokens = 19;
  for (const Format format : {Format::kMxfp4, Format::kBF16})
    for (const char* suffix : {"_gemm", "_split"}) {
      Problem p(kShape, kTokens);
      p.pages = DType::kF8E4M3;
      const int64_t rows = (kShape.q_heads + 2 * kShape.kv_heads) * kDim;
      NormQkvDesc desc{kShape.hidden, kShape.q_heads, kShape.kv_heads, kDim, format, kTokens};
      TestWeight w(p.random, format, 1, rows, kShape.hidden);
      GpuProblem gpu(gpu::scratch_bytes(desc));
      desc.tokens = std::string_view(suffix) == "_split" ? kSplitTokens : 1 << 20;
      for (const auto* row : gemv_rows_and(suffix, norm_qkv_kernels(), desc, gpu.cx.kernels, w)) {
        const Weight weight = gpu.weight(w);
        const auto run = [&](float k_scale, float v_scale) {
          p.k_scale = k_scale, p.v_scale = v_scale;
          return run_on_gpu(gpu, *row, kShape, p, p.step, p.x, p.d, p.cos_sin, weight);
        };
        const Result plain = run(1, 1), scaled = run(0.25f, 0.5f);
        int64_t compared = 0;
        const auto compare = [&](const std::vector<uint8_t>& want, const std::vector<uint8_t>& got,
                                 float scale) {
          for (size_t i = 0; i < want.size(); ++i) {
            const float value = kE4m3[want[i]];
            if (!(std::fabs(value) >= 0x1p-5f && std::fabs(value) < 448 * scale)) continue;
            ASSERT_EQ(scale * kE4m3[got[i]], value) << row->name << " byte " << i;
            ++compared;
          }
        };
        compare(plain.k, scaled.k, 0.25f);
        compare(plain.v, scaled.v, 0.5f);
        EXPECT_GT(compared, kTokens * kShape.kv_heads * kDim) << row->name;  // half of them all
      }
    }
}

}  // namespace
}  // namespace nibble::ops
