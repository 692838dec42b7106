// What is found of NCCL on a machine, whatever that has. Sums are tests of machines with GPUs.
#include "cuda/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"

namespace nibble::cuda {
namespace {

std::string refusal() {
  std::string why;
  try {
    find_nccl(why);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

class NcclTest : public testing::Test {
 protected:
  void TearDown() override {
    unsetenv("NIBBLE_NCCL");
    unsetenv("VLLM_NCCL_SO_PATH");
  }
};

TEST_F(NcclTest, WhatAVariableNamesMustBeThere) {
  setenv("NIBBLE_NCCL", "/no/libnccl.so.2", 1);
  EXPECT_THAT(refusal(), testing::AllOf(testing::HasSubstr("NIBBLE_NCCL: "),
                                        testing::HasSubstr("/no/libnccl.so.2")));
  setenv("NIBBLE_NCCL", "", 1);  // as if it were not set
  setenv("VLLM_NCCL_SO_PATH", "/no/other.so", 1);
  EXPECT_THAT(refusal(), testing::HasSubstr("VLLM_NCCL_SO_PATH: "));
}

TEST_F(NcclTest, AnotherLibraryIsRefused) {
  setenv("NIBBLE_NCCL", "libm.so.6", 1);
  EXPECT_THAT(refusal(), testing::HasSubstr("libm.so.6 is not NCCL"));
}

// A machine without it has one GPU's work to do: no error, and a reason for those who want more.
TEST_F(NcclTest, NoneIsNoError) {
  std::string why;
  const NcclLibrary* library = find_nccl(why);
  EXPECT_EQ(library == nullptr, !why.empty()) << why;
  if (library != nullptr) {
    EXPECT_THAT(nccl_version(*library), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  }
}

}  // namespace
}  // namespace nibble::cuda
