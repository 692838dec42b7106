#include "engine/step_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/error.h"

namespace nibble {
namespace {

StepBounds bounds() {
  return {.limits = {.max_tokens = 8, .max_out = 4},
          .max_seqs = 3,
          .max_len = 100,
          .vocab_size = 50,
          .may_be_fed = true,
          .pages = {6, 6},
          .entries = {12, 9, 3},
          .values = {6, 4, 5},
          .written = 2};
}

// Two sequences of three and one tokens.
struct Example {
  std::vector<int32_t> tokens{7, 8, 9, 49}, positions{0, 1, 2, 99}, out_rows{2, 3};
  std::vector<Span> spans{{0, 3, 0, 2}, {3, 1, 99, 0}};
  std::vector<PageCopy> copies{{1, 5, 0}};
  std::vector<TableChange> changes{{0, 5, 11}, {1, -1, 8}};
  StepMessage message() const {
    StepMessage m{.compares = true, .copies = copies, .changes = changes};
    m.step = {.num_tokens = static_cast<int32_t>(tokens.size()),
              .num_spans = static_cast<int32_t>(spans.size()),
              .num_out = static_cast<int32_t>(out_rows.size()),
              .max_context = 128,
              .all_rows = true,
              .tokens = tokens.data(),
              .positions = positions.data(),
              .spans = spans.data(),
              .out_rows = out_rows.data()};
    return m;
  }
};

std::vector<std::byte> written(const StepMessage& message) {
  std::vector<std::byte> bytes;
  write_message(message, bytes);
  return bytes;
}

std::string refusal(const std::function<void(Example&)>& change) {
  Example example;
  change(example);
  try {
    read_message(written(example.message()), bounds());
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(StepMessage, IsReadAsItWasWritten) {
  const Example example;
  const std::vector<std::byte> bytes = written(example.message());
  EXPECT_LE(std::ssize(bytes), bounds().most_bytes());
  const StepMessage m = read_message(bytes, bounds());
  EXPECT_TRUE(m.compares);
  EXPECT_FALSE(m.ends);
  EXPECT_EQ(m.step.max_context, 128);
  EXPECT_TRUE(m.step.all_rows);
  EXPECT_EQ(std::vector(m.step.tokens, m.step.tokens + m.step.num_tokens), example.tokens);
  EXPECT_EQ(std::vector(m.step.positions, m.step.positions + 4), example.positions);
  EXPECT_EQ(std::vector(m.step.out_rows, m.step.out_rows + 2), example.out_rows);
  EXPECT_EQ(m.step.spans[1].context, 99);
  EXPECT_EQ(std::vector(m.copies.begin(), m.copies.end()), example.copies);
  EXPECT_EQ(std::vector(m.changes.begin(), m.changes.end()), example.changes);
  EXPECT_TRUE(read_message(written({.ends = true}), bounds()).ends);
}

// On GPUs: a token of each sequence, which the step before has found, and how the next are drawn.
struct FedExample {
  std::vector<int32_t> positions{5, 9}, out_rows{0, 1};
  std::vector<Span> spans{{0, 1, 5, 2}, {1, 1, 9, 0}};
  std::vector<ops::Draw> draws{{.temperature = 0.5f, .top_k = 7, .u = 0.25}, {}};
  StepMessage message() const {
    StepMessage m{.is_fed = true, .draws = draws};
    m.step = {.num_tokens = 2,
              .num_spans = 2,
              .num_out = static_cast<int32_t>(out_rows.size()),
              .max_context = 1024,
              .positions = positions.data(),
              .spans = spans.data(),
              .out_rows = out_rows.data()};
    return m;
  }
};

TEST(StepMessage, AFedStepHasDrawsAndNoTokens) {
  FedExample example;
  const std::vector<std::byte> bytes = written(example.message());
  const StepMessage m = read_message(bytes, bounds());
  EXPECT_TRUE(m.is_fed);
  EXPECT_EQ(m.step.tokens, nullptr);
  EXPECT_EQ(m.step.positions[1], 9);
  ASSERT_EQ(m.draws.size(), 2u);
  EXPECT_EQ(m.draws[0].temperature, 0.5f);
  EXPECT_EQ(m.draws[0].top_k, 7);
  EXPECT_EQ(m.draws[0].u, 0.25);
  EXPECT_EQ(m.draws[1].temperature, 0);

  const auto refuse = [](const StepMessage& message, const StepBounds& within, const char* why) {
    const std::vector<std::byte> sent = written(message);
    try {
      read_message(sent, within);
      ADD_FAILURE() << why;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr(why));
    }
  };
  StepBounds cpu = bounds();
  cpu.may_be_fed = false;
  refuse(example.message(), cpu, "tokens that no step has found");
  FedExample fewer;
  fewer.out_rows = {1};
  fewer.draws.clear();
  refuse(fewer.message(), bounds(), "tokens that no step has found");
  for (const ops::Draw& wrong :
       {ops::Draw{.temperature = -1}, ops::Draw{.temperature = NAN}, ops::Draw{.min_p = 2},
        ops::Draw{.top_p = -1}, ops::Draw{.top_k = -1}, ops::Draw{.u = 1}}) {
    FedExample other;
    other.draws[1] = wrong;
    refuse(other.message(), bounds(), "draws that are none");
  }
  FedExample one;
  one.draws.pop_back();
  refuse(one.message(), bounds(), "draws of no row");
}

TEST(StepMessage, WhatAStepCannotHaveIsRefused) {
  EXPECT_EQ(refusal([](Example&) {}), "");
  const std::pair<std::function<void(Example&)>, const char*> faults[] = {
      {[](Example& e) { e.tokens[0] = 50; }, "tokens that are none"},
      {[](Example& e) { e.tokens[0] = -1; }, "tokens that are none"},
      {[](Example& e) { e.positions[3] = 100; }, "positions that are none"},
      {[](Example& e) { e.out_rows[1] = 4; }, "rows that are none"},
      {[](Example& e) { e.spans[1].slot = 3; }, "spans that are none"},
      {[](Example& e) { e.spans[1].context = 100; }, "spans that are none"},
      {[](Example& e) { e.spans[1].q_start = 2; }, "spans that are none"},
      {[](Example& e) { e.spans[0].q_len = 5; }, "spans that are none"},
      {[](Example& e) { e.spans.pop_back(); }, "tokens of no span"},
      {[](Example& e) { e.out_rows.assign(5, 0); }, "more than a step may have"},
      {[](Example& e) { e.copies[0].tensor = 2; }, "pages that are none"},
      {[](Example& e) { e.copies[0].from = 6; }, "pages that are none"},
      {[](Example& e) { e.copies[0].to = -1; }, "pages that are none"},
      {[](Example& e) { e.changes[0].table = 3; }, "entries of tables that are none"},
      {[](Example& e) { e.changes[0].index = 12; }, "entries of tables that are none"},
      {[](Example& e) { e.changes[1].value = 4; }, "entries of tables that are none"},
      {[](Example& e) { e.changes[1].value = -2; }, "entries of tables that are none"},
      {[](Example& e) {
         e.changes[1] = {2, 5, 0};
       },
       "entries of tables that are none"},
      {[](Example& e) {
         e.changes[1] = {2, -1, 0};
       },
       "states that go to no slot"}};
  for (const auto& [change, text] : faults) EXPECT_THAT(refusal(change), testing::HasSubstr(text));
  const std::vector<std::byte> all = written(Example().message());
  for (size_t n = 0; n < all.size(); n += 4)
    EXPECT_THROW(read_message(std::span(all).first(n), bounds()), Error) << n;
}

}  // namespace
}  // namespace nibble
