#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <set>

#include "base/error.h"
#include "cli/projection.h"
#include "cli/self_check.h"
#include "cpu/thread_pool.h"
#include "cpu/topology.h"
#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "models/step_work.h"

namespace nibble::cli {
namespace {

using ops::ActFormat;
using ops::OutProjDesc;
using ops::OutProjKernel;

// What the projection counts of "op/kernel", or of two of them together; 0: nothing.
int counted_launches(const std::string& row, int64_t tokens) {
  if (const size_t at = row.find(" + "); at != std::string::npos) {
    const int first = counted_launches(row.substr(0, at), tokens),
              second = counted_launches(row.substr(at + 3), tokens);
    return first > 0 && second > 0 ? first + second : 0;
  }
  const size_t slash = row.find('/');
  return launches_of(row.substr(0, slash), row.substr(slash + 1), tokens);
}

struct Setting {
  const char* model;
  Format dense;
  ActFormat activations;
  DType kv;
  bool exact = false;
  bool runs_clusters = true;
};

class SelfCheckGpu : public testing::Test {
 protected:
  ops::Ctx make_ctx(ActFormat activations, bool exact = false) {
    ops::Ctx cx;
    cx.pool = &pool_;
    cx.kernels.gpu = cuda::open_device();
    cx.kernels.activations = activations, cx.kernels.exact = exact;
    cx.activations = DType::kBF16;
    cx.stream = stream_.handle();
    return cx;
  }

  // Every row that is chosen passes.
  std::vector<CheckedRow> check(const Setting& s) {
    ops::Ctx cx = make_ctx(s.activations, s.exact);
    cx.kernels.gpu.runs_clusters &= s.runs_clusters;
    const ops::Sites sites = planned_sites(
        cx, s.model, {.qkv = s.dense, .out = s.dense, .unembed = s.dense, .mlp = s.dense});
    std::vector<CheckedRow> rows = SelfCheck(cx, s.kv).run(sites);
    EXPECT_GE(rows.size(), 9u);
    for (const CheckedRow& r : rows)
      EXPECT_TRUE(r.passed()) << s.model << " " << r.row << " " << r.weights << ", " << r.tokens
                              << " tokens, " << r.output << ": " << r.rms << " " << r.worst;
    return rows;
  }

 private:
  cpu::ThreadPool pool_{cpu::read_cores().usable()};
  cuda::Stream stream_;
};

TEST_F(SelfCheckGpu, PassesOnARightGpu) {
  constexpr Setting kSettings[] = {
      {"openai/gpt-oss-120b", Format::kBF16, ActFormat::kBF16, DType::kBF16},
      {"openai/gpt-oss-120b", Format::kBF16, ActFormat::kBF16, DType::kBF16, /*exact=*/true},
      {"openai/gpt-oss-120b", Format::kMxfp4, ActFormat::kFp8, DType::kF8E4M3},
      {"openai/gpt-oss-120b", Format::kMxfp8, ActFormat::kBF16, DType::kBF16},
      {"openai/gpt-oss-20b", Format::kNvfp4, ActFormat::kBF16, DType::kF8E4M3}};
  int counted = 0;
  for (const Setting& s : kSettings)
    for (const CheckedRow& r : check(s))
      if (const int launches = counted_launches(r.row, r.tokens); launches > 0) {
        EXPECT_EQ(r.launches, launches) << r.row << ", " << r.tokens << " tokens";
        ++counted;
      }
  EXPECT_GE(counted, 10);
}

// What a GB10 alone chooses: E2M1 activations, 8-bit weights by E4M3, rows without clusters; and
// other models' rows, hybrid ones' too.
TEST_F(SelfCheckGpu, PassesOnAGb10InEveryFormat) {
  if (cuda::open_device().sm == 90) GTEST_SKIP() << "a GB10's rows";
  constexpr Setting kSettings[] = {
      {"openai/gpt-oss-120b", Format::kMxfp4, ActFormat::kFp4, DType::kF8E4M3},
      {"openai/gpt-oss-120b", Format::kMxfp8, ActFormat::kFp8, DType::kF8E4M3},
      {"openai/gpt-oss-120b", Format::kNvfp4, ActFormat::kFp8, DType::kF8E4M3},
      {.model = "openai/gpt-oss-120b",
       .dense = Format::kMxfp4,
       .activations = ActFormat::kBF16,
       .kv = DType::kBF16,
       .runs_clusters = false},
      {"nvidia/Qwen3-8B-NVFP4", Format::kBF16, ActFormat::kFp8, DType::kBF16},
      {"nvidia/Llama-3.1-8B-Instruct-FP8", Format::kBF16, ActFormat::kFp8, DType::kBF16},
      {"nvidia/Qwen3-30B-A3B-NVFP4", Format::kBF16, ActFormat::kFp4, DType::kBF16},
      {"nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", Format::kBF16, ActFormat::kFp8, DType::kBF16},
      {"nvidia/Qwen3-Next-80B-A3B-Instruct-NVFP4", Format::kBF16, ActFormat::kFp8, DType::kBF16}};
  std::set<std::string> ran;
  for (const Setting& s : kSettings)
    for (const CheckedRow& r : check(s)) ran.insert(r.row);
  for (const char* row :
       {"out_proj/sm121_w4a4_gemm", "out_proj/sm121_w8a8_gemm", "out_proj/sm121_nvfp4a8_gemm",
        "out_proj/sm121_nvfp4a4_gemm", "moe_up/cuda_w4a16_decode + moe_down/cuda_w4a16_slots"})
    EXPECT_TRUE(ran.contains(row)) << row;
}

// The kernel itself, and then one value of 6,144 is zero.
void forget_one(ops::Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out,
                const Step& s) {
  ops::gpu::out_proj_tiles(cx, d, att, out, s);
  cuda::wait(cx.stream);
  cuda::fill(d.as<float>() + 100, 0, sizeof(float));
}

TEST_F(SelfCheckGpu, RefusesARowThatIsWrongInOneValue) {
  static constexpr auto kTable = std::to_array<OutProjKernel>(
      {{"broken",
        [](const OutProjDesc&, const ops::KernelOptions&) -> const char* { return nullptr; },
        forget_one, Layout::kTiles16x64}});
  const OutProjDesc desc{.hidden = 2880, .width = 4096, .format = Format::kMxfp4};
  const ops::Ctx cx = make_ctx(ActFormat::kBF16);
  ops::Sites sites;
  ops::Site& site =
      sites.emplace_back(ops::Site{ops::Op::kOutProj, "out_proj", desc, {"att"}, {"d"}});
  site.plan = ops::SitePlan(site.key, std::span<const OutProjKernel>(kTable), desc, cx.kernels);
  const auto rows = SelfCheck(cx, DType::kBF16).run(sites);
  EXPECT_THROW(require_passed(rows, cx.kernels.gpu.name), Error);
}

}  // namespace
}  // namespace nibble::cli
