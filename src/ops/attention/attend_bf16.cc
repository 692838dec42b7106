// From NIBBLE_TARGET on this file may use AVX-512 with BF16; tiles are
// written as assembly and need no flag.
//
// Bytes: the keys and values that the tile sees, once. Work: 4 D flops per query row and key in
// bf16, about 13 operations on vectors of 16 keys per row for the softmax, and per 64 keys 512
// shuffles that turn the keys and 512 operations that pair the values. Reached, gpt-oss's heads,
// nibble bench ops, 2026-11-22: on 2 cores of an EPYC (Zen 4, AVX-512 BF16; no AMX) one token over
// 8,192 keys 0.67 ms (71% of the floor at 35.6 GB/s), 512 tokens there 306 GFLOP/s; on a Xeon with
// AMX 460 over 512 keys and 699 over 8,192. Since the next block is fetched line by line,
// 2026-11-23: one token over 16,384 keys 0.86 ms (82%), heads of 128 dims, 32 to 8, over 8,192 1.16
// (72%). What binds: for one token dot products, 2,048 of the 3,500 cycles that 64 keys of a head
// take; with AMX the softmax. Four query heads to one on an EPYC (Zen 5), 2026-11-28: 64 keys take
// 1,840 cycles for one token, of which 512 bring them from L2, 2,510 for two, 3,800 for four, 6,490
// for eight: 512 for each token's dot products, 110 for its softmax. Lost: the next block of keys
// not fetched ahead (8,192 keys: twice the time, for the hardware does not see which page is next);
// an exponential to float32's last place, a largest score and a sum over lanes for each block and
// row (0.80 ms, 256 GFLOP/s; Xeon 322 and 441).
#include "ops/attention/attend_bf16.h"

#include "base/check.h"

namespace nibble::ops {

int64_t attend_bf16_scratch_floats(int64_t rows, int64_t head_dim) {
  const int64_t padded = (rows + 15) / 16 * 16;
  // Keys, values, queries and weights are bf16: two in a float.
  return kBf16KeyBlock * head_dim + padded * (head_dim / 2 + head_dim) +
         padded * (kBf16KeyBlock + kBf16KeyBlock / 2) + 17 * padded + 16;
}

}  // namespace nibble::ops

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "cpu/simd_target.h"
#include "formats/bf16.h"
#include "formats/fp8.h"
#include "formats/mxfp4.h"
#include "ops/kv_pages.h"
#include "ops/moe_up/moe_up.h"

NIBBLE_TARGET(NIBBLE_AVX512 ",avx512bf16")

#include "cpu/bf16_products.h"
#include "cpu/simd_avx512.h"
#include "ops/cpu_matmul/float_kernels_impl.h"

namespace nibble::ops {
namespace {

using S = cpu::Avx512;
using cpu::kTileBytes;
constexpr int kBlock = kBf16KeyBlock, kSixteens = kBlock / 16;
constexpr int kChunk = 16;          // rows of a product
constexpr float kNothing = -1e30f;  // below any score; finite, so that differences are numbers
constexpr float kLog2E = 1.44269504f;
constexpr float kSlack = 8;  // by which a score may be above its row's top

template <typename Products>
class Bf16Tile {
 public:
  explicit Bf16Tile(const AttendTile& t)
      : t_(t),
        dim_(t.kv->k.shape[3]),
        rows_(int64_t{t.num_tokens} * t.group),
        padded_((rows_ + kChunk - 1) / kChunk * kChunk) {
    auto* at =  // NOLINTNEXTLINE(performance-no-int-to-ptr)
        reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(t.scratch) + 63) / 64 * 64);
    const auto take = [&](int64_t bytes) { return std::exchange(at, at + bytes); };
    keys_ = take(2 * kBlock * dim_);
    values_ = take(2 * kBlock * dim_);
    queries_ = reinterpret_cast<uint16_t*>(take(2 * padded_ * dim_));
    weights_ = reinterpret_cast<uint16_t*>(take(2 * padded_ * kBlock));
    scores_ = reinterpret_cast<float*>(take(4 * padded_ * kBlock));
    out_ = reinterpret_cast<float*>(take(4 * padded_ * dim_));
    sum_ = reinterpret_cast<float*>(take(64 * padded_));
    top_ = reinterpret_cast<float*>(take(4 * padded_));
  }

  void run() {
    start();
    Products::begin();
    const int32_t last = t_.first_pos + t_.num_tokens - 1;
    const int32_t first = first_seen(t_.first_pos);
    if (t_.kv->k.dtype == DType::kBF16)
      blocks<uint16_t>(first, last + 1);
    else
      blocks<uint8_t>(first, last + 1);
    Products::end();
    for (int64_t r = 0; r < rows_; ++r) {
      float* att = t_.att + r / t_.group * t_.ld + r % t_.group * dim_;
      const float sum = _mm512_reduce_add_ps(_mm512_load_ps(sum_ + 16 * r));
      for (int64_t d = 0; d < dim_; ++d) att[d] = out_[r * dim_ + d] * t_.kv->v_scale / sum;
    }
  }

 private:
  int32_t first_seen(int32_t pos) const {
    return t_.window > 0 ? std::max(0, pos - t_.window + 1) : 0;
  }
  // Columns of the block at `base` that row r sees.
  std::pair<int, int> seen(int64_t r, int32_t base) const {
    const int32_t pos = t_.first_pos + static_cast<int32_t>(r / t_.group);
    return {std::clamp(first_seen(pos) - base, 0, kBlock), std::clamp(pos + 1 - base, 0, kBlock)};
  }

  void start() {
    std::fill_n(queries_, padded_ * dim_, uint16_t{0});
    std::fill_n(weights_, padded_ * kBlock, uint16_t{0});
    std::fill_n(out_, padded_ * dim_, 0.f);
    std::fill_n(sum_, 16 * padded_, 0.f);
    for (int64_t r = 0; r < rows_; ++r) {
      const float* q = t_.q + r / t_.group * t_.ld + r % t_.group * dim_;
      for (int64_t d = 0; d < dim_; ++d) queries_[r * dim_ + d] = bf16_from_float(q[d]);
      top_[r] = t_.sinks ? kLog2E * bf16_to_float(t_.sinks[r % t_.group]) : kNothing;
      sum_[16 * r] = t_.sinks ? 1.f : 0.f;
    }
  }

  // Where the keys and values of a block are, in kSixteens of positions.
  template <typename T>
  struct Place {
    const T *k[kBlock], *v[kBlock];  // none: the position is not read
    bool is_whole[kSixteens];        // one behind the other in one page
  };

  // All rows against positions [first, end).
  template <typename T>
  void blocks(int32_t first, int32_t end) {
    Place<T> places[2];
    int32_t base = first / kBlock * kBlock;
    find(base, first, end, places[0]);
    for (int i = 0; base < end; base += kBlock, i = 1 - i) {
      const Place<T>& at = places[i];
      Place<T>& next = places[1 - i];
      find(base + kBlock, base + kBlock, end, next);
      turn_keys(at, next);
      const bool finite = pair_values(at, next);
      // One kind of work after the other: what a tile or a vector loads was then stored long
      // before.
      for_chunks(base, [&](int64_t row, int rows) { score(row, rows); });
      for_chunks(base, [&](int64_t row, int rows) {
        for (int64_t r = row; r < row + rows; ++r) {
          const auto [from, to] = seen(r, base);
          soften(r, from, to);
          if (!finite) add_infinite(r, at.v, from, to);
        }
      });
      for_chunks(base, [&](int64_t row, int rows) { mix(row, rows); });
    }
  }

  // Positions [begin, end) of the block at `base`, which may end before.
  template <typename T>
  void find(int32_t base, int32_t begin, int32_t end, Place<T>& place) const {
    const int32_t behind = base + kBlock, page_size = t_.kv->page_size;
    end = std::max(base, std::min(end, behind)), begin = std::min(begin, end);
    std::fill(place.k, place.k + (begin - base), nullptr);
    std::fill(place.v, place.v + (begin - base), nullptr);
    for (int32_t pos = begin; pos < end;) {
      const int64_t at = kv_index(*t_.kv, t_.slot, pos, t_.kv_head);
      const int32_t run = std::min(end - pos, page_size - pos % page_size);
      const T* k = static_cast<const T*>(t_.kv->k.data) + at;
      const T* v = static_cast<const T*>(t_.kv->v.data) + at;
      for (int32_t i = 0; i < run; ++i, ++pos, k += dim_, v += dim_)
        place.k[pos - base] = k, place.v[pos - base] = v;
    }
    std::fill(place.k + end - base, place.k + kBlock, nullptr);
    std::fill(place.v + end - base, place.v + kBlock, nullptr);
    for (int i = 0; i < kSixteens; ++i)
      place.is_whole[i] =
          page_size % 16 == 0 && begin <= base + 16 * i && base + 16 * (i + 1) <= end;
  }

  // Calls body(row, rows) for the chunks that see something of the block at `base`: windows move on
  // with the rows, so that what a chunk sees begins with its first, ends with its last.
  template <typename Body>
  void for_chunks(int32_t base, const Body& body) const {
    for (int64_t row = 0; row < rows_; row += kChunk) {
      const int rows = static_cast<int>(std::min<int64_t>(kChunk, rows_ - row));
      if (seen(row, base).first < seen(row + rows - 1, base).second) body(row, rows);
    }
  }

  // 32 elements as bf16, from x + d on; x none: zeros.
  static __m512i load(const uint16_t* x, int64_t d) {
    return x == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(x + d);
  }
  static __m512i load(const uint8_t* x, int64_t d) {
    if (x == nullptr) return _mm512_setzero_si512();
    struct Subnormals {
      alignas(64) uint16_t value[32];
      constexpr Subnormals() : value() {
        for (int c = 0; c < 8; ++c)
          value[c] = static_cast<uint16_t>(
              std::bit_cast<uint32_t>(e4m3_to_float(static_cast<uint8_t>(c))) >> 16);
      }
    };
    static constexpr Subnormals kSubnormals;
    const __m512i codes =
        _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + d)));
    const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi16(0x7f));
    __m512i bits = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
    bits = _mm512_mask_permutexvar_epi16(bits,
                                         _mm512_cmplt_epi16_mask(magnitude, _mm512_set1_epi16(8)),
                                         magnitude, _mm512_load_si512(kSubnormals.value));
    bits = _mm512_mask_mov_epi16(bits, _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f)),
                                 _mm512_set1_epi16(0x7fc0));
    constexpr int kAndOr = 0xea;  // (a & b) | c
    return _mm512_ternarylogic_epi32(codes, _mm512_set1_epi16(static_cast<int16_t>(0x8000)), bits,
                                     kAndOr);
  }
  static float to_float(uint16_t x) { return bf16_to_float(x); }
  static float to_float(uint8_t x) { return kE4m3[x]; }

  // What the next block reads comes into L2 while this one is turned: the hardware does not see
  // which page is next, and all of it at once would wait for itself. `next` is the first of 16.
  template <typename T>
  SIMD_FN void fetch(const T* next, int64_t at) {
    __builtin_prefetch(next + at, 0, 2);
  }

  // Blocks of 16 keys, for each a step of 32 dims after the other: see Bf16Operands::b.
  template <typename T>
  void turn_keys(const Place<T>& at, const Place<T>& next) {
    for (int i = 0; i < kSixteens; ++i) {
      const T* const* k = at.k + 16 * i;
      std::byte* to = keys_ + i * dim_ / 32 * kTileBytes;
      if (at.is_whole[i])
        turn_sixteen([&](int j) { return k[0] + j * dim_; }, next.k[16 * i], to);
      else
        turn_sixteen([&](int j) { return k[j]; }, next.k[16 * i], to);
    }
  }
  template <typename T, typename Key>
  void turn_sixteen(const Key& key, const T* next, std::byte* to) {
    for (int64_t d = 0; d < dim_; d += 32, to += kTileBytes) {
      __m512 lines[16];
#pragma GCC unroll 16
      for (int j = 0; j < 16; ++j) {
        if (next != nullptr) fetch(next, j * dim_ + d);
        lines[j] = _mm512_castsi512_ps(load(key(j), d));
      }
      S::transpose(lines);
#pragma GCC unroll 16
      for (int j = 0; j < 16; ++j) _mm512_store_ps(to + 64 * j, lines[j]);
    }
  }

  // Blocks of 16 dims, for each a step of 32 positions after the other. What is not finite counts
  // as zero, for it must not reach rows that do not see it: false where there is such a value.
  template <typename T>
  bool pair_values(const Place<T>& at, const Place<T>& next) {
    const __m512i magnitude = _mm512_set1_epi16(0x7fff), infinity = _mm512_set1_epi16(0x7f80);
    __m512i most = _mm512_setzero_si512();
    const auto see = [&](__m512i bits) {
      most = _mm512_max_epu16(most, _mm512_and_si512(bits, magnitude));
      return bits;
    };
    for (int i = 0; i < kSixteens; ++i) {
      const T* const* v = at.v + 16 * i;
      if (at.is_whole[i])
        pair_sixteen([&](int j) { return v[0] + j * dim_; }, next.v[16 * i], 16 * i, see);
      else
        pair_sixteen([&](int j) { return v[j]; }, next.v[16 * i], 16 * i, see);
    }
    if (_mm512_cmpge_epu16_mask(most, infinity) == 0) return true;
    const auto as_zero = [&](__m512i bits) {
      return _mm512_maskz_mov_epi16(
          _mm512_cmplt_epu16_mask(_mm512_and_si512(bits, magnitude), infinity), bits);
    };
    for (int n = 0; n < kBlock; n += 16)
      pair_sixteen([&](int j) { return at.v[n + j]; }, next.v[n], n, as_zero);
    return false;
  }
  // Those of positions n .. n + 15 of the block, whose bits go through take().
  template <typename T, typename Value, typename Take>
  void pair_sixteen(const Value& value, const T* next, int n, const Take& take) {
    const __m512i lower = _mm512_set_epi32(
        0x2f000f, 0x2e000e, 0x2d000d, 0x2c000c, 0x2b000b, 0x2a000a, 0x290009, 0x280008, 0x270007,
        0x260006, 0x250005, 0x240004, 0x230003, 0x220002, 0x210001, 0x200000);
    const __m512i upper = _mm512_add_epi16(lower, _mm512_set1_epi16(16));
    std::byte* to = values_ + n / 32 * kTileBytes + n % 32 / 2 * 64;
    constexpr int64_t kBytes = kBlock / 32 * kTileBytes;  // of 16 dims
    for (int64_t d = 0; d < dim_; d += 32, to += 2 * kBytes)
#pragma GCC unroll 8
      for (int j = 0; j < 16; j += 2) {
        if (next != nullptr) fetch(next, j * dim_ + d), fetch(next, (j + 1) * dim_ + d);
        const __m512i even = take(load(value(j), d)), odd = take(load(value(j + 1), d));
        _mm512_store_si512(to + 32 * j, _mm512_permutex2var_epi16(even, lower, odd));
        _mm512_store_si512(to + kBytes + 32 * j, _mm512_permutex2var_epi16(even, upper, odd));
      }
  }

  // scores = queries . keys, of a chunk.
  void score(int64_t row, int rows) {
    const int64_t steps = dim_ / 32;
    Products::template multiply<4, true>(
        {.a = reinterpret_cast<const std::byte*>(queries_ + row * dim_),
         .a_row = 2 * dim_,
         .b = keys_,
         .b_block = steps * kTileBytes,
         .c = scores_ + row * kBlock,
         .c_row = kBlock,
         .steps = steps,
         .rows = rows});
    static_assert(kBlock == 4 * 16);
  }

  // 2^x for x <= kSlack, to 2^-13 of it, a 16th of what rounding to bf16 takes; where not inside:
  // 0. A NaN stays one.
  static __m512 exp2(__mmask16 inside, __m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-126), x);
    const __m512 n = S::round(x), f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(0.0551716695f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.242611125f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693260986f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.999928073f));
    return _mm512_maskz_scalef_ps(inside, p, n);
  }

  // Scores of row r become its weights 2^(log2(e) scale score - top), zero outside [begin, end).
  void soften(int64_t r, int begin, int end) {
    uint16_t* weights = weights_ + r * kBlock;
    if (begin >= end) {
      std::fill_n(weights, kBlock, uint16_t{0});
      return;
    }
    const uint64_t mask = ~uint64_t{0} >> (64 - end) & ~uint64_t{0} << begin;
    constexpr int kVecs = kBlock / 16;
    const __m512 nothing = _mm512_set1_ps(kNothing), scale = _mm512_set1_ps(kLog2E * t_.scale);
    const __m512 most = _mm512_set1_ps(top_[r] + kSlack);
    __m512 s[kVecs];
    __mmask16 over = 0;
    for (int i = 0; i < kVecs; ++i) {
      const auto inside = static_cast<__mmask16>(mask >> (16 * i));
      s[i] = _mm512_mask_mul_ps(nothing, inside, _mm512_loadu_ps(scores_ + r * kBlock + 16 * i),
                                scale);
      over |= _mm512_cmp_ps_mask(s[i], most, _CMP_GT_OQ);
    }
    if (over != 0)
      raise_top(r, _mm512_reduce_max_ps(
                       _mm512_max_ps(_mm512_max_ps(s[0], s[1]), _mm512_max_ps(s[2], s[3]))));
    static_assert(kVecs == 4);
    const __m512 top = _mm512_set1_ps(top_[r]);
    for (int i = 0; i < kVecs; ++i)
      s[i] = exp2(static_cast<__mmask16>(mask >> (16 * i)), _mm512_sub_ps(s[i], top));
    for (int i = 0; i < kVecs; i += 2)
      _mm512_storeu_si512(weights + 16 * i,
                          reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(s[i + 1], s[i])));
    _mm512_store_ps(sum_ + 16 * r, _mm512_add_ps(_mm512_load_ps(sum_ + 16 * r),
                                                 _mm512_add_ps(_mm512_add_ps(s[0], s[1]),
                                                               _mm512_add_ps(s[2], s[3]))));
  }

  // What was added up so far shrinks. A top is left alone until a score is kSlack above: weights
  // may be larger than 1, and few blocks have to look for their largest score.
  void raise_top(int64_t r, float top) {
    const __m512 shrink = exp2(0xffff, _mm512_set1_ps(top_[r] - top));
    const auto scale = [&](float* x) {
      _mm512_storeu_ps(x, _mm512_mul_ps(_mm512_loadu_ps(x), shrink));
    };
    for (int64_t d = 0; d < dim_; d += 16) scale(out_ + r * dim_ + d);
    scale(sum_ + 16 * r);
    top_[r] = top;
  }

  // What pair_values() left out, for the row that sees it.
  template <typename T>
  void add_infinite(int64_t r, const T* const* v, int begin, int end) {
    for (int j = begin; j < end; ++j)
      for (int64_t d = 0; d < dim_; ++d)
        if (const float x = to_float(v[j][d]); !(x - x == 0))
          out_[r * dim_ + d] += bf16_to_float(weights_[r * kBlock + j]) * x;
  }

  // out += weights . values, of a chunk.
  void mix(int64_t row, int rows) {
    constexpr int64_t kSteps = kBlock / 32;
    cpu::Bf16Operands p{.a = reinterpret_cast<const std::byte*>(weights_ + row * kBlock),
                        .a_row = 2 * kBlock,
                        .b = values_,
                        .b_block = kSteps * kTileBytes,
                        .c = out_ + row * dim_,
                        .c_row = dim_,
                        .steps = kSteps,
                        .rows = rows};
    int64_t d = 0;
    for (; d + 64 <= dim_; d += 64, p.b += 4 * p.b_block, p.c += 64)
      Products::template multiply<4, false>(p);
    if (d < dim_) Products::template multiply<2, false>(p);
  }

  const AttendTile& t_;
  int64_t dim_, rows_, padded_;   // padded: whole chunks
  std::byte *keys_, *values_;     // see Bf16Operands::b
  uint16_t *queries_, *weights_;  // [padded][dim], [padded][kBlock]
  float *scores_, *out_;          // [padded][kBlock], [padded][dim]
  float *sum_, *top_;             // [rows][16] sums of weights, [rows] what scores are relative to
};

}  // namespace

AttendFn* attend_bf16(cpu::Isa isa) {
  CHECK(isa == cpu::Isa::kAmx || isa == cpu::Isa::kAvx512Bf16);
  if (isa == cpu::Isa::kAmx) return [](const AttendTile& t) { Bf16Tile<cpu::AmxBf16>(t).run(); };
  return [](const AttendTile& t) { Bf16Tile<cpu::Avx512Bf16>(t).run(); };
}

}  // namespace nibble::ops

NIBBLE_TARGET_END

#else  // not x86-64

namespace nibble::ops {
AttendFn* attend_bf16(cpu::Isa) {
  CHECK(!"no AVX-512 on this architecture");
  __builtin_unreachable();
}
}  // namespace nibble::ops

#endif
