#include "ops/all_reduce/gpu_ranks.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "cuda/device.h"
#include "cuda/memory.h"

namespace nibble::ops::gpu {
namespace {

// Who is told that a sum did not end is soon told why.
constexpr std::chrono::milliseconds kWhy{500};

volatile uint32_t& word(const Buffer& buffer) {
  return *static_cast<volatile uint32_t*>(buffer.data());
}

}  // namespace

GpuRanks::GpuRanks(dist::Comm& host) : host_(host), abort_(cuda::pinned_buffer(4)) {
  word(abort_) = 0;
  find_peers();
  find_nccl();
  if (has_peer_memory() || has_nccl()) return;
  throw Error(
      ErrorKind::kUnsupported,
      "--tensor-parallel-size: the GPUs have no way to add up what they have: peer memory: " +
          why_no_peers_ + "; NCCL: " + why_no_nccl_ +
          "; where NCCL lies elsewhere, NIBBLE_NCCL=FILE says where");
}

GpuRanks::~GpuRanks() { abort(); }

std::string GpuRanks::agree(const std::string& why) {
  std::array<char, 200> mine{};
  why.copy(mine.data(), mine.size() - 1);
  std::vector<std::array<char, 200>> all(size());
  host_.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (const auto& text : all)
    if (text[0] != '\0') return {text.data(), strnlen(text.data(), text.size())};
  return "";
}

std::vector<Buffer> GpuRanks::share(const Buffer& mine, std::string& why) {
  cuda::MemoryHandle handle;
  try {
    if (why.empty()) handle = cuda::share_memory(mine);
  } catch (const std::exception& e) {
    why = e.what();
  }
  why = agree(why);
  if (!why.empty()) return {};
  std::vector<cuda::MemoryHandle> handles(size());
  host_.all_gather(std::as_bytes(std::span(&handle, 1)),
                   std::as_writable_bytes(std::span(handles)));
  std::vector<Buffer> all;
  try {
    for (int r = 0; r < size(); ++r)
      all.push_back(r != rank() ? cuda::open_memory(handles[r])
                                : Buffer(mine.data(), mine.size_bytes(), [](void*, int64_t) {}));
  } catch (const std::exception& e) {
    why = e.what();
  }
  why = agree(why);
  if (!why.empty()) all.clear();
  return all;
}

void GpuRanks::find_peers() {
  std::string why;
  peers_ = {
      .rank = rank(), .size = size(), .capacity = kCapacity, .row_bytes = row_bytes_of(size())};
  if (size() > PeerMemory::kMostRanks) why = "there are more ranks than it serves";
  try {
    constexpr int64_t kCounts = PeerMemory::kCounts * int64_t{sizeof(uint32_t)};
    shared_ = cuda::device_buffer(why.empty() ? peers_.bytes() : 0);
    counts_ = cuda::device_buffer(kCounts);
    cuda::fill(counts_.data(), 0, kCounts);
    if (why.empty()) cuda::fill(shared_.data(), 0, shared_.size_bytes());
    peers_.num_blocks = std::min(PeerMemory::kBlocks, 2 * cuda::open_device().num_sms);
  } catch (const std::exception& e) {
    why = e.what();
  }
  of_ranks_ = share(shared_, why);
  why_no_peers_ = why;
  if (!has_peer_memory()) return;
  peers_.counts = static_cast<uint32_t*>(counts_.data());
  peers_.abort = static_cast<uint32_t*>(abort_.data());
  for (int r = 0; r < size(); ++r) peers_.set_memory(r, of_ranks_[r].data());
  std::vector<int> blocks(size());
  host_.all_gather(std::as_bytes(std::span(&peers_.num_blocks, 1)),
                   std::as_writable_bytes(std::span(blocks)));
  peers_.num_blocks = std::ranges::min(blocks);
}

void GpuRanks::find_nccl() {
  std::string why;
  const cuda::NcclLibrary* const library = cuda::find_nccl(why);
  why_no_nccl_ = agree(why);
  if (!why_no_nccl_.empty()) return;
  nccl_version_ = cuda::nccl_version(*library);
  // Once the first has made it the others may begin; it knows of none that are on one GPU.
  cuda::NcclId id{};
  try {
    if (rank() == 0) id = make_nccl_id(*library);
  } catch (const std::runtime_error& e) {
    why = e.what();
  }
  why_no_nccl_ = agree(why);
  if (!why_no_nccl_.empty()) return;
  for (int r = 1; r < size() && rank() == 0; ++r) host_.send(r, id);
  if (rank() != 0) host_.receive(0, id);
  try {
    nccl_ = std::make_unique<cuda::Nccl>(*library, id, rank(), size(), [this] { host_.check(); });
  } catch (const std::runtime_error& e) {
    why = e.what();
  }
  why_no_nccl_ = agree(why);
  if (!why_no_nccl_.empty()) nccl_.reset();
}

void GpuRanks::abort() {
  word(abort_) = 1;
  if (nccl_ != nullptr) nccl_->abort();
}

void GpuRanks::check() const {
  host_.check();
  if (word(abort_) == 0) return check_nccl();
  const auto until = std::chrono::steady_clock::now() + kWhy;
  while (std::chrono::steady_clock::now() < until) {
    host_.check();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  throw Error(ErrorKind::kUnsupported, "another rank's GPU did not come to a sum");
}

// What NCCL's own threads have found out, such as a link that broke. Who was told to end knows why.
void GpuRanks::check_nccl() const {
  if (nccl_ == nullptr) return;
  try {
    nccl_->check();
  } catch (const std::runtime_error& e) {
    host_.check();
    throw Error(ErrorKind::kUnsupported, std::string("the sum over the GPUs failed: ") + e.what());
  }
}

GpuRanks& ranks_of(const Ctx& cx) {
  auto* ranks = dynamic_cast<GpuRanks*>(cx.comm);
  CHECK(ranks != nullptr);
  return *ranks;
}

}  // namespace nibble::ops::gpu
