#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>

namespace nibble::emulated {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kPoisoned = 16 << 20;  // larger ones start as zeros: their pages cost nothing then

std::mutex ranges_mutex;
std::map<uint64_t, uint64_t>& ranges() {  // begin -> end
  static auto* const all = new std::map<uint64_t, uint64_t>;
  return *all;
}
uint64_t generation = 1;
size_t allocated = 0;

std::string hex(uint64_t v) {
  char text[32];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(v));
  return text;
}

}  // namespace

void add_range(const void* begin, size_t bytes) {
  const std::lock_guard lock(ranges_mutex);
  ranges()[reinterpret_cast<uint64_t>(begin)] = reinterpret_cast<uint64_t>(begin) + bytes;
}
void remove_range(const void* begin) {
  const std::lock_guard lock(ranges_mutex);
  ranges().erase(reinterpret_cast<uint64_t>(begin));
  ++generation;
}
uint64_t range_generation() { return generation; }
size_t allocated_bytes() { return allocated; }

Range find_range(uint64_t address) {
  const std::lock_guard lock(ranges_mutex);
  auto after = ranges().upper_bound(address);
  if (after == ranges().begin()) return {};
  --after;
  if (address >= after->second) return {};
  return {after->first, after->second, generation};
}
bool is_ours(const void* memory) {
  const Range r = find_range(reinterpret_cast<uint64_t>(memory));
  return r.begin < r.end;
}

// For a message: where the range before ends.
static std::string range_below(uint64_t address) {
  const std::lock_guard lock(ranges_mutex);
  auto after = ranges().upper_bound(address);
  if (after == ranges().begin() || address - (--after)->second > 1 << 20) return "";
  return ", " + std::to_string(address - after->second) + " bytes behind one of " +
         std::to_string(after->second - after->first);
}

// Between pages that fault, from the first one's end on.
void* allocate(size_t bytes) {
  const size_t used = (bytes + kPage - 1) / kPage * kPage;
  void* const at = mmap(nullptr, used + 2 * kPage, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  auto* const memory = static_cast<std::byte*>(at) + kPage;
  mprotect(memory, used, PROT_READ | PROT_WRITE);
  if (bytes <= kPoisoned) std::memset(memory, 0xff, used);  // NaNs
  add_range(memory, bytes);
  allocated += used;
  return memory;
}
bool release(void* memory) {
  const Range r = find_range(reinterpret_cast<uint64_t>(memory));
  if (r.begin != reinterpret_cast<uint64_t>(memory)) return false;
  const size_t used = (r.end - r.begin + kPage - 1) / kPage * kPage;
  remove_range(memory);
  allocated -= used;
  munmap(static_cast<std::byte*>(memory) - kPage, used + 2 * kPage);
  return true;
}

void set_memory(void* memory, int value, size_t bytes) {
  auto from = reinterpret_cast<uint64_t>(memory);
  const uint64_t end = from + bytes;
  if (value == 0 && bytes >= 1 << 20 && is_ours(memory)) {
    const uint64_t first = (from + kPage - 1) / kPage * kPage, last = end / kPage * kPage;
    std::memset(memory, 0, first - from);
    madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
    from = last;
  }
  std::memset(reinterpret_cast<void*>(from), value, end - from);
}

std::byte* global_at(const Inst& in, uint64_t address, uint32_t bytes, int lane) {
  if (address % bytes != 0)
    throw Fault("misaligned address " + hex(address) + " of " + std::to_string(bytes) + " bytes",
                lane);
  Range& r = in.range;
  if (address < r.begin || address + bytes > r.end || r.generation != generation) {
    r = find_range(address);
    if (r.begin > r.end || address + bytes > r.end) {
      throw Fault("no memory at " + hex(address) + ", " + std::to_string(bytes) + " bytes" +
                      range_below(address),
                  lane);
    }
  }
  return reinterpret_cast<std::byte*>(address);
}

Block& block_of_shared(const Warp& w, uint64_t address) {
  const auto rank = static_cast<uint32_t>(address >> 24 & 255);
  if (rank == 0) return *w.block;
  auto& blocks = w.block->cluster->blocks;
  if (rank > blocks.size()) throw Fault("no block of this rank: shared address " + hex(address));
  return blocks[rank - 1];
}

std::byte* shared_at(const Warp& w, uint64_t address, uint32_t bytes, int lane) {
  address &= 0xffffffffu;
  const Block& block = block_of_shared(w, address);
  const uint64_t at = address & 0xffffff;
  if (at % std::min(bytes, 16u) != 0)
    throw Fault(
        "misaligned shared address " + hex(address) + " of " + std::to_string(bytes) + " bytes",
        lane);
  if (at < kSharedBase || at + bytes > block.shared_end || address >> 32 != 0)
    throw Fault("shared address " + hex(address) + ", " + std::to_string(bytes) +
                    " bytes, is outside of the block's, " + hex(kSharedBase) + " to " +
                    hex(block.shared_end),
                lane);
  if (&block != w.block && block.live_warps == 0)
    throw Fault("shared memory of a block that has ended", lane);
  return block.shared + at;
}

}  // namespace nibble::emulated
