#include "cli/cli.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/run_for_test.h"

namespace nibble::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(Usage, NamesWhatIsUnknownInTheOrderGiven) {
  const CommandResult command = run_command({"servee", "x"});
  EXPECT_EQ(command.status, 2);
  EXPECT_THAT(command.err, AllOf(HasSubstr("no command 'servee'"), HasSubstr("serve, bench")));
  const CommandResult flag = run_command({"bench", "serve", "--prot", "1"});
  EXPECT_EQ(flag.status, 2);
  EXPECT_THAT(flag.err, AllOf(HasSubstr("nibble: unknown: --prot 1\n"),
                              HasSubstr("`nibble bench serve --help`")));
}

TEST(Usage, GuessesWhatWasMeant) {
  EXPECT_THAT(run_command({"serv"}).err, HasSubstr("did you mean 'serve'?"));
  EXPECT_THAT(run_command({"tokenise"}).err, HasSubstr("did you mean 'tokenize'?"));
  for (const char* swapped : {"benhc", "caht", "evla"}) {
    EXPECT_THAT(run_command({swapped}).err, HasSubstr("did you mean '"));
  }
  EXPECT_THAT(run_command({"frobnicate"}).err, Not(HasSubstr("did you mean")));
  EXPECT_THAT(run_command({"serve", "x", "--max-modl-len=5"}).err,
              AllOf(HasSubstr("unknown: --max-modl-len=5"), HasSubstr("mean '--max-model-len'?")));
  EXPECT_THAT(run_command({"serve", "x", "--frob", "1"}).err, Not(HasSubstr("did you mean")));
}

TEST(Usage, WholeNumbersFitInto64Bits) {
  for (const char* flag : {"--seed", "--max-num-seqs"}) {
    const CommandResult command = run_command({"serve", "x", flag, "18446744073709551616"});
    EXPECT_EQ(command.status, 2) << flag;
    EXPECT_THAT(command.err, AllOf(HasSubstr(flag), HasSubstr("does not fit into 64 bits")));
  }
  EXPECT_EQ(run_command({"serve", "x", "--seed", "18446744073709551615"}).status, 1);  // no model x
}

TEST(Usage, HelpIsACommandToo) {
  const CommandResult all = run_command({"help"});
  EXPECT_EQ(all.status, 0);
  EXPECT_THAT(all.out, AllOf(HasSubstr("Usage: nibble "), HasSubstr("tokenize")));
  EXPECT_THAT(run_command({"help", "chat"}).out, HasSubstr("Usage: nibble chat "));
}

TEST(Usage, NumbersThatAreNoneAreNamedInShort) {
  for (const char* value : {"abc", "-1"}) {
    const CommandResult result = run_command({"bench", "-p", value});
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr(std::string("Value ") + value + " is no number"));
    EXPECT_LT(result.err.size(), 200u);
  }
}

TEST(Usage, WithoutACommandShowsThemAll) {
  const CommandResult result = run_command({});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("Usage: nibble "), HasSubstr("tokenize")));
}

TEST(Usage, OfAKnownModelThatIsNotHereSaysHowToGetIt) {
  for (const char* command : {"serve", "chat"}) {
    const CommandResult result = run_command({command, "openai/gpt-oss-20b", "--device", "cpu"});
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr("`nibble pull openai/gpt-oss-20b`"));
  }
}

TEST(Usage, DoctorShowsNoOtherDeviceThanTheOneNamed) {
  if (std::filesystem::exists("/proc/driver/nvidia/gpus")) GTEST_SKIP() << "there is a GPU";
  const CommandResult result = run_command({"doctor", "openai/gpt-oss-20b", "--device", "cuda"});
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(result.out, "");
}

}  // namespace
}  // namespace nibble::cli
