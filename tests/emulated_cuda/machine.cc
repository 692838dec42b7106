#include "machine.h"

#include <cxxabi.h>

#include <algorithm>
#include <list>

namespace nibble::emulated {
namespace {

constexpr int kSlice = 1 << 18;          // instructions of a warp before others have their turn
constexpr uint64_t kPolling = 256;       // instructions of a warp that only asks
constexpr int kRoundsOfPolling = 20000;  // of all that is there, until it counts as endless

// Joins groups that stand at one place and goes on with the lowest that does not wait.
bool choose_group(Warp& w) {
  auto& all = w.others;
  if (w.active != 0)
    all.push_back({w.pc, w.active, w.event == Event::kYield || w.event == Event::kMissing});
  w.active = 0;
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t j = i + 1; j < all.size();)
      if (all[i].pc == all[j].pc) {
        all[i].mask |= all[j].mask;
        all[i].waits &= all[j].waits;
        all[j] = all.back();
        all.pop_back();
      } else {
        ++j;
      }
  size_t best = all.size();
  for (size_t i = 0; i < all.size(); ++i)
    if (!all[i].waits && (best == all.size() || all[i].pc < all[best].pc)) best = i;
  w.limit = ~0u;
  if (best == all.size()) return false;
  w.pc = all[best].pc;
  w.active = all[best].mask;
  all[best] = all.back();
  all.pop_back();
  for (const Group& g : all)
    if (g.pc > w.pc) w.limit = std::min(w.limit, g.pc);
  return true;
}

// After an event, or where others wait. False: the warp's turn is over.
bool go_on(Warp& w) {
  const Event event = w.event;
  if (w.others.empty() && w.active != 0) {
    w.event = Event::kNone;
    w.limit = ~0u;
    return event == Event::kNone || event == Event::kRegroup;
  }
  if (w.live == 0) return false;
  const bool runs = choose_group(w);
  w.event = Event::kNone;
  return runs && event != Event::kBarrier;
}

// Whether it did more than ask.
bool run_warp(Warp& w) {
  const Inst* const code = w.block->cluster->launch->program->code.data();
  for (Group& g : w.others) g.waits = false;
  if (w.active == 0 && !choose_group(w)) return false;
  const uint64_t before = w.instructions;
  for (int i = 0; i < kSlice; ++i) {
    const Inst& in = code[w.pc++];
    w.mask = w.active;
    if (in.has_guard) w.mask &= w.predicate(in.guard) ^ (in.guard_negated ? kAllLanes : 0u);
    ++w.instructions;
    if (w.mask != 0) in.run(w, in);
    if (w.event != Event::kNone || w.pc >= w.limit) [[unlikely]]
      if (!go_on(w)) break;
  }
  return w.state != Warp::State::kReady || w.instructions - before > kPolling;
}

std::string demangled(const std::string& name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  const std::string result = status == 0 ? text : name;
  std::free(text);
  return result;
}
std::string point(const uint32_t (&v)[3]) {
  return "(" + std::to_string(v[0]) + ", " + std::to_string(v[1]) + ", " + std::to_string(v[2]) +
         ")";
}
std::string place_of(const Warp& w, uint32_t pc, int lane) {
  const Launch& launch = *w.block->cluster->launch;
  const auto thread = static_cast<uint32_t>(w.index * kLanes + std::max(lane, 0));
  const uint32_t at[3] = {thread % launch.block[0], thread / launch.block[0] % launch.block[1],
                          thread / launch.block[0] / launch.block[1]};
  const int line = launch.program->code[pc].line;
  return "block " + point(w.block->index) + ", thread " + point(at) + ", PTX line " +
         std::to_string(line) + ": " + launch.program->module->line(line);
}

class Run {
 public:
  explicit Run(const Launch& launch) : launch_(launch) {
    for (int i = 0; i < 3; ++i) {
      if (launch.grid[i] % launch.cluster[i] != 0)
        throw std::runtime_error("a grid that clusters do not divide");
      num_clusters_ *= launch.grid[i] / launch.cluster[i];
    }
    shared_end_ = kSharedBase + static_cast<uint32_t>(launch.program->static_shared_bytes +
                                                      launch.dynamic_shared_bytes + 15) /
                                    16 * 16;
  }

  void run() {
    uint64_t next = 0;
    int polling = 0;
    while (next < num_clusters_ || !resident_.empty()) {
      if (resident_.empty()) admit(next++);
      bool did_anything = false, left = false;
      for (auto at = resident_.begin(); at != resident_.end();) {
        did_anything |= run_cluster(*at);
        if (at->live_warps() == 0) {
          retire(*at);
          at = resident_.erase(at);
          left = true;
        } else {
          ++at;
        }
      }
      if (!left && next < num_clusters_)
        admit(next++);
      else if (!did_anything && !left && ++polling > kRoundsOfPolling)
        report_endless();
      if (did_anything || left) polling = 0;
    }
  }

 private:
  // Until all of its warps wait or have ended.
  bool run_cluster(Cluster& cluster) {
    bool did_anything = false;
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (Block& block : cluster.blocks)
        for (Warp& w : block.warps) {
          if (w.state != Warp::State::kReady) continue;
          try {
            goes_on |= run_warp(w);
          } catch (const Fault& fault) {
            const int lane = fault.lane >= 0 ? fault.lane : w.first_lane();
            throw std::runtime_error(demangled(launch_.program->name) + ": " + fault.what() + "; " +
                                     place_of(w, w.pc - 1, lane));
          }
        }
      did_anything |= goes_on;
    }
    return did_anything;
  }

  void admit(uint64_t number) {
    Cluster& cluster = resident_.emplace_back();
    cluster.launch = &launch_;
    const uint32_t across[2] = {launch_.grid[0] / launch_.cluster[0],
                                launch_.grid[1] / launch_.cluster[1]};
    const uint64_t first[3] = {number % across[0] * launch_.cluster[0],
                               number / across[0] % across[1] * launch_.cluster[1],
                               number / across[0] / across[1] * launch_.cluster[2]};
    const uint32_t size = launch_.cluster[0] * launch_.cluster[1] * launch_.cluster[2];
    cluster.blocks.resize(size);
    for (uint32_t rank = 0; rank < size; ++rank) {
      Block& block = cluster.blocks[rank];
      block.cluster = &cluster;
      block.rank = rank;
      const uint32_t in_cluster[3] = {rank % launch_.cluster[0],
                                      rank / launch_.cluster[0] % launch_.cluster[1],
                                      rank / launch_.cluster[0] / launch_.cluster[1]};
      for (int i = 0; i < 3; ++i) block.index[i] = static_cast<uint32_t>(first[i]) + in_cluster[i];
      start(block);
    }
  }

  std::unique_ptr<std::byte[]> take(std::vector<std::unique_ptr<std::byte[]>>& spare,
                                    size_t bytes) {
    if (spare.empty()) return std::unique_ptr<std::byte[]>(new std::byte[bytes + 256]);
    auto memory = std::move(spare.back());
    spare.pop_back();
    return memory;
  }
  static std::byte* aligned(std::byte* p) {
    return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(p) + 255) & ~uintptr_t{255});
  }

  void start(Block& block) {
    block.memory = take(spare_shared_, shared_end_);
    block.shared = aligned(block.memory.get());
    block.shared_end = shared_end_;
    std::memset(block.shared, 0xff, shared_end_);  // NaNs: what is read must have been written
    const uint32_t threads = launch_.block[0] * launch_.block[1] * launch_.block[2];
    block.warps.resize((threads + kLanes - 1) / kLanes);
    block.live_warps = static_cast<uint32_t>(block.warps.size());
    for (size_t i = 0; i < block.warps.size(); ++i) {
      Warp& w = block.warps[i];
      w.index = static_cast<int>(i);
      w.block = &block;
      w.registers = take(spare_registers_, launch_.program->register_bytes);
      w.base[0] = aligned(w.registers.get());
      w.base[1] = const_cast<std::byte*>(launch_.program->constants.data());
      const uint32_t left = threads - static_cast<uint32_t>(i) * kLanes;
      w.live = w.active = left >= kLanes ? kAllLanes : (1u << left) - 1;
      set_special(w);
    }
  }

  void set_special(Warp& w) const {
    const Block& block = *w.block;
    const auto set = [&](uint32_t s, auto value) {
      for (uint32_t i = 0; i < kLanes; ++i)
        w.at<uint32_t>(special_place(s))[i] = value(static_cast<uint32_t>(w.index) * kLanes + i);
    };
    const auto always = [&](uint32_t s, uint32_t v) { set(s, [v](uint32_t) { return v; }); };
    const uint32_t x = launch_.block[0], y = launch_.block[1];
    set(kTidX, [&](uint32_t t) { return t % x; });
    set(kTidY, [&](uint32_t t) { return t / x % y; });
    set(kTidZ, [&](uint32_t t) { return t / x / y; });
    set(kLaneId, [&](uint32_t t) { return t % kLanes; });
    for (uint32_t i = 0; i < 3; ++i) {
      always(kNtidX + i, launch_.block[i]);
      always(kCtaidX + i, block.index[i]);
      always(kNctaidX + i, launch_.grid[i]);
    }
    always(kWarpId, static_cast<uint32_t>(w.index));
    always(kClusterRank, block.rank);
    always(kClusterSize, static_cast<uint32_t>(block.cluster->blocks.size()));
    always(kClusterIdX, block.index[0] / launch_.cluster[0]);
    always(kNclusterIdX, launch_.grid[0] / launch_.cluster[0]);
    always(kDynamicShared, static_cast<uint32_t>(launch_.dynamic_shared_bytes));
  }

  void retire(Cluster& cluster) {
    for (Block& block : cluster.blocks) {
      spare_shared_.push_back(std::move(block.memory));
      for (Warp& w : block.warps) spare_registers_.push_back(std::move(w.registers));
    }
  }

  [[noreturn]] void report_endless() const {
    std::string text = demangled(launch_.program->name) + ": waits without end";
    int shown = 0;
    for (const Cluster& cluster : resident_)
      for (const Block& block : cluster.blocks)
        for (const Warp& w : block.warps) {
          if (w.state == Warp::State::kDone || ++shown > 8) continue;
          const uint32_t pc = w.active != 0 ? w.pc : w.others.empty() ? 0 : w.others[0].pc;
          const bool at_barrier = w.state == Warp::State::kAtBarrier;
          text += "\n  " + place_of(w, at_barrier ? pc - 1 : pc, 0) +
                  (w.others.empty() ? "" : " (its lanes are apart)");
        }
    throw std::runtime_error(text);
  }

  const Launch& launch_;
  uint64_t num_clusters_ = 1;
  uint32_t shared_end_ = 0;
  std::list<Cluster> resident_;
  std::vector<std::unique_ptr<std::byte[]>> spare_shared_, spare_registers_;
};

}  // namespace

bool have_lanes(Warp& w, uint32_t lanes) {
  if ((lanes & w.live & ~w.mask) == 0) return true;
  --w.pc;
  w.event = Event::kMissing;
  return false;
}

void complete_barrier_if_due(Block& block, Barrier& barrier) {
  const uint32_t expected = barrier.expected != 0 ? barrier.expected : block.live_warps * kLanes;
  if (barrier.arrived == 0 || barrier.arrived < expected) return;
  if (barrier.arrived > expected) throw Fault("more threads at a barrier than it is for");
  for (Warp& w : block.warps)
    if ((barrier.waiting >> w.index & 1) != 0) w.state = Warp::State::kReady;
  barrier = {};
}

void end_lanes(Warp& w, uint32_t lanes) {
  for (const PendingCopy& c : w.stores.copies)
    if ((lanes >> c.lane & 1) != 0)
      throw Fault("ends before its bulk stores have been read", c.lane);
  w.live &= ~lanes;
  w.active &= ~lanes;
  w.event = Event::kRegroup;
  if (w.live != 0) return;
  w.state = Warp::State::kDone;
  Block& block = *w.block;
  if (--block.live_warps == 0) run_bulk_copies(block, ~0u);
  for (Barrier& barrier : block.barriers)
    if (barrier.expected == 0 && block.live_warps > 0) complete_barrier_if_due(block, barrier);
  block.cluster->leave_if_complete();
}

// Those of the lanes that lie behind no more than `pending` groups of theirs.
void run_copies(CopyGroups& of, uint32_t lanes, uint32_t pending) {
  const auto is_due = [&](const PendingCopy& c) {
    return (lanes >> c.lane & 1) != 0 && c.group + pending < of.committed[c.lane];
  };
  std::erase_if(of.copies, [&](const PendingCopy& c) {
    if (!is_due(c)) return false;
    if (c.from_bytes > 0) std::memcpy(c.to, c.from, c.from_bytes);
    std::memset(c.to + c.from_bytes, 0, c.bytes - c.from_bytes);
    return true;
  });
}

void run_bulk_copies(Block& block, uint32_t barrier) {
  for (size_t i = 0; i < block.copies.size();)
    if (barrier == ~0u || block.copies[i].barrier == barrier) {
      const auto run = std::move(block.copies[i].run);
      block.copies.erase(block.copies.begin() + static_cast<std::ptrdiff_t>(i));
      run();
    } else {
      ++i;
    }
}

void run_launch(const Launch& launch) { Run(launch).run(); }

}  // namespace nibble::emulated
