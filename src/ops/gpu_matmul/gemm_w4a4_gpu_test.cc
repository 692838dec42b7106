// The rows that multiply E2M1 by E2M1 by SM12x's block-scaled mma: against the twin, with inputs
// rounded as the kernels round them, and bit by bit against the model of the instruction. On a GPU
// that lacks it they run emulated.
#include <gtest/gtest.h>

#include <string_view>

#include "cuda/mma_sm12x_model.h"
#include "ops/gpu_matmul/dense_gpu_test.h"
#include "ops/gpu_matmul/e2m1_rows.h"
#include "ops/gpu_matmul/gemm_scaled_sm12x.h"
#include "ops/gpu_matmul/lane_order.h"
#include "ops/gpu_test_problem.h"
#include "ops/matmul_ref.h"
#include "ops/mlp_up/mlp_up.h"
#include "ops/moe_down/moe_down.h"
#include "ops/moe_up/moe_up.h"
#include "ops/out_proj/out_proj.h"
#include "ops/wrong_blocks.h"

namespace nibble::ops {
namespace gpu::sm12x {
void gemm_w4a4_exact(Ctx& cx, const Weight& w,
                     const GemmArgs& args);  // gemm_scaled_sm12x_gpu_test.cu
}  // namespace gpu::sm12x
namespace {

// Of a sum of n products over its terms' magnitudes. What emulates the instruction adds 64 of them
// in four steps that cut 17 terms behind 25 bits of an exponent that is up to one above the
// largest term's, and their sum behind 23; the instruction loses less. Then scales of weights and
// inputs, each rounded once, two factors and the bias in float32.
double w4a4_error(int64_t n) {
  return static_cast<double>(n + 63) / 64 * 4 * (17 * 0x1p-24 + 0x1p-23) + 8 * kEps;
}

constexpr Format kFormats[] = {Format::kMxfp4, Format::kNvfp4};

template <typename Desc, typename Fn>
const Kernel<Desc, Fn>* w4a4_row(std::span<const Kernel<Desc, Fn>> table, const Desc& desc,
                                 TestWeight& w) {
  KernelOptions options;
  options.gpu = cuda::gb10();
  options.activations = ActFormat::kFp4;
  const std::string_view name =
      w.view.format == Format::kMxfp4 ? "sm121_w4a4_gemm" : "sm121_nvfp4a4_gemm";
  for (const auto& row : table) {
    if (row.name != name) continue;
    EXPECT_EQ(row.refuse(desc, options), nullptr);
    w.pack(row.layout);
    return &row;
  }
  return nullptr;
}

Floats rounded(const Floats& x, Format weights) {
  Floats y = x;
  for (int64_t r = 0; r < x.shape[0]; ++r)
    round_to_e2m1(y.values.data() + r * x.shape[1], x.shape[1], weights);
  return y;
}

// ---- bit by bit

// Of one row of inputs as the GPU made it.
struct InputRow {
  Format weights;
  int64_t cols;
  const uint8_t* bytes;
  uint32_t code(int64_t unit, int position) const {  // of the instruction's k
    return bytes[unit * 32 + position % 32 / 8 * 8 + position / 32 * 4 + position % 8 / 2] >>
               4 * (position % 2) &
           15;
  }
  uint32_t scale(int64_t unit, int group) const {  // of 16 k
    return bytes[cols / 2 + 4 * unit + (weights == Format::kMxfp4 ? group / 2 : group)];
  }
};
cuda::sm12x::Term scale_term(Format format, uint32_t code) {
  return format == Format::kMxfp4 ? cuda::sm12x::e8m0_term(code)
                                  : cuda::sm12x::e4m3_term(code & 127);
}
int64_t column_of(Format format, int64_t unit, int position) {
  return 64 * unit +
         gpu::sm12x::column_of_nibble(format, position % 32 / 8, position / 32, position % 8);
}

// The sum that the model of the instruction gives for a row of the weight.
float modelled(const TestWeight& w, int64_t row, const InputRow& x) {
  const Format format = w.view.format;
  const int64_t block = format_row(format).block_elems;
  float sum = 0;
  for (int64_t unit = 0; unit < w.view.cols / 64; ++unit) {
    const auto code = [&](int position) -> uint32_t {
      const int64_t at = row * w.view.cols + column_of(format, unit, position);
      return w.unpacked_codes[at / 2] >> 4 * (at % 2) & 15;
    };
    const auto scale = [&](int group) {
      return scale_term(format,
                        w.unpacked_scales[(row * w.view.cols + 64 * unit + 16 * group) / block]);
    };
    sum = cuda::sm12x::dot_k64(
        code, [&](int position) { return x.code(unit, position); }, scale,
        [&](int group) { return scale_term(format, x.scale(unit, group)); }, sum);
  }
  return format == Format::kNvfp4 ? sum * w.row_scales[row] : sum;
}

void check_bits(Format format, int64_t experts, int64_t tokens, int64_t cols) {
  constexpr int64_t kRows = 336;
  const int64_t top_k = std::min<int64_t>(experts, 2);
  Random random(static_cast<uint32_t>(tokens));
  TestWeight w(random, format, experts, kRows, cols);
  w.pack(Layout::kTiles16x64);
  const Floats h(random, tokens, cols, DType::kBF16);
  TestRouting routing(tokens, experts, top_k);
  routing.randomize(random);
  GpuProblem gpu(1 << 20);
  Scratch scratch(gpu.cx.scratch);
  const Weight weight = gpu.weight(w);
  const gpu::sm12x::InputRows x = gpu::sm12x::quantize_rows(
      gpu.cx, scratch, ActFormat::kFp4, weight, gpu.tensor(h, DType::kBF16).as<uint16_t>(), tokens);
  const Routing on_gpu = gpu.routing(routing);
  const Tensor y = gpu.output(DType::kF32, {tokens * top_k, kRows});
  gpu::GemmArgs args{};
  args.x = x.codes, args.x_scale = x.scales, args.x_scale_all = 1;
  args.token = on_gpu.token, args.offsets = on_gpu.offsets;
  args.y = y.data, args.num_slots = static_cast<int32_t>(tokens * top_k);
  gpu::sm12x::gemm_w4a4_exact(gpu.cx, weight, args);
  const Floats got = gpu.floats(y);
  const auto bytes = gpu.values<uint8_t>(x.codes, tokens * e2m1_pitch(cols));
  const std::vector<float> scales = format == Format::kNvfp4 ? gpu.values<float>(x.scales, tokens)
                                                             : std::vector<float>(tokens, 1);
  const Floats want_x = rounded(h, format);
  for (int64_t t = 0; t < tokens; ++t) {
    const InputRow row{format, cols, bytes.data() + t * e2m1_pitch(cols)};
    for (int64_t unit = 0; unit < cols / 64; ++unit)
      for (int position = 0; position < 64; ++position) {
        const auto scale = static_cast<uint8_t>(row.scale(unit, position / 16));
        const float step =
            format == Format::kMxfp4 ? e8m0_to_float(scale) : kE4m3[scale] * scales[t];
        ASSERT_EQ(step * kE2m1[row.code(unit, position)],
                  want_x.at(t, column_of(format, unit, position)))
            << t << " " << unit << " " << position;
      }
  }
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t s = routing.offsets[e]; s < routing.offsets[e + 1]; ++s)
      for (int64_t n = 0; n < kRows; ++n) {
        const int64_t t = routing.token[s];
        const float sum =
            modelled(w, e * kRows + n, {format, cols, bytes.data() + t * e2m1_pitch(cols)});
        const float want = std::fma(sum, scales[t], bf16_to_float(w.bias[e * kRows + n]));
        ASSERT_EQ(got.at(s, n), want) << format_name(format) << " slot " << s << " row " << n;
      }
}

TEST(W4a4Gpu, IsTheModelBitByBit) {
  for (const Format format : kFormats)
    for (const int64_t tokens : {5, 90, 200})
      if (!is_too_slow(192 * tokens)) check_bits(format, 4, tokens, tokens == 5 ? 64 : 192);
}

// ---- rows

void check_dense(Format format, int64_t rows, int64_t cols, int64_t tokens) {
  Random random(static_cast<uint32_t>(cols + tokens));
  const OutProjDesc desc{rows, cols, format, 1 << 20};
  TestWeight w(random, format, 1, rows, cols);
  const Floats att(random, tokens, cols, DType::kBF16);
  OutProjDesc here = desc;
  here.tokens = tokens;
  GpuProblem gpu(gpu::scratch_bytes(here));
  const OutProjKernel* row = w4a4_row(out_proj_kernels(), desc, w);
  ASSERT_NE(row, nullptr);
  SCOPED_TRACE(format_name(format));
  const double worst = check_dense_rows(
      gpu, *row, gpu.weight(w), att, rounded(att, format), w4a4_error(cols),
      [&](int64_t n, const float* x, double* abs) { return ref::Row(w.view, 0, n).dot(x, abs); });
  EXPECT_LT(worst, 1);
}

TEST(W4a4Gpu, DenseEqualsTheTwinAndItselfAlone) {
  constexpr int64_t kMatrices[][2] = {{2880, 4096}, {256, 512}, {16, 64}, {336, 320}};
  for (const auto& [rows, cols] : kMatrices)
    for (const int64_t tokens : {1, 19, 130, 700})
      for (const Format format : kFormats)
        if (!is_too_slow(cols * tokens)) check_dense(format, rows, cols, tokens);
}

TEST(W4a4Gpu, ShowsActivationsThatAreNoNumbers) {
  constexpr int64_t kRows = 48, kCols = 128, kTokens = 20;
  for (const Format format : kFormats)
    for (const float bad : {NAN, INFINITY}) {
      Random random(1);
      TestWeight w(random, format, 1, kRows, kCols);
      Floats att(random, kTokens, kCols, DType::kBF16);
      att.values[3 * kCols + 70] = bad;
      const OutProjDesc desc{kRows, kCols, format, 1 << 20};
      OutProjDesc here = desc;
      here.tokens = kTokens;
      GpuProblem gpu(gpu::scratch_bytes(here));
      const OutProjKernel* row = w4a4_row(out_proj_kernels(), desc, w);
      ASSERT_NE(row, nullptr);
      const Tensor d = gpu.output(DType::kF32, {kTokens, kRows});
      row->run(gpu.cx, d, gpu.tensor(att, DType::kBF16), gpu.weight(w),
               Step{.num_tokens = kTokens});
      const Floats got = gpu.floats(d);
      for (int64_t t = 0; t < kTokens; ++t)
        for (int64_t n = 0; n < kRows; ++n)
          EXPECT_EQ(!std::isfinite(got.at(t, n)), t == 3)
              << format_name(format) << " token " << t << " row " << n;
    }
}

struct Shape {
  int64_t hidden, width, experts, top_k;
};
// gpt-oss's own with few experts, the tiny model's, row tiles that end early, an odd number of 64s.
constexpr Shape kShapes[] = {
    {2880, 2880, 6, 4}, {256, 256, 8, 4}, {320, 704, 130, 2}, {192, 64, 5, 5}};
constexpr int64_t kTokens[] = {1, 7, 40, 300};

void check_up(Format format, const Shape& shape, int64_t tokens, const Swiglu& act) {
  Random random(static_cast<uint32_t>(tokens));
  const MoeUpDesc desc{shape.hidden, shape.width, shape.experts, shape.top_k, format, 1 << 20,
                       {},           act};
  TestWeight w(random, format, shape.experts, desc.rows(), shape.hidden);
  const Floats h(random, tokens, shape.hidden, DType::kBF16);
  TestRouting routing(tokens, shape.experts, shape.top_k);
  routing.randomize(random);
  MoeUpDesc here = desc;
  here.tokens = tokens;
  GpuProblem gpu(gpu::scratch_bytes(here));
  const MoeUpKernel* row = w4a4_row(moe_up_kernels(), desc, w);
  ASSERT_NE(row, nullptr);
  const Tensor out = gpu.output(DType::kBF16, {tokens * shape.top_k, shape.width});
  row->run(gpu.cx, out, gpu.tensor(h, DType::kBF16), gpu.routing(routing), gpu.weight(w), act);
  const Floats u = gpu.floats(out), x = rounded(h, format);
  const double e = w4a4_error(shape.hidden);
  WrongBlocks blocks(shape.hidden);
  const int each = act.is_relu2() ? 1 : 2;
  for (int64_t t = 0; t < tokens; t += alone_step(tokens, stride(tokens)))
    for (int64_t k = 0; k < shape.top_k; ++k) {
      const int64_t slot = routing.slot[t * shape.top_k + k];
      const int32_t expert = routing.ids[t * shape.top_k + k];
      for (int64_t j = t % 5; j < shape.width; j += stride(shape.width * tokens)) {
        double gate_abs, up_abs, want, off;
        const double gate = ref::Row(w.view, expert, each * j).dot(x.row(t), &gate_abs);
        if (act.is_relu2()) {
          want = ref::relu2(gate);
          off = (2 * std::fabs(gate) + e * gate_abs) * e * gate_abs;
        } else {
          const double up = ref::Row(w.view, expert, 2 * j + 1).dot(x.row(t), &up_abs);
          want = ref::swiglu(gate, up, act);
          off = swiglu_error(gate, e * gate_abs, up, e * up_abs, act);
        }
        ASSERT_NEAR(u.at(slot, j), want,
                    off + 0x1p-20 * std::fabs(want) + store_error(DType::kBF16, want) + 1e-6)
            << format_name(format) << " slot " << slot << " column " << j;
        blocks.add(slot, each * j, u.at(slot, j), want);
      }
    }
  EXPECT_LT(blocks.worst(), 1);
}

TEST(W4a4Gpu, MoeUpEqualsTheTwin) {
  for (const Shape& shape : kShapes)
    for (const int64_t tokens : kTokens) {
      if (is_too_slow(shape.hidden * tokens)) continue;
      check_up(Format::kMxfp4, shape, tokens, kClampedSwiglu);
      check_up(Format::kNvfp4, shape, tokens, {});
      check_up(Format::kNvfp4, shape, tokens, kRelu2);
    }
}

void check_mlp_up(int64_t hidden, int64_t width, int64_t tokens) {
  Random random(static_cast<uint32_t>(tokens));
  const MlpUpDesc desc{hidden, width, Format::kNvfp4, 1 << 20};
  TestWeight w(random, Format::kNvfp4, 1, 2 * width, hidden, /*has_bias=*/false);
  const std::vector<uint16_t> weight = random.bf16s(hidden, 0.3f, 1);
  MlpUpDesc here = desc;
  here.tokens = tokens;
  GpuProblem gpu(gpu::scratch_bytes(here));
  const MlpUpKernel* row = w4a4_row(mlp_up_kernels(), desc, w);
  ASSERT_NE(row, nullptr);
  const MlpUpOut out{gpu.output(DType::kBF16, {tokens, width}),
                     gpu.output(DType::kBF16, {tokens, hidden}),
                     gpu.output(DType::kF32, {tokens, hidden})};
  row->run(gpu.cx, out, gpu.tensor(Floats(random, tokens, hidden), DType::kF32),
           gpu.tensor(Floats(random, tokens, hidden), DType::kF32), {gpu.array(weight), 1e-5f},
           gpu.weight(w), {});
  const Floats u = gpu.floats(out.u), h = rounded(gpu.floats(out.h), Format::kNvfp4);
  const double e = w4a4_error(hidden);
  for (int64_t t = 0; t < tokens; t += stride(tokens))
    for (int64_t j = 0; j < width; ++j) {
      double gate_abs, up_abs;
      const double gate = ref::Row(w.view, 0, 2 * j).dot(h.row(t), &gate_abs);
      const double up = ref::Row(w.view, 0, 2 * j + 1).dot(h.row(t), &up_abs);
      const double want = ref::swiglu(gate, up, {});
      ASSERT_NEAR(u.at(t, j), want,
                  swiglu_error(gate, e * gate_abs, up, e * up_abs, {}) + 0x1p-20 * std::fabs(want) +
                      store_error(DType::kBF16, want) + 1e-6)
          << "token " << t << " column " << j;
    }
}

TEST(W4a4Gpu, MlpUpEqualsTheTwin) {
  constexpr int64_t kMatrices[][2] = {{4096, 200}, {320, 72}, {64, 8}};
  for (const auto& [hidden, width] : kMatrices)
    for (const int64_t tokens : {1, 19, 300})
      if (!is_too_slow(hidden * tokens)) check_mlp_up(hidden, width, tokens);
}

void check_down(Format format, const Shape& shape, int64_t tokens) {
  Random random(static_cast<uint32_t>(tokens));
  const MoeDownDesc desc{shape.width, shape.hidden, shape.experts, shape.top_k, format, 1 << 20};
  TestWeight w(random, format, shape.experts, desc.hidden, desc.width);
  const Floats u(random, tokens * shape.top_k, desc.width, DType::kBF16), x = rounded(u, format);
  TestRouting routing(tokens, shape.experts, shape.top_k);
  routing.randomize(random);
  MoeDownDesc here = desc;
  here.tokens = tokens;
  GpuProblem gpu(gpu::scratch_bytes(here));
  const MoeDownKernel* row = w4a4_row(moe_down_kernels(), desc, w);
  ASSERT_NE(row, nullptr);
  const Tensor d = gpu.output(DType::kF32, {tokens, desc.hidden});
  row->run(gpu.cx, d, gpu.tensor(u, DType::kBF16), gpu.routing(routing), gpu.weight(w));
  const Floats got = gpu.floats(d);
  const double e = w4a4_error(desc.width);
  WrongBlocks blocks(desc.width);
  for (int64_t t = 0; t < tokens; t += alone_step(tokens, stride(tokens)))
    for (int64_t n = t % 5; n < desc.hidden; n += stride(desc.hidden * tokens)) {
      double want = 0, error = 0;
      for (int64_t k = 0; k < shape.top_k; ++k) {
        const int64_t choice = t * shape.top_k + k;
        double abs;
        const double y =
            ref::Row(w.view, routing.ids[choice], n).dot(x.row(routing.slot[choice]), &abs);
        want += routing.p[choice] * y;
        error += routing.p[choice] * ((e + (shape.top_k + 1) * kEps) * abs +
                                      store_error(DType::kBF16, std::fabs(y) + e * abs));
      }
      ASSERT_NEAR(got.at(t, n), want, error)
          << format_name(format) << " token " << t << " column " << n;
      blocks.add(t, n, got.at(t, n), want);
    }
  EXPECT_LT(blocks.worst(), 1);
}

TEST(W4a4Gpu, MoeDownEqualsTheTwin) {
  for (const Shape& shape : kShapes)
    for (const int64_t tokens : kTokens)
      for (const Format format : kFormats)
        if (!is_too_slow(shape.width * tokens)) check_down(format, shape, tokens);
}

}  // namespace
}  // namespace nibble::ops
