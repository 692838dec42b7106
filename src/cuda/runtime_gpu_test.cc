#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "cuda/device.h"
#include "cuda/graph.h"
#include "cuda/memory.h"
#include "cuda/random_fill.h"
#include "cuda/read_bandwidth.h"
#include "cuda/scatter.h"
#include "cuda/stream.h"
#include "formats/fp8.h"

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
  EXPECT_TRUE(caps.runs_clusters || caps.sm != 90);
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

// A graph that goes while it runs does all of its work.
TEST(Graph, EndsItsWorkWhenItGoesBefore) {
  open_device();
  Stream stream;
  constexpr int kGraphs = 20, kBytes = 1 << 20;
  const Buffer device = device_buffer(kGraphs * kBytes), host = pinned_buffer(kGraphs * kBytes);
  const auto at = [](const Buffer& b, int i) {
    return static_cast<uint8_t*>(b.data()) + i * kBytes;
  };
  for (int i = 0; i < kGraphs; ++i) {
    std::memset(at(host, i), i + 1, kBytes);
    const Graph graph(stream.handle(), [&] {  // the last copy counts
      for (int j = 0; j < kGraphs; ++j)
        copy_async(at(device, i), at(host, (i + 1 + j) % kGraphs), kBytes, stream.handle());
    });
    graph.launch(stream.handle());
  }
  stream.wait();
  std::vector<uint8_t> got(kGraphs * kBytes);
  copy(got.data(), device.data(), kGraphs * kBytes);
  for (int i = 0; i < kGraphs; ++i)
    EXPECT_EQ(std::count(got.begin() + i * kBytes, got.begin() + (i + 1) * kBytes, i + 1), kBytes)
        << i;
}

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t all = 0, resident = 0;
  statm >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// The engine keeps the last graphs of many: what those that go held serves the next ones.
TEST(Graph, GivesBackItsMemory) {
  open_device();
  Stream stream;
  constexpr int kGraphs = 64, kLaunches = 250;
  const Buffer table = device_buffer(4), list = device_buffer(sizeof(Update));
  const auto make = [&] {
    return Graph(stream.handle(), [&] {
      for (int i = 0; i < kLaunches; ++i)
        scatter(static_cast<int32_t*>(table.data()), static_cast<const Update*>(list.data()), 1,
                stream.handle());
    });
  };
  fill(list.data(), 0, sizeof(Update));
  std::deque<Graph> graphs;
  graphs.push_back(make());
  graphs.back().launch(stream.handle());
  stream.wait();
  const int64_t free_at_first = free_memory(), resident_at_first = resident_bytes();
  while (graphs.size() < kGraphs) graphs.push_back(make());
  const int64_t device_bytes = free_at_first - free_memory();
  const int64_t host_bytes = resident_bytes() - resident_at_first;
  std::printf("a graph of %d launches: %.1f KiB of the device's memory, %.1f KiB of the host's\n",
              kLaunches, device_bytes / 1024.0 / (kGraphs - 1),
              host_bytes / 1024.0 / (kGraphs - 1));
  for (int i = 0; i < 4 * kGraphs; ++i) {
    graphs.push_back(make());
    graphs.back().launch(stream.handle());
    graphs.pop_front();
  }
  stream.wait();
  // A quarter more than they take, and what an allocator holds together.
  EXPECT_LE(free_at_first - free_memory(), device_bytes * 5 / 4 + (4 << 20));
  EXPECT_LE(resident_bytes() - resident_at_first, host_bytes * 5 / 4 + (8 << 20));
}

TEST(Graph, RefusesWorkThatWaits) {
  open_device();
  Stream stream;
  EXPECT_THROW(Graph(stream.handle(), [&] { stream.wait(); }), std::runtime_error);
}

TEST(ReadBandwidth, IsPositive) {
  EXPECT_GT(measure_read_bandwidth(open_device(), int64_t{1} << 28, 3), 0);
}

std::vector<uint8_t> filled(int64_t bytes, const RandomBytes& what) {
  open_device();
  const Buffer device = device_buffer(bytes + 16);
  fill(device.data(), 0x5a, bytes + 16);
  random_fill(device.data(), bytes, what);
  std::vector<uint8_t> got(bytes + 16);
  copy(got.data(), device.data(), bytes + 16);
  EXPECT_EQ(got[bytes], 0x5a);  // nothing behind the end
  got.resize(bytes);
  return got;
}

TEST(RandomFill, HasTheMomentsAskedFor) {
  using Kind = RandomBytes::Kind;
  const int64_t n = 1 << 20;
  const std::vector<uint8_t> bits = filled(2 * n, {.kind = Kind::kNormalBF16, .rms = 0.25});
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t word = uint32_t{bits[2 * i]} << 16 | uint32_t{bits[2 * i + 1]} << 24;
    const double x = std::bit_cast<float>(word);
    sum += x, squares += x * x;
  }
  // Five deviations of the mean and of the mean square of n samples (the latter's is 2^0.5 rms^2,
  // less for a sum of bytes), and bf16's rounding, which averages out to below 2^-16.
  EXPECT_NEAR(sum / n, 0, 5 * 0.25 / 1024);
  EXPECT_NEAR(squares / n, 0.0625, 5 * 1.5 * 0.0625 / 1024);

  const double rms = 0.3;
  squares = 0;
  for (const uint8_t s : filled(n, {.kind = Kind::kScales, .rms = rms}))
    squares += std::exp2(2 * (s - 127));
  EXPECT_NEAR(squares / n, rms * rms, 0.01 * rms * rms);  // thresholds are 256ths
}

TEST(RandomFill, TilesHoldScalesBehindCodes) {
  using Kind = RandomBytes::Kind;
  const std::vector<uint8_t> got =
      filled(544 * 100 + 3, {.kind = Kind::kTiles, .rms = 1, .seed = 4});
  for (int unit = 0; unit < 100; ++unit)
    for (int i = 512; i < 544; ++i) EXPECT_EQ(got[544 * unit + i], 127);
  EXPECT_EQ(got, filled(544 * 100 + 3, {.kind = Kind::kTiles, .rms = 1, .seed = 4}));
  EXPECT_NE(got, filled(544 * 100 + 3, {.kind = Kind::kTiles, .rms = 1, .seed = 5}));
  EXPECT_EQ(filled(5, {.constant = 0x3f80}), (std::vector<uint8_t>{0x80, 0x3f, 0x80, 0x3f, 0x80}));
}

TEST(RandomFill, CodesOfFp8AreNumbersAndHaveTheirMean) {
  using Kind = RandomBytes::Kind;
  const int64_t units = 1000;
  const std::vector<uint8_t> got =
      filled(1088 * units, {.kind = Kind::kFp8Tiles, .rms = 0.3, .seed = 4});
  double squares = 0;
  for (int64_t unit = 0; unit < units; ++unit) {
    for (int64_t i = 0; i < 1024; ++i) {
      const double code = kE4m3[got[1088 * unit + i]];
      squares += code * code;  // infinite or NaN: the mean is
    }
    for (int64_t i = 1024; i < 1088; i += 4) {
      float scale;
      std::memcpy(&scale, &got[1088 * unit + i], 4);
      ASSERT_EQ(scale, 0.3f);
    }
  }
  // Their squares deviate by less than 3 times their mean: five deviations of it.
  const double mean = squares / (1024 * units);
  EXPECT_NEAR(mean, kE4m3CodesRms * kE4m3CodesRms, 5 * 3 * mean / std::sqrt(1024.0 * units));
}

TEST(RandomFill, TilesOfMxfp8HoldScalesBehindNumbers) {
  using Kind = RandomBytes::Kind;
  const std::vector<uint8_t> got =
      filled(1056 * 100, {.kind = Kind::kMxfp8Tiles, .rms = 0.5, .seed = 4});
  for (int unit = 0; unit < 100; ++unit) {
    for (int i = 0; i < 1024; ++i) ASSERT_EQ(got[1056 * unit + i] & 0x40, 0);
    for (int i = 1024; i < 1056; ++i) ASSERT_EQ(got[1056 * unit + i], 126);
  }
}

TEST(Scatter, ChangesTheNamedEntriesAlone) {
  open_device();
  Stream stream;
  std::vector<int32_t> table(1000, 7);
  std::vector<Update> updates;
  for (int32_t i = 0; i < 600; ++i) updates.push_back({(i * 3) % 1000, i});
  const Buffer device = device_buffer(4000), list = device_buffer(8 * 600);
  copy(device.data(), table.data(), 4000);
  copy(list.data(), updates.data(), 8 * 600);
  scatter(static_cast<int32_t*>(device.data()), static_cast<const Update*>(list.data()), 600,
          stream.handle());
  stream.wait();
  std::vector<int32_t> got(1000);
  copy(got.data(), device.data(), 4000);
  for (const Update& u : updates) table[static_cast<size_t>(u.index)] = u.value;
  EXPECT_EQ(got, table);
}

}  // namespace
}  // namespace nibble::cuda
