// What lanes, warps and blocks do together: shuffles, votes, reductions, barriers.
#include <algorithm>

#include "decode.h"
#include "lanes.h"

namespace nibble::emulated {
namespace {

// The lanes that the lanes at hand name; all of them must be here.
bool have_members(Warp& w, Place members) {
  const Lane<uint32_t> m(w, members);
  uint32_t all = 0;
  for (uint32_t left = w.mask; left != 0; left &= left - 1) {
    const int i = std::countr_zero(left);
    if ((m[i] >> i & 1) == 0) throw Fault("not a member of its own mask", i);
    all |= m[i];
  }
  return have_lanes(w, all);
}

enum class Way : uint8_t { kUp, kDown, kButterfly, kIndex };
template <Way kWay>
void shuffle(Warp& w,
             const Inst& in) {  // d, predicate e (n: there is one), a, b, c: clamp; list: members
  if (!have_members(w, in.list[0])) return;
  const Lane<uint32_t> a(w, in.a), b(w, in.b), c(w, in.c);
  uint32_t copy[kLanes], bits = 0;
  for (int i = 0; i < kLanes; ++i) copy[i] = a[i];
  int from[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const int by = static_cast<int>(b[i] & 31), clamp = static_cast<int>(c[i] & 31),
              segment = static_cast<int>(c[i] >> 8 & 31);
    const int most = (i & segment) | (clamp & ~segment), least = i & segment;
    int j = i;
    bool in_range = false;
    if constexpr (kWay == Way::kUp) j = i - by, in_range = j >= most;
    if constexpr (kWay == Way::kDown) j = i + by, in_range = j <= most;
    if constexpr (kWay == Way::kButterfly) j = i ^ by, in_range = j <= most;
    if constexpr (kWay == Way::kIndex) j = least | (by & ~segment), in_range = j <= most;
    from[i] = in_range ? j : i;
    bits |= (in_range ? 1u : 0u) << i;
    if ((w.mask >> i & 1) != 0 && (w.mask >> from[i] & 1) == 0)
      throw Fault("a shuffle from lane " + std::to_string(from[i]) + ", which is not there", i);
  }
  store_lanes<uint32_t>(w, in.d, [&](int i) { return copy[from[i]]; });
  if (in.n != 0) store_predicate(w, in.e, bits);
}
bool decode_shuffle(Decoder& d, Inst& in) {
  const Operand& result = d.operand(0);
  if (result.kind == Operand::Kind::kPair) {
    in.d = d.place(result.parts[0], 32);
    in.e = d.predicate(result.parts[1]);
    in.n = 1;
  } else {
    in.d = d.place(result, 32);
  }
  in.a = d.place(1, 32), in.b = d.place(2, 32), in.c = d.place(3, 32);
  in.list = d.list({d.place(4, 32)});
  in.run = d.has("up")     ? shuffle<Way::kUp>
           : d.has("down") ? shuffle<Way::kDown>
           : d.has("bfly") ? shuffle<Way::kButterfly>
                           : shuffle<Way::kIndex>;
  return d.has("sync");
}

enum class Vote : uint8_t { kAll, kAny, kUniform, kBallot };
void vote(Warp& w, const Inst& in) {  // option: what; n 1: a negated; b: members
  if (!have_members(w, in.b)) return;
  const uint32_t p = (w.predicate(in.a) ^ (in.n != 0 ? ~0u : 0u)) & w.mask;
  const auto what = static_cast<Vote>(in.option);
  if (what == Vote::kBallot) {
    store_lanes<uint32_t>(w, in.d, [&](int) { return p; });
    return;
  }
  const bool is_true = what == Vote::kAll   ? p == w.mask
                       : what == Vote::kAny ? p != 0
                                            : p == w.mask || p == 0;
  store_predicate(w, in.d, is_true ? ~0u : 0);
}
bool decode_vote(Decoder& d, Inst& in) {
  const Vote what = d.has("all")   ? Vote::kAll
                    : d.has("any") ? Vote::kAny
                    : d.has("uni") ? Vote::kUniform
                                   : Vote::kBallot;
  in.option = static_cast<uint8_t>(what);
  in.d = what == Vote::kBallot ? d.place(0, 32) : d.predicate(d.operand(0));
  Operand p = d.operand(1);
  in.n = p.negated ? 1 : 0;
  p.negated = false;
  in.a = d.predicate(p);
  in.b = d.place(2, 32);
  in.run = vote;
  return d.has("sync");
}

template <typename T>
void match_any(Warp& w, const Inst& in) {
  if (!have_members(w, in.b)) return;
  const Lane<T> a(w, in.a);
  store_each<uint32_t>(w, in.d, [&](int i) {
    uint32_t same = 0;
    for (int j = 0; j < kLanes; ++j) same |= (a[j] == a[i] ? 1u : 0u) << j;
    return same & w.mask;
  });
}

struct ReduceAdd {
  template <typename T>
  static T of(T a, T b) {
    return a + b;
  }
};
struct ReduceMin {
  template <typename T>
  static T of(T a, T b) {
    return std::min(a, b);
  }
};
struct ReduceMax {
  template <typename T>
  static T of(T a, T b) {
    return std::max(a, b);
  }
};
struct ReduceAnd {
  template <typename T>
  static T of(T a, T b) {
    return a & b;
  }
};
struct ReduceOr {
  template <typename T>
  static T of(T a, T b) {
    return a | b;
  }
};
struct ReduceXor {
  template <typename T>
  static T of(T a, T b) {
    return a ^ b;
  }
};
template <typename T, typename Op>
void reduce(Warp& w, const Inst& in) {
  if (!have_members(w, in.b)) return;
  const Lane<T> a(w, in.a);
  uint32_t left = w.mask;
  T all = a[std::countr_zero(left)];
  for (left &= left - 1; left != 0; left &= left - 1) all = Op::of(all, a[std::countr_zero(left)]);
  store_lanes<T>(w, in.d, [&](int) { return all; });
}
template <typename Op>
Handler reduce_of(Type t) {
  return t.kind == 's' ? reduce<int32_t, Op> : reduce<uint32_t, Op>;
}

// ---- barriers

void sync_warp(Warp& w, const Inst& in) { have_members(w, in.a); }

void block_barrier(Warp& w,
                   const Inst& in) {  // a: number, b: threads (n: given); option 1: arrives only
  if (!have_lanes(w, w.live)) return;
  const uint32_t number = Lane<uint32_t>(w, in.a)[w.first_lane()];
  if (number >= 16) throw Fault("barrier " + std::to_string(number) + " of 16");
  Barrier& barrier = w.block->barriers[number];
  const uint32_t threads = in.n != 0 ? Lane<uint32_t>(w, in.b)[w.first_lane()] : 0;
  if (threads % kLanes != 0) throw Fault("a barrier of " + std::to_string(threads) + " threads");
  if (barrier.arrived > 0 && barrier.expected != threads)
    throw Fault("a barrier of " + std::to_string(threads) + " threads at which others wait for " +
                std::to_string(barrier.expected));
  barrier.expected = threads;
  barrier.arrived += kLanes;
  if (in.option == 0) {
    barrier.waiting |= uint64_t{1} << w.index;
    w.state = Warp::State::kAtBarrier;
    w.event = Event::kBarrier;
  }
  complete_barrier_if_due(*w.block, barrier);
}

void cluster_arrive(Warp& w, const Inst&) {
  if (!have_lanes(w, w.live)) return;
  Cluster& cluster = *w.block->cluster;
  w.cluster_phase = cluster.phase;
  ++cluster.arrived;
  cluster.leave_if_complete();
}
void cluster_wait(Warp& w, const Inst&) {
  if (!have_lanes(w, w.live)) return;
  if (w.block->cluster->phase != w.cluster_phase) return;
  --w.pc;  // asks again
  w.event = Event::kYield;
}
void elect(Warp& w, const Inst& in) {
  if (!have_members(w, in.a)) return;
  const auto first = static_cast<uint32_t>(w.first_lane());
  store_lanes<uint32_t>(w, in.d, [&](int) { return first; });
  store_predicate(w, in.e, 1u << first);
}

bool decode_barrier(Decoder& d, Inst& in) {
  if (d.has("cluster")) {
    in.run = d.has("arrive") ? cluster_arrive : cluster_wait;
    return true;
  }
  if (d.has("warp")) {
    in.a = d.place(0, 32);
    in.run = sync_warp;
    return true;
  }
  if (!d.has("sync") && !d.has("arrive")) return false;
  in.option = d.has("arrive") ? 1 : 0;
  in.a = d.place(0, 32);
  in.n = d.num_operands() > 1 ? 1 : 0;
  in.b = in.n != 0 ? d.place(1, 32) : in.a;
  in.run = block_barrier;
  return true;
}

}  // namespace

bool decode_warp(Decoder& d, Inst& in) {
  static const std::map<std::string, Handler (*)(Type)> kReduce = {
      {"add", reduce_of<ReduceAdd>}, {"min", reduce_of<ReduceMin>}, {"max", reduce_of<ReduceMax>},
      {"and", reduce_of<ReduceAnd>}, {"or", reduce_of<ReduceOr>},   {"xor", reduce_of<ReduceXor>}};
  const std::string& op = d.base();
  if (op == "shfl") return decode_shuffle(d, in);
  if (op == "vote") return decode_vote(d, in);
  if (op == "bar" || op == "barrier") return decode_barrier(d, in);
  if (op == "match" && d.has("any")) {
    in.d = d.place(0, 32), in.a = d.place(1, d.type().bits), in.b = d.place(2, 32);
    in.run = d.type().bits == 64 ? match_any<uint64_t> : match_any<uint32_t>;
    return true;
  }
  if (op == "redux" && d.type().kind != 'f') {
    in.d = d.place(0, 32), in.a = d.place(1, 32), in.b = d.place(2, 32);
    for (const std::string& m : d.s().opcode)
      if (const auto found = kReduce.find(m); found != kReduce.end())
        in.run = found->second(d.type());
    return in.run != nullptr;
  }
  if (op == "elect") {
    in.d = d.place(d.operand(0).parts[0], 32);
    in.e = d.predicate(d.operand(0).parts[1]);
    in.a = d.place(1, 32);
    in.run = elect;
    return true;
  }
  return false;
}

}  // namespace nibble::emulated
