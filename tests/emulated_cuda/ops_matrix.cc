// Matrices of a warp: ldmatrix, movmatrix and mma.sync. Layouts: PTX ISA 9.0, section 9.7.14.
// Lane l = 4 g + p.
#include <array>

#include "decode.h"
#include "lanes.h"
#include "matrix_sums.h"
#include "memory.h"
#include "small_floats.h"

namespace nibble::emulated {
namespace {

// ---- 8x8 matrices of 16 bits: lane l holds row g, elements 2 p and 2 p + 1

uint32_t transposed_pair(const uint32_t (&rows)[8][4], int lane) {
  const int g = lane / 4, p = lane % 4;
  const auto element = [&](int row) { return rows[row][g / 2] >> 16 * (g % 2) & 0xffff; };
  return element(2 * p) | element(2 * p + 1) << 16;
}
void load_matrices(Warp& w, const Inst& in) {  // n: matrices, list: places; option 1: transposed
  if (!have_lanes(w, kAllLanes)) return;
  const Lane<uint32_t> address(w, in.a);
  uint32_t rows[4][8][4];
  for (int m = 0; m < in.n; ++m)
    for (int r = 0; r < 8; ++r) {
      const int lane = 8 * m + r;
      std::memcpy(rows[m][r],
                  shared_at(w, address[lane] + static_cast<uint32_t>(in.offset), 16, lane), 16);
    }
  for (int m = 0; m < in.n; ++m)
    store_lanes<uint32_t>(w, in.list[m], [&](int i) {
      return in.option != 0 ? transposed_pair(rows[m], i) : rows[m][i / 4][i % 4];
    });
}
void store_matrices(Warp& w, const Inst& in) {
  if (!have_lanes(w, kAllLanes)) return;
  const Lane<uint32_t> address(w, in.a);
  for (int m = 0; m < in.n; ++m) {
    const Lane<uint32_t> v(w, in.list[m]);
    uint32_t rows[8][4];
    for (int i = 0; i < kLanes; ++i) rows[i / 4][i % 4] = v[i];
    for (int r = 0; r < 8; ++r) {
      const int lane = 8 * m + r;
      uint32_t row[4];
      for (int q = 0; q < 4; ++q)
        row[q] = in.option != 0 ? transposed_pair(rows, 4 * r + q) : rows[r][q];
      std::memcpy(shared_at(w, address[lane] + static_cast<uint32_t>(in.offset), 16, lane), row,
                  16);
    }
  }
}
void transpose(Warp& w, const Inst& in) {
  if (!have_lanes(w, kAllLanes)) return;
  const Lane<uint32_t> a(w, in.a);
  uint32_t rows[8][4];
  for (int i = 0; i < kLanes; ++i) rows[i / 4][i % 4] = a[i];
  store_lanes<uint32_t>(w, in.d, [&](int i) { return transposed_pair(rows, i); });
}

// ---- fragments of m16n8: registers of A (rows g, g + 8, then the same at half of k), B and C

struct Fragments {
  uint32_t a[16][16];  // [row][word of k], as many words as k has
  uint32_t b[8][16];   // [column][word of k]
};
// Words of k per row: 4 lanes' words, then those of the upper half.
void gather(const Warp& w, const Inst& in, Fragments& f) {
  for (int r = 0; r < 4; ++r) {
    const Lane<uint32_t> a(w, in.list[4 + r]);
    for (int i = 0; i < kLanes; ++i) f.a[i / 4 + 8 * (r % 2)][i % 4 + 4 * (r / 2)] = a[i];
  }
  for (int r = 0; r < 2; ++r) {
    const Lane<uint32_t> b(w, in.list[8 + r]);
    for (int i = 0; i < kLanes; ++i) f.b[i / 4][i % 4 + 4 * r] = b[i];
  }
}
template <typename T>
void gather_sums(const Warp& w, const Inst& in, T (&c)[16][kColumns]) {
  for (int r = 0; r < 4; ++r) {
    const Lane<T> v(w, in.list[10 + r]);
    for (int i = 0; i < kLanes; ++i) c[i / 4 + 8 * (r / 2)][2 * (i % 4) + r % 2] = v[i];
  }
}
template <typename T>
void scatter_sums(Warp& w, const Inst& in, const T (&c)[16][kColumns]) {
  for (int r = 0; r < 4; ++r)
    store_lanes<T>(w, in.list[r],
                   [&](int i) { return c[i / 4 + 8 * (r / 2)][2 * (i % 4) + r % 2]; });
}

// Formats of elements: the value of element k of a row of words, and the exponent of its least
// normal number.
struct ElementF16 {
  static constexpr int kK = 16, kLeast = -14;
  static float of(const uint32_t* row, int k) {
    return f16_value(row[k / 2] >> 16 * (k % 2) & 0xffff);
  }
};
struct ElementBf16 {
  static constexpr int kK = 16, kLeast = -126;
  static float of(const uint32_t* row, int k) {
    return std::bit_cast<float>(row[k / 2] >> 16 * (k % 2) << 16);
  }
};
struct ElementTf32 {  // what lies below its bits is not looked at
  static constexpr int kK = 8, kLeast = -126;
  static float of(const uint32_t* row, int k) { return std::bit_cast<float>(row[k] & ~0x1fffu); }
};
template <typename Format, int kShift, uint32_t kMask>
struct ElementByte {
  static constexpr int kK = 32, kLeast = 1 - Format::kBias;
  static float of(const uint32_t* row, int k) {
    static const auto kTable = [] {
      std::array<float, 256> values;
      for (uint32_t c = 0; c < 256; ++c)
        values[c] = static_cast<float>(Format::decode(c >> kShift & kMask));
      return values;
    }();
    return kTable[row[k / 4] >> 8 * (k % 4) & 255];
  }
};
using ElementE4m3 = ElementByte<E4m3, 0, 255>;
using ElementE5m2 = ElementByte<E5m2, 0, 255>;
using ElementE2m1 = ElementByte<E2m1, 2, 15>;  // a byte holds the code in its bits 5..2

template <typename A, typename B>
struct Decoded {
  static_assert(A::kK == B::kK);
  RowsOfA<A::kK> a[16];
  ColumnsOfB<A::kK> b;
  bool is_special = false;
  explicit Decoded(const Fragments& f) {
    for (int r = 0; r < 16; ++r)
      for (int k = 0; k < A::kK; ++k) {
        const float v = A::of(f.a[r], k);
        a[r].values[k] = v, a[r].exponents[k] = exponent_of(v, A::kLeast);
        is_special |= !(std::fabs(v) < std::numeric_limits<float>::infinity());
      }
    for (int n = 0; n < kColumns; ++n)
      for (int k = 0; k < A::kK; ++k) {
        const float v = B::of(f.b[n], k);
        b.values[k][n] = v, b.exponents[k][n] = exponent_of(v, B::kLeast);
        is_special |= !(std::fabs(v) < std::numeric_limits<float>::infinity());
      }
  }
};
bool is_special(const float (&row)[kColumns]) {
  bool any = false;
  for (const float v : row) any |= !(std::fabs(v) < std::numeric_limits<float>::infinity());
  return any;
}

template <typename A, typename B>
void multiply(Warp& w, const Inst& in) {
  if (!have_lanes(w, kAllLanes)) return;
  Fragments f;
  gather(w, in, f);
  float c[16][kColumns];
  gather_sums(w, in, c);
  const Decoded<A, B> m(f);
  const int32_t ones[kColumns] = {};
  for (int r = 0; r < 16; ++r)
    add_products<A::kK, 25>(c[r], m.a[r], m.b, ones, m.is_special || is_special(c[r]));
  scatter_sums(w, in, c);
}
template <bool kSigned>
void multiply_bytes(Warp& w, const Inst& in) {
  if (!have_lanes(w, kAllLanes)) return;
  Fragments f;
  gather(w, in, f);
  uint32_t c[16][kColumns];
  gather_sums(w, in, c);
  const auto element = [](const uint32_t* row, int k) -> int32_t {
    const auto byte = static_cast<uint8_t>(row[k / 4] >> 8 * (k % 4));
    return kSigned ? static_cast<int8_t>(byte) : byte;
  };
  int32_t b[32][kColumns];
  for (int n = 0; n < kColumns; ++n)
    for (int k = 0; k < 32; ++k) b[k][n] = element(f.b[n], k);
  for (int r = 0; r < 16; ++r)
    for (int k = 0; k < 32; ++k) {
      const int32_t a = element(f.a[r], k);
      for (int n = 0; n < kColumns; ++n) c[r][n] += static_cast<uint32_t>(a * b[k][n]);
    }
  scatter_sums(w, in, c);
}

// ---- block-scaled: scales behind the fragments in `list`: scale_a, scale_b; option: bytes and
// threads that hold them, two bits each: byte a, thread a, byte b, thread b

struct Scales {
  uint32_t of_row[16], of_column[kColumns];
  Scales(const Warp& w, const Inst& in) {
    const Lane<uint32_t> a(w, in.list[14]), b(w, in.list[15]);
    const int byte_a = in.option & 3, thread_a = in.option >> 2 & 3, byte_b = in.option >> 4 & 3,
              thread_b = in.option >> 6 & 3;
    for (int r = 0; r < 16; ++r) of_row[r] = a[4 * (r % 8) + 2 * thread_a + r / 8] >> 8 * byte_a;
    for (int n = 0; n < kColumns; ++n) of_column[n] = b[4 * n + thread_b] >> 8 * byte_b;
  }
};
template <typename A, typename B>
void multiply_scaled(Warp& w, const Inst& in) {  // kind::mxf8f6f4, one E8M0 of 32
  if (!have_lanes(w, kAllLanes)) return;
  Fragments f;
  gather(w, in, f);
  float c[16][kColumns];
  gather_sums(w, in, c);
  const Decoded<A, B> m(f);
  const Scales scales(w, in);
  for (int r = 0; r < 16; ++r) {
    int32_t exponents[kColumns];
    bool is_nan = (scales.of_row[r] & 255) == 255;
    const bool row_is_nan = is_nan;
    for (int n = 0; n < kColumns; ++n) {
      exponents[n] =
          static_cast<int32_t>((scales.of_row[r] & 255) + (scales.of_column[n] & 255)) - 254;
      is_nan |= (scales.of_column[n] & 255) == 255;
    }
    add_products<32, 25>(c[r], m.a[r], m.b, exponents, m.is_special || is_special(c[r]));
    for (int n = 0; is_nan && n < kColumns; ++n)
      if (row_is_nan || (scales.of_column[n] & 255) == 255)
        c[r][n] = std::bit_cast<float>(0x7fffffffu);
  }
  scatter_sums(w, in, c);
}

struct Ue4m3 {                       // the sign is not looked at
  static constexpr int kGroups = 1;  // of 16 k
  int32_t significand;
  int exponent;
  bool is_nan;
  explicit Ue4m3(uint32_t code) {
    const int e = static_cast<int>(code >> 3 & 15), fraction = static_cast<int>(code & 7);
    is_nan = e == 15 && fraction == 7;
    significand = e == 0 ? fraction : fraction + 8;
    exponent = significand == 0 ? kZeroExponent : e == 0 ? -6 : e - 7;
  }
};
struct Ue8m0 {
  static constexpr int kGroups = 2;
  int32_t significand = 8;
  int exponent;
  bool is_nan;
  explicit Ue8m0(uint32_t code)
      : exponent(static_cast<int>(code & 255) - 127), is_nan((code & 255) == 255) {}
};
template <typename Scale>  // kind::mxf4nvf4: scale_vec::4X, E4M3 of 16, or 2X, E8M0 of 32
void multiply_e2m1(Warp& w, const Inst& in) {
  if (!have_lanes(w, kAllLanes)) return;
  Fragments f;
  gather(w, in, f);
  float c[16][kColumns];
  gather_sums(w, in, c);
  const Scales scales(w, in);
  const auto twice = [](uint32_t code) { return static_cast<int32_t>(2 * E2m1::decode(code)); };
  static const auto kTwice = [&] {
    std::array<int32_t, 16> values;
    for (uint32_t code = 0; code < 16; ++code) values[code] = twice(code);
    return values;
  }();
  int32_t b[64][kColumns];
  for (int n = 0; n < kColumns; ++n)
    for (int k = 0; k < 64; ++k) b[k][n] = kTwice[f.b[n][k / 8] >> 4 * (k % 8) & 15];
  for (int r = 0; r < 16; ++r) {
    int32_t quarters[4][kColumns] = {};
    for (int k = 0; k < 64; ++k) {
      const int32_t a = kTwice[f.a[r][k / 8] >> 4 * (k % 8) & 15];
      for (int n = 0; n < kColumns; ++n) quarters[k / 16][n] += a * b[k][n];
    }
    for (int n = 0; n < kColumns; ++n) {
      ScaledGroup groups[4];
      bool is_number = std::fabs(c[r][n]) < std::numeric_limits<float>::infinity();
      for (int g = 0; g < 4; ++g) {
        const int byte = 8 * (g / Scale::kGroups);
        const Scale x(scales.of_row[r] >> byte), y(scales.of_column[n] >> byte);
        is_number &= !x.is_nan && !y.is_nan;
        groups[g] = {int64_t{quarters[g][n]} * x.significand * y.significand,
                     x.exponent + y.exponent};
      }
      c[r][n] = is_number ? add_groups(c[r][n], groups) : std::bit_cast<float>(0x7fffffffu);
    }
  }
  scatter_sums(w, in, c);
}

std::vector<Place> places(Decoder& d, size_t operand, size_t n) {
  const Operand& o = d.operand(operand);
  if (o.kind != Operand::Kind::kVector || o.parts.size() != n) d.fail("a fragment of another size");
  std::vector<Place> all;
  for (const Operand& part : o.parts) all.push_back(d.place(part, 32));
  return all;
}
Handler scaled_by_type(const std::string& a, const std::string& b) {
  static const std::map<std::string, Handler> kHandlers = {
      {"e2m1.e4m3", multiply_scaled<ElementE2m1, ElementE4m3>},
      {"e4m3.e4m3", multiply_scaled<ElementE4m3, ElementE4m3>},
      {"e4m3.e2m1", multiply_scaled<ElementE4m3, ElementE2m1>},
      {"e2m1.e2m1", multiply_scaled<ElementE2m1, ElementE2m1>},
      {"e5m2.e5m2", multiply_scaled<ElementE5m2, ElementE5m2>}};
  const auto found = kHandlers.find(a + "." + b);
  return found == kHandlers.end() ? nullptr : found->second;
}
bool decode_mma(Decoder& d, Inst& in) {
  std::vector<Place> list = places(d, 0, 4);
  const auto append = [&](const std::vector<Place>& more) {
    list.insert(list.end(), more.begin(), more.end());
  };
  append(places(d, 1, 4));
  append(places(d, 2, 2));
  append(places(d, 3, 4));
  std::vector<std::string> types;  // after row.col
  for (size_t i = 0; i < d.s().opcode.size(); ++i)
    if (d.s().opcode[i] == "col")
      types.assign(d.s().opcode.begin() + static_cast<std::ptrdiff_t>(i) + 1, d.s().opcode.end());
  if (types.size() < 4) d.fail("types");
  if (d.has("block_scale")) {
    list.push_back(d.place(4, 32));
    list.push_back(d.place(6, 32));
    const auto selector = [&](size_t i, size_t part) {
      const Operand& o = d.operand(i).parts.at(part);
      if (o.kind != Operand::Kind::kImmediate) d.fail("a selector that is no constant");
      return static_cast<uint32_t>(o.value);
    };
    in.option = static_cast<uint8_t>(selector(5, 0) | selector(5, 1) << 2 | selector(7, 0) << 4 |
                                     selector(7, 1) << 6);
    if (d.has("kind::mxf8f6f4") && d.has("m16n8k32") && types[4] == "ue8m0")
      in.run = scaled_by_type(types[1], types[2]);
    else if (d.has("kind::mxf4nvf4") && d.has("scale_vec::4X") && d.has("m16n8k64") &&
             types[4] == "ue4m3")
      in.run = multiply_e2m1<Ue4m3>;
    else if (d.has("kind::mxf4nvf4") && d.has("scale_vec::2X") && d.has("m16n8k64") &&
             types[4] == "ue8m0")
      in.run = multiply_e2m1<Ue8m0>;
  } else {
    static const std::map<std::string, Handler> kHandlers = {
        {"m16n8k16 f32.f16.f16.f32", multiply<ElementF16, ElementF16>},
        {"m16n8k16 f32.bf16.bf16.f32", multiply<ElementBf16, ElementBf16>},
        {"m16n8k8 f32.tf32.tf32.f32", multiply<ElementTf32, ElementTf32>},
        {"m16n8k32 f32.e4m3.e4m3.f32", multiply<ElementE4m3, ElementE4m3>},
        {"m16n8k32 f32.e5m2.e5m2.f32", multiply<ElementE5m2, ElementE5m2>},
        {"m16n8k32 s32.s8.s8.s32", multiply_bytes<true>},
        {"m16n8k32 s32.u8.u8.s32", multiply_bytes<false>}};
    std::string shape;
    for (const std::string& m : d.s().opcode)
      if (m.starts_with("m16n8")) shape = m;
    const auto found =
        kHandlers.find(shape + " " + types[0] + "." + types[1] + "." + types[2] + "." + types[3]);
    if (found != kHandlers.end()) in.run = found->second;
  }
  in.list = d.list(list);
  return in.run != nullptr;
}

}  // namespace

bool decode_matrix(Decoder& d, Inst& in) {
  const std::string& op = d.base();
  if (op == "mma") return decode_mma(d, in);
  if (op == "movmatrix") {
    in.d = d.place(0, 32), in.a = d.place(1, 32);
    in.run = transpose;
    return true;
  }
  if (op != "ldmatrix" && op != "stmatrix") return false;
  const bool loads = op == "ldmatrix";
  const Operand& o = d.operand(loads ? 0 : 1);
  if (!d.has("m8n8") || !d.has("b16")) return false;
  in.list = d.list(places(d, loads ? 0 : 1, o.parts.size()));
  in.n = static_cast<uint8_t>(o.parts.size());
  if (d.address(loads ? 1 : 0, in) != 32) d.fail("a generic address");
  in.option = d.has("trans") ? 1 : 0;
  in.run = loads ? load_matrices : store_matrices;
  return true;
}

}  // namespace nibble::emulated
