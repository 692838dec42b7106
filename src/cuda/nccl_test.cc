// What is found of NCCL on a machine, whatever that has, and how a communicator ends, over a
// library that is none. Sums are tests of machines with GPUs.
#include "cuda/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

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

// ---- ends, over calls that last as long as the test wants

struct Fake {
  std::atomic<int> inside{0}, calls{0};
  std::atomic<bool> may_return{true}, is_ended{false}, ended_inside{false}, used_after{false};
  std::atomic<int> async_error{NcclLibrary::kSuccess};
} fake;

int fake_call() {
  ++fake.inside, ++fake.calls;
  if (fake.is_ended) fake.used_after = true;
  while (!fake.may_return && !fake.is_ended) std::this_thread::yield();
  --fake.inside;
  return NcclLibrary::kSuccess;
}

constexpr NcclLibrary kFake{
    .get_version = [](int* version) { return *version = 1, NcclLibrary::kSuccess; },
    .get_unique_id = [](NcclId*) { return NcclLibrary::kSuccess; },
    .comm_init_rank = [](void** comm, int, NcclId,
                         int) { return *comm = &fake, NcclLibrary::kSuccess; },
    .comm_abort =
        [](void*) {
          fake.ended_inside = fake.inside > 0;
          fake.is_ended = true;
          return NcclLibrary::kSuccess;
        },
    .comm_get_async_error = [](void*,
                               int* error) { return *error = fake.async_error, fake_call(); },
    .all_reduce = [](const void*, void*, size_t, int, int, void*,
                     StreamHandle) { return fake_call(); },
    .get_error_string = [](int) { return "a remote process exited"; }};

class NcclEnds : public testing::Test {
 protected:
  NcclEnds() {
    fake.inside = fake.calls = 0;
    fake.may_return = true;
    fake.is_ended = fake.ended_inside = fake.used_after = false;
    fake.async_error = NcclLibrary::kSuccess;
  }
  Nccl nccl_{kFake, {}, 0, 2, [] {}};
};

// What a sum uses is not freed under it.
TEST_F(NcclEnds, WhenTheCallUnderWayHasReturned) {
  fake.may_return = false;
  std::thread sum([&] { nccl_.all_reduce(nullptr, 1, {}); });
  while (fake.inside == 0) std::this_thread::yield();
  nccl_.abort();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(fake.is_ended);
  fake.may_return = true;
  sum.join();
  while (!fake.is_ended) std::this_thread::yield();
  EXPECT_FALSE(fake.ended_inside);
  EXPECT_THROW(nccl_.all_reduce(nullptr, 1, {}), std::runtime_error);
  EXPECT_THROW(nccl_.check(), std::runtime_error);
  EXPECT_FALSE(fake.used_after);
}

// A call that waits for a rank which is gone returns by the end alone.
TEST_F(NcclEnds, ACallThatWaitsForARankThatIsGone) {
  fake.may_return = false;
  std::thread sum([&] { nccl_.all_reduce(nullptr, 1, {}); });
  while (fake.inside == 0) std::this_thread::yield();
  nccl_.abort();
  sum.join();
  EXPECT_TRUE(fake.is_ended);
}

TEST_F(NcclEnds, WhileSumsGoOn) {
  for (int i = 0; i < 200; ++i) {
    fake.is_ended = false;
    Nccl nccl(kFake, {}, 0, 2, [] {});
    std::thread sums([&] {
      try {
        while (true) nccl.all_reduce(nullptr, 1, {}), nccl.check();
      } catch (const std::runtime_error&) {
        return;
      }
    });
    while (fake.calls < 10 * i) std::this_thread::yield();
    nccl.abort();
    sums.join();
  }
  EXPECT_FALSE(fake.used_after);
}

TEST_F(NcclEnds, SayWhatWentWrongMeanwhile) {
  nccl_.check();
  fake.async_error = NcclLibrary::kInProgress;
  nccl_.check();
  fake.async_error = 6;
  try {
    nccl_.check();
    ADD_FAILURE() << "nobody is told";
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "NCCL: a remote process exited");
  }
}

}  // namespace
}  // namespace nibble::cuda
