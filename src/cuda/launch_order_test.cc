#include "cuda/launch_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace nibble::cuda {
namespace {

enum class Trigger { kBeforeWait, kAfterWait, kNever };
struct KernelSpec {
  Trigger trigger;
  bool is_dependent;
};

// Start and end of each kernel of a stream, by the rules of programmatic dependent launch, where
// each takes its own time from start to trigger (or from wait to trigger) and to its end.
struct Times {
  std::vector<double> start, end;

  Times(const std::vector<KernelSpec>& kernels, std::mt19937& random) {
    // Now and then next to nothing, now and then very long: races need both.
    const auto some = [&] {
      const double u = std::uniform_real_distribution<double>(0, 1)(random);
      return u < 0.4 ? 0.001 * u : u < 0.8 ? u : 100 * u;
    };
    double trigger = 0, before = some();  // of the kernel in front: when it triggers, when it ends
    for (const KernelSpec& k : kernels) {
      start.push_back(k.is_dependent ? trigger : before);
      const double wait = std::max(start.back() + some(), before);
      const double early = start.back() + some(), late = wait + some();
      // It waits before it ends.
      end.push_back(std::max(early, late) + some());
      trigger = k.trigger == Trigger::kBeforeWait  ? early
                : k.trigger == Trigger::kAfterWait ? late
                                                   : end.back();
      before = end.back();
    }
  }
};

Release release_of(Trigger trigger) {
  return trigger == Trigger::kBeforeWait ? Release::kBeforeWait : Release::kAfterWait;
}

// Against the rules themselves: what counts as complete has ended in every run, and what does not
// has not ended in some, but for kernels that never trigger.
TEST(LaunchOrder, CompleteIsWhatHasEndedInEveryRun) {
  std::mt19937 random(11);
  const auto below = [&](uint32_t n) { return random() % n; };
  for (int round = 0; round < 300; ++round) {
    const bool some_never = round % 2 == 1;
    std::vector<KernelSpec> kernels;
    for (uint32_t n = 0, count = 2 + below(9); n < count; ++n)
      kernels.push_back({static_cast<Trigger>(below(some_never ? 3 : 2)), below(8) != 0});
    LaunchOrder order;
    order.begin_step();
    // claims[n][k]: kernel k counts as complete when n starts.
    std::vector<std::vector<bool>> claims;
    std::vector<int> buffers(kernels.size());
    for (size_t n = 0; n < kernels.size(); ++n) {
      claims.emplace_back();
      for (size_t k = 0; k < n; ++k)
        claims[n].push_back(order.is_complete(&buffers[k]) || !kernels[n].is_dependent);
      ASSERT_EQ(order.launch(release_of(kernels[n].trigger), kernels[n].is_dependent),
                kernels[n].is_dependent);
      order.wrote(&buffers[n]);
    }
    std::vector<std::vector<bool>> ended = claims;
    for (auto& row : ended) std::fill(row.begin(), row.end(), true);
    for (int run = 0; run < 400; ++run) {
      const Times times(kernels, random);
      for (size_t n = 0; n < kernels.size(); ++n)
        for (size_t k = 0; k < n; ++k)
          if (times.end[k] > times.start[n]) ended[n][k] = false;
    }
    for (size_t n = 0; n < kernels.size(); ++n)
      for (size_t k = 0; k < n; ++k) {
        if (claims[n][k]) {
          ASSERT_TRUE(ended[n][k]) << round << ": " << k << " at the start of " << n;
        } else if (!some_never) {
          ASSERT_FALSE(ended[n][k]) << round << ": " << k << " at the start of " << n;
        }
      }
  }
}

TEST(LaunchOrder, TheInputsOfAStepAreCompleteBehindAKernelThatWaits) {
  LaunchOrder order;
  order.begin_step();
  EXPECT_FALSE(order.are_inputs_complete());
  order.launch(Release::kBeforeWait, true);
  EXPECT_FALSE(order.are_inputs_complete());
  order.launch(Release::kAfterWait, true);
  EXPECT_TRUE(order.are_inputs_complete());
  order.begin_step();
  EXPECT_FALSE(order.are_inputs_complete());
  EXPECT_TRUE(!order.launch(Release::kBeforeWait, false));
  EXPECT_TRUE(order.are_inputs_complete());
}

// norm_qkv's x, written by the norm before, behind what one token of gpt-oss launches (experts that
// are chosen behind a wait) and behind what a dense layer would (products that let go at once).
TEST(LaunchOrder, XIsOldBehindExpertsAndNotBehindDenseProducts) {
  const int x = 0;
  LaunchOrder order;
  const auto launch = [&](Release release) { order.launch(release, true); };
  const auto norm = [&] {
    order.begin_step();
    launch(Release::kAfterWait);   // embed
    launch(Release::kBeforeWait);  // the norm
    order.wrote(&x);
  };
  norm();
  launch(Release::kAfterWait);   // moe_up
  launch(Release::kBeforeWait);  // moe_down
  EXPECT_TRUE(order.is_complete(&x));
  norm();
  launch(Release::kBeforeWait);  // a dense layer's products
  launch(Release::kBeforeWait);
  EXPECT_FALSE(order.is_complete(&x));
}

// Of a buffer that nobody has registered nothing is known.
TEST(LaunchOrder, UnknownBuffersCountAsWrittenLast) {
  LaunchOrder order;
  const int known = 0, unknown = 0;
  order.launch(Release::kAfterWait, true);
  order.wrote(&known);
  EXPECT_FALSE(order.is_complete(&known));
  order.launch(Release::kAfterWait, true);
  EXPECT_TRUE(order.is_complete(&known));
  EXPECT_FALSE(order.is_complete(&unknown));
  order.begin_step();
  EXPECT_FALSE(order.is_complete(&known));
}

TEST(LaunchOrder, WithoutDependentLaunchesAllIsComplete) {
  LaunchOrder order;
  order.allow_dependent(false);
  const int buffer = 0;
  EXPECT_FALSE(order.launch(Release::kBeforeWait, true));
  order.wrote(&buffer);
  EXPECT_TRUE(order.is_complete(&buffer));
}

}  // namespace
}  // namespace nibble::cuda
