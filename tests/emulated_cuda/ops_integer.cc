// Integer arithmetic, bits, bytes.
#include <algorithm>
#include <limits>

#include "decode.h"
#include "lanes.h"

namespace nibble::emulated {
namespace {

template <typename T>
using Wide = std::conditional_t<
    sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>,
    std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                       std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>>>;

#define NIBBLE_OP1(name, expression)     \
  struct name {                          \
    template <typename T>                \
    static T of(T a) {                   \
      return static_cast<T>(expression); \
    }                                    \
  };
#define NIBBLE_OP2(name, expression)     \
  struct name {                          \
    template <typename T>                \
    static T of(T a, T b) {              \
      return static_cast<T>(expression); \
    }                                    \
  };
#define NIBBLE_OP3(name, expression)     \
  struct name {                          \
    template <typename T>                \
    static T of(T a, T b, T c) {         \
      return static_cast<T>(expression); \
    }                                    \
  };
NIBBLE_OP2(Add, a + b)
NIBBLE_OP2(Sub, a - b)
NIBBLE_OP2(MulLo, a* b)
NIBBLE_OP2(MulHi, static_cast<Wide<T>>(a) * b >> 8 * sizeof(T))
NIBBLE_OP3(MadLo, a* b + c)
NIBBLE_OP3(MadHi, (static_cast<Wide<T>>(a) * b >> 8 * sizeof(T)) + c)
NIBBLE_OP2(Min, a < b ? a : b)
NIBBLE_OP2(Max, a > b ? a : b)
NIBBLE_OP1(Neg, -a)
NIBBLE_OP1(Abs, a < 0 ? -a : a)
NIBBLE_OP2(And, a& b)
NIBBLE_OP2(Or, a | b)
NIBBLE_OP2(Xor, a ^ b)
NIBBLE_OP1(Not, ~a)

// By zero a GPU gives all ones; the most negative by -1 wraps.
struct Div {
  template <typename T>
  static T of(T a, T b) {
    if (b == 0) return static_cast<T>(~T{0});
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return static_cast<T>(0 - a);
    return static_cast<T>(a / b);
  }
};
struct Rem {
  template <typename T>
  static T of(T a, T b) {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};

template <typename Op>
Handler of_two(Type t) {
  const bool is_signed = t.kind == 's';
  if (t.bits == 16) return is_signed ? binary<int16_t, Op> : binary<uint16_t, Op>;
  if (t.bits == 32) return is_signed ? binary<int32_t, Op> : binary<uint32_t, Op>;
  return is_signed ? binary<int64_t, Op> : binary<uint64_t, Op>;
}
template <typename Op>
Handler of_one(Type t) {
  if (t.bits == 16) return t.kind == 's' ? unary<int16_t, Op> : unary<uint16_t, Op>;
  if (t.bits == 32) return t.kind == 's' ? unary<int32_t, Op> : unary<uint32_t, Op>;
  return t.kind == 's' ? unary<int64_t, Op> : unary<uint64_t, Op>;
}
template <typename Op>
Handler of_three(Type t) {
  if (t.bits == 16) return t.kind == 's' ? ternary<int16_t, Op> : ternary<uint16_t, Op>;
  if (t.bits == 32) return t.kind == 's' ? ternary<int32_t, Op> : ternary<uint32_t, Op>;
  return t.kind == 's' ? ternary<int64_t, Op> : ternary<uint64_t, Op>;
}

// Products of twice the width, and with them a sum.
template <typename T>
void mul_wide(Warp& w, const Inst& in) {
  const Lane<T> a(w, in.a), b(w, in.b);
  store_lanes<Wide<T>>(w, in.d, [&](int i) { return static_cast<Wide<T>>(a[i]) * b[i]; });
}
template <typename T>
void mad_wide(Warp& w, const Inst& in) {
  const Lane<T> a(w, in.a), b(w, in.b);
  const Lane<Wide<T>> c(w, in.c);
  store_lanes<Wide<T>>(w, in.d, [&](int i) { return static_cast<Wide<T>>(a[i]) * b[i] + c[i]; });
}

// Shifts beyond the width give 0, or the sign.
template <typename T>
void shl(Warp& w, const Inst& in) {
  const Lane<T> a(w, in.a);
  const Lane<uint32_t> b(w, in.b);
  constexpr uint32_t kBits = 8 * sizeof(T);
  store_lanes<T>(w, in.d, [&](int i) {
    return static_cast<T>(b[i] < kBits ? static_cast<T>(a[i] << (b[i] & (kBits - 1))) : T{0});
  });
}
template <typename T>
void shr(Warp& w, const Inst& in) {
  const Lane<T> a(w, in.a);
  const Lane<uint32_t> b(w, in.b);
  constexpr uint32_t kBits = 8 * sizeof(T);
  store_lanes<T>(w, in.d, [&](int i) {
    if (std::is_signed_v<T>) return static_cast<T>(a[i] >> (b[i] < kBits ? b[i] : kBits - 1));
    return static_cast<T>(b[i] < kBits ? a[i] >> (b[i] & (kBits - 1)) : 0);
  });
}
template <bool kLeft>
void funnel(Warp& w, const Inst& in) {  // option: 1 where the shift is clamped, else it wraps
  const Lane<uint32_t> a(w, in.a), b(w, in.b), c(w, in.c);
  store_lanes<uint32_t>(w, in.d, [&](int i) {
    const uint32_t n = in.option != 0 ? std::min(c[i], 32u) : c[i] & 31;
    const uint64_t both = uint64_t{b[i]} << 32 | a[i];
    return static_cast<uint32_t>(kLeft ? both << n >> 32 : both >> n);
  });
}

template <typename T>
void popc(Warp& w, const Inst& in) {
  const Lane<T> a(w, in.a);
  store_each<uint32_t>(w, in.d, [&](int i) { return std::popcount(a[i]); });
}
template <typename T>
void clz(Warp& w, const Inst& in) {
  const Lane<T> a(w, in.a);
  store_each<uint32_t>(w, in.d, [&](int i) { return std::countl_zero(a[i]); });
}
template <typename T>
void brev(Warp& w, const Inst& in) {
  const Lane<T> a(w, in.a);
  store_each<T>(w, in.d, [&](int i) {
    T r = 0;
    for (size_t bit = 0; bit < 8 * sizeof(T); ++bit) r = r << 1 | (a[i] >> bit & 1);
    return r;
  });
}
// option: 1 counts from the top (shiftamt).
template <typename T>
void bfind(Warp& w, const Inst& in) {
  const Lane<T> a(w, in.a);
  store_each<uint32_t>(w, in.d, [&](int i) {
    using U = std::make_unsigned_t<T>;
    const auto v = static_cast<U>(std::is_signed_v<T> && a[i] < 0 ? ~a[i] : a[i]);
    if (v == 0) return ~0u;
    const auto top =
        static_cast<uint32_t>(8 * sizeof(T) - 1) - static_cast<uint32_t>(std::countl_zero(v));
    return in.option != 0 ? static_cast<uint32_t>(8 * sizeof(T) - 1) - top : top;
  });
}
template <typename T>
void bfe(Warp& w, const Inst& in) {
  const Lane<T> a(w, in.a);
  const Lane<uint32_t> b(w, in.b), c(w, in.c);
  store_each<T>(w, in.d, [&](int i) -> T {
    constexpr uint32_t kBits = 8 * sizeof(T);
    const uint32_t from = b[i] & 255, n = std::min(c[i] & 255, kBits);
    if (n == 0) return 0;
    const uint32_t top = std::min(from + n - 1, kBits - 1);
    const bool sign = std::is_signed_v<T> && (static_cast<uint64_t>(a[i]) >> top & 1) != 0;
    std::make_unsigned_t<T> r =
        from < kBits ? static_cast<std::make_unsigned_t<T>>(a[i]) >> from : 0;
    const uint32_t kept = from < kBits ? top - from + 1 : 0;
    if (kept < kBits) {
      r &= static_cast<std::make_unsigned_t<T>>((std::make_unsigned_t<T>{1} << kept) - 1);
      if (sign) r |= static_cast<std::make_unsigned_t<T>>(~std::make_unsigned_t<T>{0} << kept);
    }
    return static_cast<T>(r);
  });
}
template <typename T>
void bfi(Warp& w, const Inst& in) {
  const Lane<T> a(w, in.a), b(w, in.b);
  const Lane<uint32_t> c(w, in.c), e(w, in.e);
  store_each<T>(w, in.d, [&](int i) {
    constexpr uint32_t kBits = 8 * sizeof(T);
    const uint32_t from = c[i] & 255, n = e[i] & 255;
    T r = b[i];
    for (uint32_t bit = 0; bit < n && from + bit < kBits; ++bit)
      r = (r & ~(T{1} << (from + bit))) | (a[i] >> bit & 1) << (from + bit);
    return r;
  });
}

void prmt(Warp& w, const Inst& in) {
  const Lane<uint32_t> a(w, in.a), b(w, in.b), c(w, in.c);
  store_lanes<uint32_t>(w, in.d, [&](int i) {
    const uint64_t both = uint64_t{b[i]} << 32 | a[i];
    uint32_t r = 0;
    for (int byte = 0; byte < 4; ++byte) {
      const uint32_t select = c[i] >> 4 * byte;
      uint32_t v = static_cast<uint32_t>(both >> 8 * (select & 7)) & 255;
      if ((select & 8) != 0) v = (v & 0x80) != 0 ? 255 : 0;
      r |= v << 8 * byte;
    }
    return r;
  });
}
void lop3(Warp& w, const Inst& in) {
  const Lane<uint32_t> a(w, in.a), b(w, in.b), c(w, in.c);
  const auto table = static_cast<uint32_t>(in.offset);
  store_lanes<uint32_t>(w, in.d, [&](int i) {
    uint32_t r = 0;
    for (uint32_t row = 0; row < 8; ++row)
      r |= (table >> row & 1 ? ~0u : 0u) & ((row & 4) != 0 ? a[i] : ~a[i]) &
           ((row & 2) != 0 ? b[i] : ~b[i]) & ((row & 1) != 0 ? c[i] : ~c[i]);
    return r;
  });
}

// Products of bytes (dp4a), or of halves with bytes 0 and 1 or 2 and 3 (dp2a): option 2 in its high
// bits. Signs of a and b: bits 0 and 1.
int32_t element(uint32_t v, int bits, int i, bool is_signed) {
  const uint32_t field = v >> bits * i & ((1u << bits) - 1);
  return is_signed && (field >> (bits - 1)) != 0 ? static_cast<int32_t>(field) - (1 << bits)
                                                 : static_cast<int32_t>(field);
}
template <int kTerms, int kSigned>
void dot(Warp& w, const Inst& in) {
  const Lane<uint32_t> a(w, in.a), b(w, in.b), c(w, in.c);
  const int first = kTerms == 2 && in.option != 0 ? 2 : 0;
  store_lanes<uint32_t>(w, in.d, [&](int i) {
    uint32_t sum = c[i];
    for (int k = 0; k < kTerms; ++k)
      sum += static_cast<uint32_t>(element(a[i], 32 / kTerms, k, (kSigned & 1) != 0) *
                                   element(b[i], 8, first + k, (kSigned & 2) != 0));
    return sum;
  });
}
template <int kTerms>
Handler dot_of(Type a, Type b) {
  static constexpr Handler kHandlers[] = {dot<kTerms, 0>, dot<kTerms, 1>, dot<kTerms, 2>,
                                          dot<kTerms, 3>};
  return kHandlers[(a.kind == 's' ? 1 : 0) + (b.kind == 's' ? 2 : 0)];
}

bool is_integer(Type t) {
  return t.lanes == 1 && (t.kind == 'u' || t.kind == 's' || t.kind == 'b');
}

// Operands d, a, b ... of the type's width.
void take(Decoder& d, Inst& in, int bits, size_t n) {
  Place* const places[] = {&in.d, &in.a, &in.b, &in.c, &in.e};
  for (size_t i = 0; i < n; ++i) *places[i] = d.place(i, bits);
}

void predicate_logic(Warp& w, const Inst& in) {  // option: and, or, xor, not, mov
  const uint32_t a = w.predicate(in.a), b = w.predicate(in.b);
  const uint32_t results[] = {a & b, a | b, a ^ b, ~a, a};
  store_predicate(w, in.d, results[in.option]);
}
bool decode_predicate_logic(Decoder& d, Inst& in) {
  static const std::map<std::string, uint8_t> kOptions = {
      {"and", 0}, {"or", 1}, {"xor", 2}, {"not", 3}, {"mov", 4}};
  const auto found = kOptions.find(d.base());
  if (found == kOptions.end() || !d.has("pred")) return false;
  take(d, in, 1, d.num_operands());
  if (d.num_operands() == 2) in.b = in.a;
  in.option = found->second;
  in.run = predicate_logic;
  return true;
}

bool decode_bits(Decoder& d, Inst& in) {
  const std::string& op = d.base();
  if (op == "prmt") {
    take(d, in, 32, 4);
    in.run = prmt;
  } else if (op == "lop3") {
    take(d, in, 32, 4);
    in.offset = d.immediate(4);
    in.run = lop3;
  } else if (op == "dp4a" || op == "dp2a") {
    take(d, in, 32, 4);
    in.option = d.has("hi") ? 1 : 0;
    in.run = op == "dp4a" ? dot_of<4>(d.type(0), d.type(1)) : dot_of<2>(d.type(0), d.type(1));
  } else if (op == "shf") {
    take(d, in, 32, 4);
    in.option = d.has("clamp") ? 1 : 0;
    in.run = d.has("l") ? funnel<true> : funnel<false>;
  } else if (op == "popc" || op == "clz" || op == "bfind") {
    const bool is_wide = d.type().bits == 64, is_signed = d.type().kind == 's';
    in.d = d.place(0, 32);
    in.a = d.place(1, d.type().bits);
    in.option = d.has("shiftamt") ? 1 : 0;
    in.run = op == "popc"  ? (is_wide ? popc<uint64_t> : popc<uint32_t>)
             : op == "clz" ? (is_wide ? clz<uint64_t> : clz<uint32_t>)
             : is_signed   ? (is_wide ? bfind<int64_t> : bfind<int32_t>)
                           : (is_wide ? bfind<uint64_t> : bfind<uint32_t>);
  } else if (op == "brev") {
    take(d, in, d.type().bits, 2);
    in.run = d.type().bits == 64 ? brev<uint64_t> : brev<uint32_t>;
  } else if (op == "bfe") {
    take(d, in, d.type().bits, 2);
    in.b = d.place(2, 32);
    in.c = d.place(3, 32);
    const bool is_signed = d.type().kind == 's';
    in.run = d.type().bits == 64 ? (is_signed ? bfe<int64_t> : bfe<uint64_t>)
                                 : (is_signed ? bfe<int32_t> : bfe<uint32_t>);
  } else if (op == "bfi") {
    take(d, in, d.type().bits, 3);
    in.c = d.place(3, 32);
    in.e = d.place(4, 32);
    in.run = d.type().bits == 64 ? bfi<uint64_t> : bfi<uint32_t>;
  } else {
    return false;
  }
  return true;
}

bool decode_shift(Decoder& d, Inst& in) {
  const std::string& op = d.base();
  if (op != "shl" && op != "shr") return false;
  const Type t = d.type();
  take(d, in, t.bits, 2);
  in.b = d.place(2, 32);
  if (op == "shl")
    in.run = t.bits == 16 ? shl<uint16_t> : t.bits == 32 ? shl<uint32_t> : shl<uint64_t>;
  else if (t.kind == 's')
    in.run = t.bits == 16 ? shr<int16_t> : t.bits == 32 ? shr<int32_t> : shr<int64_t>;
  else
    in.run = t.bits == 16 ? shr<uint16_t> : t.bits == 32 ? shr<uint32_t> : shr<uint64_t>;
  return true;
}

// Element i of `table` for u16, s16, u32, s32.
Handler of_narrow(Type t, const Handler (&table)[4]) {
  return table[(t.bits == 32 ? 2 : 0) + (t.kind == 's' ? 1 : 0)];
}
bool decode_wide(Decoder& d, Inst& in) {
  const Type t = d.type();
  if (!d.has("wide") || (d.base() != "mul" && d.base() != "mad")) return false;
  in.d = d.place(0, 2 * t.bits);
  in.a = d.place(1, t.bits);
  in.b = d.place(2, t.bits);
  if (d.base() == "mul") {
    in.run = of_narrow(
        t, {mul_wide<uint16_t>, mul_wide<int16_t>, mul_wide<uint32_t>, mul_wide<int32_t>});
  } else {
    in.c = d.place(3, 2 * t.bits);
    in.run = of_narrow(
        t, {mad_wide<uint16_t>, mad_wide<int16_t>, mad_wide<uint32_t>, mad_wide<int32_t>});
  }
  return true;
}

}  // namespace

bool decode_integer(Decoder& d, Inst& in) {
  if (decode_predicate_logic(d, in) || decode_bits(d, in) || decode_shift(d, in)) return true;
  static const std::map<std::string, std::pair<int, Handler (*)(Type)>> kOps = {
      {"add", {2, of_two<Add>}},       {"sub", {2, of_two<Sub>}}, {"mul.lo", {2, of_two<MulLo>}},
      {"mul.hi", {2, of_two<MulHi>}},  {"div", {2, of_two<Div>}}, {"rem", {2, of_two<Rem>}},
      {"min", {2, of_two<Min>}},       {"max", {2, of_two<Max>}}, {"and", {2, of_two<And>}},
      {"or", {2, of_two<Or>}},         {"xor", {2, of_two<Xor>}}, {"not", {1, of_one<Not>}},
      {"neg", {1, of_one<Neg>}},       {"abs", {1, of_one<Abs>}}, {"mad.lo", {3, of_three<MadLo>}},
      {"mad.hi", {3, of_three<MadHi>}}};
  const std::string& op = d.base();
  const bool is_known = op == "mul" || op == "mad" || kOps.count(op) != 0;
  const bool is_other = d.has("cc") || d.has("sat") || d.has("relu");
  if (!is_known || is_other || !is_integer(d.type())) return false;
  if (decode_wide(d, in)) return true;
  const auto found =
      kOps.find(op == "mul" || op == "mad" ? op + (d.has("lo") ? ".lo" : ".hi") : op);
  if (found == kOps.end()) return false;
  take(d, in, d.type().bits, 1 + static_cast<size_t>(found->second.first));
  in.run = found->second.second(d.type());
  return true;
}

}  // namespace nibble::emulated
