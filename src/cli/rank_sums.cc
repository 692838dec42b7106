#include "cli/rank_sums.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cuda/graph.h"
#include "cuda/memory.h"
#include "ops/all_reduce/all_reduce.h"

namespace nibble::cli {
namespace {

using ops::AllReduceKernel;
using ops::gpu::GpuRanks;

// Of a token, and of the chunk of a long prompt: gpt-oss-120b's.
constexpr int64_t kHidden = 2880, kChunk = 8192;

Tensor floats_in(const Buffer& buffer, int64_t n) {
  return make_tensor(buffer.data(), DType::kF32, {1, n});
}

// What rank r brings is r + 1 times it, so that the sum is exact, and each part in bf16.
float value_at(int64_t i) { return static_cast<float>(i % 61 - 30); }

void check_sum(ops::Ctx& cx, const AllReduceKernel& row, const Buffer& buffer, int64_t n) {
  const int rank = cx.comm->rank(), size = cx.comm->size();
  std::vector<float> values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = value_at(i) * static_cast<float>(rank + 1);
  cuda::copy(buffer.data(), values.data(), 4 * n);
  row.run(cx, floats_in(buffer, n));
  cuda::wait(cx.stream);
  cuda::copy(values.data(), buffer.data(), 4 * n);
  const float parts = static_cast<float>(size * (size + 1) / 2);
  int64_t wrong = 0;
  for (int64_t i = 0; i < n; ++i) wrong += values[i] != value_at(i) * parts ? 1 : 0;
  if (wrong == 0) return;
  cx.comm->check();  // a rank that is gone is another matter
  throw Error(ErrorKind::kUnsupported,
              std::string("ranks: all_reduce/") + row.name +
                  " is wrong here: " + std::to_string(wrong) + " of " + std::to_string(n) +
                  " sums; say --kernel all_reduce=" +
                  (std::string_view(row.name) == "nccl" ? "one_shot" : "nccl"));
}

// Of one sum in a graph of several, as steps are.
double time_us(ops::Ctx& cx, const AllReduceKernel& row, const Buffer& buffer, int64_t n,
               int repeats) {
  cuda::fill(buffer.data(), 0, 4 * n);  // zeros stay zeros, however often they are added up
  const cuda::Graph graph(cx.stream, [&] {
    for (int i = 0; i < repeats; ++i) row.run(cx, floats_in(buffer, n));
  });
  std::chrono::duration<double, std::micro> took{};
  for (int turn = 0; turn < 2; ++turn) {  // the second counts
    const auto start = std::chrono::steady_clock::now();
    graph.launch(cx.stream);
    cuda::wait(cx.stream);
    took = std::chrono::steady_clock::now() - start;
  }
  cx.comm->check();
  return took.count() / repeats;
}

std::string fixed(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

}  // namespace

void allow_rows(const std::string& why_no_peer_memory, const std::string& why_no_nccl,
                ops::KernelOptions& kernels) {
  kernels.has_peer_memory = why_no_peer_memory.empty();
  kernels.has_nccl = why_no_nccl.empty();
  const auto forced =
      std::ranges::find(kernels.forced, "all_reduce", &std::pair<std::string, std::string>::first);
  if (forced == kernels.forced.end()) return;
  const std::string& row = forced->second;
  const bool is_nccl = row == "nccl";
  const std::string& why = is_nccl ? why_no_nccl : why_no_peer_memory;
  if (!why.empty())
    throw Error(ErrorKind::kUsage, "--kernel all_reduce=" + row + " cannot be had here: " + why);
  if (is_nccl) kernels.has_peer_memory = false;
}

std::string check_gpu_sums(ops::Ctx& cx) {
  const GpuRanks& ranks = ops::gpu::ranks_of(cx);
  constexpr int64_t kLarge = kHidden * kChunk;
  const Buffer buffer = cuda::device_buffer(4 * kLarge);
  ops::KernelOptions any_size = cx.kernels;
  any_size.any_size = true;
  std::string text;
  for (const AllReduceKernel& row : ops::all_reduce_kernels()) {
    if (row.run == nullptr || row.refuse({kHidden, ranks.size()}, any_size) != nullptr) continue;
    for (const int64_t n : {kHidden, int64_t{4}, GpuRanks::kCapacity + 4})
      check_sum(cx, row, buffer, n);
    const double token = time_us(cx, row, buffer, kHidden, 50);
    const double chunk = time_us(cx, row, buffer, kLarge, 8);
    text += (text.empty() ? "" : "; ") + std::string(row.name) + ": a sum of " +
            fixed(4e-3 * kHidden, 1) + " KB takes " + fixed(token, 1) + " us, of " +
            fixed(4e-6 * kLarge, 0) + " MB " + fixed(1e-3 * chunk, 2) + " ms (" +
            fixed(4e-3 * kLarge / chunk, 0) + " GB/s)";
  }
  if (ranks.has_nccl()) text += "; NCCL " + ranks.nccl_version();
  if (!ranks.has_nccl()) text += "; no NCCL, which many ranks gain by: " + ranks.why_no_nccl();
  if (!ranks.has_peer_memory()) text += "; no peer memory: " + ranks.why_no_peer_memory();
  return text;
}

}  // namespace nibble::cli
