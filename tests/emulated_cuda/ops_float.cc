// Floating-point arithmetic: float32 and float64, and pairs of f16 and bf16.
#include <cfenv>
#include <cmath>

#include "decode.h"
#include "lanes.h"
#include "small_floats.h"

namespace nibble::emulated {
namespace {

// The NaN that a GPU's arithmetic gives.
inline float canonical(float v) { return v == v ? v : std::bit_cast<float>(0x7fffffffu); }
inline double canonical(double v) { return v; }

struct Add {
  template <typename T>
  static T of(T a, T b) {
    return canonical(a + b);
  }
};
struct Sub {
  template <typename T>
  static T of(T a, T b) {
    return canonical(a - b);
  }
};
struct Mul {
  template <typename T>
  static T of(T a, T b) {
    return canonical(a * b);
  }
};
struct Div {
  template <typename T>
  static T of(T a, T b) {
    return canonical(a / b);
  }
};
struct Fma {
  static float of(float a, float b, float c) { return canonical(__builtin_fmaf(a, b, c)); }
  static double of(double a, double b, double c) { return __builtin_fma(a, b, c); }
};
// Of a number and NaN the number; -0 below +0.
template <bool kMax, bool kNan>
struct Extreme {
  template <typename T>
  static T of(T a, T b) {
    const T other = kMax ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::infinity();
    const T x = a == a ? a : other, y = b == b ? b : other;
    const bool takes_a = x == y ? std::signbit(x) != kMax : (x < y) != kMax;
    const T r = takes_a ? x : y;
    const bool is_nan = kNan ? a != a || b != b : a != a && b != b;
    return is_nan ? canonical(std::numeric_limits<T>::quiet_NaN()) : r;
  }
};
struct Neg {
  template <typename T>
  static T of(T a) {
    return -a;
  }
};
struct Abs {
  template <typename T>
  static T of(T a) {
    return std::fabs(a);
  }
};
struct CopySign {  // the sign of a on b
  template <typename T>
  static T of(T a, T b) {
    return std::copysign(b, a);
  }
};
struct Rcp {
  template <typename T>
  static T of(T a) {
    return canonical(T{1} / a);
  }
};
struct Sqrt {
  template <typename T>
  static T of(T a) {
    return canonical(std::sqrt(a));
  }
};

template <typename Op>
Handler one_of(Type t) {
  return t.bits == 64 ? unary<double, Op> : unary<float, Op>;
}
template <typename Op>
Handler two_of(Type t) {
  return t.bits == 64 ? binary<double, Op> : binary<float, Op>;
}

// Functions that a GPU approximates: here the nearest float32, which lies within its bounds (PTX
// ISA: 2 ulp and the like) but is not its bits.
inline float flushed(float v) { return std::fabs(v) < 0x1p-126f ? std::copysign(0.f, v) : v; }
template <double (*kFunction)(double), bool kFlush>
void approximate(Warp& w, const Inst& in) {
  const Lane<float> a(w, in.a);
  store_each<float>(w, in.d, [&](int i) {
    const float x = kFlush ? flushed(a[i]) : a[i];
    const auto y = static_cast<float>(kFunction(x));
    return canonical(kFlush ? flushed(y) : y);
  });
}
double exp2_of(double x) { return std::exp2(x); }
double log2_of(double x) { return std::log2(x); }
double sin_of(double x) { return std::sin(x); }
double cos_of(double x) { return std::cos(x); }
double tanh_of(double x) { return std::tanh(x); }
double reciprocal_of(double x) { return 1 / x; }
double rsqrt_of(double x) { return 1 / std::sqrt(x); }
double sqrt_of(double x) { return std::sqrt(x); }
template <double (*kFunction)(double)>
Handler approximation(bool flush) {
  return flush ? approximate<kFunction, true> : approximate<kFunction, false>;
}

template <int kMode>
struct Rounded {
  const int old = std::fegetround();
  Rounded() { std::fesetround(kMode); }
  ~Rounded() { std::fesetround(old); }
};
// The compiler may not move arithmetic out of the rounding mode.
template <typename T>
T hidden(T v) {
  asm volatile("" : "+m"(v));
  return v;
}
float add_now(float a, float b) { return hidden(hidden(a) + hidden(b)); }
float mul_now(float a, float b) { return hidden(hidden(a) * hidden(b)); }
float div_now(float a, float b) { return hidden(hidden(a) / hidden(b)); }
float fma_now(float a, float b, float c) {
  return hidden(__builtin_fmaf(hidden(a), hidden(b), hidden(c)));
}
enum class Kind : uint8_t { kAdd, kSub, kMul, kDiv, kFma };
template <int kMode>
void directed(Warp& w, const Inst& in) {
  const Lane<float> a(w, in.a), b(w, in.b), c(w, in.c);
  const Rounded<kMode> rounded;
  store_each<float>(w, in.d, [&](int i) {
    switch (static_cast<Kind>(in.option)) {
      case Kind::kAdd:
        return canonical(add_now(a[i], b[i]));
      case Kind::kSub:
        return canonical(add_now(a[i], -b[i]));
      case Kind::kMul:
        return canonical(mul_now(a[i], b[i]));
      case Kind::kDiv:
        return canonical(div_now(a[i], b[i]));
      default:
        return canonical(fma_now(a[i], b[i], c[i]));
    }
  });
}
bool decode_directed(Decoder& d, Inst& in) {
  static const std::map<std::string, Kind> kKinds = {{"add", Kind::kAdd},
                                                     {"sub", Kind::kSub},
                                                     {"mul", Kind::kMul},
                                                     {"div", Kind::kDiv},
                                                     {"fma", Kind::kFma}};
  const auto kind = kKinds.find(d.base());
  const bool is_down = d.has("rm"), is_up = d.has("rp"), is_cut = d.has("rz");
  if (kind == kKinds.end() || !(is_down || is_up || is_cut)) return false;
  if (d.type().bits != 32) d.fail("rounded so in float32 alone");
  in.option = static_cast<uint8_t>(kind->second);
  in.d = d.place(0, 32), in.a = d.place(1, 32), in.b = d.place(2, 32);
  in.c = kind->second == Kind::kFma ? d.place(3, 32) : in.b;
  in.run = is_down ? directed<FE_DOWNWARD> : is_up ? directed<FE_UPWARD> : directed<FE_TOWARDZERO>;
  return true;
}

bool decode_approximation(Decoder& d, Inst& in) {
  using Maker = Handler (*)(bool);
  static const std::map<std::string, Maker> kMakers = {
      {"ex2", approximation<exp2_of>},    {"lg2", approximation<log2_of>},
      {"sin", approximation<sin_of>},     {"cos", approximation<cos_of>},
      {"tanh", approximation<tanh_of>},   {"rcp", approximation<reciprocal_of>},
      {"rsqrt", approximation<rsqrt_of>}, {"sqrt", approximation<sqrt_of>}};
  const auto found = kMakers.find(d.base());
  if (found == kMakers.end() || !d.has("approx") || d.type().bits != 32) return false;
  in.d = d.place(0, 32), in.a = d.place(1, 32);
  in.run = found->second(d.has("ftz"));
  return true;
}

// ---- halves: elements of 16 bits, one or two to a word; results rounded once

template <typename Format, typename Op>
void packed(Warp& w, const Inst& in) {  // n: elements
  const Lane<uint32_t> a(w, in.a), b(w, in.b), c(w, in.c);
  store_each<uint32_t>(w, in.d, [&](int i) {
    uint32_t r = 0;
    for (int half = 0; half < in.n; ++half) {
      const auto at = [&](uint32_t v) {
        return Format::decode(static_cast<uint16_t>(v >> 16 * half));
      };
      r |= uint32_t{Format::encode(Op::of(at(a[i]), at(b[i]), at(c[i])))} << 16 * half;
    }
    return r;
  });
}
// In float64, rounded to odd: the rounding to 16 bits is then the only one.
struct HalfAdd {
  static double of(double a, double b, double) { return odd_sum(a, b); }
};
struct HalfSub {
  static double of(double a, double b, double) { return odd_sum(a, -b); }
};
struct HalfMul {
  static double of(double a, double b, double) { return a * b; }
};
struct HalfFma {
  static double of(double a, double b, double c) { return odd_sum(a * b, c); }
};
struct HalfMin {
  static double of(double a, double b, double) { return Extreme<false, false>::of(a, b); }
};
struct HalfMax {
  static double of(double a, double b, double) { return Extreme<true, false>::of(a, b); }
};
struct HalfLargest {  // max.xorsign.abs
  static double of(double a, double b, double) {
    const double size = Extreme<true, false>::of(std::fabs(a), std::fabs(b));
    return std::signbit(a) == std::signbit(b) ? size : -size;
  }
};

template <typename Op>
void packed_integer(Warp& w, const Inst& in) {
  const Lane<uint32_t> a(w, in.a), b(w, in.b);
  store_lanes<uint32_t>(w, in.d, [&](int i) {
    return Op::of(a[i] & 0xffff, b[i] & 0xffff) | Op::of(a[i] >> 16, b[i] >> 16) << 16;
  });
}
struct MinU16 {
  static uint32_t of(uint32_t a, uint32_t b) { return a < b ? a : b; }
};
struct MaxU16 {
  static uint32_t of(uint32_t a, uint32_t b) { return a > b ? a : b; }
};
struct AddU16 {
  static uint32_t of(uint32_t a, uint32_t b) { return (a + b) & 0xffff; }
};

template <typename Op>
Handler packed_of(Type t) {
  return t.kind == 'h' ? packed<QuickBf16, Op> : packed<F16, Op>;
}
void flip_signs(Warp& w, const Inst& in) {  // offset: the bits; option 1: clears them
  const Lane<uint32_t> a(w, in.a);
  const auto bits = static_cast<uint32_t>(in.offset);
  store_lanes<uint32_t>(w, in.d,
                        [&](int i) { return in.option != 0 ? a[i] & ~bits : a[i] ^ bits; });
}

}  // namespace

bool decode_float(Decoder& d, Inst& in) {
  static const std::map<std::string, std::pair<int, Handler (*)(Type)>> kOps = {
      {"add", {2, two_of<Add>}}, {"sub", {2, two_of<Sub>}},   {"mul", {2, two_of<Mul>}},
      {"div", {2, two_of<Div>}}, {"neg", {1, one_of<Neg>}},   {"abs", {1, one_of<Abs>}},
      {"rcp", {1, one_of<Rcp>}}, {"sqrt", {1, one_of<Sqrt>}}, {"copysign", {2, two_of<CopySign>}}};
  const std::string& op = d.base();
  const bool is_extreme = op == "min" || op == "max";
  const bool is_fma = op == "fma" || op == "mad";
  if (decode_approximation(d, in)) return true;
  const auto found = kOps.find(op);
  if (found == kOps.end() && !is_extreme && !is_fma) return false;
  const Type t = d.type();
  if (t.kind != 'f' || t.bits < 32) return false;
  if (d.has("ftz")) d.fail("flushing of subnormals");
  if (d.has("sat") || d.has("xorsign")) d.fail("a result that is changed once more");
  if (is_extreme && d.num_operands() != 3) d.fail("of three numbers");
  if (decode_directed(d, in)) return true;
  if (d.has("rm") || d.has("rp") || d.has("rz")) d.fail("rounded so");
  in.d = d.place(0, t.bits), in.a = d.place(1, t.bits);
  if (found == kOps.end() || found->second.first == 2) in.b = d.place(2, t.bits);
  if (is_fma) {
    in.c = d.place(3, t.bits);
    in.run = t.bits == 64 ? ternary<double, Fma> : ternary<float, Fma>;
  } else if (is_extreme) {
    const bool nan = d.has("NaN");
    in.run = op == "max"
                 ? (nan ? two_of<Extreme<true, true>>(t) : two_of<Extreme<true, false>>(t))
                 : (nan ? two_of<Extreme<false, true>>(t) : two_of<Extreme<false, false>>(t));
  } else {
    in.run = found->second.second(t);
  }
  return true;
}

bool decode_packed(Decoder& d, Inst& in) {
  static const std::map<std::string, std::pair<int, Handler (*)(Type)>> kOps = {
      {"add", {2, packed_of<HalfAdd>}}, {"sub", {2, packed_of<HalfSub>}},
      {"mul", {2, packed_of<HalfMul>}}, {"min", {2, packed_of<HalfMin>}},
      {"max", {2, packed_of<HalfMax>}}, {"fma", {3, packed_of<HalfFma>}}};
  const std::string& op = d.base();
  const bool is_sign = op == "neg" || op == "abs";
  if (kOps.count(op) == 0 && !is_sign) return false;
  const Type t = d.type();
  if (t.bits != 16 || (t.lanes == 1 && t.kind != 'h' && t.kind != 'f')) return false;
  const bool of_sizes = op == "max" && d.has("xorsign");
  for (const char* changed : {"ftz", "sat", "relu", of_sizes ? "NaN" : "xorsign"})
    if (d.has(changed)) d.fail("a result that is changed once more");
  const int bits = 16 * t.lanes;
  in.n = static_cast<uint8_t>(t.lanes);
  in.d = d.place(0, bits), in.a = d.place(1, bits);
  in.b = in.c = in.a;
  if (is_sign) {
    in.offset = t.lanes == 2 ? 0x80008000 : 0x8000;
    in.option = op == "abs" ? 1 : 0;
    in.run = flip_signs;
    return true;
  }
  in.b = d.place(2, bits);
  if (t.kind == 'u') {
    in.run = op == "min"   ? packed_integer<MinU16>
             : op == "max" ? packed_integer<MaxU16>
                           : packed_integer<AddU16>;
    return op == "min" || op == "max" || op == "add";
  }
  if (t.kind == 's') return false;
  const auto& [operands, handler] = kOps.at(op);
  if (operands == 3) in.c = d.place(3, bits);
  in.run = of_sizes ? packed_of<HalfLargest>(t) : handler(t);
  return true;
}

}  // namespace nibble::emulated
