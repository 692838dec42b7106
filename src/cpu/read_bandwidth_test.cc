#include "cpu/read_bandwidth.h"

#include <gtest/gtest.h>

namespace nibble::cpu {
namespace {

// That every byte was read is checked by the probe itself, by sum; here its edges run: parts that
// are not equal, more threads than pages.
TEST(ReadBandwidth, ReadsEveryPartWhateverTheThreads) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    for (const int64_t bytes : {int64_t{4096}, int64_t{3 * 4096 + 17}, int64_t{1} << 20}) {
      const ReadBandwidth bandwidth = measure_read_bandwidth(pool, bytes, 3);
      EXPECT_GT(bandwidth.median, 0);
      EXPECT_GE(bandwidth.best, bandwidth.median);
    }
  }
}

}  // namespace
}  // namespace nibble::cpu
