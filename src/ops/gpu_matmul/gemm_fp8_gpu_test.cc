// The rows with E4M3 activations by wgmma, and those by SM12x's block-scaled mma of other weights
// than MXFP4, against the twin: inputs rounded as the kernels round them, float64 sums.
#include <gtest/gtest.h>

#include <string_view>

#include "ops/gpu_matmul/dense_gpu_test.h"
#include "ops/gpu_matmul/e4m3_rows.h"
#include "ops/gpu_matmul/row_exponents.h"
#include "ops/gpu_test_problem.h"
#include "ops/matmul_ref.h"
#include "ops/mlp_up/mlp_up.h"
#include "ops/moe_down/moe_down.h"
#include "ops/moe_up/moe_up.h"
#include "ops/out_proj/out_proj.h"
#include "ops/prepare.h"
#include "ops/wrong_blocks.h"

namespace nibble::ops {
namespace {

// Of a sum of n products over its terms' magnitudes. Products are exact; each wgmma adds 32 of them
// to what it has, in places that end 13 bits below the largest: no partial sum is larger than all
// magnitudes together. Then two factors and the bias in float32.
double fp8_error(int64_t n) { return static_cast<double>(n + 31) / 32 * 0x1p-13 + 4 * kEps; }

// A GPU's rows: "sm90", or "sm121", of whose sums each instruction cuts 33 terms behind 25 bits of
// an exponent that is up to one above the largest term's, and its sum behind 23.
double fp8_error(std::string_view arch, int64_t n) {
  if (arch == "sm90") return fp8_error(n);
  return static_cast<double>(n + 31) / 32 * (33 * 0x1p-24 + 0x1p-23) + 5 * kEps;
}

template <typename Desc, typename Fn>
const Kernel<Desc, Fn>* fp8_row(std::span<const Kernel<Desc, Fn>> table, const Desc& desc,
                                GpuProblem& gpu, TestWeight& w,
                                std::string_view name = "sm90_w4a8_gemm") {
  gpu.cx.kernels.activations = ActFormat::kFp8;
  gpu.cx.kernels.any_size = true;
  KernelOptions options = gpu.cx.kernels;
  if (name.starts_with("sm121")) options.gpu = cuda::gb10();
  for (const auto& row : table) {
    if (row.name != name) continue;
    if (row.refuse(desc, options) != nullptr) continue;
    w.pack(row.layout);
    return &row;
  }
  return nullptr;
}

// On the GPU, with the exponents of its rows, as the site that runs.
class Loaded {
 public:
  Loaded(GpuProblem& gpu, const TestWeight& from) {
    site_.weight = gpu.weight(from);
    gpu.cx.site = &site_;
    if (from.view.format != Format::kMxfp4) return;
    const std::vector<uint8_t> room(weight().experts * weight().rows, 0xee);
    auto* least = const_cast<uint8_t*>(gpu.array(room));
    EXPECT_EQ(gpu::find_row_exponents(gpu.cx, weight(), least).rows, 0);
    site_.row_exponents = least;
  }
  const Weight& weight() const { return site_.weight; }

 private:
  Site site_;
};

// Exponents of all blocks anywhere within `span` of each other.
void spread(Random& random, TestWeight& w, int span) {
  if (w.view.format != Format::kMxfp4) return;
  for (uint8_t& s : w.scales) s = static_cast<uint8_t>(116 + random.below(span + 1));
}

// As quantize_rows() sees them.
Floats rounded(const Floats& x, float scale) {
  Floats y = x;
  for (int64_t r = 0; r < x.shape[0]; ++r)
    round_to_e4m3(y.values.data() + r * x.shape[1], x.shape[1], scale);
  return y;
}

// Where column k of a row of E4M3 lies.
int64_t place(int64_t k) { return k / 32 * 32 + k % 2 * 16 + k % 8 / 2 * 4 + k % 32 / 8; }

struct Shape {
  int64_t hidden, width, experts, top_k;
};
// gpt-oss's own with few experts, the tiny model's, row tiles that end early, an odd number of 64s.
constexpr Shape kShapes[] = {
    {2880, 2880, 6, 4}, {256, 256, 8, 4}, {320, 704, 130, 2}, {192, 64, 5, 5}};
constexpr int64_t kTokens[] = {1, 7, 40, 300};
constexpr const char* kExpertRows[] = {"sm90_w4a8_narrow", "sm90_w4a8_gemm"};

// swiglu's slope as in gemm_gpu_test.cc; u is rounded to E4M3: half of 2^-3 of it, or of the least
// step, 2^-9 by the scale.
void check_up(const char* name, const Shape& shape, int64_t tokens, int span) {
  Random random(static_cast<uint32_t>(tokens));
  const MoeUpDesc desc{shape.hidden, shape.width, shape.experts, shape.top_k, Format::kMxfp4,
                       1 << 20,      {},          kClampedSwiglu};
  TestWeight w(random, Format::kMxfp4, shape.experts, 2 * shape.width, shape.hidden);
  spread(random, w, span);
  const Floats h(random, tokens, shape.hidden, DType::kBF16);
  TestRouting routing(tokens, shape.experts, shape.top_k);
  routing.randomize(random);
  MoeUpDesc here = desc;
  here.tokens = tokens;
  GpuProblem gpu(gpu::scratch_bytes(here));
  SCOPED_TRACE(name);
  const MoeUpKernel* row = fp8_row(moe_up_kernels(), desc, gpu, w, name);
  ASSERT_NE(row, nullptr);
  const Loaded loaded(gpu, w);
  const Tensor in = gpu.tensor(h, DType::kBF16);
  const auto run = [&] {
    const Tensor u = gpu.output(DType::kBF16, {tokens * shape.top_k, shape.width});
    row->run(gpu.cx, u, in, gpu.routing(routing), loaded.weight(), kClampedSwiglu);
    return gpu.values<uint8_t>(u.data, tokens * shape.top_k * shape.width);
  };
  const std::vector<uint8_t> got = run();
  ASSERT_EQ(got, run());
  const Floats x = rounded(h, 0);
  const double e = fp8_error(shape.hidden);
  int64_t codes = 0, other_codes = 0;
  for (int64_t t = 0; t < tokens; t += alone_step(tokens, stride(tokens))) {
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
        const float u = kExpertScale * kE4m3[got[slot * shape.width + place(j)]];
        ASSERT_NEAR(u, want, off + (std::fabs(want) + off) * 0x1p-4 + kExpertScale * 0x1p-10)
            << "slot " << slot << " column " << j;
        ++codes;
        other_codes +=
            got[slot * shape.width + place(j)] !=
            e4m3_from_float(static_cast<float>(want / static_cast<double>(kExpertScale)));
      }
    }
  }
  // Of sums without a block of 32 of 2,880 columns, a tenth off, most would round elsewhere: E4M3
  // has a step of a sixteenth to an eighth.
  EXPECT_LT(static_cast<double>(other_codes), 0.4 * static_cast<double>(codes));
}

bool has_wgmma() { return cuda::open_device().sm == 90; }

class GemmFp8Sm90Gpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_wgmma()) GTEST_SKIP() << "the rows are Hopper's";
  }
};

TEST_F(GemmFp8Sm90Gpu, MoeUpEqualsTheTwin) {
  for (const char* name : kExpertRows) {
    for (const Shape& shape : kShapes)
      for (const int64_t tokens : kTokens)
        if (!is_too_slow(shape.hidden * tokens)) check_up(name, shape, tokens, 3);
    check_up(name, kShapes[3], is_too_slow(192 * 40) ? 3 : 40, kE4m3Span);
  }
}

// u in E4M3 and E4M3 order, as moe_up leaves it.
void check_down(const char* name, const Shape& shape, int64_t tokens, int span) {
  Random random(static_cast<uint32_t>(tokens));
  const MoeDownDesc desc{shape.width, shape.hidden, shape.experts, shape.top_k, Format::kMxfp4,
                         1 << 20,     {},           kClampedSwiglu};
  TestWeight w(random, Format::kMxfp4, shape.experts, desc.hidden, desc.width);
  spread(random, w, span);
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
  SCOPED_TRACE(name);
  const MoeDownKernel* row = fp8_row(moe_down_kernels(), desc, gpu, w, name);
  ASSERT_NE(row, nullptr);
  const Loaded loaded(gpu, w);
  Tensor in = make_tensor(nullptr, DType::kBF16, {slots, desc.width});
  in.data = const_cast<uint8_t*>(gpu.array(codes));
  const auto run = [&] {
    const Tensor d = gpu.output(DType::kF32, {tokens, desc.hidden});
    row->run(gpu.cx, d, in, gpu.routing(routing), loaded.weight());
    return gpu.floats(d);
  };
  const Floats got = run();
  ASSERT_EQ(got.values, run().values);
  WrongBlocks blocks(desc.width);
  for (int64_t t = 0; t < tokens; t += alone_step(tokens, stride(tokens))) {
    for (int64_t n = t % 5; n < desc.hidden; n += stride(desc.hidden * tokens)) {
      double want = 0, error = 0;
      for (int64_t k = 0; k < shape.top_k; ++k) {
        const int64_t choice = t * shape.top_k + k;
        double abs;
        const double y =
            ref::Row(w.view, routing.ids[choice], n).dot(u.row(routing.slot[choice]), &abs);
        const double e = fp8_error(desc.width);
        want += routing.p[choice] * y;
        error += routing.p[choice] * ((e + (shape.top_k + 1) * kEps) * abs +
                                      store_error(DType::kBF16, std::fabs(y) + e * abs));
      }
      ASSERT_NEAR(got.at(t, n), want, error) << "token " << t << " column " << n;
      blocks.add(t, n, got.at(t, n), want);
    }
  }
  EXPECT_LT(blocks.worst(), 1);
}

TEST_F(GemmFp8Sm90Gpu, MoeDownEqualsTheTwin) {
  for (const char* name : kExpertRows) {
    for (const Shape& shape : kShapes)
      for (const int64_t tokens : kTokens)
        if (!is_too_slow(shape.width * tokens)) check_down(name, shape, tokens, 3);
    check_down(name, kShapes[3], is_too_slow(64 * 40) ? 3 : 40, kE4m3Span);
  }
}

std::string row_of(std::string_view arch, Format format) {
  return std::string(arch) + (format == Format::kMxfp4   ? "_w4a8_gemm"
                              : format == Format::kNvfp4 ? "_nvfp4a8_gemm"
                                                         : "_w8a8_gemm");
}

// NVFP4 as its kernels multiply it: 8 g E4M3(m s / 8), of which m s has six bits.
void narrow_nvfp4(std::vector<float>& row, float g) {
  for (float& w : row) {
    int exponent;
    const float mantissa = std::round(std::frexp(w / g / 8, &exponent) * 256);
    w = g * 8 * kE4m3[e4m3_from_float(std::ldexp(mantissa, exponent - 8))];
  }
}

// A row's product as Row::dot() makes it, of what its kernel multiplies.
double dot(const TestWeight& w, int64_t expert, int64_t row, const float* x, double* abs) {
  if (w.view.format != Format::kNvfp4) return ref::Row(w.view, expert, row).dot(x, abs);
  std::vector<float> weights(w.view.cols);
  ref::decode_row(w.view, expert, row, weights.data());
  narrow_nvfp4(weights, w.row_scales[expert * w.view.rows + row]);
  double sum = ref::bias_of(w.view, expert, row);
  *abs = std::fabs(sum);
  for (int64_t k = 0; k < w.view.cols; ++k) {
    const double term = static_cast<double>(weights[k]) * x[k];
    sum += term, *abs += std::fabs(term);
  }
  return sum;
}

void check_dense(std::string_view arch, Format format, int64_t rows, int64_t cols, int64_t tokens,
                 int span) {
  Random random(static_cast<uint32_t>(cols + tokens));
  const OutProjDesc desc{rows, cols, format, 1 << 20};
  TestWeight w(random, format, 1, rows, cols);
  spread(random, w, span);
  const Floats att(random, tokens, cols, DType::kBF16);
  OutProjDesc here = desc;
  here.tokens = tokens;
  GpuProblem gpu(gpu::scratch_bytes(here));
  const OutProjKernel* row = fp8_row(out_proj_kernels(), desc, gpu, w, row_of(arch, format));
  ASSERT_NE(row, nullptr);
  const Loaded loaded(gpu, w);
  const double worst = check_dense_rows(
      gpu, *row, loaded.weight(), att, rounded(att, 0), fp8_error(arch, cols),
      [&](int64_t n, const float* x, double* abs) { return dot(w, 0, n, x, abs); });
  EXPECT_LT(worst, 1);
}

TEST(GemmFp8Gpu, DenseEqualsTheTwinAndItselfAlone) {
  constexpr int64_t kMatrices[][2] = {{2880, 4096}, {256, 512}, {16, 64}, {336, 320}};
  for (const auto& [rows, cols] : kMatrices)
    for (const int64_t tokens : {1, 19, 130, 700})
      if (!is_too_slow(cols * tokens)) {
        for (const Format format : {Format::kMxfp4, Format::kNvfp4, Format::kFp8Row})
          if (has_wgmma()) check_dense("sm90", format, rows, cols, tokens, 3);
        for (const Format format : {Format::kNvfp4, Format::kMxfp8, Format::kFp8Row})
          check_dense("sm121", format, rows, cols, tokens, 3);
      }
  if (has_wgmma())
    check_dense("sm90", Format::kMxfp4, 336, 320, is_too_slow(320 * 130) ? 3 : 130, kE4m3Span);
}

// A dense layer's: u is rounded to bf16.
void check_mlp_up(std::string_view arch, Format format, int64_t hidden, int64_t width,
                  int64_t tokens) {
  Random random(static_cast<uint32_t>(tokens));
  const MlpUpDesc desc{hidden, width, format, 1 << 20};
  TestWeight w(random, format, 1, 2 * width, hidden, /*has_bias=*/false);
  const std::vector<uint16_t> weight = random.bf16s(hidden, 0.3f, 1);
  MlpUpDesc here = desc;
  here.tokens = tokens;
  GpuProblem gpu(gpu::scratch_bytes(here));
  const MlpUpKernel* row = fp8_row(mlp_up_kernels(), desc, gpu, w, row_of(arch, format));
  ASSERT_NE(row, nullptr);
  const Loaded loaded(gpu, w);
  const MlpUpOut out{gpu.output(DType::kBF16, {tokens, width}),
                     gpu.output(DType::kBF16, {tokens, hidden}),
                     gpu.output(DType::kF32, {tokens, hidden})};
  row->run(gpu.cx, out, gpu.tensor(Floats(random, tokens, hidden), DType::kF32),
           gpu.tensor(Floats(random, tokens, hidden), DType::kF32), {gpu.array(weight), 1e-5f},
           loaded.weight(), {});
  const Floats u = gpu.floats(out.u), h = rounded(gpu.floats(out.h), 0);
  const double e = fp8_error(arch, hidden);
  WrongBlocks blocks(hidden);
  for (int64_t t = 0; t < tokens; t += stride(tokens))
    for (int64_t j = 0; j < width; ++j) {
      double gate_abs, up_abs;
      const double gate = dot(w, 0, 2 * j, h.row(t), &gate_abs);
      const double up = dot(w, 0, 2 * j + 1, h.row(t), &up_abs);
      const double want = ref::swiglu(gate, up, {});
      ASSERT_NEAR(u.at(t, j), want,
                  swiglu_error(gate, e * gate_abs, up, e * up_abs, {}) + 0x1p-20 * std::fabs(want) +
                      store_error(DType::kBF16, want) + 1e-6)
          << "token " << t << " column " << j;
      blocks.add(t, 2 * j, u.at(t, j), want);
    }
  EXPECT_LT(blocks.worst(), 1);
}

TEST(GemmFp8Gpu, MlpUpEqualsTheTwin) {
  constexpr int64_t kMatrices[][2] = {{4096, 200}, {320, 72}, {64, 8}};
  for (const auto& [hidden, width] : kMatrices)
    for (const int64_t tokens : {1, 19, 300})
      if (!is_too_slow(hidden * tokens)) {
        for (const Format format : {Format::kNvfp4, Format::kFp8Row})
          if (has_wgmma()) check_mlp_up("sm90", format, hidden, width, tokens);
        for (const Format format : {Format::kNvfp4, Format::kMxfp8, Format::kFp8Row})
          check_mlp_up("sm121", format, hidden, width, tokens);
      }
}

// Experts in NVFP4: u is rounded to bf16, and a row of it once more to E4M3.
void check_nvfp4_up(std::string_view arch, const Shape& shape, int64_t tokens, const Swiglu& act) {
  Random random(static_cast<uint32_t>(tokens));
  const MoeUpDesc desc{
      shape.hidden, shape.width, shape.experts, shape.top_k, Format::kNvfp4, 1 << 20, {}, act};
  TestWeight w(random, Format::kNvfp4, shape.experts, desc.rows(), shape.hidden);
  const Floats h(random, tokens, shape.hidden, DType::kBF16);
  TestRouting routing(tokens, shape.experts, shape.top_k);
  routing.randomize(random);
  MoeUpDesc here = desc;
  here.tokens = tokens;
  GpuProblem gpu(gpu::scratch_bytes(here));
  const MoeUpKernel* row = fp8_row(moe_up_kernels(), desc, gpu, w, row_of(arch, Format::kNvfp4));
  ASSERT_NE(row, nullptr);
  const Loaded loaded(gpu, w);
  const Tensor out = gpu.output(DType::kBF16, {tokens * shape.top_k, shape.width});
  row->run(gpu.cx, out, gpu.tensor(h, DType::kBF16), gpu.routing(routing), loaded.weight(), act);
  const Floats u = gpu.floats(out), x = rounded(h, 0);
  const double e = fp8_error(arch, shape.hidden);
  WrongBlocks blocks(shape.hidden);
  for (int64_t t = 0; t < tokens; t += alone_step(tokens, stride(tokens)))
    for (int64_t k = 0; k < shape.top_k; ++k) {
      const int64_t slot = routing.slot[t * shape.top_k + k];
      const int32_t expert = routing.ids[t * shape.top_k + k];
      for (int64_t j = t % 5; j < shape.width; j += stride(shape.width * tokens)) {
        const int64_t first = act.rows_each() * j;
        double gate_abs, up_abs, want, off;
        const double gate = dot(w, expert, first, x.row(t), &gate_abs);
        if (act.is_relu2()) {
          want = ref::relu2(gate);
          off = (2 * std::fabs(gate) + e * gate_abs) * e * gate_abs;
        } else {
          const double up = dot(w, expert, first + 1, x.row(t), &up_abs);
          want = ref::swiglu(gate, up, act);
          off = swiglu_error(gate, e * gate_abs, up, e * up_abs, act);
        }
        ASSERT_NEAR(u.at(slot, j), want,
                    off + 0x1p-20 * std::fabs(want) + store_error(DType::kBF16, want) + 1e-6)
            << "slot " << slot << " column " << j;
        blocks.add(slot, first, u.at(slot, j), want);
      }
    }
  EXPECT_LT(blocks.worst(), 1);
}

void check_nvfp4_down(std::string_view arch, const Shape& shape, int64_t tokens, bool adds) {
  Random random(static_cast<uint32_t>(tokens));
  MoeDownDesc desc{shape.width, shape.hidden, shape.experts, shape.top_k, Format::kNvfp4, 1 << 20};
  desc.adds = adds;
  TestWeight w(random, Format::kNvfp4, shape.experts, desc.hidden, desc.width);
  const Floats u(random, tokens * shape.top_k, desc.width, DType::kBF16), x = rounded(u, 0);
  const Floats before(random, tokens, desc.hidden);
  TestRouting routing(tokens, shape.experts, shape.top_k);
  routing.randomize(random);
  routing.view.adds = adds;
  MoeDownDesc here = desc;
  here.tokens = tokens;
  GpuProblem gpu(gpu::scratch_bytes(here));
  const MoeDownKernel* row =
      fp8_row(moe_down_kernels(), desc, gpu, w, row_of(arch, Format::kNvfp4));
  ASSERT_NE(row, nullptr);
  const Loaded loaded(gpu, w);
  const Tensor d = gpu.tensor(before, DType::kF32);
  row->run(gpu.cx, d, gpu.tensor(u, DType::kBF16), gpu.routing(routing), loaded.weight());
  const Floats got = gpu.floats(d);
  const double e = fp8_error(arch, desc.width) + (shape.top_k + 1) * kEps;
  WrongBlocks blocks(desc.width);
  for (int64_t t = 0; t < tokens; t += alone_step(tokens, stride(tokens)))
    for (int64_t n = t % 5; n < desc.hidden; n += stride(desc.hidden * tokens)) {
      double want = adds ? before.at(t, n) : 0, error = 0x1p-22 * std::fabs(want) + 1e-6;
      for (int64_t k = 0; k < shape.top_k; ++k) {
        const int64_t choice = t * shape.top_k + k;
        double abs;
        const double y = dot(w, routing.ids[choice], n, x.row(routing.slot[choice]), &abs);
        want += routing.p[choice] * y;
        error += routing.p[choice] * (e * abs + store_error(DType::kBF16, std::fabs(y) + e * abs));
      }
      ASSERT_NEAR(got.at(t, n), want, error) << "token " << t << " column " << n;
      blocks.add(t, n, got.at(t, n), want);
    }
  EXPECT_LT(blocks.worst(), 1);
}

TEST(GemmFp8Gpu, Nvfp4ExpertsEqualTheTwin) {
  for (const Shape& shape :
       {Shape{2048, 768, 16, 8}, Shape{320, 704, 130, 2}, Shape{192, 64, 5, 5}})
    for (const int64_t tokens : {1, 40, 300, 900})
      if (!is_too_slow(shape.width * tokens)) {
        for (const std::string_view arch : {"sm90", "sm121"}) {
          if (arch == "sm90" && !has_wgmma()) continue;
          check_nvfp4_up(arch, shape, tokens, {});
          if (arch == "sm121") check_nvfp4_up(arch, shape, tokens, kRelu2);
          check_nvfp4_down(arch, shape, tokens, tokens % 3 == 0);
        }
      }
}

TEST(RowExponentsGpu, RowsTooWideAreCounted) {
  Random random(3);
  TestWeight w(random, Format::kMxfp4, 1, 48, 128);
  spread(random, w, 2);
  w.scales[5 * 4 + 2] = static_cast<uint8_t>(118 - kE4m3Span - 1);  // row 5
  w.scales[5 * 4] = 118;
  w.scales[17 * 4 + 3] = 255;  // row 17: NaN
  w.pack(Layout::kTiles16x64);
  GpuProblem gpu(0);
  EXPECT_EQ(gpu::find_row_exponents(gpu.cx, gpu.weight(w), nullptr).rows, 2);
}

// A layer's experts, up and down, of 12 tokens, planned as a model plans them.
struct Experts {
  static constexpr int64_t kRows = 128, kTokens = 12, kExperts = 3, kTopK = 2;
  Random random{4};
  TestWeight up{random, Format::kMxfp4, kExperts, 2 * kRows, kRows};
  TestWeight down{random, Format::kMxfp4, kExperts, kRows, kRows};
  MoeUpDesc up_desc{kRows, kRows, kExperts, kTopK, Format::kMxfp4, kTokens, {}, kClampedSwiglu};
  MoeDownDesc down_desc{kRows, kRows, kExperts, kTopK, Format::kMxfp4, kTokens, {}, kClampedSwiglu};
  GpuProblem gpu{std::max(gpu::scratch_bytes(up_desc), gpu::scratch_bytes(down_desc))};
  Sites sites;
  Buffer prepared;

  Experts(ActFormat activations, uint8_t up_exponent, uint8_t down_exponent) {
    gpu.cx.kernels.activations = activations;
    for (TestWeight* w : {&up, &down}) spread(random, *w, 2);
    up.scales[7] = up_exponent, down.scales[9] = down_exponent;
    sites.push_back({{Op::kMoeUp, 0}, "moe_up.0", up_desc, {"h"}, {"u"}});
    sites.push_back({{Op::kMoeDown, 0}, "moe_down.0", down_desc, {"u"}, {"d"}});
    plan_sites(sites, gpu.cx.kernels);
    for (TestWeight* w : {&up, &down}) w->pack(Layout::kTiles16x64);
    sites[0].weight = gpu.weight(up), sites[1].weight = gpu.weight(down);
    prepared = prepare_weights(gpu.cx, sites);
  }
  std::string up_kernel() const { return sites[0].plan.row<MoeUpKernel>(kTokens).name; }
  std::string down_kernel() const { return sites[1].plan.row<MoeDownKernel>(kTokens).name; }
  std::vector<float> run() {
    TestRouting routing(kTokens, kExperts, kTopK);
    Random same(5);
    routing.randomize(same);
    const Routing on_gpu = gpu.routing(routing);
    const Tensor h = gpu.tensor(Floats(same, kTokens, kRows, DType::kBF16), DType::kBF16);
    const Tensor u = gpu.output(DType::kBF16, {kTokens * kTopK, kRows});
    const Tensor d = gpu.output(DType::kF32, {kTokens, kRows});
    moe_up(gpu.cx, sites[0], u, h, on_gpu);
    moe_down(gpu.cx, sites[1], d, u, on_gpu);
    return gpu.floats(d).values;
  }
};

bool all_finite(const std::vector<float>& values) {
  return std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
}

// What either of them cannot be, neither is: u is in one format. The bits are those of the step
// with bf16 activations.
TEST_F(GemmFp8Sm90Gpu, ExpertsTooWideGoToBF16) {
  constexpr uint8_t kFar = 116 - kE4m3Span - 1;
  Experts fits(ActFormat::kFp8, 116, 116);
  EXPECT_TRUE(fits.up_kernel().starts_with("sm90_w4a8_")) << fits.up_kernel();
  EXPECT_TRUE(fits.down_kernel().starts_with("sm90_w4a8_")) << fits.down_kernel();
  EXPECT_TRUE(all_finite(fits.run()));
  for (const auto& [up, down] : {std::pair<uint8_t, uint8_t>{kFar, 116}, {116, kFar}}) {
    Experts wide(ActFormat::kFp8, up, down), bf16(ActFormat::kBF16, up, down);
    EXPECT_TRUE(wide.up_kernel().find("w4a16") != std::string::npos) << wide.up_kernel();
    EXPECT_EQ(wide.up_kernel(), bf16.up_kernel());
    EXPECT_EQ(wide.down_kernel(), bf16.down_kernel());
    EXPECT_EQ(wide.run(), bf16.run());
  }
}

// Products of bf16 by E5M2 have no room for block scales above 2.
TEST_F(GemmFp8Sm90Gpu, ExpertsAboveE5m2GoToTheBatchKernels) {
  Experts one(ActFormat::kBF16, 129, 116);
  EXPECT_EQ(one.up_kernel(), "cuda_w4a16_batch");
  EXPECT_EQ(one.down_kernel(), "sm90_w4a16_narrow");
  EXPECT_TRUE(all_finite(one.run()));
  EXPECT_EQ(gpu::find_row_exponents(one.gpu.cx, one.sites[0].weight, nullptr).too_large, 1);
}

}  // namespace
}  // namespace nibble::ops
