// How fast weights come into memory: a checkpoint on disk against plain large reads of the same
// file, and dummy weights. Writes 2 GiB into the temporary directory.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "io/checkpoint.h"
#include "io/memory.h"
#include "tensor/buffer.h"

namespace nibble {
namespace {

constexpr int64_t kBytes = int64_t{2} << 30;
constexpr int64_t kTensors = 64;

std::vector<WeightSpec> specs() {
  std::vector<WeightSpec> wanted;
  for (int64_t i = 0; i < kTensors; ++i)
    wanted.push_back(
        {.name = "w" + std::to_string(100 + i), .shape = {kBytes / 2 / kTensors / 1024, 1024}});
  return wanted;
}

// Memory that the system has already backed: what is timed is reading, not the first touch.
Buffer touched_buffer(int64_t bytes) {
  Buffer buffer(bytes);
  std::memset(buffer.data(), 1, static_cast<size_t>(bytes));
  return buffer;
}

std::vector<ReadJob> read_all(const Checkpoint& checkpoint, const Buffer& to) {
  std::vector<ReadJob> jobs;
  auto* at = static_cast<std::byte*>(to.data());
  for (const TensorInfo& t : checkpoint.tensors()) {
    jobs.push_back(ReadJob::whole(t, at));
    at += t.bytes;
  }
  return jobs;
}

class File {
 public:
  File() {
    std::filesystem::create_directories(directory_);
    const auto dummy = dummy_checkpoint(specs(), 1);
    Buffer buffer(kBytes);
    dummy->read(read_all(*dummy, buffer));
    std::vector<TensorData> tensors;
    const auto* at = static_cast<const std::byte*>(buffer.data());
    for (const TensorInfo& t : dummy->tensors()) {
      tensors.push_back({t.name, t.dtype, t.shape, {at, static_cast<size_t>(t.bytes)}});
      at += t.bytes;
    }
    write_safetensors(path(), tensors);
  }
  ~File() { std::filesystem::remove_all(directory_); }

  std::filesystem::path path() const { return directory_ / "model.safetensors"; }
  const std::filesystem::path& directory() const { return directory_; }
  // Out of the page cache.
  void drop() const {
    const int fd = open(path().c_str(), O_RDONLY);
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
  }
  // Bytes of the file that the page cache holds.
  int64_t cached_bytes() const {
    const auto size = std::filesystem::file_size(path());
    const int fd = open(path().c_str(), O_RDONLY);
    void* map = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    std::vector<unsigned char> pages((size + 4095) / 4096);
    mincore(map, size, pages.data());
    munmap(map, size);
    close(fd);
    int64_t cached = 0;
    for (const unsigned char page : pages) cached += (page & 1) * 4096;
    return cached;
  }

 private:
  std::filesystem::path directory_ =
      std::filesystem::temp_directory_path() / ("nibble-bench-" + std::to_string(getpid()));
};

const File& file() {
  static const File made;
  return made;
}

void BM_ReadCheckpoint(benchmark::State& state) {
  const bool cold = state.range(0) == 0;
  const auto checkpoint = open_checkpoint(file().directory());
  const Buffer buffer = touched_buffer(kBytes);
  const std::vector<ReadJob> jobs = read_all(*checkpoint, buffer);
  int64_t cached_bytes = 0;
  for (auto _ : state) {
    state.PauseTiming();
    if (cold) file().drop();
    if (!cold) std::ifstream(file().path()).ignore(2 * kBytes);
    state.ResumeTiming();
    checkpoint->read(jobs);
    cached_bytes = file().cached_bytes();
  }
  state.SetBytesProcessed(state.iterations() * kBytes);
  state.counters["cached_MiB"] = static_cast<double>(cached_bytes >> 20);
}
BENCHMARK(BM_ReadCheckpoint)
    ->ArgName("warm")
    ->Arg(0)
    ->Arg(1)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// The same bytes to the same place by one plain loop of large reads, through the page cache or past
// it (into an aligned destination, which tensors do not have).
void BM_PlainRead(benchmark::State& state) {
  const bool direct = state.range(0) != 0;
  constexpr int64_t kPiece = 8 << 20;
  const Buffer buffer = touched_buffer(kBytes + kPiece);
  for (auto _ : state) {
    state.PauseTiming();
    file().drop();
    state.ResumeTiming();
    const int fd = open(file().path().c_str(), O_RDONLY | (direct ? O_DIRECT : 0));
    auto* at = static_cast<std::byte*>(buffer.data());
    for (ssize_t n = 1; n > 0; at += n) n = read(fd, at, kPiece);
    close(fd);
  }
  state.SetBytesProcessed(state.iterations() * kBytes);
}
BENCHMARK(BM_PlainRead)
    ->ArgName("direct")
    ->Arg(0)
    ->Arg(1)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void BM_FillDummy(benchmark::State& state) {
  const bool mxfp4 = state.range(0) != 0;
  std::vector<WeightSpec> wanted = specs();
  if (mxfp4)
    for (WeightSpec& spec : wanted) spec.format = Format::kMxfp4;
  const auto checkpoint = dummy_checkpoint(wanted, 1);
  int64_t bytes = 0;
  for (const TensorInfo& t : checkpoint->tensors()) bytes += t.bytes;
  for (auto _ : state) {
    const Buffer buffer(bytes);  // untouched pages, as at start-up
    checkpoint->read(read_all(*checkpoint, buffer));
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}
BENCHMARK(BM_FillDummy)
    ->ArgName("mxfp4")
    ->Arg(0)
    ->Arg(1)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace nibble
