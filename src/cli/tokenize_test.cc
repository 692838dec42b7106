#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "cli/cli.h"

namespace nibble::cli {
namespace {

using testing::HasSubstr;

struct Outcome {
  int status;
  std::string out, err;
};

Outcome tokenize(std::vector<std::string> arguments, const std::string& input) {
  arguments.insert(arguments.begin(),
                   {"nibble", "tokenize", NIBBLE_SOURCE_DIR "/tests/data/tokenizers/llama3"});
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  std::ios::sync_with_stdio(false);  // the command does so too, and it resets the buffers once
  std::istringstream in(input);
  std::ostringstream out;
  std::streambuf* const old_in = std::cin.rdbuf(in.rdbuf());
  std::streambuf* const old_out = std::cout.rdbuf(out.rdbuf());
  std::cin.clear();
  testing::internal::CaptureStderr();
  const int status = run(static_cast<int>(argv.size()), argv.data());
  std::cin.rdbuf(old_in);
  std::cout.rdbuf(old_out);
  return {status, out.str(), testing::internal::GetCapturedStderr()};
}

TEST(Tokenize, TextToIdsAndBack) {
  const Outcome ids = tokenize({}, "hello, world\n");
  EXPECT_EQ(ids.status, 0);
  EXPECT_EQ(tokenize({"--decode"}, ids.out).out, "hello, world\n");
  EXPECT_EQ(tokenize({"--decode"}, "[64,65,\n66]").out, "abc");
}

TEST(Tokenize, TextAsAnArgument) {
  const Outcome ids = tokenize({"hello, world"}, "not read");
  EXPECT_EQ(ids.out, tokenize({}, "hello, world").out);
  EXPECT_EQ(tokenize({"--decode", ids.out}, "").out, "hello, world");
  EXPECT_EQ(tokenize({""}, "not read").out, "\n");
  EXPECT_THAT(tokenize({"--decode", "1 x3"}, "").err, HasSubstr("TEXT"));
  EXPECT_EQ(tokenize({"--jsonl", "hello"}, "").status, 2);
}

TEST(Tokenize, LinesOfJson) {
  const Outcome ids = tokenize({"--jsonl"}, "{\"text\":\"a\"}\n{\"text\":\"\"}\n");
  EXPECT_EQ(ids.out, "{\"ids\":[64]}\n{\"ids\":[]}\n");
  EXPECT_EQ(tokenize({"--jsonl", "--decode"}, ids.out).out, "{\"text\":\"a\"}\n{\"text\":\"\"}\n");
}

TEST(Tokenize, SpecialsOnRequest) {
  const std::string line = "{\"text\":\"<|eot_id|>\"}\n";
  const std::string plain = tokenize({"--jsonl"}, line).out;
  const std::string special = tokenize({"--jsonl", "--specials"}, line).out;
  EXPECT_GT(std::count(plain.begin(), plain.end(), ','), 2);
  EXPECT_EQ(std::count(special.begin(), special.end(), ','), 0);
}

TEST(Tokenize, BadInputNamesTheLine) {
  for (const char* line : {"not json", "{\"txt\":1}", "{\"text\":1}", "[]"}) {
    const Outcome o = tokenize({"--jsonl"}, "{\"text\":\"a\"}\n" + std::string(line) + "\n");
    EXPECT_EQ(o.status, 2) << line;
    EXPECT_THAT(o.err, HasSubstr("line 2"));
    EXPECT_EQ(o.out, "{\"ids\":[64]}\n");
  }
  const Outcome o = tokenize({"--decode"}, "1 2 x3");
  EXPECT_EQ(o.status, 2);
  EXPECT_THAT(o.err, HasSubstr("x3"));
  EXPECT_EQ(tokenize({"--decode"}, "64-65").status, 2);  // no two ids
}

TEST(Tokenize, NamesIdsThatAreNone) {
  for (const char* id : {"-1", "128256000", "2147483647"}) {
    const Outcome o = tokenize({"--decode"}, std::string("64 ") + id + " 65");
    EXPECT_EQ(o.status, 2) << id;
    EXPECT_THAT(o.err, HasSubstr("no token " + std::string(id)));
    EXPECT_EQ(o.out, "");
  }
  const Outcome line = tokenize({"--jsonl", "--decode"}, "{\"ids\":[64]}\n{\"ids\":[-1]}\n");
  EXPECT_EQ(line.status, 2);
  EXPECT_THAT(line.err, HasSubstr("line 2: the model has no token -1"));
}

}  // namespace
}  // namespace nibble::cli
