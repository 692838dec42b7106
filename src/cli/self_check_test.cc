#include "cli/self_check.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <tuple>

#include "base/error.h"
#include "cpu/thread_pool.h"
#include "models/step_work.h"

namespace nibble::cli {
namespace {

using ops::OutProjDesc;
using ops::OutProjKernel;
using ops::Site;

ops::Ctx cpu_ctx(cpu::ThreadPool& pool, ops::ActFormat activations = ops::ActFormat::kFloat) {
  ops::Ctx cx;
  cx.pool = &pool;
  cx.kernels.activations = activations;
  return cx;
}

// Every row that a model's plan chooses on a machine has a problem that it takes: list() ends in a
// failed check where one has not.
void expect_problems(const std::string& model, const ops::KernelOptions& kernels,
                     const DenseFormats& dense = {}) {
  ops::Ctx cx;
  cx.kernels = kernels;
  SelfCheck test(cx, DType::kBF16);
  const ops::Sites sites = planned_sites(cx, model, dense);
  std::vector<std::string> listed;
  for (const CheckedRow& row : test.list(sites)) listed.push_back(row.row);
  for (const Site& site : sites)
    for (const ops::PlanEntry& entry : site.plan.entries()) {
      if (test.unchecked().contains(op_name(site.key.op))) continue;
      const std::string name = std::string(op_name(site.key.op)) + "/" + entry.kernel;
      EXPECT_TRUE(std::ranges::any_of(
          listed, [&](const std::string& row) { return row.find(name) != row.npos; }))
          << name << " of " << model << " on " << kernels.gpu.name;
    }
  EXPECT_TRUE(test.list(sites).empty()) << "a second run would repeat the first";
}

TEST(SelfCheck, FindsAProblemForEveryRow) {
  for (const char* model : {"openai/gpt-oss-120b", "openai/gpt-oss-20b"})
    for (const cuda::Caps& gpu : {cuda::gb10(), cuda::h200(), cuda::Caps{}})
      for (const Format format : {Format::kBF16, Format::kMxfp4, Format::kMxfp8})
        for (const bool exact : {false, true})
          for (const auto activations :
               {ops::ActFormat::kBF16, ops::ActFormat::kFp8, ops::ActFormat::kFp4}) {
            if (activations != ops::ActFormat::kBF16 && (exact || gpu.sm == 0)) continue;
            if (activations == ops::ActFormat::kFp4 && gpu.sm == 90) continue;
            expect_problems(model, {.activations = activations, .gpu = gpu, .exact = exact},
                            {.qkv = format, .out = format, .unembed = format});
          }
}

TEST(SelfCheck, FindsAProblemForEveryRowOfOtherFamilies) {
  const std::string source = NIBBLE_SOURCE_DIR, goldens = source + "/tests/goldens/families/";
  for (const std::string& model :
       {std::string("nvidia/Qwen3-30B-A3B-NVFP4"), std::string("nvidia/Llama-3.1-8B-Instruct-FP8"),
        std::string("Qwen/Qwen3-8B-FP8"), std::string("nvidia/Qwen3-Next-80B-A3B-Instruct-NVFP4"),
        std::string("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4"), goldens + "nemotron_h",
        source + "/models/nibble-tiny-gpt-oss", goldens + "llama", goldens + "llama-ct-int4",
        goldens + "qwen3-awq", goldens + "qwen3_moe-over-all", goldens + "qwen3_5",
        goldens + "qwen3_5_moe-mixed"})
    for (const cuda::Caps& gpu : {cuda::gb10(), cuda::h200()})
      for (const bool exact : {false, true})
        for (const auto activations :
             {ops::ActFormat::kBF16, ops::ActFormat::kFp8, ops::ActFormat::kFp4})
          if (activations == ops::ActFormat::kBF16 ||
              (!exact && (activations == ops::ActFormat::kFp8 || gpu.sm != 90))) {
            SCOPED_TRACE(model + " " + gpu.name);
            expect_problems(model, {.activations = activations, .gpu = gpu, .exact = exact});
          }
}

// This CPU's own rows pass, whatever they round to.
TEST(SelfCheck, PassesWhereRowsAreRight) {
  cpu::ThreadPool pool(2);
  using ops::ActFormat;
  for (const auto& [format, activations, stored] :
       {std::tuple(Format::kBF16, ActFormat::kFloat, DType::kF32),
        std::tuple(Format::kMxfp4, ActFormat::kFloat, DType::kF32),
        std::tuple(Format::kMxfp4, ActFormat::kInt8, DType::kF32),
        std::tuple(Format::kMxfp8, ActFormat::kBF16, DType::kBF16)}) {
    ops::Ctx cx = cpu_ctx(pool, activations);
    cx.activations = stored;
    for (const DType kv : {DType::kBF16, DType::kF8E4M3}) {
      SelfCheck test(cx, kv);
      const auto rows = test.run(planned_sites(cx, "openai/gpt-oss-20b",
                                               {.qkv = format, .out = format, .unembed = format}));
      EXPECT_GE(rows.size(), 7u);
      for (const CheckedRow& r : rows)
        EXPECT_TRUE(r.passed()) << r.row << " " << r.weights << ", " << r.tokens << " tokens, "
                                << r.output << ": " << r.rms << " " << r.worst;
      EXPECT_NO_THROW(require_passed(rows, "this CPU"));
    }
  }
}

// ---- rows that are wrong on purpose ----

enum class Wrong { kNot, kScale, kLanes, kOneElement, kNothing, kNaN };

// The twin, but for one thing.
template <Wrong kWrong>
void wrong_out_proj(ops::Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out,
                    const Step& s) {
  if (kWrong == Wrong::kNothing) return;
  ops::ref::out_proj(cx, d, att, out, s);
  auto* const values = d.as<float>();
  const int64_t n = s.num_tokens * out.rows;
  if (kWrong == Wrong::kScale)
    for (int64_t i = 0; i < n; i += 16) values[i] *= 2;  // one row of each tile
  if (kWrong == Wrong::kLanes)
    for (int64_t i = 0; i + 1 < n; i += 2) std::swap(values[i], values[i + 1]);
  if (kWrong == Wrong::kOneElement) values[n / 2] += 0.5f;
  if (kWrong == Wrong::kNaN) values[n - 1] = NAN;
}

template <Wrong kWrong>
std::vector<CheckedRow> run_wrong(cpu::ThreadPool& pool) {
  static constexpr auto kTable = std::to_array<OutProjKernel>(
      {{"broken",
        [](const OutProjDesc&, const ops::KernelOptions&) -> const char* { return nullptr; },
        wrong_out_proj<kWrong>}});
  const OutProjDesc desc{.hidden = 2880, .width = 4096, .format = Format::kMxfp4};
  ops::Ctx cx = cpu_ctx(pool);
  ops::Sites sites;
  Site& site = sites.emplace_back(Site{ops::Op::kOutProj, "out_proj", desc, {"att"}, {"d"}});
  site.plan = ops::SitePlan(site.key, std::span<const OutProjKernel>(kTable), desc, cx.kernels);
  return SelfCheck(cx, DType::kBF16).run(sites);
}

template <Wrong kWrong>
void expect_refused() {
  cpu::ThreadPool pool(1);
  try {
    require_passed(run_wrong<kWrong>(pool), "this GPU");
    ADD_FAILURE() << "not refused: " << static_cast<int>(kWrong);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
    for (const char* part : {"this GPU", "out_proj/broken", "mxfp4", "24 tokens", "d is "})
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(SelfCheck, RefusesARowThatComputesWrongly) {
  cpu::ThreadPool pool(1);
  EXPECT_NO_THROW(require_passed(run_wrong<Wrong::kNot>(pool), "this GPU"));
  expect_refused<Wrong::kScale>();
  expect_refused<Wrong::kLanes>();
  expect_refused<Wrong::kOneElement>();
  expect_refused<Wrong::kNothing>();
  expect_refused<Wrong::kNaN>();
}

}  // namespace
}  // namespace nibble::cli
