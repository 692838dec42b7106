// Drafts of a head: the text stays that without drafts, and the head sees the same rows and pages
// for a text, alone or in any company.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_testing.h"
#include "engine/lives_testing.h"
#include "engine/speculation.h"
#include "engine/toy_head.h"

namespace nibble {
namespace {

std::vector<Request> many_requests(uint64_t seed) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 10; ++i) {
    Request r{.prompt = toy_prompt(2 + i * 13, i), .max_tokens = 40 - i};
    r.sampling.logprobs = i % 4;
    if (i % 3 == 0) r.sampling.temperature = 0;
    if (i % 3 == 1) r.sampling.temperature = 0.8f, r.sampling.top_p = 0.9f;
    if (i % 4 == 3) r.sampling.repetition_penalty = 1.3f;
    if (i % 5 == 4) r.prompt_logprobs = 2;
    if (i % 6 == 5) r.stop_ids = {3, 9, 33}, r.min_tokens = 20;
    r.sampling.seed = seed + i;
    requests.push_back(r);
  }
  return requests;
}

struct Known {
  explicit Known(const std::vector<Request>& requests) {
    for (const Request& request : requests) transcripts.push_back(learn(memory, request));
    memory->learns = false;
  }
  std::shared_ptr<ToyHeadMemory> memory = std::make_shared<ToyHeadMemory>();
  std::vector<Transcript> transcripts;
};

void expect_same(const std::vector<Transcript>& a, const std::vector<Transcript>& b,
                 const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i] == b[i]) << what << ", request " << i;
}

TEST(HeadDrafts, SameTextAndSameDraftsForEveryPattern) {
  for (const uint64_t seed : {100, 200}) {
    const std::vector<Request> requests = many_requests(seed);
    const Known known(requests);
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_TRUE(known.transcripts[i] == run_alone(toy_options(), requests[i])) << i;
    for (int32_t k = 1; k <= 7; ++k) {
      for (const uint32_t pattern : {0u, 1u, 0b0110111u, ~0u}) {
        const std::string what = "k " + std::to_string(k) + ", pattern " + std::to_string(pattern);
        const int64_t compared = known.memory->num_compared;
        ToyModel model;
        Engine engine(
            model, {},
            with_head(toy_options(), std::make_shared<ToyHead>(known.memory, pattern), k));
        expect_same(run_all(engine, requests), known.transcripts, what);
        EXPECT_GT(known.memory->num_compared, compared + 500) << what;
        const SpeculationCounts& counts = engine.stats().speculation;
        EXPECT_GT(counts.num_draft_tokens, 0) << what;
        if (pattern == 0) {
          EXPECT_EQ(counts.num_accepted_tokens, 0) << what;
        }
        // But for those behind a stop id, in two of the requests.
        if (pattern == ~0u) {
          EXPECT_GE(counts.num_accepted_tokens, counts.num_draft_tokens - 2 * k) << what;
        }
        EXPECT_EQ(engine.stats().kv_usage, 0);
      }
    }
  }
}

TEST(HeadDrafts, PreemptedOrNot) {
  const std::vector<Request> requests = many_requests(7);
  const Known known(requests);
  for (const int32_t k : {1, 3, 7}) {
    ToyModel model;
    EngineOptions tight =
        with_head(toy_options(), std::make_shared<ToyHead>(known.memory, 0b0110111u), k);
    tight.max_model_len = 256;
    tight.kv_bytes = Engine::kv_bytes_for(model.info(), tight, 256, 2);
    Engine engine(model, {}, tight);
    expect_same(run_all(engine, requests), known.transcripts, "k " + std::to_string(k));
    EXPECT_GE(engine.stats().num_preemptions, 1);
    EXPECT_GT(engine.stats().speculation.num_accepted_tokens, 0);
    EXPECT_EQ(engine.stats().kv_usage, 0);
  }
}

// Nothing is drafted, and texts that were taken out are read again in chunks beside others that are
// fed late.
TEST(HeadDrafts, PreemptedWhereNoneComesTrue) {
  for (const uint64_t seed : {7, 70, 700}) {
    std::vector<Request> requests = many_requests(seed);
    for (Request& r : requests) r.max_tokens += 100;
    const Known known(requests);
    for (const int32_t tokens : {16, 24, 64}) {
      ToyModel model;
      EngineOptions tight = with_head(toy_options(), std::make_shared<ToyHead>(known.memory, 0), 2);
      tight.speculation.is_adaptive = true;
      tight.max_model_len = 384, tight.max_num_batched_tokens = tokens;
      tight.kv_bytes = Engine::kv_bytes_for(model.info(), tight, 384, 2);
      Engine engine(model, {}, tight);
      expect_same(run_all(engine, requests), known.transcripts, std::to_string(tokens));
      EXPECT_GE(engine.stats().num_preemptions, 1);
      EXPECT_EQ(engine.stats().kv_usage, 0);
    }
  }
}

// Whoever goes on from a text finds the head's pages as it would have made them.
TEST(HeadDrafts, PrefixHitsAfterRejectionsAtEveryOffsetOfAPage) {
  const int32_t page = toy_options().page_size;
  for (const int32_t k : {1, 2, 4, 7}) {
    for (int32_t offset = 0; offset < 2 * page; ++offset) {
      Request request{.prompt = toy_prompt(16 + offset, 3), .max_tokens = 30};
      request.sampling.seed = 11;
      Known known({request});
      ToyModel model;
      Engine engine(
          model, {},
          with_head(toy_options(), std::make_shared<ToyHead>(known.memory, 0b0110101u), k));
      expect_same(run_all(engine, {request}), known.transcripts, "");
      const std::vector<int32_t> text = known.memory->texts[0];
      for (int32_t cut = static_cast<int32_t>(text.size()) - page; cut <= std::ssize(text); ++cut) {
        Request next{.prompt = {text.begin(), text.begin() + cut}, .max_tokens = 6};
        next.prompt.push_back(cut % ToyModel::kVocab);  // another id than what came there, mostly
        next.sampling = {.temperature = 0, .logprobs = 3};
        known.memory->learns = true;
        const Transcript alone = learn(known.memory, next);
        known.memory->learns = false;
        const Transcript found = run_all(engine, {next})[0];
        EXPECT_GE(found.cached_tokens, cut - 2 * page);
        EXPECT_TRUE(found == alone) << "cut " << cut;
      }
    }
  }
}

// A head's last row of a page was made with the token behind it: who goes on from there otherwise
// makes it again, and whoever then comes with that text finds this one's.
TEST(HeadDrafts, TextsThatPartBehindAPage) {
  for (const int32_t page : {1, 2, 4, 7}) {
    const auto memory = std::make_shared<ToyHeadMemory>();
    ToyModel model;
    EngineOptions options = with_head(toy_options(), std::make_shared<ToyHead>(memory, ~0u), 3);
    options.page_size = page;
    Engine engine(model, {}, options);
    for (int32_t at = 5; at < 20; ++at)
      for (const int32_t id : {1, 2, 1, 3, 2}) {
        Request request{.prompt = toy_prompt(3 * page + at, 4), .max_tokens = 3};
        request.prompt[at] = 40 + id;
        request.sampling.temperature = 0;
        memory->learns = true;
        const Transcript alone = learn(memory, request);
        memory->learns = false;
        EXPECT_TRUE(run_all(engine, {request})[0] == alone) << page << " " << at;
      }
    EXPECT_GT(engine.stats().prefix_cache_hits, 500) << page;
  }
}

// No page is left for a copy of the last one that is found.
TEST(HeadDrafts, APromptAsLongAsTheMemory) {
  const auto memory = std::make_shared<ToyHeadMemory>();
  ToyModel model;
  EngineOptions options = with_head(toy_options(), std::make_shared<ToyHead>(memory, ~0u), 3);
  options.max_model_len = 64;
  options.kv_bytes = Engine::kv_bytes_for(model.info(), options, 64, 1);
  Engine engine(model, {}, options);
  for (const int32_t id : {1, 1, 2, 1, 2, 3}) {
    Request request{.prompt = toy_prompt(62, 4), .max_tokens = 2};
    request.prompt[60] = id;
    request.sampling.temperature = 0;
    memory->learns = true;
    const Transcript alone = learn(memory, request);
    memory->learns = false;
    EXPECT_TRUE(run_all(engine, {request})[0] == alone);
  }
  EXPECT_GT(engine.stats().prefix_cache_hits, 200);
}

// Window pages that a prompt's own step leaves behind are there for others, as without a head; the
// last token of what is found is computed again.
TEST(HeadDrafts, LongPromptsThatPartAnywhere) {
  const std::vector<int32_t> first = toy_prompt(60, 1);
  for (const int32_t page : {2, 4, 7})
    for (int32_t same = 0; same < 60; ++same) {
      int32_t cached[2];
      for (const bool has_head : {false, true}) {
        ToyModel model;
        EngineOptions options = toy_options();
        if (has_head)
          options = with_head(options,
                              std::make_shared<ToyHead>(std::make_shared<ToyHeadMemory>(), 0), 2);
        options.page_size = page;
        Engine engine(model, {}, options);
        Request request{.prompt = first, .max_tokens = 4};
        run_all(engine, {request});
        for (int32_t i = same; i < 60; ++i) request.prompt[i] = (first[i] + 1) % ToyModel::kVocab;
        cached[has_head] = run_all(engine, {request})[0].cached_tokens;
      }
      EXPECT_EQ(cached[false], same / page * page);
      EXPECT_EQ(cached[true], std::max(cached[false] - 1, 0)) << page << " " << same;
    }
}

TEST(HeadDrafts, AnswersToOnePrompt) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 4; ++i) {
    Request r{.prompt = toy_prompt(21, 6), .max_tokens = 25};
    r.sampling = {.temperature = 1, .seed = 40 + i, .logprobs = 1};
    requests.push_back(r);
  }
  const Known known(requests);
  ToyModel model;
  Engine engine(model, {},
                with_head(toy_options(), std::make_shared<ToyHead>(known.memory, 0b011u), 3));
  expect_same(run_forks(engine, requests), known.transcripts, "");
  EXPECT_GT(engine.stats().speculation.num_accepted_tokens, 0);
}

// None of a head that is never right. It is fed all the same, many tokens at once: what it makes of
// each is what it made of it in a sequence that drafts always, and whoever goes on from there finds
// its pages as whole.
TEST(HeadDrafts, WhereNoneComesTrueItIsFedNowAndThen) {
  std::vector<Request> requests;
  int64_t tokens = 0;
  for (int32_t i = 0; i < 5; ++i) {
    Request r{.prompt = toy_prompt(3 + 9 * i, i), .max_tokens = 400 - 50 * i};
    r.sampling.seed = 3 + i;
    requests.push_back(r);
    tokens += std::ssize(r.prompt) + r.max_tokens;
  }
  const Known known(requests);
  for (const int32_t num : {1, 5}) {
    const std::vector<Request> some(requests.begin(), requests.begin() + num);
    const std::vector<Transcript> expected(known.transcripts.begin(),
                                           known.transcripts.begin() + num);
    ToyModel model;
    EngineOptions options = with_head(toy_options(), std::make_shared<ToyHead>(known.memory, 0), 4);
    options.speculation.is_adaptive = true;
    Engine engine(model, {}, options);
    const int64_t compared = known.memory->num_compared, passes = known.memory->num_passes;
    expect_same(run_all(engine, some), expected, std::to_string(num));
    const SpeculationCounts& counts = engine.stats().speculation;
    EXPECT_LT(counts.num_draft_tokens, 100 * num);
    EXPECT_GT(counts.num_draft_tokens, 0);
    EXPECT_EQ(counts.num_accepted_tokens, 0);
    if (num == 5) {
      EXPECT_GE(known.memory->num_compared - compared, tokens - 3 * num);  // none is left out
    }
    // Some 40 tries until it is known for a fact, and 400 tokens by at least 24.
    EXPECT_LT(known.memory->num_passes - passes, 150);

    std::vector<Request> next;
    for (int32_t i = 0; i < num; ++i) {
      std::vector<int32_t> text = some[i].prompt;
      text.insert(text.end(), expected[i].ids.begin(), expected[i].ids.end() - 3);
      next.push_back({.prompt = text, .sampling = {.temperature = 0}, .max_tokens = 1});
    }
    run_all(engine, next);  // from what is there: the model's windows are shorter than what is late
    if (num == 5) {
      EXPECT_GT(engine.stats().prefix_cache_hits, 0);
    }
  }
}

// A head that was wrong for long is tried again as soon as it would have been right.
TEST(HeadDrafts, WhatItWouldHaveDraftedIsSeen) {
  const auto with_rates = [](double first, double more) {
    Speculation speculation({.method = SpeculationOptions::Method::kHead, .num_tokens = 2}, 2);
    for (int32_t n = 1; n <= 3; ++n)
      for (int32_t i = 0; i < 3; ++i) speculation.add_time(n, first + more * (n - 1));
    for (int32_t i = 0; i < 3; ++i) speculation.add_draft_time(1, 0.1);
    return speculation;
  };
  Speculation speculation = with_rates(1, 0.3);
  std::vector<std::unique_ptr<Sequence>> running;
  running.push_back(std::make_unique<Sequence>(Request{.prompt = {1}, .max_tokens = 99}, 1));
  Sequence& s = *running[0];
  const auto wanted = [&] { return speculation.choose(running), s.num_wanted; };
  EXPECT_GT(wanted(), 0);  // half of them, it is thought
  for (int32_t i = 0; i < 20; ++i) speculation.learn_first(s, 5, 6);
  EXPECT_EQ(wanted(), 0);
  for (int32_t i = 0; i < 3; ++i) speculation.learn_first(s, 5, 5);
  EXPECT_EQ(wanted(), 0);  // a third of them does not pay
  for (int32_t i = 0; i < 17; ++i) speculation.learn_first(s, 5, 5);
  EXPECT_GT(wanted(), 0);
  speculation = with_rates(1, 1);
  EXPECT_EQ(wanted(), 0);  // whatever comes true
}

// Reasoning may be foretold and the answer behind it not: each has what was learnt in it, in the
// sequence itself and as what others begin with.
TEST(HeadDrafts, PartsOfAnAnswerAreLearnedApart) {
  struct Parts : TokenWatcher {
    Watch accept(int32_t) override { return Watch::kGoOn; }
    void rollback(int) override {}
    bool mask(std::span<uint32_t>) override { return false; }
    int part() const override { return at; }
    int at = 0;
  };
  Speculation speculation({.method = SpeculationOptions::Method::kHead, .num_tokens = 2}, 2);
  for (int32_t n = 1; n <= 3; ++n)
    for (int32_t i = 0; i < 3; ++i) speculation.add_time(n, 1 + 0.3 * (n - 1));
  for (int32_t i = 0; i < 3; ++i) speculation.add_draft_time(1, 0.1);
  const auto watcher = std::make_shared<Parts>();
  std::vector<std::unique_ptr<Sequence>> running;
  const auto begin = [&] {
    Request request{.prompt = {1}, .max_tokens = 99};
    request.watcher = watcher;
    running.clear();
    running.push_back(std::make_unique<Sequence>(std::move(request), 1));
  };
  const auto wanted = [&](int part) {
    watcher->at = part;
    return speculation.choose(running), running[0]->num_wanted;
  };
  begin();
  EXPECT_GT(wanted(1), 0);
  for (int32_t i = 0; i < 30; ++i) speculation.learn_first(*running[0], 5, 6);
  EXPECT_EQ(wanted(1), 0);
  EXPECT_GT(wanted(2), 0);
  for (int32_t i = 0; i < 30; ++i) speculation.learn_first(*running[0], 5, 5);
  begin();
  EXPECT_EQ(wanted(1), 0);
  EXPECT_GT(wanted(2), 0);
  EXPECT_GT(wanted(0), 0);  // of which nothing is known
}

// A chat's turns and everything else that happens to requests, over memory for a few. The head's
// pages are compared as its drafts are made; but where there are states, of which a hit's last
// token has none, another row stands in for its own.
class HeadLives : public Lives {
 public:
  HeadLives(uint32_t seed, bool is_recurrent)
      : Lives(seed, [this](const Request& request) { return learn_alone(request); }),
        is_recurrent_(is_recurrent) {
    memory_->compares = !is_recurrent;
  }
  void run() {
    ToyModel model(8192, is_recurrent_);
    const auto pattern = static_cast<uint32_t>(any(0, 1) == 0 ? any(0, 127) : ~0);
    EngineOptions options =
        with_head(toy_options(), std::make_shared<ToyHead>(memory_, pattern), any(1, 7));
    options.speculation.is_adaptive = any(0, 2) == 0;
    options.page_size = any(0, 2) == 0 ? 1 : any(2, 8);
    options.max_num_batched_tokens = any(8, 80);
    options.max_model_len = 256;
    options.max_num_seqs = 4;
    const int64_t least = Engine::kv_bytes_for(model.info(), options, 256, 1);
    const int64_t most = Engine::kv_bytes_for(model.info(), options, 256, 4);
    options.kv_bytes = least + (most - least) * any(0, 10) / 10;
    Engine engine(model, {}, options);
    Lives::run(engine, /*rounds=*/12);
  }
  int64_t num_compared() const { return memory_->num_compared; }

 private:
  Transcript learn_alone(const Request& request) {
    memory_->learns = true;
    const Transcript said = learn(memory_, request, is_recurrent_);
    memory_->learns = false;
    return said;
  }

  bool is_recurrent_;
  std::shared_ptr<ToyHeadMemory> memory_ = std::make_shared<ToyHeadMemory>();
};

TEST(HeadDrafts, RandomLivesKeepTheirText) {
  for (const bool is_recurrent : {false, true}) {
    int64_t num_preemptions = 0, num_hits = 0, num_accepted = 0, num_rejected = 0, compared = 0;
    for (uint32_t seed = 1; seed <= 12; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed) + (is_recurrent ? ", recurrent" : ""));
      HeadLives lives(seed, is_recurrent);
      lives.run();
      num_preemptions += lives.num_preemptions, num_hits += lives.num_hits;
      num_accepted += lives.num_accepted, num_rejected += lives.num_rejected;
      compared += lives.num_compared();
      if (HasFailure()) return;
    }
    EXPECT_GT(num_preemptions, 10);
    EXPECT_GT(num_hits, 1000);
    EXPECT_GT(num_accepted, 500);
    EXPECT_GT(num_rejected, 500);
    EXPECT_EQ(compared > 10'000, !is_recurrent);
  }
}

TEST(HeadDrafts, ARequestMaySayNo) {
  Request request{.prompt = toy_prompt(4, 4), .max_tokens = 20, .max_drafts = 0};
  request.sampling.seed = 1;
  const Known known({request});
  ToyModel model;
  Engine engine(model, {},
                with_head(toy_options(), std::make_shared<ToyHead>(known.memory, ~0u), 4));
  expect_same(run_all(engine, {request}), known.transcripts, "");
  EXPECT_EQ(engine.stats().speculation.num_draft_tokens, 0);
}

TEST(HeadDrafts, PagesOfTheHeadCount) {
  ToyModel model;
  const EngineOptions plain = toy_options();
  const EngineOptions drafts = with_head(plain, nullptr, 4);
  const int64_t more = Engine::kv_bytes_for(model.info(), drafts, 512, 4) -
                       Engine::kv_bytes_for(model.info(), plain, 512, 4);
  // 512 positions of 4 sequences, keys and values of two heads of 3 floats; windows hold one
  // position more, and so up to a page more of each.
  const int64_t head = int64_t{4} * 512 * 2 * ToyHead::kHeads * ToyHead::kDim * 4;
  const int64_t window_pages = int64_t{4} * 2 * 4 * 2 * ToyModel::kDim * 4 * 4;
  EXPECT_GE(more, head);
  EXPECT_LE(more, head + window_pages);
}

}  // namespace
}  // namespace nibble
