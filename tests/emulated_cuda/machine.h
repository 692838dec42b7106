// The machine that runs decoded PTX: programs of instructions over 32 lanes, warps with their
// lanes' ways through them, blocks with shared memory and barriers, clusters.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ptx.h"

namespace nibble::emulated {

inline constexpr int kLanes = 32;
inline constexpr uint32_t kAllLanes = ~0u;

struct Warp;
struct Inst;
using Handler = void (*)(Warp&, const Inst&);

// What a kernel does that a GPU would fault on, hang on or leave undefined.
struct Fault : std::runtime_error {
  explicit Fault(const std::string& what, int in_lane = -1)
      : std::runtime_error(what), lane(in_lane) {}
  int lane;
};

// Where an operand lies: an offset into the registers of a warp, or, with the top bit, into the
// constants of its program. A register is 32 words of 32 bits (of 16 bits: in the low half) or of
// 64; a predicate is one word, a bit for each lane.
using Place = uint32_t;
inline constexpr Place kConstant = 0x80000000u;
inline constexpr Place kNowhere = 0;  // the first registers: whatever is written there is lost

// A range of memory that kernels may touch, as an instruction remembers it.
struct Range {
  uint64_t begin = 1, end = 0;
  uint64_t generation = 0;
};

struct Inst {
  Handler run = nullptr;
  Place d = 0, a = 0, b = 0, c = 0, e = 0;
  Place guard = 0;
  bool has_guard = false, guard_negated = false;
  uint8_t n = 0;        // elements of a vector, or what the handler says
  uint8_t option = 0;   // what the handler says
  uint32_t target = 0;  // of a branch
  int32_t line = 0;
  int64_t offset = 0;           // of an address, or an immediate
  const Place* list = nullptr;  // places of vectors, in order
  const uint32_t* targets = nullptr;
  mutable Range range;
};

// Special registers lie behind kNowhere, each 32 words.
enum Special : uint32_t {
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kLaneId,
  kWarpId,
  kClusterRank,
  kClusterSize,
  kClusterIdX,
  kNclusterIdX,
  kDynamicShared,
  kNumSpecial
};
inline constexpr Place special_place(uint32_t s) { return 256 + 128 * s; }

struct Program {
  std::string name;
  std::shared_ptr<const Module> module;
  std::vector<Inst> code;
  std::vector<std::byte> constants;
  std::deque<std::vector<uint32_t>> lists;
  uint32_t register_bytes = 0;
  int64_t static_shared_bytes = 0;
  std::vector<Variable> params;
  int64_t param_bytes = 0;
  uint32_t cluster[3] = {1, 1, 1};
  bool has_cluster = false;
  int64_t attribute_shared_bytes = 48 << 10;  // what a launch may ask for
};

enum class Event : uint8_t {
  kNone,
  kRegroup,  // lanes parted, left or met
  kBarrier,  // waits at a barrier of the block
  kYield,    // polled something that others change
  kMissing,  // a collective instruction lacks lanes: they come, or never
};

struct Group {
  uint32_t pc = 0, mask = 0;
  bool waits = false;
};

struct PendingCopy {
  int lane;
  uint32_t group;
  std::byte* to;
  const std::byte* from;
  uint32_t bytes, from_bytes;
};
struct CopyGroups {  // of a warp's threads, each of which waits for its own
  std::vector<PendingCopy> copies;
  uint32_t committed[kLanes] = {};
};

struct Block;

struct Warp {
  std::byte* base[2] = {};  // registers, constants
  uint32_t mask = 0;        // lanes that the instruction at hand is for
  uint32_t pc = 0, active = 0, live = 0;
  uint32_t limit = ~0u;  // the place where others wait to be met
  Event event = Event::kNone;
  enum class State : uint8_t { kReady, kAtBarrier, kDone } state = State::kReady;
  int index = 0;
  Block* block = nullptr;
  std::vector<Group> others;
  CopyGroups copies;  // cp.async
  CopyGroups stores;  // cp.async.bulk to global memory
  uint64_t cluster_phase = 0;
  uint32_t yielded_at = ~0u;
  uint64_t instructions = 0;
  std::unique_ptr<std::byte[]> registers;

  template <typename T>
  T* at(Place p) const {
    return reinterpret_cast<T*>(base[p >> 31] + (p & ~kConstant));
  }
  uint32_t& predicate(Place p) const { return *at<uint32_t>(p); }
  int first_lane() const { return std::countr_zero(mask); }
};

struct Barrier {
  uint32_t arrived = 0, expected = 0;
  uint64_t waiting = 0;  // warps
};

struct BulkCopy {  // of the copy engine, until someone asks for its barrier
  uint32_t barrier;
  std::function<void()> run;
};

struct Cluster;

struct Block {
  Cluster* cluster = nullptr;
  uint32_t rank = 0;  // in its cluster
  uint32_t index[3] = {};
  std::unique_ptr<std::byte[]> memory;
  std::byte* shared = nullptr;  // address 0 of .shared; the first kSharedBase bytes are not there
  uint32_t shared_end = 0;
  std::vector<Warp> warps;
  uint32_t live_warps = 0;
  Barrier barriers[16];
  std::vector<BulkCopy> copies;
};

struct Launch {
  const Program* program = nullptr;
  uint32_t grid[3] = {1, 1, 1}, block[3] = {1, 1, 1}, cluster[3] = {1, 1, 1};
  int64_t dynamic_shared_bytes = 0;
  std::vector<std::byte> params;
};

struct Cluster {
  const Launch* launch = nullptr;
  std::vector<Block> blocks;
  uint32_t arrived = 0;  // warps
  uint64_t phase = 0;
  uint32_t live_warps() const {
    uint32_t n = 0;
    for (const Block& b : blocks) n += b.live_warps;
    return n;
  }
  void leave_if_complete() {
    if (arrived > 0 && arrived >= live_warps()) arrived = 0, ++phase;
  }
};

inline constexpr uint32_t kSharedBase = 1024;  // as on a GPU: the system's own
// Generic addresses of shared memory: no host address has these bits. Bits 24..31 of the low word
// are 1 + the rank of a block, or 0 for the block's own.
inline constexpr uint64_t kSharedWindow = uint64_t{1} << 56;

// Throws std::runtime_error, which names kernel, block, thread and line where a kernel is at fault.
void run_launch(const Launch& launch);

// Handlers use these.
// `lanes`: those that an instruction needs together. False: not all are here, and the warp waits.
bool have_lanes(Warp& w, uint32_t lanes);
void end_lanes(Warp& w, uint32_t lanes);
void complete_barrier_if_due(Block& block, Barrier& barrier);
void run_copies(CopyGroups& of, uint32_t lanes, uint32_t pending);
void run_bulk_copies(Block& block, uint32_t barrier);  // ~0u: all

}  // namespace nibble::emulated
