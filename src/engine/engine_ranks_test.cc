// Engines whose steps several ranks compute together, each a thread with its own part of the model
// that ships, over sockets: the text of one rank, whatever the scheduler does; and what becomes of
// requests when a rank is lost or computes something else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

#include "base/error.h"
#include "cpu/thread_pool.h"
#include "dist/test_ranks.h"
#include "engine/engine.h"
#include "engine/engine_testing.h"
#include "engine/step_feed.h"
#include "engine/step_follower.h"
#include "models/draft_head.h"
#include "models/model.h"

namespace nibble {
namespace {

const std::string kModels = std::string(NIBBLE_SOURCE_DIR) + "/models/";
const std::string kShipped = kModels + "nibble-tiny-gpt-oss";
const std::string kRecurrent = kModels + "nibble-tiny-qwen3-next";
constexpr auto kStep = MessageHead::Kind::kStep;

struct Rank {
  Rank(const std::string& path, dist::TcpComm* comm, const LoadOptions& load) {
    cx.pool = &pool;
    cx.comm = comm;
    LoadOptions options = load;
    if (comm != nullptr) options.shard = {comm->rank(), comm->size()};
    model = load_model(cx, path, options);
  }
  cpu::ThreadPool pool{1};
  ops::Ctx cx;
  std::unique_ptr<Model> model;
};

EngineOptions options_of_shipped() {
  return {.max_num_seqs = 16,
          .max_num_batched_tokens = 64,
          .max_model_len = 512,
          .kv_dtype = DType::kF32,
          .kv_bytes = int64_t{256} << 20};
}

// All plan as the rank that has most: as many pages and states on each, whose heads differ.
EngineOptions of_ranks(EngineOptions options, const std::string& path, int32_t size) {
  const auto heads = [&] { return options.planned_groups[0].num_kv_heads; };
  options.planned_groups = describe_model(path).groups;
  options.kv_bytes /= heads();
  for (size_t g = 0; g < options.planned_groups.size(); ++g) {
    LayerGroup most;
    for (int32_t r = 0; r < size; ++r) {
      const LayerGroup group = describe_model(path, {}, {r, size}).groups[g];
      if (group.num_kv_heads + group.recurrent.heads >= most.num_kv_heads + most.recurrent.heads)
        most = group;
    }
    options.planned_groups[g] = most;
  }
  options.kv_bytes *= heads();
  return options;
}

// Rank 0's engine; the others follow until it ends.
class Group {
 public:
  Group(const std::string& path, int size, const EngineOptions& of_one,
        const LoadOptions& load = {}, uint64_t others_seed = 0, const std::string& head = "")
      : ranks_(dist::test_ranks(size)), errors_(size) {
    EngineOptions options = of_ranks(of_one, path, size);
    if (!head.empty())
      options.speculation = {.method = SpeculationOptions::Method::kHead,
                             .num_tokens = 3,
                             .is_adaptive = false,
                             .head_group = describe_draft_head({head}, path).model.groups.at(0)};
    for (int r = 1; r < size; ++r)
      followers_.emplace_back([this, r, path, load, options, others_seed] {
        LoadOptions mine = load;
        mine.seed += others_seed;
        try {
          Rank rank(path, ranks_[r].get(), mine);
          StepFollower(*rank.model, rank.cx, options).run();
        } catch (const Error& e) {
          errors_[r] = e.what();
          ranks_[r]->abort(e.what());
        }
      });
    first_ = std::make_unique<Rank>(path, ranks_[0].get(), load);
    if (!head.empty())
      options.speculation.head = load_draft_head(first_->cx, {head}, *first_->model, {});
    engine_ = std::make_unique<Engine>(*first_->model, first_->cx, options);
  }
  ~Group() { end(); }
  Engine& engine() { return *engine_; }
  dist::TcpComm& comm(int rank) { return *ranks_[rank]; }
  // Why each rank ended; empty: in good order.
  std::vector<std::string> end() {
    engine_.reset();
    followers_.clear();  // joins
    return errors_;
  }

 private:
  std::vector<std::unique_ptr<dist::TcpComm>> ranks_;
  std::vector<std::string> errors_;
  std::vector<std::jthread> followers_;
  std::unique_ptr<Rank> first_;
  std::unique_ptr<Engine> engine_;
};

// Greedy and drawn, with lengths on both sides of window and chunk.
std::vector<Request> requests_of(int32_t vocab) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 12; ++i) {
    Request r{.prompt = toy_prompt(1 + i * 13, i, vocab), .max_tokens = 20 - i};
    r.sampling.logprobs = 2;
    r.sampling.seed = 7 + i;
    if (i % 3 != 2) r.sampling.temperature = 0;
    requests.push_back(r);
  }
  return requests;
}

// Sums of parts are rounded differently from the sum of all: by 2^-24 a product, which six layers
// make 1e-5 of logits of about 10. The ids are the same where no two logits are as near as that.
constexpr float kTolerance = 1e-3f;

void expect_same(const std::vector<Transcript>& want, const std::vector<Transcript>& got) {
  ASSERT_EQ(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(want[i].ids, got[i].ids) << "request " << i;
    EXPECT_EQ(want[i].finish, got[i].finish) << got[i].error;
    for (size_t n = 0; n < std::min(want[i].outputs.size(), got[i].outputs.size()); ++n)
      EXPECT_NEAR(want[i].outputs[n].logprob, got[i].outputs[n].logprob, kTolerance);
    ASSERT_EQ(want[i].scores.size(), got[i].scores.size());
    for (size_t n = 0; n < want[i].scores.size(); ++n) {
      if (std::isnan(want[i].scores[n].next_logprob)) continue;
      EXPECT_NEAR(want[i].scores[n].next_logprob, got[i].scores[n].next_logprob, kTolerance);
    }
  }
}

class OneRank : public testing::Test {
 protected:
  explicit OneRank(const std::string& path) : one_(path, nullptr, {}) {}
  Rank one_;
  const std::vector<Request> requests_ = requests_of(one_.model->info().vocab_size);
  std::vector<Transcript> alone(const EngineOptions& options) {
    Engine engine(*one_.model, one_.cx, options);
    return run_all(engine, requests_);
  }
};

class EngineRanks : public OneRank {
 protected:
  EngineRanks() : OneRank(kShipped) {}
};
class RecurrentRanks : public OneRank {
 protected:
  RecurrentRanks() : OneRank(kRecurrent) {}
};

// Two ranks, and four: then each KV head is on two of them.
TEST_F(EngineRanks, SayWhatOneSays) {
  const std::vector<Transcript> want = alone(options_of_shipped());
  for (const int size : {2, 3, 4}) {
    SCOPED_TRACE(std::to_string(size) + " ranks");
    Group group(kShipped, size, options_of_shipped());
    expect_same(want, run_all(group.engine(), requests_));
    EXPECT_GT(group.engine().stats().num_steps, 20);
    EXPECT_EQ(group.end(), std::vector<std::string>(size));
  }
}

// What goes from rank to rank of a row of logits does not grow with the vocabulary.
TEST_F(EngineRanks, SendWhatIsHeaviestOfTheLogits) {
  std::vector<Request> requests = requests_;
  for (size_t i = 0; i < requests.size(); ++i) {
    SamplingParams& p = requests[i].sampling;
    p.logprobs = static_cast<int32_t>(i % 3) - 1;
    if (i % 4 == 1) p.top_p = 0.9f;
    if (i % 4 == 2) p.top_k = 20;
    if (i % 4 == 3) p.repetition_penalty = 1.1f;
  }
  Engine engine(*one_.model, one_.cx, options_of_shipped());
  const std::vector<Transcript> want = run_all(engine, requests);
  Group group(kShipped, 2, options_of_shipped());
  expect_same(want, run_all(group.engine(), requests));
  const RankCounts counts = group.engine().stats().ranks;
  EXPECT_GT(counts.rows, 100);
  EXPECT_EQ(counts.whole_rows, 0);
  const double bytes = static_cast<double>(counts.bytes) / static_cast<double>(counts.rows);
  std::printf("%.0f bytes a row; half of a row: %d\n", bytes, 2 * one_.model->info().vocab_size);
  EXPECT_LT(bytes, 700);
}

// Pages are taken away and given back, shared, and copied before they part: the others do the same.
TEST_F(EngineRanks, DoWhatTheSchedulerDoes) {
  const EngineOptions options = options_of_shipped();
  const std::vector<Transcript> want = alone(options);
  EngineOptions tight = options;
  tight.max_model_len = 192;
  tight.kv_bytes = Engine::kv_bytes_for(one_.model->info(), tight, 192, 1);
  {
    Group group(kShipped, 2, tight);
    expect_same(want, run_all(group.engine(), requests_));
    EXPECT_GE(group.engine().stats().num_preemptions, 1);
  }
  EngineOptions small = options;
  small.max_num_batched_tokens = 16;
  {
    Group group(kShipped, 2, small);
    expect_same(want, run_all(group.engine(), requests_));
    expect_same(want, run_all(group.engine(), requests_));  // out of the prefix cache
    EXPECT_GT(group.engine().stats().prefix_cache_hits, 100);
  }
  Engine engine(*one_.model, one_.cx, options);
  std::vector<Request> answers(4, requests_[5]);
  for (size_t i = 0; i < answers.size(); ++i) {
    answers[i].sampling.temperature = 1;
    answers[i].sampling.seed = i;
  }
  Group group(kShipped, 2, options);
  expect_same(run_forks(engine, answers), run_forks(group.engine(), answers));
}

TEST_F(EngineRanks, VerifyDraftsAndScorePrompts) {
  EngineOptions options = options_of_shipped();
  std::vector<Request> scored = requests_;
  for (Request& r : scored) r.prompt_logprobs = 0;
  Engine engine(*one_.model, one_.cx, options);
  const std::vector<Transcript> want = run_all(engine, scored);
  options.speculation = {.method = SpeculationOptions::Method::kNgram,
                         .num_tokens = 3,
                         .is_adaptive = false,
                         .ngram_min = 1,
                         .ngram_max = 3};
  Group group(kShipped, 2, options);
  expect_same(want, run_all(group.engine(), scored));
  EXPECT_GT(group.engine().stats().speculation.num_draft_tokens, 0);
}

// ---- layers with states

// Two ranks have a key head of each delta net; of more, two have the same, each with value heads of
// its own.
TEST_F(RecurrentRanks, SayWhatOneSays) {
  const std::vector<Transcript> want = alone(options_of_shipped());
  for (const int size : {2, 3, 4}) {
    SCOPED_TRACE(std::to_string(size) + " ranks");
    Group group(kRecurrent, size, options_of_shipped());
    expect_same(want, run_all(group.engine(), requests_));
    EXPECT_EQ(group.end(), std::vector<std::string>(size));
  }
}

// States of all ranks lie in the same slots: those that are kept are found again.
TEST_F(RecurrentRanks, GoOnFromKeptStates) {
  EngineOptions options = options_of_shipped();
  options.max_num_batched_tokens = 32;
  const std::vector<Transcript> want = alone(options);
  std::vector<Request> more = requests_;  // a second turn
  for (size_t i = 0; i < more.size(); ++i) {
    more[i].prompt.insert(more[i].prompt.end(), want[i].ids.begin(), want[i].ids.end());
    more[i].prompt.insert(more[i].prompt.end(), {5, 6, 7});
  }
  Engine engine(*one_.model, one_.cx, options);
  const std::vector<Transcript> want_more = run_all(engine, more);
  Group group(kRecurrent, 2, options);
  expect_same(want, run_all(group.engine(), requests_));
  expect_same(want_more, run_all(group.engine(), more));
  EXPECT_GT(group.engine().stats().prefix_cache_hits, 100);
  EXPECT_GT(group.engine().stats().states_kept, 3);
}

// Behind drafts that did not come true every rank computes its states once more.
TEST_F(RecurrentRanks, ReplayWhatWasSaid) {
  EngineOptions options = options_of_shipped();
  const std::vector<Transcript> want = alone(options);
  options.speculation = {.method = SpeculationOptions::Method::kNgram,
                         .num_tokens = 3,
                         .is_adaptive = false,
                         .ngram_min = 1,
                         .ngram_max = 3};
  Group group(kRecurrent, 2, options);
  expect_same(want, run_all(group.engine(), requests_));
  const SpeculationCounts counts = group.engine().stats().speculation;
  EXPECT_GT(counts.num_accepted_tokens, 5);
  EXPECT_GT(counts.num_draft_tokens, counts.num_accepted_tokens + 5);
  EXPECT_EQ(group.end(), std::vector<std::string>(2));
}

// ---- heads, which draft on rank 0

// Their drafts change no text.
TEST_F(EngineRanks, HeadsDraftOnTheFirst) {
  const std::vector<Transcript> want = alone(options_of_shipped());
  Group group(kShipped, 2, options_of_shipped(), {}, 0, kModels + "nibble-tiny-gpt-oss-eagle3");
  expect_same(want, run_all(group.engine(), requests_));
  expect_same(want, run_all(group.engine(), requests_));  // out of the prefix cache
  EXPECT_GT(group.engine().stats().speculation.num_accepted_tokens, 0);
  EXPECT_EQ(group.end(), std::vector<std::string>(2));
}

// The MTP layer has its target's head, of which a rank has a part.
TEST_F(RecurrentRanks, TheMtpLayerDraftsOnTheFirst) {
  const std::vector<Transcript> want = alone(options_of_shipped());
  Group group(kRecurrent, 2, options_of_shipped(), {}, 0, kRecurrent);
  expect_same(want, run_all(group.engine(), requests_));
  const SpeculationCounts counts = group.engine().stats().speculation;
  EXPECT_GT(counts.num_accepted_tokens, 0);
  EXPECT_GT(counts.num_draft_tokens, counts.num_accepted_tokens);  // some are replayed
  EXPECT_EQ(group.end(), std::vector<std::string>(2));
}

// Behind a prompt's last attention a model leaves rows without logits out, unless a head or a tap,
// which rank 0 alone has, looks at them: then no rank does. (The first step is compared: a tap on
// each.)
TEST_F(EngineRanks, WhatTheFirstLooksAtIsMadeByAll) {
  const auto run_by_turns = [&](Engine& engine) {
    std::vector<Transcript> all;
    for (const int32_t length : {50, 60}) {
      Request request{.prompt = toy_prompt(length, length, engine.model().info().vocab_size),
                      .max_tokens = 4};
      request.sampling.temperature = 0;
      all.push_back(run_all(engine, {request})[0]);
    }
    return all;
  };
  Engine alone(*one_.model, one_.cx, options_of_shipped());
  const std::vector<Transcript> want = run_by_turns(alone);
  for (const std::string& head : {std::string(), kModels + "nibble-tiny-gpt-oss-eagle3"}) {
    SCOPED_TRACE(head);
    Group group(kShipped, 2, options_of_shipped(), {}, 0, head);
    int64_t most = 0;
    if (head.empty())
      group.engine().set_tap([&](std::string_view name, int, const Tensor& value) {
        if (name == "moe_h") most = std::max(most, value.dim(0));
      });
    expect_same(want, run_by_turns(group.engine()));
    EXPECT_EQ(most, head.empty() ? 60 : 0);
    EXPECT_EQ(group.end(), std::vector<std::string>(2));
  }
}

// ---- what goes wrong

std::vector<Transcript> run_to_the_end(Engine& engine, std::vector<Request> requests) {
  std::vector<std::shared_ptr<Transcript>> transcripts;
  for (Request& request : requests) {
    transcripts.push_back(record(request));
    EXPECT_TRUE(engine.submit(std::move(request)).ok());
  }
  return step_until_ended(engine, transcripts);
}

void expect_failed(const std::vector<Transcript>& transcripts, const std::string& why) {
  for (const Transcript& t : transcripts) {
    EXPECT_EQ(t.finish, FinishReason::kError);
    EXPECT_THAT(t.error, testing::HasSubstr(why));
  }
}

// Other weights under the same config: every sum is the same on both, and what each makes of it is
// not. The first step finds out.
TEST_F(EngineRanks, ADifferenceEndsTheRun) {
  const std::string config = kShipped + "/config.json";
  const LoadOptions dummy{.format = LoadFormat::kDummy, .seed = 3};
  Group group(config, 2, options_of_shipped(), dummy, /*others_seed=*/1);
  expect_failed(run_to_the_end(group.engine(), requests_), "computed another residual than rank 0");
  EXPECT_TRUE(group.engine().stats().failed);
  EXPECT_THAT(group.end()[1], testing::HasSubstr("computed another residual"));
}

TEST_F(EngineRanks, ARankThatIsLostEndsEveryRequest) {
  Group group(kShipped, 2, options_of_shipped());
  std::vector<std::shared_ptr<Transcript>> transcripts;
  for (Request request : requests_) {
    transcripts.push_back(record(request));
    ASSERT_TRUE(group.engine().submit(std::move(request)).ok());
  }
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(group.engine().step());
  group.comm(0).abort("rank 1 is gone");
  expect_failed(step_until_ended(group.engine(), transcripts), "the model failed: rank 1 is gone");
  EXPECT_TRUE(group.engine().stats().failed);
}

// With nothing to do, too: nobody is let in any more.
TEST_F(EngineRanks, AnIdleEngineFailsWhenItIsTold) {
  Group group(kShipped, 2, options_of_shipped());
  group.engine().start();
  group.engine().fail("rank 1 is gone");
  for (int i = 0; i < 1000 && !group.engine().stats().failed; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(group.engine().stats().failed);
  Request request = requests_[0];
  record(request);
  EXPECT_FALSE(group.engine().submit(std::move(request)).ok());
}

// Why a rank ends that follows a rank 0 which agrees to all, says one thing, and then the end.
std::string why_refused(const std::string& path, MessageHead::Kind kind,
                        const StepMessage& message) {
  const auto ranks = dist::test_ranks(2);
  const EngineOptions options = of_ranks(options_of_shipped(), path, 2);
  std::string why;
  std::jthread follower([&] {
    Rank rank(path, ranks[1].get(), {});
    try {
      StepFollower(*rank.model, rank.cx, options).run();
    } catch (const Error& e) {
      why = e.what();
    }
  });
  const Rank rank(path, ranks[0].get(), {});
  const ModelInfo& info = rank.model->info();
  std::vector<int32_t> masked_ids;
  agree(*ranks[0], info, Engine::kv_plan_for(info, options), Engine::step_limits(info, options),
        masked_ids);
  std::vector<std::byte> bytes;
  for (const auto& [of, said] : {std::pair(kind, message), {kStep, {.ends = true}}}) {
    write_message(said, bytes);
    const MessageHead head{of, bytes.size()};
    ranks[0]->send(1, std::as_bytes(std::span(&head, 1)));
    ranks[0]->send(1, bytes);
  }
  follower.join();
  return why;
}

TEST_F(EngineRanks, UnknownMessagesAreRefused) {
  EXPECT_THAT(why_refused(kShipped, static_cast<MessageHead::Kind>(7), {}),
              testing::StartsWith("rank 0 sent a message of kind 7 and of "));
}

// The tables of states come first; of them there are fewer than pages, and of a window's pages
// fewer than of a full group's.
TEST_F(EngineRanks, EntriesOfATableStayWithinItsOwnGroup) {
  for (const std::string& path : {kShipped, kRecurrent}) {
    const ModelInfo info = describe_model(path, {}, {0, 2});
    const KvPlan plan = Engine::kv_plan_for(info, of_ranks(options_of_shipped(), path, 2));
    std::vector<int32_t> below(plan.state_slots > 0 ? 2 : 0, plan.state_slots);
    for (size_t g = 0; g < info.groups.size(); ++g)
      if (!info.groups[g].is_recurrent()) below.push_back(plan.group_pages[g]);
    const auto [least, most] = std::ranges::minmax_element(below);
    ASSERT_LT(*least, *most);
    for (size_t table = 0; table < below.size(); ++table) {
      TableChange change{static_cast<int32_t>(table), below[table] - 1, 0};
      const StepMessage message{.changes = {&change, 1}};
      EXPECT_EQ(why_refused(path, kStep, message), "") << path << " " << table;
      ++change.value;
      EXPECT_EQ(why_refused(path, kStep, message),
                "rank 0 sent a step with entries of tables that are none")
          << path << " " << table;
    }
  }
}

// A step of one token at a position of its sequence.
class OneToken {
 public:
  explicit OneToken(int32_t position)
      : position_(position), span_{.q_start = 0, .q_len = 1, .context = position, .slot = 0} {}
  Step step() const {
    return {.num_tokens = 1,
            .num_spans = 1,
            .num_out = 1,
            .max_context = position_ + 1,
            .tokens = &zero_,
            .positions = &position_,
            .spans = &span_,
            .out_rows = &zero_};
  }

 private:
  const int32_t zero_ = 0, position_;
  const Span span_;
};

// Of the two tables of states the first may name none: the sequence begins.
TEST_F(EngineRanks, AStepWritesItsStatesToSlots) {
  TableChange change{0, -1, 0};
  EXPECT_EQ(why_refused(kRecurrent, kStep, {.changes = {&change, 1}}), "");
  change.table = 1;
  EXPECT_EQ(why_refused(kRecurrent, kStep, {.changes = {&change, 1}}),
            "rank 0 sent a step with states that go to no slot");
  const OneToken one(0);
  EXPECT_EQ(why_refused(kRecurrent, kStep, {.step = one.step()}),
            "rank 0 sent a step of a sequence that has no slot for its states");
}

// Nothing of a context may be missing but what a window has left behind: the first group has one.
TEST_F(EngineRanks, AStepSeesPages) {
  const ModelInfo info = describe_model(kShipped, {}, {0, 2});
  const EngineOptions options = of_ranks(options_of_shipped(), kShipped, 2);
  const KvPlan plan = Engine::kv_plan_for(info, options);
  const int32_t size = plan.options.page_size;
  const auto windowed = static_cast<int32_t>(info.groups[0].window == kNoWindow);
  const int32_t window = info.groups[windowed].window;
  ASSERT_NE(window, kNoWindow);
  const int32_t last = (window + size) / size;  // the page of the token
  const OneToken one(window + size);
  const auto why = [&](int32_t full_without, int32_t windowed_without, int32_t begin = 0) {
    std::vector<TableChange> changes;
    for (int32_t table : {0, 1})
      for (int32_t page = table == windowed ? begin : 0; page <= last; ++page)
        if (page != (table == windowed ? windowed_without : full_without))
          changes.push_back({table, page - (table == windowed ? begin : 0), page});
    return why_refused(kShipped, kStep, {.step = one.step(), .changes = changes});
  };
  const auto error = [](int32_t position) {
    return "rank 0 sent a step of a sequence that has no page for position " +
           std::to_string(position);
  };
  EXPECT_EQ(why(0, -1), error(0));
  EXPECT_EQ(why(last, -1), error(last * size));
  EXPECT_EQ(why(-1, last), error(last * size));
  EXPECT_EQ(why(-1, last, /*begin=*/1), error(last * size));
  EXPECT_EQ(why(-1, -1, /*begin=*/2), error(size + 1));
}

// What ranks say of their logits at the start: rank 1's columns begin elsewhere, or are too many.
TEST_F(EngineRanks, OtherColumnsOfLogitsAreRefused) {
  const EngineOptions options = of_ranks(options_of_shipped(), kShipped, 2);
  const auto why = [&](int64_t begins_off, int64_t more) {
    const auto ranks = dist::test_ranks(2);
    const auto agree_as = [&](int rank, int64_t off, int64_t size) {
      ModelInfo info = describe_model(kShipped, {}, {rank, 2});
      info.logits = {info.logits.all, info.logits.begin + off, info.logits.size + size};
      std::vector<int32_t> masked_ids;
      try {
        agree(*ranks[rank], info, Engine::kv_plan_for(info, options),
              Engine::step_limits(info, options), masked_ids);
      } catch (const Error& e) {
        return std::string(e.what());
      }
      return std::string();
    };
    std::jthread other([&] { EXPECT_NE(agree_as(1, begins_off, more), ""); });
    return agree_as(0, 0, 0);
  };
  const std::string other = "rank 1 has other columns of the logits than its own";
  EXPECT_EQ(why(1, 0), other);
  EXPECT_EQ(why(0, 1), other);
  EXPECT_EQ(why(0, std::numeric_limits<int64_t>::max() / 2), other);
  EXPECT_EQ(why(0, -1'000'000'000), other);
  EXPECT_THAT(why(0, -1), testing::StartsWith("all ranks together have "));
}

TEST_F(EngineRanks, OtherPlansAreRefused) {
  EngineOptions more = options_of_shipped();
  more.max_num_seqs = 15;
  const auto ranks = dist::test_ranks(2);
  std::string why;
  std::jthread follower([&] {
    Rank rank(kShipped, ranks[1].get(), {});
    try {
      StepFollower(*rank.model, rank.cx, of_ranks(more, kShipped, 2)).run();
    } catch (const Error& e) {
      why = e.what();
    }
  });
  Rank rank(kShipped, ranks[0].get(), {});
  try {
    Engine engine(*rank.model, rank.cx, of_ranks(options_of_shipped(), kShipped, 2));
    ADD_FAILURE() << "other plans were taken";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("rank 1 planned other pages or steps than rank 0"));
  }
  follower.join();
  EXPECT_THAT(why, testing::HasSubstr("rank 1 planned other pages"));
}

}  // namespace
}  // namespace nibble
