// Loads, stores and atomic operations.
#include "memory.h"

#include <algorithm>
#include <limits>

#include "decode.h"
#include "lanes.h"

namespace nibble::emulated {
namespace {

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kParam };

// The address of lane i: 32 or 64 bits wide by the register.
template <typename A>
struct Address {
  const Lane<A> base;
  const int64_t offset;
  Address(const Warp& w, const Inst& in) : base(w, in.a), offset(in.offset) {}
  uint64_t operator[](int i) const {
    if constexpr (sizeof(A) == 4)
      return static_cast<uint32_t>(base[i] + static_cast<uint32_t>(offset));
    return base[i] + static_cast<uint64_t>(offset);
  }
};

template <Space kSpace>
std::byte* memory_at(const Warp& w, const Inst& in, uint64_t address, uint32_t bytes, int lane) {
  if constexpr (kSpace == Space::kGlobal) return global_at(in, address, bytes, lane);
  if constexpr (kSpace == Space::kShared) return shared_at(w, address, bytes, lane);
  if constexpr (kSpace == Space::kGeneric) return generic_at(w, in, address, bytes, lane);
  auto& params = w.block->cluster->launch->params;
  if (address + bytes > params.size()) throw Fault("behind the kernel's parameters", lane);
  return const_cast<std::byte*>(params.data()) + address;
}

// T: an element in memory, W: what it is in a register. n elements.
template <typename T, typename W, Space kSpace, typename A>
void load(Warp& w, const Inst& in) {
  const Address<A> address(w, in);
  const uint32_t bytes = in.n * sizeof(T);
  for (uint32_t m = w.mask; m != 0; m &= m - 1) {
    const int i = std::countr_zero(m);
    const std::byte* const from = memory_at<kSpace>(w, in, address[i], bytes, i);
    T v[8];
    std::memcpy(v, from, bytes);
    for (int j = 0; j < in.n; ++j) {
      auto* const d = w.at<Word<W>>(in.list[j]);
      d[i] = word_of<W>(static_cast<W>(v[j]));
    }
  }
  if (in.option != 0) w.event = Event::kYield;  // others change it
}
template <typename T, typename W, Space kSpace, typename A>
void store(Warp& w, const Inst& in) {
  const Address<A> address(w, in);
  const uint32_t bytes = in.n * sizeof(T);
  for (uint32_t m = w.mask; m != 0; m &= m - 1) {
    const int i = std::countr_zero(m);
    T v[8];
    for (int j = 0; j < in.n; ++j) v[j] = static_cast<T>(w.at<Word<W>>(in.list[j])[i]);
    std::memcpy(memory_at<kSpace>(w, in, address[i], bytes, i), v, bytes);
  }
}

template <template <Space, typename> class Make>
Handler by_space(Space space, int address_bits) {
  switch (space) {
    case Space::kGlobal:
      return Make<Space::kGlobal, uint64_t>::run;
    case Space::kParam:
      return Make<Space::kParam, uint64_t>::run;
    case Space::kShared:
      return address_bits == 64 ? Make<Space::kShared, uint64_t>::run
                                : Make<Space::kShared, uint32_t>::run;
    default:
      return Make<Space::kGeneric, uint64_t>::run;
  }
}
template <typename T, typename W>
struct Moves {
  template <Space kSpace, typename A>
  struct Load {
    static constexpr Handler run = load<T, W, kSpace, A>;
  };
  template <Space kSpace, typename A>
  struct Store {
    static constexpr Handler run = store<T, W, kSpace, A>;
  };
  static Handler of(bool loads, Space space, int address_bits) {
    return loads ? by_space<Load>(space, address_bits) : by_space<Store>(space, address_bits);
  }
};
Handler move_of(bool loads, Type t, int word, Space space, int address_bits) {
  const bool wide = word == 64, s = t.kind == 's';
  switch (t.bits) {
    case 8:
      if (s)
        return wide ? Moves<int8_t, int64_t>::of(loads, space, address_bits)
                    : Moves<int8_t, int32_t>::of(loads, space, address_bits);
      return wide ? Moves<uint8_t, uint64_t>::of(loads, space, address_bits)
                  : Moves<uint8_t, uint32_t>::of(loads, space, address_bits);
    case 16:
      if (s)
        return wide ? Moves<int16_t, int64_t>::of(loads, space, address_bits)
                    : Moves<int16_t, int32_t>::of(loads, space, address_bits);
      return wide ? Moves<uint16_t, uint64_t>::of(loads, space, address_bits)
                  : Moves<uint16_t, uint32_t>::of(loads, space, address_bits);
    case 32:
      if (wide && s) return Moves<int32_t, int64_t>::of(loads, space, address_bits);
      return wide ? Moves<uint32_t, uint64_t>::of(loads, space, address_bits)
                  : Moves<uint32_t, uint32_t>::of(loads, space, address_bits);
    default:
      return Moves<uint64_t, uint64_t>::of(loads, space, address_bits);
  }
}

Space space_of(const Decoder& d) {
  for (const std::string& m : d.s().opcode) {
    if (m == "global" || m == "const") return Space::kGlobal;
    if (m.starts_with("shared")) return Space::kShared;
    if (m.starts_with("param")) return Space::kParam;
  }
  return Space::kGeneric;
}

bool decode_move(Decoder& d, Inst& in, bool loads) {
  const Space space = space_of(d);
  const int address_bits = d.address(loads ? 1 : 0, in);
  if (address_bits != 64 && space != Space::kShared) d.fail("an address of 32 bits");
  const Operand& value = d.operand(loads ? 0 : 1);
  const std::vector<Operand> one{value};
  const auto& parts = value.kind == Operand::Kind::kVector ? value.parts : one;
  const Type t = d.type();
  int word = t.bits == 64 ? 64 : 32;
  std::vector<Place> places;
  for (const Operand& part : parts) {
    if (part.kind == Operand::Kind::kRegister) word = d.register_bits(part) == 64 ? 64 : 32;
    places.push_back(d.place(part, word));
  }
  in.n = static_cast<uint8_t>(parts.size());
  in.list = d.list(places);
  in.run = move_of(loads, t, word, space, address_bits);
  in.option = loads && space != Space::kShared && (d.has("acquire") || d.has("volatile")) ? 1 : 0;
  return true;
}

// ---- atomic operations: one lane after the other

struct AtomAdd {
  template <typename T>
  static T of(T old, T b, T) {
    return old + b;
  }
};
struct AtomMin {
  template <typename T>
  static T of(T old, T b, T) {
    return std::min(old, b);
  }
};
struct AtomMax {
  template <typename T>
  static T of(T old, T b, T) {
    return std::max(old, b);
  }
};
struct AtomExch {
  template <typename T>
  static T of(T, T b, T) {
    return b;
  }
};
struct AtomCas {
  template <typename T>
  static T of(T old, T b, T c) {
    return old == b ? c : old;
  }
};
struct AtomInc {
  template <typename T>
  static T of(T old, T b, T) {
    return old >= b ? T{0} : static_cast<T>(old + 1);
  }
};
struct AtomDec {
  template <typename T>
  static T of(T old, T b, T) {
    return old == 0 || old > b ? b : static_cast<T>(old - 1);
  }
};
struct AtomAnd {
  template <typename T>
  static T of(T old, T b, T) {
    return old & b;
  }
};
struct AtomOr {
  template <typename T>
  static T of(T old, T b, T) {
    return old | b;
  }
};
struct AtomXor {
  template <typename T>
  static T of(T old, T b, T) {
    return old ^ b;
  }
};

template <typename T, typename Op>
void atomic(Warp& w, const Inst& in) {  // option: the space; n: the address's bits
  const Lane<T> b(w, in.b), c(w, in.c);
  auto* const d = w.at<Word<T>>(in.d);
  for (uint32_t m = w.mask; m != 0; m &= m - 1) {
    const int i = std::countr_zero(m);
    const uint64_t address = in.n == 64 ? Address<uint64_t>(w, in)[i] : Address<uint32_t>(w, in)[i];
    std::byte* const at = static_cast<Space>(in.option) == Space::kShared
                              ? shared_at(w, address, sizeof(T), i)
                              : generic_at(w, in, address, sizeof(T), i);
    T old;
    std::memcpy(&old, at, sizeof(T));
    const T now = Op::of(old, b[i], c[i]);
    std::memcpy(at, &now, sizeof(T));
    if (in.d != kNowhere) d[i] = word_of<T>(old);
  }
}
template <typename Op>
Handler atomic_of(Type t) {
  if constexpr (std::is_same_v<Op, AtomAdd>)
    if (t.kind == 'f') return t.bits == 64 ? atomic<double, Op> : atomic<float, Op>;
  if (t.bits == 64) return t.kind == 's' ? atomic<int64_t, Op> : atomic<uint64_t, Op>;
  return t.kind == 's' ? atomic<int32_t, Op> : atomic<uint32_t, Op>;
}
bool decode_atomic(Decoder& d, Inst& in) {
  static const std::map<std::string, Handler (*)(Type)> kOps = {
      {"add", atomic_of<AtomAdd>},   {"min", atomic_of<AtomMin>}, {"max", atomic_of<AtomMax>},
      {"exch", atomic_of<AtomExch>}, {"cas", atomic_of<AtomCas>}, {"inc", atomic_of<AtomInc>},
      {"dec", atomic_of<AtomDec>},   {"and", atomic_of<AtomAnd>}, {"or", atomic_of<AtomOr>},
      {"xor", atomic_of<AtomXor>}};
  const Type t = d.type();
  if (t.lanes != 1 || t.bits < 32) return false;
  const size_t first = d.base() == "red" ? 0 : 1;
  for (const std::string& m : d.s().opcode) {
    const auto found = kOps.find(m);
    if (found == kOps.end()) continue;
    in.d = first == 1 ? d.place(0, t.bits) : kNowhere;
    in.n = static_cast<uint8_t>(d.address(first, in));
    in.option = static_cast<uint8_t>(space_of(d));
    in.b = d.place(first + 1, t.bits);
    in.c = m == "cas" ? d.place(first + 2, t.bits) : in.b;
    in.run = found->second(t);
    return true;
  }
  return false;
}

void nothing(Warp&, const Inst&) {}

}  // namespace

bool decode_memory(Decoder& d, Inst& in) {
  const std::string& op = d.base();
  if (op == "ld" || op == "ldu") return decode_move(d, in, true);
  if (op == "st" && !d.has("async")) return decode_move(d, in, false);
  if (op == "atom" || op == "red") return d.has("async") ? false : decode_atomic(d, in);
  // One thing happens after the other here: there is nothing to order, and no cache.
  if (op == "prefetch" || op == "prefetchu" || op == "membar" || op == "fence" ||
      op == "griddepcontrol" || op == "setmaxnreg" || op == "applypriority" || op == "discard") {
    in.run = nothing;
    return true;
  }
  if (op == "createpolicy") {
    in.run = nothing;
    return true;
  }
  return false;
}

}  // namespace nibble::emulated
