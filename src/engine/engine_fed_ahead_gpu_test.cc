// Heads on a GPU that are fed what a step finds before the host knows it, under --exact: the texts
// are those without drafts, and the drafts those of a head that is fed when all is known.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_testing.h"
#include "engine/gpu_test_model.h"
#include "engine/lives_testing.h"
#include "models/draft_head.h"

namespace nibble {
namespace {

// Allows every other id behind each fifth token, and else all: masks begin among drafts.
class MaskNowAndThen : public TokenWatcher {
 public:
  Watch accept(int32_t) override { return ++num_, Watch::kGoOn; }
  void rollback(int) override {}
  bool mask(std::span<uint32_t> bits) override {
    if (num_ % 5 != 3) return false;
    for (uint32_t& word : bits) word &= 0x55555555u;
    return true;
  }
  MaskState mask_state() const override { return MaskState::kReady; }

 private:
  int32_t num_ = 0;
};

struct Models {
  const char *target, *head;
};

class FedAheadGpu : public testing::TestWithParam<Models> {
 protected:
  FedAheadGpu()
      : loaded_(Format::kBF16, /*exact=*/true, path_of(GetParam().target)),
        head_(load_draft_head(loaded_.cx, {path_of(GetParam().head)}, *loaded_.model,
                              loaded_.load)) {}

  static std::string path_of(const char* model) {
    return std::string(NIBBLE_SOURCE_DIR) + "/models/" + model;
  }

  static EngineOptions options() {
    return {.max_num_seqs = 4,
            .max_num_batched_tokens = 96,
            .max_model_len = 512,
            .kv_bytes = int64_t{64} << 20};
  }

  EngineOptions drafts(int32_t k) const {
    EngineOptions all = options();
    all.speculation = {.method = SpeculationOptions::Method::kHead,
                       .num_tokens = k,
                       .is_adaptive = false,
                       .draws_drafts = k == 3,
                       .head_group = head_->model().info().groups[0],
                       .head = head_};
    return all;
  }

  std::vector<Request> requests(int32_t num, bool are_masked) const {
    std::vector<Request> all;
    for (int32_t i = 0; i < num; ++i) {
      Request r{.prompt = toy_prompt(20 + 13 * i, 1 + i, loaded_.model->info().vocab_size),
                .max_tokens = 40 - 7 * i};
      r.sampling = {.temperature = i % 2 == 0 ? 0.0f : 0.8f, .seed = 7 + i};
      if (are_masked) r.watcher = std::make_shared<MaskNowAndThen>();
      all.push_back(r);
    }
    return all;
  }

  // A profile's engine feeds its head when all is known. Each draft is the same, and so comes true
  // or does not.
  void expect_same_drafts(int32_t num, int32_t k, bool are_masked) {
    SCOPED_TRACE(std::to_string(num) + " sequences, k " + std::to_string(k));
    const auto all = [&] { return requests(num, are_masked); };
    Engine plain(*loaded_.model, loaded_.cx, options());
    const std::vector<Transcript> expected = run_all(plain, all());
    SpeculationCounts counts[2];
    for (const bool is_profile : {false, true}) {
      Engine engine(*loaded_.model, loaded_.cx, drafts(k));
      if (is_profile) engine.set_on_op([](const char*) {});
      EXPECT_TRUE(run_all(engine, all()) == expected);
      EXPECT_TRUE(run_all(engine, all()) == expected) << "after prefix hits";
      counts[is_profile] = engine.stats().speculation;
    }
    EXPECT_GT(counts[0].num_accepted_tokens, 0);
    EXPECT_LT(counts[0].num_accepted_tokens, counts[0].num_draft_tokens);
    EXPECT_EQ(counts[0].num_draft_tokens, counts[1].num_draft_tokens);
    EXPECT_EQ(counts[0].accepted_at, counts[1].accepted_at);
  }

  GpuTestModel loaded_;
  std::shared_ptr<DraftHead> head_;
};

TEST_P(FedAheadGpu, DraftsAreThoseFedBehindTheStep) {
  for (const int32_t num : {1, 2})
    for (const int32_t k : {1, 3, 7}) expect_same_drafts(num, k, /*are_masked=*/false);
}

// What the GPU found is not what is said, and the head is fed once more.
TEST_P(FedAheadGpu, AMaskBeginsAmongDrafts) {
  expect_same_drafts(1, 3, /*are_masked=*/true);
  expect_same_drafts(2, 1, /*are_masked=*/true);
}

// Whose next id the host must see, whose masks come late, who ends at a stop id or is canceled
// among drafts: nobody is drafted for by what was not said.
TEST_P(FedAheadGpu, RandomLivesKeepTheirText) {
  GpuTestModel other(Format::kBF16, /*exact=*/true, path_of(GetParam().target));
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Lives lives(seed, [&](const Request& request) {
      return run_alone(*other.model, other.cx, options(), request);
    });
    EngineOptions with = drafts(static_cast<int32_t>(seed));
    with.speculation.is_adaptive = seed == 2;
    Engine engine(*loaded_.model, loaded_.cx, with);
    lives.run(engine, /*rounds=*/4);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Heads, FedAheadGpu,
    testing::Values(Models{"nibble-tiny-gpt-oss", "nibble-tiny-gpt-oss-eagle3"},
                    Models{"nibble-tiny-qwen3-next", "nibble-tiny-qwen3-next"}),
    [](const auto& info) { return info.index == 0 ? "Eagle3" : "Mtp"; });

}  // namespace
}  // namespace nibble
