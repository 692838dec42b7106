// NCCL as it lies on this machine, with the one rank that a single GPU can be: that what is
// declared of it here is what it has. Between GPUs: tests/ranks_gpu_test.py.
#include "cuda/nccl.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "cuda/device.h"
#include "cuda/graph.h"
#include "cuda/memory.h"
#include "cuda/stream.h"

namespace nibble::cuda {
namespace {

TEST(NcclGpu, OneRankKeepsWhatItHas) {
  std::string why;
  const NcclLibrary* library = find_nccl(why);
  if (library == nullptr) GTEST_SKIP() << why;
  std::printf("NCCL %s\n", nccl_version(*library).c_str());
  open_device();
  Nccl nccl(*library, make_nccl_id(*library), 0, 1, [] {});
  constexpr int64_t kFloats = 100'001;
  std::vector<float> values(kFloats);
  for (int64_t i = 0; i < kFloats; ++i) values[i] = static_cast<float>(i) / 7;
  const Buffer buffer = device_buffer(4 * kFloats);
  copy(buffer.data(), values.data(), 4 * kFloats);
  auto* const floats = static_cast<float*>(buffer.data());
  Stream stream;
  nccl.all_reduce(floats, kFloats, stream.handle());
  const Graph graph(stream.handle(), [&] {
    for (int i = 0; i < 3; ++i) nccl.all_reduce(floats, kFloats - i, stream.handle());
  });
  for (int i = 0; i < 5; ++i) graph.launch(stream.handle());
  stream.wait();
  nccl.check();
  std::vector<float> got(kFloats);
  copy(got.data(), buffer.data(), 4 * kFloats);
  EXPECT_EQ(got, values);
  nccl.abort();
  EXPECT_THROW(nccl.check(), std::runtime_error);
  EXPECT_THROW(nccl.all_reduce(floats, kFloats, stream.handle()), std::runtime_error);
}

// Who waits for ranks that do not come is let go.
TEST(NcclGpu, WaitsNoLongerThanItIsTold) {
  std::string why;
  const NcclLibrary* library = find_nccl(why);
  if (library == nullptr) GTEST_SKIP() << why;
  int asked = 0;
  const auto check = [&] {
    if (++asked == 20) throw std::runtime_error("rank 1 is gone");
  };
  EXPECT_THROW(Nccl(*library, make_nccl_id(*library), 0, 2, check), std::runtime_error);
}

}  // namespace
}  // namespace nibble::cuda
