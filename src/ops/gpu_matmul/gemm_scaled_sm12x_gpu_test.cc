// The rows that multiply by SM12x's block-scaled mma: against the twin, with inputs rounded as the
// kernels round them, and bit by bit against the model of the instruction. On a GPU that lacks it
// they run emulated.
#include "ops/gpu_matmul/gemm_scaled_sm12x.h"

#include <gtest/gtest.h>

#include <string_view>

#include "cuda/mma_sm12x_model.h"
#include "ops/gpu_matmul/dense_gpu_test.h"
#include "ops/gpu_matmul/e2m1_rows.h"
#include "ops/gpu_matmul/lane_order.h"
#include "ops/gpu_test_problem.h"
#include "ops/kv_pages.h"
#include "ops/matmul_ref.h"
#include "ops/moe_down/moe_down.h"
#include "ops/moe_up/moe_up.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/norm_unembed/norm_unembed.h"
#include "ops/out_proj/out_proj.h"
#include "ops/wrong_blocks.h"

namespace nibble::ops {
namespace gpu::sm12x {
// gemm_scaled_sm12x_gpu_test.cu
void gemm_scaled_exact(Ctx& cx, const Weight& w, const GemmArgs& args);
void count_fetches(Ctx& cx, const GemmArgs& args, int32_t* fetched, int32_t* covered);
}  // namespace gpu::sm12x
namespace {

// Of a sum of n products over its terms' magnitudes: each of n / 32 instructions cuts 33 terms
// behind 25 bits of an exponent that is up to one above the largest term's, and its sum behind 23.
// What emulates it loses less; of E2M1, 38 instead of 35. Then factors and the bias in float32.
double scaled_error(int64_t n) {
  return static_cast<double>(n + 31) / 32 * (36 * 0x1p-24 + 0x1p-23) + 8 * kEps;
}

template <typename Desc, typename Fn>
const Kernel<Desc, Fn>* scaled_row(std::span<const Kernel<Desc, Fn>> table, const Desc& desc,
                                   TestWeight& w, ActFormat inputs = ActFormat::kFp8) {
  KernelOptions options;
  options.gpu = cuda::gb10();
  options.activations = inputs;
  const bool is_fp4 = inputs == ActFormat::kFp4;
  const std::string_view name = w.view.format == Format::kNvfp4   ? "sm121_nvfp4a4_gemm"
                                : w.view.format != Format::kMxfp4 ? "sm121_w8a8_gemm"
                                : is_fp4                          ? "sm121_w4a4_gemm"
                                                                  : "sm121_w4a8_gemm";
  for (const auto& row : table) {
    if (row.name != name) continue;
    EXPECT_EQ(row.refuse(desc, options), nullptr);
    w.pack(row.layout);
    return &row;
  }
  return nullptr;
}

// Block scales of any weights: this row takes them all.
void spread(Random& random, TestWeight& w) {
  for (uint8_t& s : w.scales) s = static_cast<uint8_t>(104 + random.below(30));
}

Floats rounded(const Floats& x, float scale) {
  Floats y = x;
  for (int64_t r = 0; r < x.shape[0]; ++r)
    round_to_e4m3(y.values.data() + r * x.shape[1], x.shape[1], scale);
  return y;
}

Floats rounded(const Floats& x, ActFormat inputs, Format weights) {
  if (inputs == ActFormat::kFp8) return rounded(x, 0);
  Floats y = x;
  for (int64_t r = 0; r < x.shape[0]; ++r)
    round_to_e2m1(y.values.data() + r * x.shape[1], x.shape[1], weights);
  return y;
}

// Where column k of a row lies in lane order.
int64_t place(int64_t k) {
  return k / 64 * 64 + k % 8 / 2 * 16 + k / 32 % 2 * 8 + k / 8 % 2 * 4 + k % 2 * 2 + k / 16 % 2;
}

struct Shape {
  int64_t hidden, width, experts, top_k;
};
// gpt-oss's own with few experts, the tiny model's, row tiles that end early, an odd number of 64s.
constexpr Shape kShapes[] = {
    {2880, 2880, 6, 4}, {256, 256, 8, 4}, {320, 704, 130, 2}, {192, 64, 5, 5}};
constexpr int64_t kTokens[] = {1, 7, 40, 300};  // an expert: all widths of a work item

// swiglu's slope as in gemm_gpu_test.cc; u is rounded to E4M3: half of 2^-3 of it, or of the least
// step, 2^-9 by the scale.
void check_up(const Shape& shape, int64_t tokens, bool is_spread) {
  Random random(static_cast<uint32_t>(tokens));
  const MoeUpDesc desc{shape.hidden, shape.width, shape.experts, shape.top_k, Format::kMxfp4,
                       1 << 20,      {},          kClampedSwiglu};
  TestWeight w(random, Format::kMxfp4, shape.experts, 2 * shape.width, shape.hidden);
  if (is_spread) spread(random, w);
  const Floats h(random, tokens, shape.hidden, DType::kBF16);
  TestRouting routing(tokens, shape.experts, shape.top_k);
  routing.randomize(random);
  MoeUpDesc here = desc;
  here.tokens = tokens;
  GpuProblem gpu(gpu::scratch_bytes(here));
  const MoeUpKernel* row = scaled_row(moe_up_kernels(), desc, w);
  ASSERT_NE(row, nullptr);
  const Weight weight = gpu.weight(w);
  const Tensor in = gpu.tensor(h, DType::kBF16);
  const auto run = [&] {
    const Tensor u = gpu.output(DType::kBF16, {tokens * shape.top_k, shape.width});
    row->run(gpu.cx, u, in, gpu.routing(routing), weight, kClampedSwiglu);
    return gpu.values<uint8_t>(u.data, tokens * shape.top_k * shape.width);
  };
  const std::vector<uint8_t> got = run();
  ASSERT_EQ(got, run());
  const Floats x = rounded(h, 0);
  const double e = scaled_error(shape.hidden);
  int64_t codes = 0, other_codes = 0;
  for (int64_t t = 0; t < tokens; t += alone_step(tokens, stride(tokens)))
    for (int64_t k = 0; k < shape.top_k; ++k) {
      const int64_t slot = routing.slot[t * shape.top_k + k];
      const int32_t expert = routing.ids[t * shape.top_k + k];
      for (int64_t j = t % 5; j < shape.width; j += stride(shape.width * tokens)) {
        double gate_abs, up_abs;
        const double gate = ref::Row(w.view, expert, 2 * j).dot(x.row(t), &gate_abs);
        const double up = ref::Row(w.view, expert, 2 * j + 1).dot(x.row(t), &up_abs);
        const double want = ref::swiglu(gate, up, kClampedSwiglu);
        const double g = std::min(std::fabs(gate) + e * gate_abs, 7.0),
                     v = std::min(std::fabs(up) + e * up_abs, 7.0) + 1;
        const double off = 1.1 * e * (v * gate_abs + g * up_abs) + 0x1p-20 * g * v + 1e-6;
        const uint8_t code = got[slot * shape.width + place(j)];
        ASSERT_NEAR(kExpertScale * kE4m3[code], want,
                    off + (std::fabs(want) + off) * 0x1p-4 + kExpertScale * 0x1p-10)
            << "slot " << slot << " column " << j;
        ++codes;
        other_codes += code != e4m3_from_float(static_cast<float>(want / double{kExpertScale}));
      }
    }
  // Sums are near enough that they seldom fall to the other side of a rounding boundary.
  EXPECT_LE(static_cast<double>(other_codes), 0.02 * static_cast<double>(codes) + 1);
}

TEST(BlockScaledGpu, MoeUpEqualsTheTwin) {
  for (const Shape& shape : kShapes)
    for (const int64_t tokens : kTokens)
      if (!is_too_slow(shape.hidden * tokens)) check_up(shape, tokens, false);
  check_up(kShapes[3], is_too_slow(192 * 40) ? 3 : 40, true);
}

void check_down(const Shape& shape, int64_t tokens) {
  Random random(static_cast<uint32_t>(tokens));
  const MoeDownDesc desc{shape.width, shape.hidden, shape.experts, shape.top_k, Format::kMxfp4,
                         1 << 20,     {},           kClampedSwiglu};
  TestWeight w(random, Format::kMxfp4, shape.experts, desc.hidden, desc.width);
  const int64_t slots = tokens * shape.top_k;
  const Floats u = rounded(Floats(random, slots, desc.width, DType::kBF16), kExpertScale);
  std::vector<uint8_t> codes(slots * desc.width);
  for (int64_t s = 0; s < slots; ++s)
    for (int64_t k = 0; k < desc.width; ++k)
      codes[s * desc.width + place(k)] = e4m3_from_float(u.at(s, k) / kExpertScale);
  TestRouting routing(tokens, shape.experts, shape.top_k);
  routing.randomize(random);
  MoeDownDesc here = desc;
  here.tokens = tokens;
  GpuProblem gpu(gpu::scratch_bytes(here));
  const MoeDownKernel* row = scaled_row(moe_down_kernels(), desc, w);
  ASSERT_NE(row, nullptr);
  const Weight weight = gpu.weight(w);
  Tensor in = make_tensor(nullptr, DType::kBF16, {slots, desc.width});
  in.data = const_cast<uint8_t*>(gpu.array(codes));
  const auto run = [&] {
    const Tensor d = gpu.output(DType::kF32, {tokens, desc.hidden});
    row->run(gpu.cx, d, in, gpu.routing(routing), weight);
    return gpu.floats(d);
  };
  const Floats got = run();
  ASSERT_EQ(got.values, run().values);
  WrongBlocks blocks(desc.width);
  for (int64_t t = 0; t < tokens; t += alone_step(tokens, stride(tokens)))
    for (int64_t n = t % 5; n < desc.hidden; n += stride(desc.hidden * tokens)) {
      double want = 0, error = 0;
      for (int64_t k = 0; k < shape.top_k; ++k) {
        const int64_t choice = t * shape.top_k + k;
        double abs;
        const double y =
            ref::Row(w.view, routing.ids[choice], n).dot(u.row(routing.slot[choice]), &abs);
        const double e = scaled_error(desc.width);
        want += routing.p[choice] * y;
        error += routing.p[choice] * ((e + (shape.top_k + 1) * kEps) * abs +
                                      store_error(DType::kBF16, std::fabs(y) + e * abs));
      }
      ASSERT_NEAR(got.at(t, n), want, error) << "token " << t << " column " << n;
      blocks.add(t, n, got.at(t, n), want);
    }
  EXPECT_LT(blocks.worst(), 1);
}

TEST(BlockScaledGpu, MoeDownEqualsTheTwin) {
  for (const Shape& shape : kShapes)
    for (const int64_t tokens : kTokens)
      if (!is_too_slow(shape.width * tokens)) check_down(shape, tokens);
}

void check_dense(int64_t rows, int64_t cols, int64_t tokens, bool is_spread) {
  Random random(static_cast<uint32_t>(cols + tokens));
  const OutProjDesc desc{rows, cols, Format::kMxfp4, 1 << 20};
  TestWeight w(random, Format::kMxfp4, 1, rows, cols);
  if (is_spread) spread(random, w);
  const Floats att(random, tokens, cols, DType::kBF16);
  OutProjDesc here = desc;
  here.tokens = tokens;
  GpuProblem gpu(gpu::scratch_bytes(here));
  const OutProjKernel* row = scaled_row(out_proj_kernels(), desc, w);
  ASSERT_NE(row, nullptr);
  const double worst = check_dense_rows(
      gpu, *row, gpu.weight(w), att, rounded(att, 0), scaled_error(cols),
      [&](int64_t n, const float* x, double* abs) { return ref::Row(w.view, 0, n).dot(x, abs); });
  if (!is_spread) {
    EXPECT_LT(worst, 1);
  }
}

TEST(BlockScaledGpu, DenseEqualsTheTwinAndItselfAlone) {
  constexpr int64_t kMatrices[][2] = {{2880, 4096}, {256, 512}, {16, 64}, {336, 320}};
  for (const auto& [rows, cols] : kMatrices)
    for (const int64_t tokens : {1, 19, 130, 700})
      if (!is_too_slow(cols * tokens)) check_dense(rows, cols, tokens, false);
  check_dense(336, 320, is_too_slow(320 * 130) ? 3 : 130, true);
}

void check_no_numbers(Format format) {
  constexpr int64_t kRows = 48, kCols = 128, kTokens = 20;
  Random random(1);
  TestWeight w(random, format, 1, kRows, kCols);
  w.scales[5 * 4 + 2] = 255;  // row 5
  Floats att(random, kTokens, kCols, DType::kBF16);
  att.values[3 * kCols + 70] = NAN;
  const OutProjDesc desc{kRows, kCols, format, 1 << 20};
  OutProjDesc here = desc;
  here.tokens = kTokens;
  GpuProblem gpu(gpu::scratch_bytes(here));
  const OutProjKernel* row = scaled_row(out_proj_kernels(), desc, w);
  ASSERT_NE(row, nullptr);
  const Tensor d = gpu.output(DType::kF32, {kTokens, kRows});
  row->run(gpu.cx, d, gpu.tensor(att, DType::kBF16), gpu.weight(w), Step{.num_tokens = kTokens});
  const Floats got = gpu.floats(d);
  for (int64_t t = 0; t < kTokens; ++t)
    for (int64_t n = 0; n < kRows; ++n)
      EXPECT_EQ(std::isnan(got.at(t, n)), t == 3 || n == 5)
          << format_name(format) << " token " << t << " row " << n;
}

TEST(BlockScaledGpu, ShowsWeightsAndActivationsThatAreNoNumbers) {
  for (const Format format : {Format::kMxfp4, Format::kMxfp8}) check_no_numbers(format);
}

// Heads of 64 that end within a tile of rows; two sequences of one page each. Products of h as it
// came out of the norm, turned in float64.
void check_qkv(Format format, int64_t hidden, int64_t q_heads, int64_t kv_heads, int32_t tokens,
               DType pages, ActFormat inputs = ActFormat::kFp8) {
  constexpr int64_t kDim = 64;
  const int32_t page_size = tokens + 8;
  Random random(static_cast<uint32_t>(tokens));
  const int64_t rows = (q_heads + 2 * kv_heads) * kDim;
  const NormQkvDesc desc{hidden, q_heads, kv_heads, kDim, format, 1 << 20};
  TestWeight w(random, format, 1, rows, hidden);
  const std::vector<uint16_t> norm = random.bf16s(hidden, 0.3f, 1);
  const Floats x(random, tokens, hidden), d(random, tokens, hidden), turns(random, tokens, kDim);
  std::vector<int32_t> positions, table = {1, 0};
  for (int32_t t = 0; t + 1 < tokens; ++t) positions.push_back(3 + t);
  positions.push_back(5);
  const std::vector<Span> spans =
      tokens > 1 ? std::vector<Span>{{0, tokens - 1, 3, 0}, {tokens - 1, 1, 5, 1}}
                 : std::vector<Span>{{0, 1, 5, 1}};
  const Step step{.num_tokens = tokens,
                  .num_spans = static_cast<int32_t>(spans.size()),
                  .positions = positions.data(),
                  .spans = spans.data()};
  NormQkvDesc here = desc;
  here.tokens = tokens;
  GpuProblem gpu(gpu::scratch_bytes(here));
  const NormQkvKernel* row = scaled_row(norm_qkv_kernels(), desc, w, inputs);
  ASSERT_NE(row, nullptr);
  const KvLayer kv{gpu.output(pages, {2, kv_heads, page_size, kDim}),
                   gpu.output(pages, {2, kv_heads, page_size, kDim}), gpu.array(table), 1,
                   page_size};
  const NormQkvOut out{gpu.output(DType::kBF16, {tokens, q_heads * kDim}),
                       gpu.output(DType::kBF16, {tokens, hidden}),
                       gpu.output(DType::kF32, {tokens, hidden})};
  row->run(gpu.cx, out, kv, gpu.tensor(x, DType::kF32), gpu.tensor(d, DType::kF32),
           {{gpu.array(norm), 1e-5f}}, gpu.weight(w), gpu.tensor(turns, DType::kF32),
           gpu.step(step));
  const Floats h = rounded(gpu.floats(out.h), inputs, format), q = gpu.floats(out.q);
  std::vector<uint8_t> k = gpu.bytes(kv.k), v = gpu.bytes(kv.v);
  KvLayer here_kv = kv;
  here_kv.k.data = k.data(), here_kv.v.data = v.data(), here_kv.page_table = table.data();
  const double store = pages == DType::kBF16 ? 0x1p-8 : 0x1p-4;
  for (int32_t t = 0; t < tokens; t += static_cast<int32_t>(stride(tokens)))
    for (int64_t head = 0; head < q_heads + 2 * kv_heads; ++head)
      for (int64_t i = t % 3; i < 32; i += 3) {
        double abs_a, abs_b;
        const double a = ref::Row(w.view, 0, head * kDim + i).dot(h.row(t), &abs_a);
        const double b = ref::Row(w.view, 0, head * kDim + i + 32).dot(h.row(t), &abs_b);
        const double c = turns.at(t, i), n = turns.at(t, i + 32);
        const bool is_turned = head < q_heads + kv_heads;
        const double want[] = {is_turned ? a * c - b * n : a, is_turned ? b * c + a * n : b};
        const double most = is_turned ? std::fabs(c) + std::fabs(n) : 1;
        const double off = (scaled_error(hidden) + 3 * kEps) * most * std::max(abs_a, abs_b);
        for (int half = 0; half < 2; ++half) {
          double got, step_of = 0x1p-8;
          if (head < q_heads) {
            got = q.at(t, head * kDim + i + 32 * half);
          } else {
            const bool is_key = head < q_heads + kv_heads;
            const int64_t g = head - q_heads - (is_key ? 0 : kv_heads);
            const int32_t slot = t + 1 == tokens ? 1 : 0;
            got = kv_get(is_key ? here_kv.k : here_kv.v,
                         kv_index(here_kv, slot, positions[t], g) + i + 32 * half);
            step_of = store;
          }
          ASSERT_NEAR(got, want[half], off + (std::fabs(want[half]) + off) * step_of + 0x1p-10)
              << "token " << t << " head " << head << " dim " << i + 32 * half;
        }
      }
}

TEST(BlockScaledGpu, NormQkvEqualsTheTwin) {
  for (const int32_t tokens : {1, 9, 70, 150}) {
    if (is_too_slow(320 * tokens)) continue;
    for (const Format format : {Format::kMxfp4, Format::kMxfp8, Format::kFp8Row}) {
      check_qkv(format, 320, 3, 1, tokens, DType::kBF16);
      check_qkv(format, 256, 8, 2, tokens, DType::kF8E4M3);
    }
    for (const Format format : {Format::kMxfp4, Format::kNvfp4}) {
      check_qkv(format, 320, 3, 1, tokens, DType::kBF16, ActFormat::kFp4);
      check_qkv(format, 256, 8, 2, tokens, DType::kF8E4M3, ActFormat::kFp4);
    }
  }
}

// Of the rows that are asked for, of h as it came out of the norm.
void check_unembed(Format format, int64_t vocab, int64_t hidden, int32_t tokens,
                   ActFormat inputs = ActFormat::kFp8) {
  Random random(static_cast<uint32_t>(tokens));
  const NormUnembedDesc desc{hidden, vocab, format, 1 << 20};
  TestWeight w(random, format, 1, vocab, hidden, /*has_bias=*/false);
  const std::vector<uint16_t> norm = random.bf16s(hidden, 0.3f, 1);
  const Floats x(random, 2 * tokens, hidden), d(random, 2 * tokens, hidden);
  std::vector<int32_t> rows;
  for (int32_t t = 0; t < tokens; ++t) rows.push_back(2 * t + 1);
  NormUnembedDesc here = desc;
  here.tokens = tokens;
  GpuProblem gpu(gpu::scratch_bytes(here));
  const NormUnembedKernel* row = scaled_row(norm_unembed_kernels(), desc, w, inputs);
  ASSERT_NE(row, nullptr);
  const Tensor logits = gpu.output(DType::kF32, {tokens, vocab});
  const Tensor h = gpu.output(DType::kBF16, {tokens, hidden});
  row->run(gpu.cx, logits, h, gpu.tensor(x, DType::kF32), gpu.tensor(d, DType::kF32),
           {gpu.array(norm), 1e-5f}, gpu.weight(w),
           Step{.num_tokens = 2 * tokens, .num_out = tokens, .out_rows = gpu.array(rows)});
  const Floats got = gpu.floats(logits), seen = rounded(gpu.floats(h), inputs, format);
  for (int32_t t = 0; t < tokens; ++t)
    for (int64_t n = t % 5; n < vocab; n += stride(vocab * tokens)) {
      double abs;
      const double want = ref::Row(w.view, 0, n).dot(seen.row(t), &abs);
      ASSERT_NEAR(got.at(t, n), want, scaled_error(hidden) * abs + kEps * std::fabs(want))
          << format_name(format) << " row " << t << " id " << n;
    }
}

TEST(BlockScaledGpu, NormUnembedEqualsTheTwin) {
  for (const int32_t tokens : {1, 20, 140})
    if (!is_too_slow(320 * tokens))
      check_unembed(Format::kMxfp4, 1040, 320, tokens, ActFormat::kFp4);
  for (const Format format : {Format::kMxfp4, Format::kMxfp8, Format::kFp8Row})
    for (const int32_t tokens : {1, 20, 140})
      if (!is_too_slow(320 * tokens)) check_unembed(format, 1040, 320, tokens);
}

// Where column k of a row lies in the lane order of a format of weights.
int64_t place(Format weights, int64_t k) {
  int at = 0;
  while (gpu::sm12x::column_of_place(weights, at) != k % 64) ++at;
  return k / 64 * 64 + at;
}

// A weight as the instruction has it: its scale apart, of NVFP4 an eighth of scale times code.
struct Multiplied {
  cuda::sm12x::Term value;
  uint32_t scale;
};
Multiplied multiplied(const TestWeight& w, int64_t row, int64_t k) {
  const int64_t at = row * w.view.cols + k;
  const uint32_t nibble = w.unpacked_codes[at / 2] >> 4 * (at % 2) & 15;
  switch (w.view.format) {
    case Format::kMxfp4:
      return {cuda::sm12x::e2m1_term(nibble), w.unpacked_scales[at / 32]};
    case Format::kNvfp4: {
      const float value = kE2m1[nibble] * kE4m3[w.unpacked_scales[at / 16]] / 8;
      return {cuda::sm12x::e4m3_term(e4m3_from_float(value)), 127};
    }
    case Format::kMxfp8:
      return {cuda::sm12x::e4m3_term(w.unpacked_codes[at]), w.unpacked_scales[at / 32]};
    default:
      return {cuda::sm12x::e4m3_term(w.unpacked_codes[at]), 127};
  }
}

// The sum that the model of the instruction gives for a row of the weight, in order of K; `codes`:
// a row of x in lane order.
float modelled(const TestWeight& w, int64_t row, const uint8_t* codes) {
  float sum = 0;
  for (int64_t k0 = 0; k0 < w.view.cols; k0 += 32) {
    const auto a = [&](int64_t k) { return multiplied(w, row, k0 + k).value; };
    const auto b = [&](int64_t k) {
      return cuda::sm12x::e4m3_term(codes[place(w.view.format, k0 + k)]);
    };
    sum = cuda::sm12x::dot_k32(a, b, multiplied(w, row, k0).scale, 127u, sum);
  }
  if (!format_row(w.view.format).row_scales) return sum;
  return sum * (w.row_scales[row] * (w.view.format == Format::kNvfp4 ? 8 : 1));
}

void check_bits(Format format, int64_t experts, int64_t tokens) {
  constexpr int64_t kRows = 336, kCols = 192;
  const int64_t top_k = std::min<int64_t>(experts, 2);
  Random random(static_cast<uint32_t>(tokens));
  TestWeight w(random, format, experts, kRows, kCols);
  if (format == Format::kMxfp4 || format == Format::kMxfp8) spread(random, w);
  w.pack(Layout::kTiles16x64);
  const Floats h(random, tokens, kCols, DType::kBF16);
  TestRouting routing(tokens, experts, top_k);
  routing.randomize(random);
  GpuProblem gpu(1 << 20);
  Scratch scratch(gpu.cx.scratch);
  const Weight weight = gpu.weight(w);
  const gpu::sm12x::InputRows x = gpu::sm12x::quantize_rows(
      gpu.cx, scratch, ActFormat::kFp8, weight, gpu.tensor(h, DType::kBF16).as<uint16_t>(), tokens);
  const Routing on_gpu = gpu.routing(routing);
  const Tensor y = gpu.output(DType::kF32, {tokens * top_k, kRows});
  gpu::GemmArgs args{};
  args.x = x.codes, args.x_scale = x.scales;
  args.token = on_gpu.token, args.offsets = on_gpu.offsets;
  args.y = y.data, args.num_slots = static_cast<int32_t>(tokens * top_k);
  gpu::sm12x::gemm_scaled_exact(gpu.cx, weight, args);
  const Floats got = gpu.floats(y);
  const auto codes = gpu.values<uint8_t>(x.codes, tokens * kCols);
  const auto scales = gpu.values<float>(x.scales, tokens);
  const Floats want_x = rounded(h, 0);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t k = 0; k < kCols; ++k)
      ASSERT_EQ(scales[t] * kE4m3[codes[t * kCols + place(format, k)]], want_x.at(t, k))
          << t << " " << k;
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t s = routing.offsets[e]; s < routing.offsets[e + 1]; ++s)
      for (int64_t n = 0; n < kRows; ++n) {
        const int64_t t = routing.token[s];
        const float sum = modelled(w, e * kRows + n, codes.data() + t * kCols);
        const float want = std::fma(sum, scales[t], bf16_to_float(w.bias[e * kRows + n]));
        ASSERT_EQ(got.at(s, n), want) << format_name(format) << " slot " << s << " row " << n;
      }
}

// Bits of every element, on any GPU; of the native instruction on one that has it.
TEST(BlockScaledGpu, IsTheModelBitByBit) {
  for (const int64_t tokens : {5, 90, 200}) {
    if (is_too_slow(192 * tokens)) continue;
    for (const Format format : {Format::kMxfp4, Format::kNvfp4}) check_bits(format, 4, tokens);
    for (const Format format : {Format::kMxfp8, Format::kFp8Row}) check_bits(format, 1, tokens);
  }
}

// A step fetches the weights of an expert with up to 128 slots once, of a larger one once for every
// 128, of one without slots never; and each slot meets all rows.
TEST(BlockScaledGpu, AnExpertIsReadOnceAStep) {
  constexpr int32_t kRows = 5760, kTiles = kRows / 16, kUnits = 45, kUnitBytes = 544;
  const std::vector<int32_t> counts = {0, 1, 16, 17, 64, 0, 96, 127, 128, 129, 256, 300, 3};
  std::vector<int32_t> offsets = {0};
  for (const int32_t n : counts) offsets.push_back(offsets.back() + n);
  GpuProblem gpu;
  gpu::GemmArgs args{};
  args.offsets = gpu.array(offsets);
  args.experts = static_cast<int32_t>(counts.size()), args.rows = kRows;
  args.num_slots = offsets.back(), args.max_n = 128;
  const std::vector<int32_t> none(counts.size() * kTiles), no_slots(offsets.back());
  auto* fetched = const_cast<int32_t*>(gpu.array(none));
  auto* covered = const_cast<int32_t*>(gpu.array(no_slots));
  gpu::sm12x::count_fetches(gpu.cx, args, fetched, covered);
  const auto of = gpu.values<int32_t>(fetched, static_cast<int64_t>(none.size()));
  int64_t bytes = 0, least = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    const int32_t times = (counts[e] + 127) / 128;
    for (int32_t tile = 0; tile < kTiles; ++tile)
      ASSERT_EQ(of[e * kTiles + tile], times) << "expert " << e << " tile " << tile;
    if (counts[e] == 0 || counts[e] > 128) continue;
    for (int32_t tile = 0; tile < kTiles; ++tile)
      bytes += of[e * kTiles + tile] * kUnitBytes * kUnits;
    least += format_bytes(Format::kMxfp4, int64_t{kRows} * 64 * kUnits);
  }
  EXPECT_EQ(bytes, least);
  for (const int32_t times : gpu.values<int32_t>(covered, offsets.back()))
    ASSERT_EQ(times, (kRows + 255) / 256);
}

}  // namespace
}  // namespace nibble::ops
