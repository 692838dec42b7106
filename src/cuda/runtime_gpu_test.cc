#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "cuda/device.h"
#include "cuda/graph.h"
#include "cuda/memory.h"
#include "cuda/stream.h"

namespace nibble::cuda {
namespace {

TEST(Device, IsTheOneThatThisBuildIsFor) {
  const Caps caps = open_device();
  EXPECT_EQ(caps.sm, NIBBLE_CUDA_SM);
  const Caps known = caps.sm == 90 ? h200() : gb10();
  EXPECT_EQ(caps.name, known.name);
  EXPECT_EQ(caps.num_sms, known.num_sms);
  EXPECT_EQ(caps.smem_per_block_bytes, known.smem_per_block_bytes);
  EXPECT_EQ(caps.l2_bytes, known.l2_bytes);
  // Drivers keep different amounts back.
  EXPECT_NEAR(caps.memory_bytes, known.memory_bytes, 0.01 * known.memory_bytes);
  EXPECT_GT(free_memory(), 0);
}

TEST(Memory, RefusesWhatTheDeviceLacks) {
  open_device();
  EXPECT_THROW(device_buffer(int64_t{1} << 50), Error);
  EXPECT_EQ(device_buffer(0).data(), nullptr);
}

TEST(Graph, RepeatsCopiesThatItRecorded) {
  open_device();
  Stream stream;
  const Buffer device = device_buffer(64), host = pinned_buffer(64), back = pinned_buffer(64);
  auto* in = static_cast<int*>(host.data());
  auto* out = static_cast<int*>(back.data());
  Graph graph(stream.handle(), [&] {
    copy_async(device.data(), in, 64, stream.handle());
    zero_async(static_cast<int*>(device.data()) + 1, 4, stream.handle());
    copy_async(out, device.data(), 64, stream.handle());
  });
  EXPECT_EQ(graph.num_nodes(), 3u);
  Event begin(Event::Kind::kTiming), end(Event::Kind::kTiming);
  for (const int value : {3, 7}) {
    in[0] = in[1] = in[15] = value;
    begin.record(stream.handle());
    graph.launch(stream.handle());
    end.record(stream.handle());
    stream.wait();
    EXPECT_TRUE(end.is_done());
    EXPECT_EQ(out[0], value);
    EXPECT_EQ(out[1], 0);
    EXPECT_EQ(out[15], value);
    EXPECT_GT(end.ms_since(begin), 0);
  }
}

TEST(Graph, RefusesWorkThatWaits) {
  open_device();
  Stream stream;
  EXPECT_THROW(Graph(stream.handle(), [&] { stream.wait(); }), std::runtime_error);
}

}  // namespace
}  // namespace nibble::cuda
