#include "cli/cli.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/run_for_test.h"

namespace nibble::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Usage, NamesWhatIsUnknownInTheOrderGiven) {
  const CommandResult command = run_command({"servee", "x"});
  EXPECT_EQ(command.status, 2);
  EXPECT_THAT(command.err, AllOf(HasSubstr("no command 'servee'"), HasSubstr("serve, bench")));
  const CommandResult flag = run_command({"bench", "serve", "--prot", "1"});
  EXPECT_EQ(flag.status, 2);
  EXPECT_THAT(flag.err, AllOf(HasSubstr("nibble: unknown: --prot 1\n"),
                              HasSubstr("`nibble bench serve --help`")));
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
    EXPECT_THAT(result.err, HasSubstr("`hf download openai/gpt-oss-20b --exclude '*/*'`"));
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
