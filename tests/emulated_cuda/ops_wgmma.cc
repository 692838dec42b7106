// wgmma (sm_90a): products of a warpgroup, of which each warp has 16 rows. Done when it is told to:
// that a kernel waits before it reads the sums is not checked. Layouts: PTX ISA 9.0, 9.7.15.
#include <array>

#include "decode.h"
#include "lanes.h"
#include "matrix_sums.h"
#include "memory.h"
#include "small_floats.h"

namespace nibble::emulated {
namespace {

// A matrix in shared memory by its descriptor: rows of M or N, K along them, or the other way.
struct SharedMatrix {
  const Warp& w;
  uint32_t start, leading, stride, swizzle;  // bytes; of the swizzle's pattern
  bool is_transposed;

  SharedMatrix(const Warp& warp, uint64_t descriptor, bool transposed)
      : w(warp),
        start(static_cast<uint32_t>(descriptor & 0x3fff) << 4),
        leading(static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4),
        stride(static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4),
        swizzle(std::array<uint32_t, 4>{0, 128, 64, 32}[descriptor >> 62]),
        is_transposed(transposed) {
    if ((descriptor >> 49 & 7) != 0) throw Fault("a matrix descriptor with a base offset");
  }

  // Where `row`, byte `k` along K lies: cores of 8 rows by 16 bytes without a swizzle, rows of the
  // swizzle's bytes with it. Transposed, of 16 bits: rows of K, `row` along them.
  uint32_t place(uint32_t row, uint32_t k) const {
    if (!is_transposed) {
      if (swizzle == 0) return start + row / 8 * stride + k / 16 * leading + row % 8 * 16 + k % 16;
      return mixed(start + row / 8 * stride + row % 8 * swizzle + k);
    }
    if (swizzle == 0) throw Fault("a transposed matrix without a swizzle");
    const uint32_t columns = swizzle / 2;
    return mixed(start + row / columns * leading + k / 2 / 8 * stride + k / 2 % 8 * swizzle +
                 row % columns * 2 + k % 2);
  }
  uint32_t byte(uint32_t row, uint32_t k) const {
    return static_cast<uint32_t>(*shared_at(w, place(row, k), 1, 0));
  }
  uint32_t half(uint32_t row, uint32_t k) const {
    uint16_t v;
    std::memcpy(&v, shared_at(w, place(row, 2 * k), 2, 0), 2);
    return v;
  }

 private:
  uint32_t mixed(uint32_t at) const { return at ^ ((at >> 7 & (swizzle / 16 - 1)) << 4); }
};

struct Bf16Elements {
  static constexpr int kK = 16, kLeast = -126, kFraction = 25, kInWord = 2;
  static float of(const SharedMatrix& m, uint32_t row, uint32_t k) {
    return std::bit_cast<float>(m.half(row, k) << 16);
  }
  static float of(uint32_t word, int i) { return std::bit_cast<float>(word >> 16 * i << 16); }
};
struct F16Elements {
  static constexpr int kK = 16, kLeast = -14, kFraction = 25, kInWord = 2;
  static float of(const SharedMatrix& m, uint32_t row, uint32_t k) {
    return f16_value(m.half(row, k));
  }
  static float of(uint32_t word, int i) { return f16_value(word >> 16 * i & 0xffff); }
};
template <typename Float>
struct ByteElements {  // Hopper adds them up behind 13 fraction bits
  static constexpr int kK = 32, kLeast = 1 - Float::kBias, kFraction = 13, kInWord = 4;
  static float value(uint32_t code) {
    static const auto kTable = [] {
      std::array<float, 256> values;
      for (uint32_t c = 0; c < 256; ++c) values[c] = static_cast<float>(Float::decode(c));
      return values;
    }();
    return kTable[code & 255];
  }
  static float of(const SharedMatrix& m, uint32_t row, uint32_t k) { return value(m.byte(row, k)); }
  static float of(uint32_t word, int i) { return value(word >> 8 * i); }
};

template <typename Elements>
void read_a(const Warp& w, const Inst& in, RowsOfA<Elements::kK> (&a)[16]) {
  const auto put = [&](int row, int k, float v) {
    a[row].values[k] = v;
    a[row].exponents[k] = exponent_of(v, Elements::kLeast);
  };
  if (in.a != kNowhere) {  // by its descriptor: rows of this warp
    const SharedMatrix m(w, Lane<uint64_t>(w, in.a)[0], (in.option & 1) != 0);
    for (int r = 0; r < 16; ++r)
      for (int k = 0; k < Elements::kK; ++k)
        put(r, k,
            Elements::of(m, static_cast<uint32_t>(16 * (w.index % 4) + r),
                         static_cast<uint32_t>(k)));
    return;
  }
  for (int reg = 0; reg < 4; ++reg) {
    const Lane<uint32_t> v(w, in.list[reg]);
    for (int l = 0; l < kLanes; ++l)
      for (int i = 0; i < Elements::kInWord; ++i)
        put(l / 4 + 8 * (reg % 2), Elements::kInWord * (l % 4 + 4 * (reg / 2)) + i,
            Elements::of(v[l], i));
  }
}

// list: four of A (or none), then the sums; offset: N; a, b: descriptors; c: whether to add;
// option: 1: A, 2: B is transposed.
template <typename ElementsA, typename Elements>
void multiply(Warp& w, const Inst& in) {
  static_assert(ElementsA::kK == Elements::kK);
  if (!have_lanes(w, kAllLanes)) return;
  RowsOfA<Elements::kK> a[16];
  read_a<ElementsA>(w, in, a);
  const SharedMatrix b(w, Lane<uint64_t>(w, in.b)[0], (in.option & 2) != 0);
  const bool adds = (w.predicate(in.c) & 1) != 0;
  for (int first = 0; first < in.offset; first += kColumns) {
    ColumnsOfB<Elements::kK> columns;
    bool is_special = false;
    for (int n = 0; n < kColumns; ++n)
      for (int k = 0; k < Elements::kK; ++k) {
        const float v = Elements::of(b, static_cast<uint32_t>(first + n), static_cast<uint32_t>(k));
        columns.values[k][n] = v;
        columns.exponents[k][n] = exponent_of(v, Elements::kLeast);
        is_special |= !(std::fabs(v) < std::numeric_limits<float>::infinity());
      }
    const Place* const sums = in.list + 4 + first / 2;
    const int32_t ones[kColumns] = {};
    for (int r = 0; r < 16; ++r) {
      float c[kColumns];
      const auto at = [&](int n) -> float& {
        return w.at<float>(sums[2 * (r / 8) + n % 2])[4 * (r % 8) + n / 2];
      };
      bool row_is_special = is_special;
      for (int n = 0; n < kColumns; ++n) {
        c[n] = adds ? at(n) : 0;
        row_is_special |= !(std::fabs(c[n]) < std::numeric_limits<float>::infinity());
      }
      for (const float v : a[r].values)
        row_is_special |= !(std::fabs(v) < std::numeric_limits<float>::infinity());
      add_products<Elements::kK, Elements::kFraction>(c, a[r], columns, ones, row_is_special);
      for (int n = 0; n < kColumns; ++n) at(n) = c[n];
    }
  }
}

bool decode_products(Decoder& d, Inst& in) {
  std::string shape;
  for (const std::string& m : d.s().opcode)
    if (m.starts_with("m64n")) shape = m;
  in.offset = std::stoi(shape.substr(4));
  std::vector<Place> list(4, kNowhere);
  const Operand& a = d.operand(1);
  if (a.kind == Operand::Kind::kVector) {
    if (a.parts.size() != 4) d.fail("a fragment of another size");
    for (size_t i = 0; i < 4; ++i) list[i] = d.place(a.parts[i], 32);
  } else {
    in.a = d.place(1, 64);
  }
  const Operand& sums = d.operand(0);
  if (static_cast<int64_t>(sums.parts.size()) != in.offset / 2) d.fail("sums of another number");
  for (const Operand& o : sums.parts) list.push_back(d.place(o, 32));
  in.list = d.list(list);
  in.b = d.place(2, 64);
  in.c = d.predicate(d.operand(3));
  if (d.immediate(4) != 1 || d.immediate(5) != 1) d.fail("negated factors");
  // Behind the signs: whether A (where it is in memory) and B are transposed.
  const bool a_in_memory = in.a != kNowhere;
  const size_t next = 6;
  if (a_in_memory && d.num_operands() > next + 1)
    in.option = static_cast<uint8_t>(d.immediate(next) | d.immediate(next + 1) << 1);
  else if (d.num_operands() > next)
    in.option = static_cast<uint8_t>(d.immediate(next) << 1);
  // The last ones: K, the sums' type, A's and B's.
  const auto& m = d.s().opcode;
  const std::string types = shape.substr(shape.find('k')) + " " + m[m.size() - 3] + "." +
                            m[m.size() - 2] + "." + m[m.size() - 1];
  using E4m3s = ByteElements<E4m3>;
  using E5m2s = ByteElements<E5m2>;
  in.run = types == "k16 f32.bf16.bf16"   ? multiply<Bf16Elements, Bf16Elements>
           : types == "k16 f32.f16.f16"   ? multiply<F16Elements, F16Elements>
           : types == "k32 f32.e4m3.e4m3" ? multiply<E4m3s, E4m3s>
           : types == "k32 f32.e4m3.e5m2" ? multiply<E4m3s, E5m2s>
           : types == "k32 f32.e5m2.e4m3" ? multiply<E5m2s, E4m3s>
                                          : nullptr;
  return in.run != nullptr;
}

}  // namespace

bool decode_wgmma(Decoder& d, Inst& in) {
  if (d.base() != "wgmma") return false;
  if (d.has("mma_async")) return decode_products(d, in);
  in.run = [](Warp&, const Inst&) {};
  return d.has("fence") || d.has("commit_group") || d.has("wait_group");
}

}  // namespace nibble::emulated
