// What rank 0 of several, each on a GPU, tells the others of steps that verify a head's drafts.
// Here it has the whole model, and the other rank nothing but ears: ranks that compute are in
// tests/ranks_gpu_test.py.
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dist/test_ranks.h"
#include "engine/engine.h"
#include "engine/engine_testing.h"
#include "engine/gpu_test_model.h"
#include "engine/split_rows.h"
#include "engine/step_feed.h"
#include "engine/step_message.h"
#include "models/draft_head.h"

namespace nibble {
namespace {

const std::string kModels = std::string(NIBBLE_SOURCE_DIR) + "/models/";

EngineOptions options_of() {
  return {.max_num_seqs = 4,
          .max_num_batched_tokens = 32,
          .max_model_len = 256,
          .kv_bytes = int64_t{64} << 20,
          .prefix_caching = false};
}

// Rank 1, which has no columns of the logits, agrees to everything and computes nothing.
class Listener {
 public:
  Listener(dist::Comm& comm, const ModelInfo& info, const EngineOptions& options) : comm_(comm) {
    ModelInfo mine = info;
    mine.logits = {info.vocab_size, info.vocab_size, 0};
    limits_ = Engine::step_limits(info, options);
    std::vector<int32_t> masked_ids;
    agree(comm, mine, Engine::kv_plan_for(info, options), limits_, masked_ids);
    const std::vector<int32_t> any(64, std::numeric_limits<int32_t>::max());
    bounds_ = {.limits = limits_,
               .max_seqs = options.max_num_seqs,
               .max_len = options.max_model_len,
               .vocab_size = info.vocab_size,
               .may_be_fed = true,
               .pages = {any.begin(), any.end()},
               .entries = {any.begin(), any.end()},
               .values = any};
    while (hear()) continue;
  }
  // By slot and position the last that it was told.
  const std::map<std::pair<int32_t, int32_t>, int32_t>& tokens() const { return tokens_; }
  int32_t num_verifying() const { return num_verifying_; }
  int32_t num_replays() const { return num_replays_; }

 private:
  bool hear() {
    MessageHead head;
    comm_.receive(0, std::as_writable_bytes(std::span(&head, 1)));
    std::vector<std::byte> bytes(head.size);
    comm_.receive(0, bytes);
    if (head.kind == MessageHead::Kind::kReplay) return ++num_replays_ > 0;
    const StepMessage message = read_message(bytes, bounds_);
    if (message.ends) return false;
    const Step& step = message.step;
    num_verifying_ += step.num_out > step.num_spans;
    for (int32_t i = 0; i < step.num_spans && !message.is_fed; ++i)
      for (int32_t t = 0; t < step.spans[i].q_len; ++t) {
        const int32_t at = step.spans[i].q_start + t;
        tokens_[{step.spans[i].slot, step.positions[at]}] = step.tokens[at];
      }
    if (!message.compares) return true;
    uint64_t hash = 0;  // what rank 0 has of the residual
    comm_.receive(0, std::as_writable_bytes(std::span(&hash, 1)));
    comm_.send(0, std::as_bytes(std::span(&hash, 1)));
    return true;
  }

  dist::Comm& comm_;
  StepLimits limits_;
  StepBounds bounds_;
  std::map<std::pair<int32_t, int32_t>, int32_t> tokens_;
  int32_t num_verifying_ = 0, num_replays_ = 0;
};

struct Models {
  const char *target, *head;
};
class RanksGpu : public testing::TestWithParam<Models> {};

TEST_P(RanksGpu, AreToldOfAHeadsDrafts) {
  GpuTestModel loaded(Format::kBF16, /*exact=*/true, kModels + GetParam().target);
  const ModelInfo& info = loaded.model->info();
  Request request{.prompt = toy_prompt(20, 1, info.vocab_size), .max_tokens = 40};
  request.sampling.temperature = 0;
  const Transcript want = run_alone(*loaded.model, loaded.cx, options_of(), request);

  EngineOptions options = options_of();
  const LoadOptions load{.memory = {.allocate = cuda::device_buffer,
                                    .allocate_staging = cuda::pinned_buffer,
                                    .copy = cuda::copy}};
  const std::shared_ptr<DraftHead> head =
      load_draft_head(loaded.cx, {kModels + GetParam().head}, *loaded.model, load);
  options.speculation = {.method = SpeculationOptions::Method::kHead,
                         .num_tokens = 3,
                         .is_adaptive = false,
                         .head_group = head->model().info().groups[0],
                         .head = head};
  const auto ranks = dist::test_ranks(2);
  std::unique_ptr<Listener> other;
  std::jthread listening([&] { other = std::make_unique<Listener>(*ranks[1], info, options); });
  loaded.cx.comm = ranks[0].get();
  {
    Engine engine(*loaded.model, loaded.cx, options);
    EXPECT_TRUE(run_all(engine, {request})[0] == want);
    EXPECT_GT(engine.stats().speculation.num_accepted_tokens, 3);
  }
  listening.join();
  EXPECT_GT(other->num_verifying(), 3);
  EXPECT_EQ(other->num_replays() > 0, info.replays);
  std::vector<int32_t> text = request.prompt;
  text.insert(text.end(), want.ids.begin(), want.ids.end());
  EXPECT_GE(other->tokens().size(), text.size() - 3);
  for (const auto& [place, id] : other->tokens())
    EXPECT_EQ(id, text.at(place.second)) << "position " << place.second;
}

INSTANTIATE_TEST_SUITE_P(
    Heads, RanksGpu,
    testing::Values(Models{"nibble-tiny-gpt-oss", "nibble-tiny-gpt-oss-eagle3"},
                    Models{"nibble-tiny-qwen3-next", "nibble-tiny-qwen3-next"}),
    [](const auto& info) { return info.index == 0 ? "Eagle3" : "Mtp"; });

}  // namespace
}  // namespace nibble
