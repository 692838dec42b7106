#include "io/pieces.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"

namespace nibble {
namespace {

std::vector<ReadJob> cut(std::span<const ReadJob> jobs, int64_t piece_bytes) {
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

}  // namespace

void read_in_pieces(std::span<const ReadJob> jobs, int64_t piece_bytes, int threads,
                    const std::function<PieceReader()>& make_reader, const ReadProgress& progress) {
  const std::vector<ReadJob> pieces = cut(jobs, piece_bytes);
  int64_t total_bytes = 0;
  for (const ReadJob& piece : pieces) total_bytes += piece.bytes;

  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  std::mutex mutex;  // guards what follows
  int64_t done_bytes = 0;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      const PieceReader read = make_reader();
      while (!failed) {
        const size_t i = next++;
        if (i >= pieces.size()) return;
        read(pieces[i]);
        const std::lock_guard lock(mutex);
        done_bytes += pieces[i].bytes;
        if (progress) progress(done_bytes, total_bytes);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failed.exchange(true)) failure = std::current_exception();
    }
  };
  std::vector<std::jthread> others;
  const auto wanted = std::min<size_t>(static_cast<size_t>(threads), pieces.size());
  for (size_t i = 1; i < wanted; ++i) others.emplace_back(work);
  work();
  others.clear();  // joins
  if (failure) std::rethrow_exception(failure);
}

}  // namespace nibble
