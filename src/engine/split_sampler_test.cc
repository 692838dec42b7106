// Rows of which each of several ranks has a slice, sampled against a Sampler that has them whole:
// the same ids, and the same bits of log-probabilities.
#include "engine/split_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <thread>

#include "base/error.h"
#include "dist/test_ranks.h"
#include "models/model.h"

namespace nibble {
namespace {

using Row = std::vector<float>;

struct Case {
  Row logits;
  SamplingParams params;
  SamplingState state;
  std::vector<uint32_t> allowed;
  std::vector<int32_t> banned;
};

template <typename T>
T any_of(std::mt19937& random, std::initializer_list<T> all) {
  return all.begin()[random() % all.size()];
}

// Peaked, flat, with ties, and so wide that most weigh nothing.
Row random_row(std::mt19937& random, int32_t vocab) {
  const float spread = any_of(random, {0.0f, 0.3f, 3.0f, 30.0f, 3000.0f});
  const bool has_ties = random() % 3 == 0;
  std::normal_distribution<float> normal;
  Row row(vocab);
  for (float& x : row) {
    x = spread * normal(random);
    if (has_ties) x = std::round(x);
  }
  return row;
}

Case random_case(std::mt19937& random, int32_t vocab) {
  Case c{.logits = random_row(random, vocab)};
  const auto id = [&] { return static_cast<int32_t>(random() % vocab); };
  c.params.temperature = any_of(random, {0.0f, 0.0f, 0.2f, 1.0f, 1.0f, 2.5f, 1e-6f});
  c.params.top_p = any_of(random, {1.0f, 1.0f, 0.95f, 0.5f, 1e-4f});
  c.params.top_k = any_of(random, {0, 0, 1, 7, 32, 33, 50, vocab});
  c.params.min_p = any_of(random, {0.0f, 0.0f, 0.02f, 0.5f});
  c.params.logprobs = any_of(random, {-1, -1, 0, 5, 20, 32, 40});
  c.state = {.seed = random(), .index = static_cast<int64_t>(random() % 100)};
  for (uint32_t n = random() % 3 == 0 ? random() % 20 : 0; n > 0; --n)
    c.params.logit_bias.emplace_back(id(), any_of(random, {-100.0f, -1.5f, 2.0f, 100.0f}));
  if (random() % 3 == 0) {
    c.params.repetition_penalty = any_of(random, {1.0f, 1.3f});
    c.params.presence_penalty = any_of(random, {0.0f, 0.7f});
    c.params.frequency_penalty = 0.3f;
    std::vector<int32_t> prompt(random() % 60);
    for (int32_t& i : prompt) i = id();
    c.state.counts.start(prompt, 200);
    for (uint32_t n = random() % 80; n > 0; --n) c.state.counts.add_output(id());
  }
  if (random() % 4 == 0) {  // a grammar's: few ids, or nearly all
    c.allowed.assign((vocab + 31) / 32, random() % 2 == 0 ? 0 : ~uint32_t{0});
    for (uint32_t n = random() % 4; n > 0; --n) c.allowed[random() % c.allowed.size()] ^= random();
  }
  if (random() % 4 == 0)
    for (int i = 0; i < 3; ++i) c.banned.push_back(id());
  if (random() % 8 == 0) {  // nothing but what is banned, or nothing at all
    c.allowed.assign((vocab + 31) / 32, 0);
    for (const int32_t b : c.banned) c.allowed[b / 32] |= uint32_t{1} << (b % 32);
  }
  if (random() % 40 == 0) c.logits[id()] = std::numeric_limits<float>::quiet_NaN();
  return c;
}

struct Result {
  Sampler::Sampled sampled;
  std::vector<TokenLogprob> top;
};

std::string describe(const Case& c) {
  const SamplingParams& p = c.params;
  return "temperature " + std::to_string(p.temperature) + " top_p " + std::to_string(p.top_p) +
         " top_k " + std::to_string(p.top_k) + " min_p " + std::to_string(p.min_p) + " logprobs " +
         std::to_string(p.logprobs) + " biases " + std::to_string(p.logit_bias.size()) +
         " allowed " + std::to_string(c.allowed.size()) + " banned " +
         std::to_string(c.banned.size()) + " counted " +
         std::to_string(c.state.counts.entries().size());
}

void expect_same(const Result& want, const Result& got) {
  const auto bits = [](float x) {
    uint32_t word;
    std::memcpy(&word, &x, 4);
    return word;
  };
  EXPECT_EQ(want.sampled.error, got.sampled.error);
  EXPECT_EQ(want.sampled.id, got.sampled.id);
  EXPECT_EQ(bits(want.sampled.logprob), bits(got.sampled.logprob));
  ASSERT_EQ(want.top.size(), got.top.size());
  for (size_t i = 0; i < want.top.size(); ++i) {
    EXPECT_EQ(want.top[i].id, got.top[i].id);
    EXPECT_EQ(bits(want.top[i].logprob), bits(got.top[i].logprob));
  }
}

// `what` on rank 0, of rows that all ranks have their slices of; the others answer until it ends.
void on_ranks(int size, const std::vector<Row>& rows, const std::vector<int32_t>& masked,
              const std::function<void(SplitRows&)>& what) {
  const auto vocab = static_cast<int64_t>(rows[0].size());
  const auto ranks = dist::test_ranks(size);
  std::vector<Cut> cuts;
  std::vector<Row> slices(size);
  for (int r = 0; r < size; ++r) {
    cuts.push_back(cut_units(vocab, 16, {r, size}));
    for (const Row& row : rows)
      slices[r].insert(slices[r].end(), row.begin() + cuts[r].begin, row.begin() + cuts[r].end());
  }
  const auto tensor = [&](int r) {
    return make_tensor(slices[r].data(), DType::kF32, {std::ssize(rows), cuts[r].size});
  };
  dist::on_every_rank(ranks, [&](dist::TcpComm& comm) {
    const int rank = comm.rank();
    if (rank == 0) {
      SplitRows split(comm, cuts, masked);
      split.take(tensor(0));
      what(split);
      const MessageHead end{};
      for (int r = 1; r < size; ++r) comm.send(r, std::as_bytes(std::span(&end, 1)));
      return;
    }
    AnsweredRows answered(comm, cuts[rank], masked);
    answered.take(tensor(rank));
    MessageHead head{MessageHead::Kind::kAsk, 0};
    std::vector<std::byte> message;
    while (true) {
      comm.receive(0, std::as_writable_bytes(std::span(&head, 1)));
      if (head.kind != MessageHead::Kind::kAsk) return;
      ASSERT_LE(static_cast<int64_t>(head.size), answered.most_bytes());
      message.resize(head.size);
      comm.receive(0, message);
      answered.answer(message);
    }
  });
}

TEST(SplitSampler, SaysWhatASamplerOfWholeRowsSays) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    int64_t gathered = 0, wanted = 0;
    std::mt19937 random(seed);
    const auto vocab = any_of<int32_t>(random, {64, 500, 1'111, 4'000});
    std::vector<int32_t> masked;
    for (uint32_t n = random() % 2 == 0 ? random() % 40 : 0; n > 0; --n)
      masked.push_back(static_cast<int32_t>(random() % vocab));
    std::vector<Case> cases;
    std::vector<Row> all;
    std::vector<Result> want;
    Sampler whole(vocab, masked);
    for (int i = 0; i < 40; ++i) {
      Case c = random_case(random, vocab);
      all.push_back(c.logits);
      Result& r = want.emplace_back();
      r.sampled = whole.sample(c.logits, c.params, c.state, {c.allowed, c.banned}, r.top);
      wanted += c.params.logprobs > RowSummary::kMost && r.sampled.error != kNotNumbers;
      cases.push_back(std::move(c));
    }
    for (const int size : {1 + static_cast<int>(seed % 8), 1 + static_cast<int>((seed + 3) % 8)}) {
      on_ranks(size, all, masked, [&](SplitRows& split) {
        SplitSampler sampler(split, whole);
        for (size_t i = 0; i < cases.size(); ++i) {
          const Case& c = cases[i];
          SCOPED_TRACE("seed " + std::to_string(seed) + " row " + std::to_string(i) + ", " +
                       std::to_string(size) + " ranks, " + describe(c));
          Result got;
          got.sampled = sampler.sample(static_cast<int64_t>(i), c.params, c.state,
                                       {c.allowed, c.banned}, got.top);
          expect_same(want[i], got);
        }
        gathered = split.counts().whole_rows;
      });
      EXPECT_EQ(gathered, wanted);  // for what is asked about more ids than ranks say by themselves
    }
    if (HasFailure()) return;
  }
}

// What reaches far down, among equal logits of all ranks: as draws from a whole row, and no row
// travels.
TEST(SplitSampler, DrawsFromWideRowsByTheirParts) {
  constexpr int32_t kVocab = 5'000;
  std::mt19937 random(4);
  std::vector<SamplingParams> settings;
  for (const float temperature : {0.7f, 1.0f, 3.0f})
    for (const int32_t top_k : {0, 33, 100, 1'000, 4'999})
      for (const float top_p : {1.0f, 0.999999f, 0.95f, 0.5f, 1e-6f})
        for (const float min_p : {0.0f, 0.02f})
          settings.push_back(
              {.temperature = temperature, .top_p = top_p, .top_k = top_k, .min_p = min_p});
  std::vector<Row> rows;
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < settings.size(); ++i) {
    Row& row = rows.emplace_back(kVocab);
    const float steps = any_of(random, {0.0f, 1.0f, 4.0f, 1000.0f});  // 0: all are equal
    for (float& x : row) x = steps == 0 ? -0.0f : std::round(normal(random) * steps) / steps;
    row[random() % kVocab] = row[random() % kVocab] + 1e-6f;
  }
  std::vector<int32_t> masked = {7, 4'990};
  Sampler whole(kVocab, masked);
  for (const int size : {2, 5, 8})
    on_ranks(size, rows, masked, [&](SplitRows& split) {
      SplitSampler sampler(split, whole);
      for (size_t i = 0; i < settings.size(); ++i) {
        SCOPED_TRACE(describe({.params = settings[i]}));
        const SamplingState state{.seed = i, .index = size};
        Row row = rows[i];
        std::vector<TokenLogprob> top;
        const auto want = whole.sample(row, settings[i], state, {}, top);
        const auto got = sampler.sample(static_cast<int64_t>(i), settings[i], state, {}, top);
        ASSERT_EQ(want.id, got.id) << size << " ranks, row " << i;
      }
      EXPECT_EQ(split.counts().whole_rows, 0);
    });
}

TEST(RowSlice, LogitsAreInOrderByTheirDigits) {
  const std::vector<float> rising = {kNever,  -std::numeric_limits<float>::max(),
                                     -1.5f,   -1e-42f,
                                     0.0f,    1e-42f,
                                     1.0f,    std::nextafter(1.0f, 2.0f),
                                     1024.0f, std::numeric_limits<float>::max()};
  EXPECT_EQ(order_of(-0.0f), order_of(0.0f));
  for (size_t i = 0; i < rising.size(); ++i) {
    EXPECT_EQ(logit_of(order_of(rising[i])), rising[i]);
    if (i > 0) {
      EXPECT_LT(order_of(rising[i - 1]), order_of(rising[i]));
    }
    OrderPrefix prefix;
    for (uint32_t digit = 0; prefix.num < OrderPrefix::kDigits; prefix = prefix.with(digit))
      ASSERT_TRUE(prefix.has(order_of(rising[i]), digit));
    EXPECT_EQ(prefix.digits, order_of(rising[i]));
  }
  uint32_t digit = 0;
  EXPECT_FALSE(OrderPrefix().with(3).has(order_of(1.0f), digit));
  EXPECT_FALSE(OrderPrefix().with(order_of(1.0f) >> 24).with(1).has(order_of(1.0f), digit));
}

TEST(SplitSampler, ScoresPrompts) {
  std::mt19937 random(5);
  constexpr int32_t kVocab = 777;
  std::vector<Row> rows;
  for (int i = 0; i < 30; ++i) rows.push_back(random_row(random, kVocab));
  rows[7][700] = std::numeric_limits<float>::infinity();
  Sampler whole(kVocab, {});
  on_ranks(3, rows, {}, [&](SplitRows& split) {
    SplitSampler sampler(split, whole);
    for (int i = 0; i < 30; ++i) {
      const int32_t next = i % 5 == 4 ? -1 : 26 * i, k = i % 7 == 0 ? 40 : i % 7;
      PromptLogprobs want{}, got{};
      const bool is_finite = whole.score(rows[i], next, k, want);
      ASSERT_EQ(is_finite, sampler.score(i, next, k, got));
      EXPECT_EQ(is_finite, i != 7);
      if (!is_finite) continue;
      EXPECT_EQ(std::isnan(want.next_logprob), std::isnan(got.next_logprob));
      if (next >= 0) {
        EXPECT_EQ(want.next_logprob, got.next_logprob);
      }
      expect_same({{}, want.top}, {{}, got.top});
    }
    EXPECT_EQ(split.counts().whole_rows, 5);  // of k 40
  });
}

// The settings that chats ask for send what is heaviest and sums, never rows of 200 KB.
TEST(SplitSampler, GathersNoRowsForWhatIsAskedMost) {
  constexpr int32_t kVocab = 100'000;
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  Row row(kVocab);
  for (float& x : row) x = 2 * normal(random);
  for (int i = 0; i < 12; ++i) row[random() % kVocab] = 14 + 0.5f * static_cast<float>(i);
  const std::vector<SamplingParams> settings = {{.temperature = 0},
                                                {.temperature = 0, .logprobs = 5},
                                                {.temperature = 1},
                                                {.temperature = 0.7f, .top_p = 0.8f, .top_k = 20},
                                                {.temperature = 0.6f, .top_p = 0.95f},
                                                {.temperature = 1, .min_p = 0.05f, .logprobs = 0},
                                                // Further down: four histograms.
                                                {.temperature = 1, .top_k = 1'000},
                                                {.temperature = 2, .top_p = 0.95f}};
  const std::vector<Row> rows(settings.size(), row);
  Sampler whole(kVocab, {});
  on_ranks(2, rows, {}, [&](SplitRows& split) {
    SplitSampler sampler(split, whole);
    int64_t before = split.counts().bytes / std::ssize(rows);
    EXPECT_EQ(before, static_cast<int64_t>(sizeof(RowSummary)));
    before = split.counts().bytes;
    for (size_t i = 0; i < settings.size(); ++i) {
      std::vector<TokenLogprob> top;
      ASSERT_EQ(sampler.sample(static_cast<int64_t>(i), settings[i], {}, {}, top).error, nullptr);
      EXPECT_LT(split.counts().bytes - before, i < 6 ? 200 : 9'000) << i;
      before = split.counts().bytes;
    }
    EXPECT_EQ(split.counts().whole_rows, 0);
  });
}

// Of another rank's ids, or of more than there is room for.
TEST(SplitRows, SummariesOfOtherIdsAreRefused) {
  constexpr int32_t kVocab = 64;
  const std::vector<Cut> cuts = {Cut(kVocab, 0, 32), Cut(kVocab, 32, 32)};
  const auto refusal = [&](int32_t num, int32_t id) {
    std::string why;
    const auto ranks = dist::test_ranks(2);
    dist::on_every_rank(ranks, [&](dist::TcpComm& comm) {
      if (comm.rank() == 1) {
        RowSummary said{.is_finite = 1, .num = num};
        said.heaviest[0] = {id, 1.0f};
        return comm.send(0, std::as_bytes(std::span(&said, 1)));
      }
      Row mine(32);
      SplitRows split(comm, cuts, {});
      try {
        split.take(make_tensor(mine.data(), DType::kF32, {1, 32}));
      } catch (const Error& e) {
        why = e.what();
      }
    });
    return why;
  };
  EXPECT_EQ(refusal(1, 32), "");
  EXPECT_EQ(refusal(1, 63), "");
  const std::vector<std::pair<int32_t, int32_t>> wrong = {
      {1, 31}, {1, 64}, {1, -1}, {33, 32}, {-1, 32}};
  for (const auto& [num, id] : wrong)
    EXPECT_THAT(refusal(num, id), testing::HasSubstr("rank 1 says what is heaviest among ids"));
}

TEST(RowSlice, AsksAreReadAsWritten) {
  const Cut cut(100, 48, 40);
  const std::vector<int32_t> ids = {3, 48, 60, 87, 88};
  const std::vector<float> values = {1, 2, 3, kNever, 5};
  const std::vector<uint32_t> allowed = {1, 2, 3, 4};
  std::vector<std::byte> bytes;
  write_ask(
      {.what = RowAsk::What::kAdjust, .row = 2, .ids = ids, .values = values, .allowed = allowed},
      cut, bytes);
  EXPECT_LE(std::ssize(bytes), most_ask_bytes(cut));
  const RowAsk read = read_ask(bytes, cut, 3);
  EXPECT_EQ(read.row, 2);
  EXPECT_THAT(read.ids, testing::ElementsAre(48, 60, 87));
  EXPECT_THAT(read.values, testing::ElementsAre(2, 3, kNever));
  EXPECT_THAT(read.allowed, testing::ElementsAre(2, 3));
  const auto refusal = [&](int64_t rows, size_t at, uint8_t value, size_t size) {
    std::vector<std::byte> changed = bytes;
    changed[at] = static_cast<std::byte>(value);
    changed.resize(size);
    try {
      read_ask(changed, cut, rows);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  std::vector<std::byte> fewer_than_none;
  write_ask({.what = RowAsk::What::kSum, .weighting = {0, 1, 0, -1}}, cut, fewer_than_none);
  EXPECT_THROW(read_ask(fewer_than_none, cut, 3), Error);
  const size_t all = bytes.size();
  EXPECT_THAT(refusal(2, 4, 2, all), testing::HasSubstr("a row that is none"));
  EXPECT_THAT(refusal(3, 0, 9, all), testing::HasSubstr("what nobody knows"));
  EXPECT_THAT(refusal(3, 8, 41, all), testing::HasSubstr("more ids than there are"));
  EXPECT_THAT(refusal(3, 8, 30, all), testing::HasSubstr("less than it says"));
  EXPECT_THAT(refusal(3, 48, 88, all), testing::HasSubstr("ids that are another's"));
  EXPECT_THAT(refusal(3, 40, 1, all), testing::HasSubstr("digits that are none"));
  EXPECT_THAT(refusal(3, 44, 4, all), testing::HasSubstr("digits that are none"));
  EXPECT_THAT(refusal(3, 12, 1, all), testing::HasSubstr("bits of no ids"));
  EXPECT_THAT(refusal(3, 4, 2, all + 4), testing::HasSubstr("more than it says"));
  EXPECT_THAT(refusal(3, 4, 2, 12), testing::HasSubstr("less than it says"));
}

}  // namespace
}  // namespace nibble
