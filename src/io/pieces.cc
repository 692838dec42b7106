#include "io/pieces.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"

namespace nibble {

std::vector<ReadJob> cut_in_file_order(std::span<const ReadJob> jobs, int64_t piece_bytes) {
  std::vector<ReadJob> pieces;
  for (const ReadJob& job : jobs) {
    CHECK(job.begin >= 0 && job.bytes >= 0 && job.begin + job.bytes <= job.tensor->bytes);
    for (int64_t done = 0; done < job.bytes; done += piece_bytes)
      pieces.push_back(
          {job.tensor, job.begin + done, std::min(piece_bytes, job.bytes - done), job.to + done});
  }
  std::stable_sort(pieces.begin(), pieces.end(), [](const ReadJob& a, const ReadJob& b) {
    if (a.tensor->file != b.tensor->file) return a.tensor->file < b.tensor->file;
    return a.tensor->offset + a.begin < b.tensor->offset + b.begin;
  });
  return pieces;
}

void run_pieces(int64_t count, int threads, int64_t total_bytes,
                const std::function<PieceWorker()>& make_worker, const ReadProgress& progress) {
  std::atomic<int64_t> next = 0;
  std::atomic<bool> failed = false;
  std::mutex mutex;  // guards what follows
  int64_t done_bytes = 0;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      const PieceWorker worker = make_worker();
      while (!failed) {
        const int64_t i = next++;
        if (i >= count) return;
        const int64_t bytes = worker(i);
        const std::lock_guard lock(mutex);
        done_bytes += bytes;
        if (progress) progress(done_bytes, total_bytes);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failed.exchange(true)) failure = std::current_exception();
    }
  };
  std::vector<std::jthread> others;
  for (int64_t i = 1; i < std::min<int64_t>(threads, count); ++i) others.emplace_back(work);
  work();
  others.clear();  // joins
  if (failure) std::rethrow_exception(failure);
}

}  // namespace nibble
