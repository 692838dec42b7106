// Grammars in processes: they are followed as in this one, one that hangs or grows ends alone, what
// is compiled is kept and given back.
#include "server/grammar_service.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <fstream>
#include <future>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "text/chat/harmony_for_test.h"

namespace nibble::server {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr int32_t kEnd = 256;  // in byte_tokenizer()

WantedGrammar regex(const std::string& text) {
  return {.spec = {.kind = GrammarSpec::Kind::kRegex, .text = text}, .field = "guided_regex"};
}
WantedGrammar schema(const std::string& text) {
  return {.spec = {.kind = GrammarSpec::Kind::kJsonSchema, .text = text}, .field = "schema"};
}

// Minutes for xgrammar.
WantedGrammar endless_schema(int salt = 0) {
  std::string text =
      R"({"type":"object","minProperties":150,"additionalProperties":false,"properties":{)";
  for (int i = 0; i < 300; ++i) {
    text += (i > 0 ? ",\"p" : "\"p") + std::to_string(i + 1'000 * salt) + R"(":{"type":"integer"})";
  }
  return schema(text + "}}");
}

// The processes that this one has forked, and those have.
std::set<int> descendants() {
  std::map<int, int> parents;
  DIR* const dir = opendir("/proc");
  while (const dirent* entry = readdir(dir)) {
    std::ifstream stat("/proc/" + std::string(entry->d_name) + "/stat");
    std::string text;
    if (std::isdigit(entry->d_name[0]) == 0 || !std::getline(stat, text)) continue;
    std::istringstream rest(text.substr(text.rfind(')') + 2));
    char state = 0;
    int parent = 0;
    rest >> state >> parent;
    if (state != 'Z') parents[std::stoi(entry->d_name)] = parent;
  }
  closedir(dir);
  std::set<int> found;
  for (auto [pid, parent] : parents) {
    while (parents.contains(parent) && parent != getpid()) parent = parents[parent];
    if (parent == getpid()) found.insert(pid);
  }
  return found;
}
size_t num_descendants() { return descendants().size(); }

bool eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 12'000 && !holds(); ++i) std::this_thread::sleep_for(milliseconds(5));
  return holds();
}

class GrammarServiceTest : public ::testing::Test {
 protected:
  void serve(GrammarLimits limits = {}) {
    service_ = std::make_unique<GrammarService>(limits);
    service_->serve(GrammarVocabulary(byte_tokenizer(), byte_tokenizer().size()));
  }
  std::future<GrammarService::Answer> begin(std::vector<WantedGrammar> wanted,
                                            const std::string& client = "one") {
    auto promise = std::make_shared<std::promise<GrammarService::Answer>>();
    service_->compile(client, std::move(wanted), [promise](GrammarService::Answer answer) {
      promise->set_value(std::move(answer));
    });
    return promise->get_future();
  }
  GrammarService::Answer compile(std::vector<WantedGrammar> wanted) {
    return begin(std::move(wanted)).get();
  }
  // How many of the text's ids fit; -1: the mask has failed.
  static int follow(GrammarRun& run, const std::string& text) {
    std::mutex mutex;
    std::condition_variable came;
    run.on_mask([&] { came.notify_all(); });
    int fit = 0;
    for (const char c : text) {
      std::unique_lock lock(mutex);
      while (run.mask_state() == MaskState::kPending) came.wait_for(lock, milliseconds(10));
      if (run.mask_state() == MaskState::kFailed) return fit = -1, fit;
      if (!run.accept(static_cast<unsigned char>(c))) break;
      ++fit;
    }
    run.on_mask({});
    return fit;
  }

  std::unique_ptr<GrammarService> service_;
};

TEST_F(GrammarServiceTest, TextsFollowTheirGrammars) {
  serve();
  auto answer = compile({regex("ab+c"), schema(R"({"type":"object"})")});
  ASSERT_FALSE(answer.error.has_value()) << answer.error->message;
  ASSERT_EQ(answer.grammars.size(), 2u);
  GrammarRun first(answer.grammars[0], {kEnd}), second(answer.grammars[1], {kEnd}),
      third(answer.grammars[0], {kEnd});
  answer.grammars.clear();
  EXPECT_EQ(follow(first, "abbx"), 3);
  EXPECT_EQ(follow(second, "{\"a\": 1}}"), 8);
  EXPECT_EQ(follow(third, "abc"), 3);
  first.rollback_to(1);  // its mask is asked for anew, and may be here already
  EXPECT_EQ(follow(first, "bc"), 2);
  EXPECT_TRUE(eventually([&] { return first.mask_state() == MaskState::kReady; }));
  std::vector<uint32_t> bits(static_cast<size_t>(byte_tokenizer().size() + 31) / 32, ~0u);
  first.mask(bits);
  EXPECT_EQ(bits[kEnd / 32], 1u << (kEnd % 32));
}

TEST_F(GrammarServiceTest, WhatCannotBeCompiledIsRefusedByItsName) {
  serve();
  auto bad = schema(R"({"not":{}})");
  bad.field = "tools[1]";
  const auto answer = compile({regex("a"), bad});
  ASSERT_TRUE(answer.error.has_value());
  EXPECT_EQ(answer.error->param, "tools[1]");
  EXPECT_THAT(answer.error->message, HasSubstr("\"not\""));
  bad.otherwise = GrammarSpec{.kind = GrammarSpec::Kind::kJsonObject};
  EXPECT_EQ(compile({regex("a"), bad}).grammars.size(), 2u);
  EXPECT_TRUE(eventually([&] { return service_->stats().num_requests == 0; }));
  EXPECT_EQ(service_->stats().num_sets, 1u);
}

TEST_F(GrammarServiceTest, OthersPassCompilationsThatHang) {
  serve({.time = std::chrono::hours(1), .max_compiling = 4});
  for (int i = 0; i < 3; ++i) begin({endless_schema(i)}, std::to_string(i));
  EXPECT_EQ(compile({regex("[a-z]+")}).grammars.size(), 1u);
}

// Two clients send as many as they may, which is no more than they leave to others, and go on to.
TEST_F(GrammarServiceTest, AClientsFloodHoldsUpNobodyElse) {
  serve({.time = std::chrono::hours(1), .max_waiting = 32, .max_compiling = 4});
  std::vector<std::future<GrammarService::Answer>> flood;
  for (int i = 0; i < 40; ++i)
    for (const int client : {1, 2})
      flood.push_back(begin({endless_schema(100 * client + i)}, std::to_string(client)));
  EXPECT_TRUE(eventually([&] { return service_->stats().num_sets == 3; }));
  const auto is_refused = [](auto& one) {
    return one.wait_for(milliseconds(0)) == std::future_status::ready;
  };
  EXPECT_TRUE(eventually([&] { return std::ranges::count_if(flood, is_refused) >= 40; }));
  for (auto& one : flood)
    if (is_refused(one)) {
      EXPECT_EQ(one.get().error->status, 503);
    }
  for (const std::string client : {"three", "four"}) {
    auto small = begin({schema(R"({"type":"object"})")}, client);
    ASSERT_EQ(small.wait_for(std::chrono::seconds(60)), std::future_status::ready) << client;
    EXPECT_EQ(small.get().grammars.size(), 1u) << client;
  }
}

// For ThreadSanitizer: they ask while others are placed.
TEST_F(GrammarServiceTest, ManyThreadsAskAtOnce) {
  constexpr int kThreads = 8, kEach = 25;
  serve({.time = std::chrono::hours(1), .max_waiting = kThreads * kEach});
  std::atomic<int> num_compiled = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j < kEach; ++j) {
        const std::string text = std::to_string(i * kEach + j);
        if (!compile({regex(text)}).error.has_value()) ++num_compiled;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_compiled, kThreads * kEach);
}

TEST_F(GrammarServiceTest, CompilationsThatHangEnd) {
  serve({.time = milliseconds(2'000), .max_compiling = 4});
  std::vector<std::future<GrammarService::Answer>> hanging;
  for (int i = 0; i < 3; ++i) hanging.push_back(begin({endless_schema(i)}, std::to_string(i)));
  for (auto& one : hanging) {
    const auto answer = one.get();
    ASSERT_TRUE(answer.error.has_value());
    EXPECT_EQ(answer.error->status, 400);
    EXPECT_THAT(answer.error->message, HasSubstr("to compile"));
  }
  // Their processes are gone: the first one is left.
  EXPECT_TRUE(eventually([] { return num_descendants() == 1; })) << num_descendants();
  EXPECT_EQ(compile({regex("[a-y]+")}).grammars.size(), 1u);
}

TEST_F(GrammarServiceTest, SaysWhereMemoryIsMissing) {
  serve({.time = std::chrono::hours(1), .max_bytes = 128 << 20});
  const auto answer = compile({endless_schema()});
  ASSERT_TRUE(answer.error.has_value());
  EXPECT_EQ(answer.error->status, 400);
  EXPECT_THAT(answer.error->message, HasSubstr("more memory than a grammar may have"));
}

TEST_F(GrammarServiceTest, AToolWhoseSchemaTakesTooLongIsHeldToAnyObject) {
  serve({.time = milliseconds(2'000)});
  auto tool = endless_schema();
  tool.otherwise = GrammarSpec{.kind = GrammarSpec::Kind::kJsonObject};
  const auto answer = compile({regex("[a-z]{2}"), tool});
  ASSERT_FALSE(answer.error.has_value()) << answer.error->message;
  GrammarRun strict(answer.grammars[0], {kEnd}), any(answer.grammars[1], {kEnd});
  EXPECT_EQ(follow(strict, "abc"), 2);
  EXPECT_EQ(follow(any, "{\"x\": 1}}"), 8);
}

TEST_F(GrammarServiceTest, AProcessThatHangsFailsItsTextAlone) {
  serve({.time = milliseconds(1'000)});
  const auto good = compile({regex("[a-z]{1,9}")});
  const std::set<int> before = descendants();
  const auto bad = compile({regex("[a-z]{1,9}")});  // of the same set
  GrammarRun slow(bad.grammars[0], {kEnd}), quick(good.grammars[0], {kEnd});
  EXPECT_EQ(follow(quick, "abc"), 3);
  EXPECT_EQ(follow(slow, "abc"), 3);
  for (const int pid : descendants()) {
    if (!before.contains(pid)) kill(pid, SIGSTOP);
  }
  EXPECT_EQ(follow(slow, "de"), -1);
  EXPECT_THAT(slow.fault(), HasSubstr("for one token"));
  EXPECT_EQ(follow(quick, "def"), 3);
  EXPECT_TRUE(eventually([&] { return descendants() == before; }));
  EXPECT_EQ(compile({regex("[a-z]{1,9}")}).grammars.size(), 1u);
}

WantedGrammar large_set(int salt) {
  std::string text = "(";
  for (int i = 0; i < 150; ++i) text += std::to_string(i * 7'919 + salt) + "[a-z]{9}|";
  return regex(text + "x)");
}

TEST_F(GrammarServiceTest, SetsAreKeptAndTheLongestUnusedGoWhereTheyHoldTooMuch) {
  serve();
  ASSERT_EQ(compile({large_set(1)}).grammars.size(), 1u);
  EXPECT_TRUE(eventually([&] { return num_descendants() == 2; }));  // the first, and the set's
  const std::set<int> with_set = descendants();
  ASSERT_EQ(compile({large_set(1)}).grammars.size(), 1u);
  EXPECT_TRUE(eventually([&] { return service_->stats().num_requests == 0; }));
  EXPECT_TRUE(eventually([&] { return descendants() == with_set; }));  // not compiled again
  const int64_t each = service_->stats().held_bytes;
  ASSERT_GT(each, 64 << 10);

  service_ = nullptr;
  const GrammarLimits limits{.max_bytes = std::max<int64_t>(5 * each, 64 << 20)};
  const auto enough = static_cast<int>(limits.max_bytes / each) + 5;
  serve(limits);
  for (int salt = 1; salt <= std::min(enough, 80); ++salt) {
    EXPECT_EQ(compile({large_set(salt)}).grammars.size(), 1u);
  }
  EXPECT_TRUE(eventually([&] { return service_->stats().num_requests == 0; }));
  EXPECT_LE(service_->stats().held_bytes, limits.max_bytes);
  EXPECT_LE(service_->stats().num_sets, 64u);
  EXPECT_TRUE(eventually([&] { return num_descendants() == 1 + service_->stats().num_sets; }));
}

TEST_F(GrammarServiceTest, StopsWhileItCompiles) {
  serve({.time = std::chrono::hours(1)});  // it would not end by the clock
  for (int i = 0; i < 6; ++i) begin({endless_schema(i)}, std::to_string(i));
  EXPECT_TRUE(eventually([&] { return service_->stats().num_sets == 4; }));
  service_ = nullptr;
  EXPECT_TRUE(eventually([] { return num_descendants() == 0; })) << num_descendants();
}

}  // namespace
}  // namespace nibble::server
