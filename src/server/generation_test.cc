#include "server/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::server {
namespace {

// Whatever is running: only what can never fit is told before its prompts are read.
TEST(Generation, TellsWhatCanNeverFit) {
  Admission admission(6);
  ASSERT_TRUE(admission.enter(5));
  EXPECT_FALSE(check_count(admission, 6));
  const auto error = check_count(admission, 131'072);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->status, 429);
  EXPECT_THAT(error->message, testing::HasSubstr("131072 sequences; the server takes 6"));
  EXPECT_EQ(admission.count(), 5);
}

}  // namespace
}  // namespace nibble::server
