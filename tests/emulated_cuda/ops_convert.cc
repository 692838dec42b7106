// cvt: between integers, floats and small formats.
#include <cmath>

#include "decode.h"
#include "lanes.h"
#include "small_floats.h"

namespace nibble::emulated {
namespace {

// Between integers: the source's type says how it is extended.
template <typename To, typename From>
void integers(Warp& w, const Inst& in) {
  const Lane<From> a(w, in.a);
  store_lanes<To>(w, in.d, [&](int i) { return static_cast<To>(a[i]); });
}
// From a register that is wider than the source's type.
template <typename To, typename From>
void integers_of_wide(Warp& w, const Inst& in) {
  const Lane<uint64_t> a(w, in.a);
  store_lanes<To>(w, in.d, [&](int i) { return static_cast<To>(static_cast<From>(a[i])); });
}
Handler integers_from_wide(Type to, Type from) {
  if (to.bits != 64 || from.bits != 32) return nullptr;
  return from.kind == 's' ? integers_of_wide<uint64_t, int32_t>
                          : integers_of_wide<uint64_t, uint32_t>;
}
template <typename To>
Handler integers_from(Type from) {
  const bool s = from.kind == 's';
  switch (from.bits) {
    case 8:
      return s ? integers<To, int8_t> : integers<To, uint8_t>;
    case 16:
      return s ? integers<To, int16_t> : integers<To, uint16_t>;
    case 32:
      return s ? integers<To, int32_t> : integers<To, uint32_t>;
    default:
      return s ? integers<To, int64_t> : integers<To, uint64_t>;
  }
}
// What is narrower than the register it goes to is extended to it.
Handler integers_of(Type to, Type from) {
  const bool s = to.kind == 's';
  if (to.bits == 8) return s ? integers_from<int8_t>(from) : integers_from<uint8_t>(from);
  if (to.bits == 16) return s ? integers_from<int16_t>(from) : integers_from<uint16_t>(from);
  if (to.bits == 32) return s ? integers_from<int32_t>(from) : integers_from<uint32_t>(from);
  return s ? integers_from<int64_t>(from) : integers_from<uint64_t>(from);
}

// Rounding to an integer: 'n' nearest even, 'z' towards zero, 'm' down, 'p' up.
double rounded(double v, int mode) {
  switch (mode) {
    case 'z':
      return std::trunc(v);
    case 'm':
      return std::floor(v);
    case 'p':
      return std::ceil(v);
    default:
      return std::nearbyint(v);
  }
}
template <typename To, typename From>
void float_to_integer(Warp& w, const Inst& in) {  // clamped; NaN becomes 0
  const Lane<From> a(w, in.a);
  constexpr auto kLeast = std::numeric_limits<To>::min(), kMost = std::numeric_limits<To>::max();
  store_each<To>(w, in.d, [&](int i) -> To {
    const double v = rounded(a[i], in.option);
    if (v != v) return sizeof(To) == 8 ? static_cast<To>(uint64_t{1} << 63) : To{0};
    if (v <= static_cast<double>(kLeast)) return kLeast;
    if (v >= static_cast<double>(kMost)) return kMost;
    return static_cast<To>(v);
  });
}
template <typename From>
Handler float_to_integer_of(Type to) {
  const bool s = to.kind == 's';
  if (to.bits == 64) return s ? float_to_integer<int64_t, From> : float_to_integer<uint64_t, From>;
  if (to.bits == 32) return s ? float_to_integer<int32_t, From> : float_to_integer<uint32_t, From>;
  return s ? float_to_integer<int16_t, From> : float_to_integer<uint16_t, From>;
}
template <typename To, typename From>
void integer_to_float(Warp& w, const Inst& in) {
  const Lane<From> a(w, in.a);
  store_lanes<To>(w, in.d, [&](int i) { return static_cast<To>(a[i]); });
}
template <typename To>
Handler integer_to_float_of(Type from) {
  const bool s = from.kind == 's';
  switch (from.bits) {
    case 8:
      return s ? integer_to_float<To, int8_t> : integer_to_float<To, uint8_t>;
    case 16:
      return s ? integer_to_float<To, int16_t> : integer_to_float<To, uint16_t>;
    case 32:
      return s ? integer_to_float<To, int32_t> : integer_to_float<To, uint32_t>;
    default:
      return s ? integer_to_float<To, int64_t> : integer_to_float<To, uint64_t>;
  }
}

template <typename To, typename From>
void float_to_float(Warp& w, const Inst& in) {  // option: 0, a rounding to an integer, or 's'
  const Lane<From> a(w, in.a);
  store_each<To>(w, in.d, [&](int i) -> To {
    From v = a[i];
    if (in.option == 's')
      v = v > 1 ? 1 : v > 0 ? v : 0;  // NaN becomes 0
    else if (in.option != 0)
      v = static_cast<From>(rounded(v, in.option));
    return static_cast<To>(v);
  });
}
void f16_to_float(Warp& w, const Inst& in) {
  const Lane<uint32_t> a(w, in.a);
  store_lanes<float>(w, in.d, [&](int i) { return f16_value(a[i] & 0xffff); });
}
void bf16_to_float(Warp& w, const Inst& in) {
  const Lane<uint32_t> a(w, in.a);
  store_lanes<uint32_t>(w, in.d, [&](int i) { return a[i] << 16; });
}
uint32_t bf16_code(float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  return v != v ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
void float_to_bf16(Warp& w, const Inst& in) {
  const Lane<float> a(w, in.a);
  store_lanes<uint32_t>(w, in.d, [&](int i) { return bf16_code(a[i]); });
}
void float_to_f16(Warp& w, const Inst& in) {
  const Lane<float> a(w, in.a);
  store_lanes<uint32_t>(w, in.d, [&](int i) { return uint32_t{f16_code(a[i])}; });
}
void float_to_bf16x2(Warp& w, const Inst& in) {  // a goes to the high half
  const Lane<float> a(w, in.a), b(w, in.b);
  store_lanes<uint32_t>(w, in.d, [&](int i) { return bf16_code(a[i]) << 16 | bf16_code(b[i]); });
}
void float_to_f16x2(Warp& w, const Inst& in) {
  const Lane<float> a(w, in.a), b(w, in.b);
  store_lanes<uint32_t>(
      w, in.d, [&](int i) { return static_cast<uint32_t>(f16_code(a[i])) << 16 | f16_code(b[i]); });
}
// Nearest with ties away from zero, the low 13 bits cut.
void float_to_tf32(Warp& w, const Inst& in) {
  const Lane<uint32_t> a(w, in.a);
  store_lanes<uint32_t>(w, in.d, [&](int i) {
    const bool is_special = (a[i] & 0x7f800000u) == 0x7f800000u;
    return is_special ? ((a[i] & 0x7fffff) != 0 ? 0x7fffffffu : a[i]) : (a[i] + 0x1000) & ~0x1fffu;
  });
}

// Pairs of codes of kBits: from two floats, the first to the high half, saturated; to two f16.
template <typename Format, int kBits>
void float_to_codes(Warp& w, const Inst& in) {
  const Lane<float> a(w, in.a), b(w, in.b);
  store_each<uint32_t>(w, in.d, [&](int i) {
    return static_cast<uint32_t>(Format::encode(a[i], true)) << kBits | Format::encode(b[i], true);
  });
}
template <typename Format, int kBits>
void codes_to_f16x2(Warp& w, const Inst& in) {
  static const auto kTable = [] {
    std::vector<uint16_t> codes;
    for (uint32_t c = 0; c < 1u << kBits; ++c) codes.push_back(F16::encode(Format::decode(c)));
    return codes;
  }();
  const Lane<uint32_t> a(w, in.a);
  constexpr uint32_t kMask = (1u << kBits) - 1;
  store_each<uint32_t>(w, in.d, [&](int i) {
    return static_cast<uint32_t>(kTable[a[i] >> kBits & kMask]) << 16 | kTable[a[i] & kMask];
  });
}

bool decode_small(Decoder& d, Inst& in, Type to, Type from) {
  if (d.has("relu") || d.has("ftz")) return false;
  const bool packs = to.lanes == 2 && from.kind == 'f' && from.bits == 32;
  if (packs) {
    in.d = d.place(0, 32), in.a = d.place(1, 32), in.b = d.place(2, 32);
    if (to.bits == 16) {
      if (d.has("satfinite") || d.has("rz")) return false;
      in.run = to.kind == 'h' ? float_to_bf16x2 : float_to_f16x2;
      return true;
    }
    in.run = to.bits == 8   ? float_to_codes<E4m3, 8>
             : to.bits == 9 ? float_to_codes<E5m2, 8>
                            : float_to_codes<E2m1, 4>;
    return true;
  }
  in.d = d.place(0, 32), in.a = d.place(1, 32);
  if (to.kind == 't' && to.bits == 32) {
    in.run = float_to_tf32;
    return d.has("rna");
  }
  if (to.lanes == 2 && to.bits == 16 && to.kind == 'f' && from.kind == 't') {
    in.run = from.bits == 8   ? codes_to_f16x2<E4m3, 8>
             : from.bits == 9 ? codes_to_f16x2<E5m2, 8>
                              : codes_to_f16x2<E2m1, 4>;
    return true;
  }
  if (to.lanes != 1 || from.lanes != 1) return false;
  if (to.bits == 16 && from.kind == 'f' && from.bits == 32) {
    in.run = to.kind == 'h' ? float_to_bf16 : float_to_f16;
    return d.has("rn") && !d.has("satfinite");
  }
  if (from.bits == 16 && to.kind == 'f' && to.bits == 32) {
    in.run = from.kind == 'h' ? bf16_to_float : f16_to_float;
    return true;
  }
  return false;
}

uint8_t rounding(const Decoder& d) {
  for (const auto& [name, mode] : {std::pair("rni", 'n'), {"rzi", 'z'}, {"rmi", 'm'}, {"rpi", 'p'}})
    if (d.has(name)) return static_cast<uint8_t>(mode);
  return d.has("sat") ? 's' : 0;
}

bool is_integer(Type t) {
  return t.lanes == 1 && (t.kind == 'u' || t.kind == 's' || t.kind == 'b');
}

}  // namespace

bool decode_convert(Decoder& d, Inst& in) {
  if (d.base() != "cvt") return false;
  const Type to = d.type(0), from = d.type(1);
  const auto is_small = [](Type t) {
    return t.kind == 't' || t.kind == 'h' || t.lanes == 2 || (t.kind == 'f' && t.bits == 16);
  };
  if (is_small(to) || is_small(from)) return decode_small(d, in, to, from);
  // Registers may be wider than the types.
  const int from_word = d.is_register(1) ? d.register_bits(d.operand(1)) : from.bits;
  const int to_word = d.register_bits(d.operand(0));
  if ((from.bits == 64) != (from_word == 64) && from.bits == 64) d.fail("a narrow source");
  if ((to.bits == 64) != (to_word == 64)) d.fail("a register of another width");
  in.d = d.place(0, to_word);
  in.a = d.place(1, from_word);
  if (from_word == 64 && from.bits != 64) {
    in.run = integers_from_wide(to, from);
    return in.run != nullptr;
  }
  for (const char* other : {"ftz", "rz", "rm", "rp"})
    if (d.has(other)) d.fail(other);
  in.option = rounding(d);
  if (is_integer(to) && is_integer(from)) {
    if (in.option == 's') d.fail("saturation");
    in.run = integers_of(to, from);
  } else if (is_integer(to)) {
    if (to.bits == 8) d.fail("bytes of floats");
    in.run = from.bits == 64 ? float_to_integer_of<double>(to) : float_to_integer_of<float>(to);
  } else if (is_integer(from)) {
    in.run = to.bits == 64 ? integer_to_float_of<double>(from) : integer_to_float_of<float>(from);
  } else if (to.bits == 64) {
    in.run = from.bits == 64 ? float_to_float<double, double> : float_to_float<double, float>;
  } else {
    in.run = from.bits == 64 ? float_to_float<float, double> : float_to_float<float, float>;
  }
  return true;
}

}  // namespace nibble::emulated
