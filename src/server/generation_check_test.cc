#include "server/generation_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Whatever is running: only what can never fit is told before its prompts are read.
TEST(Generation, TellsWhatCanNeverFit) {
  Admission admission(6);
  ASSERT_TRUE(admission.enter(5));
  EXPECT_FALSE(check_count(admission, 1, 6));
  EXPECT_FALSE(check_count(admission, 3, 2));
  const auto error = check_count(admission, 1'024, 128);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->status, 400);
  EXPECT_EQ(error->retry_after_s, 0);
  EXPECT_EQ(error->param, "prompt");
  EXPECT_THAT(error->message, AllOf(HasSubstr("131072 sequences"), HasSubstr("at most 6 at once")));
  const auto only_n = check_count(admission, 1, 7);
  ASSERT_TRUE(only_n);
  EXPECT_EQ(only_n->param, "n");
  EXPECT_EQ(admission.count(), 5);
}

}  // namespace
}  // namespace nibble::server
