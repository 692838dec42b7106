#include <gtest/gtest.h>

#include <array>
#include <cstdio>

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

 private:
  cpu::ThreadPool pool_{cpu::read_cores().usable()};
  cuda::Stream stream_;
};

TEST_F(SelfCheckGpu, PassesOnARightGpu) {
  struct Setting {
    const char* model;
    Format dense;
    ActFormat activations;
    DType kv;
    bool exact;
  };
  constexpr Setting kSettings[] = {
      {"openai/gpt-oss-120b", Format::kBF16, ActFormat::kBF16, DType::kBF16, false},
      {"openai/gpt-oss-120b", Format::kBF16, ActFormat::kBF16, DType::kBF16, true},
      {"openai/gpt-oss-120b", Format::kMxfp4, ActFormat::kFp8, DType::kF8E4M3, false},
      {"openai/gpt-oss-120b", Format::kMxfp8, ActFormat::kBF16, DType::kBF16, false},
      {"openai/gpt-oss-20b", Format::kNvfp4, ActFormat::kBF16, DType::kF8E4M3, false}};
  int counted = 0;
  for (const Setting& s : kSettings) {
    ops::Ctx cx = make_ctx(s.activations, s.exact);
    SelfCheck check(cx, s.kv);
    const ops::Sites sites = planned_sites(
        cx, s.model, {.qkv = s.dense, .out = s.dense, .unembed = s.dense, .mlp = s.dense});
    const std::vector<CheckedRow> rows = check.run(sites);
    EXPECT_GE(rows.size(), 9u);
    for (const CheckedRow& r : rows) {
      if (const int launches = counted_launches(r.row, r.tokens); launches > 0) {
        EXPECT_EQ(r.launches, launches) << r.row << ", " << r.tokens << " tokens";
        ++counted;
      }
      EXPECT_TRUE(r.passed()) << r.row << " " << r.weights << ", " << r.tokens << " tokens, "
                              << r.output << ": " << r.rms << " " << r.worst;
    }
  }
  EXPECT_GE(counted, 10);
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
