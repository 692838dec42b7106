// Comparisons, selection, moves.
#include <chrono>
#include <cmath>

#include "decode.h"
#include "lanes.h"

namespace nibble::emulated {
namespace {

struct Eq {
  template <typename T>
  static bool of(T a, T b) {
    return a == b;
  }
};
struct Ne {
  template <typename T>
  static bool of(T a, T b) {
    return a < b || a > b;
  }
};
struct Lt {
  template <typename T>
  static bool of(T a, T b) {
    return a < b;
  }
};
struct Le {
  template <typename T>
  static bool of(T a, T b) {
    return a <= b;
  }
};
struct Gt {
  template <typename T>
  static bool of(T a, T b) {
    return a > b;
  }
};
struct Ge {
  template <typename T>
  static bool of(T a, T b) {
    return a >= b;
  }
};
// True as well where either is NaN.
struct Equ {
  template <typename T>
  static bool of(T a, T b) {
    return !(a < b || a > b);
  }
};
struct Neu {
  template <typename T>
  static bool of(T a, T b) {
    return !(a == b);
  }
};
struct Ltu {
  template <typename T>
  static bool of(T a, T b) {
    return !(a >= b);
  }
};
struct Leu {
  template <typename T>
  static bool of(T a, T b) {
    return !(a > b);
  }
};
struct Gtu {
  template <typename T>
  static bool of(T a, T b) {
    return !(a <= b);
  }
};
struct Geu {
  template <typename T>
  static bool of(T a, T b) {
    return !(a < b);
  }
};
struct Num {
  template <typename T>
  static bool of(T a, T b) {
    return a == a && b == b;
  }
};
struct Nan {
  template <typename T>
  static bool of(T a, T b) {
    return a != a || b != b;
  }
};

// option: 0, or and, or, xor with the predicate c (negated: 4 added). b may have a second result.
template <typename T, typename Op>
void compare(Warp& w, const Inst& in) {
  const Lane<T> a(w, in.a), b(w, in.b);
  uint32_t bits = ask_lanes([&](int i) { return Op::of(a[i], b[i]); });
  uint32_t inverse = ~bits;
  if (in.option != 0) {
    const uint32_t c = w.predicate(in.c) ^ (in.option >= 4 ? ~0u : 0u);
    const auto joined = [&](uint32_t v) {
      return (in.option & 3) == 1 ? v & c : (in.option & 3) == 2 ? v | c : v ^ c;
    };
    bits = joined(bits), inverse = joined(inverse);
  }
  store_predicate(w, in.d, bits);
  if (in.n != 0) store_predicate(w, in.e, inverse);
}
template <typename Op>
Handler compare_of(Type t) {
  switch (t.bits) {
    case 16:
      return t.kind == 's' ? compare<int16_t, Op> : compare<uint16_t, Op>;
    case 32:
      return t.kind == 'f'   ? compare<float, Op>
             : t.kind == 's' ? compare<int32_t, Op>
                             : compare<uint32_t, Op>;
    default:
      return t.kind == 'f'   ? compare<double, Op>
             : t.kind == 's' ? compare<int64_t, Op>
                             : compare<uint64_t, Op>;
  }
}

bool decode_compare(Decoder& d, Inst& in) {
  static const std::map<std::string, Handler (*)(Type)> kOps = {
      {"eq", compare_of<Eq>},   {"ne", compare_of<Ne>},   {"lt", compare_of<Lt>},
      {"le", compare_of<Le>},   {"gt", compare_of<Gt>},   {"ge", compare_of<Ge>},
      {"lo", compare_of<Lt>},   {"ls", compare_of<Le>},   {"hi", compare_of<Gt>},
      {"hs", compare_of<Ge>},   {"equ", compare_of<Equ>}, {"neu", compare_of<Neu>},
      {"ltu", compare_of<Ltu>}, {"leu", compare_of<Leu>}, {"gtu", compare_of<Gtu>},
      {"geu", compare_of<Geu>}, {"num", compare_of<Num>}, {"nan", compare_of<Nan>}};
  const auto op = kOps.find(d.s().opcode[1]);
  const Type t = d.type();
  if (op == kOps.end() || t.lanes != 1 || (t.kind == 'f' && t.bits == 16) || t.kind == 'h')
    return false;
  if (d.operand(0).kind == Operand::Kind::kPair) {
    in.d = d.predicate(d.operand(0).parts[0]);
    in.e = d.predicate(d.operand(0).parts[1]);
    in.n = 1;
  } else {
    in.d = d.predicate(d.operand(0));
  }
  in.a = d.place(1, t.bits), in.b = d.place(2, t.bits);
  in.option = d.has("and") ? 1 : d.has("or") ? 2 : d.has("xor") ? 3 : 0;
  if (in.option != 0) {
    Operand o = d.operand(3);
    if (o.negated) in.option += 4, o.negated = false;
    in.c = d.predicate(o);
  }
  in.run = op->second(t);
  return true;
}

template <typename T>
void select(Warp& w, const Inst& in) {
  const Lane<T> a(w, in.a), b(w, in.b);
  const uint32_t p = w.predicate(in.c);
  store_lanes<T>(w, in.d, [&](int i) { return (p >> i & 1) != 0 ? a[i] : b[i]; });
}
template <typename T>
void move(Warp& w, const Inst& in) {
  const Lane<T> a(w, in.a);
  store_lanes<T>(w, in.d, [&](int i) { return a[i]; });
}
void read_clock(Warp& w, const Inst& in) {
  store_lanes<uint64_t>(w, in.d, [&](int) { return w.instructions; });
}
void read_time(Warp& w, const Inst& in) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const auto ns = static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
  store_lanes<uint64_t>(w, in.d, [&](int) { return ns; });
}
void read_active(Warp& w, const Inst& in) {
  store_lanes<uint32_t>(w, in.d, [&](int) { return w.mask; });
}
void param_address(Warp& w, const Inst& in) {
  const Lane<uint64_t> a(w, in.a);
  const auto base = reinterpret_cast<uint64_t>(w.block->cluster->launch->params.data());
  store_lanes<uint64_t>(w, in.d, [&](int i) { return base + a[i]; });
}
void shared_address(Warp& w, const Inst& in) {  // a shared address as a generic one
  const Lane<uint64_t> a(w, in.a);
  store_lanes<uint64_t>(w, in.d, [&](int i) { return kSharedWindow | a[i]; });
}
void to_shared(Warp& w, const Inst& in) {
  const Lane<uint64_t> a(w, in.a);
  store_lanes<uint64_t>(w, in.d, [&](int i) { return a[i] & ~kSharedWindow; });
}

// {lo, hi} of halves of the type's bits, and back.
template <typename T, typename Half>
void unpack(Warp& w, const Inst& in) {
  const Lane<T> a(w, in.a);
  T copy[kLanes];
  for (int i = 0; i < kLanes; ++i) copy[i] = a[i];
  for (int part = 0; part < in.n; ++part)
    store_lanes<Half>(w, in.list[part], [&](int i) {
      return static_cast<Half>(copy[i] >> part * (8 * sizeof(T) / in.n));
    });
}
template <typename T, typename Half>
void pack(Warp& w, const Inst& in) {
  T result[kLanes] = {};
  for (int part = 0; part < in.n; ++part) {
    const Lane<Half> a(w, in.list[part]);
    for (int i = 0; i < kLanes; ++i)
      result[i] |= static_cast<T>(static_cast<T>(a[i]) << part * (8 * sizeof(T) / in.n));
  }
  store_lanes<T>(w, in.d, [&](int i) { return result[i]; });
}
bool decode_vector_move(Decoder& d, Inst& in, int bits) {
  const bool unpacks = d.operand(0).kind == Operand::Kind::kVector;
  const Operand& vector = d.operand(unpacks ? 0 : 1);
  if (vector.kind != Operand::Kind::kVector) return false;
  const int n = static_cast<int>(vector.parts.size()), part_bits = bits / n;
  if (n != 2 && !(n == 4 && bits == 64)) d.fail("parts of this number");
  std::vector<Place> places;
  for (const Operand& part : vector.parts) places.push_back(d.place(part, part_bits));
  in.list = d.list(places);
  in.n = static_cast<uint8_t>(n);
  if (unpacks) {
    in.a = d.place(1, bits);
    in.run = part_bits == 32 ? unpack<uint64_t, uint32_t>
             : bits == 64    ? unpack<uint64_t, uint16_t>
                             : unpack<uint32_t, uint16_t>;
  } else {
    in.d = d.place(0, bits);
    in.run = part_bits == 32 ? pack<uint64_t, uint32_t>
             : bits == 64    ? pack<uint64_t, uint16_t>
                             : pack<uint32_t, uint16_t>;
  }
  return true;
}

bool decode_move(Decoder& d, Inst& in) {
  const int bits = d.type().bits;
  if (decode_vector_move(d, in, bits)) return true;
  in.d = d.place(0, bits);
  if (d.operand(1).kind == Operand::Kind::kName) {
    const std::string& name = d.operand(1).name;
    const std::map<std::string, Handler> kRead = {
        {"%clock64", read_clock}, {"%globaltimer", read_time}, {"%activemask", read_active}};
    if (const auto found = kRead.find(name); found != kRead.end()) {
      in.run = found->second;
      return true;
    }
  }
  in.a = d.place(1, bits);
  in.run = bits == 64 ? move<uint64_t> : bits == 32 ? move<uint32_t> : move<uint16_t>;
  return true;
}

// Generic addresses are the host's, but for those of shared memory.
bool decode_address(Decoder& d, Inst& in) {
  if (d.type().bits != 64) d.fail("addresses of 32 bits");
  in.d = d.place(0, 64), in.a = d.place(1, 64);
  const bool is_to = d.has("to");
  if (d.has("shared"))
    in.run = is_to ? to_shared : shared_address;
  else if (d.has("param") && !is_to)
    in.run = param_address;
  else if (d.has("global") || d.has("const"))
    in.run = move<uint64_t>;
  else
    return false;
  return true;
}

}  // namespace

bool decode_select(Decoder& d, Inst& in) {
  const std::string& op = d.base();
  if (op == "setp") return decode_compare(d, in);
  if (op == "mov") return decode_move(d, in);
  if (op == "cvta") return decode_address(d, in);
  if (op == "activemask") {
    in.d = d.place(0, 32);
    in.run = read_active;
    return true;
  }
  if (op != "selp") return false;
  const int bits = d.type().bits;
  in.d = d.place(0, bits), in.a = d.place(1, bits), in.b = d.place(2, bits);
  in.c = d.predicate(d.operand(3));
  in.run = bits == 64 ? select<uint64_t> : bits == 32 ? select<uint32_t> : select<uint16_t>;
  return true;
}

}  // namespace nibble::emulated
