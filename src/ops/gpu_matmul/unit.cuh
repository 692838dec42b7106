// A unit of kTiles16x64 (16 rows x 64 k, formats/layout.h) as bf16 in registers: the A operands of
// four steps of 16 k, for mma.sync and wgmma alike. What a format is: its Unit.
//
// A lane 4g + p decodes rows g and g + 8. Values come out times 2^-32, so that large scales fit;
// sums take it back (kSumFactor). NVFP4's are exact: 2 bits times 4; a row's float32 multiplies its
// sums, as it does FP8's of 4 bits. MXFP4's and MXFP8's are exact for scales from 2^-60 to 2^33.
// Where a block's scale is any float32 (FP8 in blocks, INT4), decode() rounds to bf16 once more,
// and decode_codes() leaves it to who adds up blocks (kScalesSums).
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/bf16.cuh"
#include "cuda/fp8.cuh"
#include "cuda/mma_digits.cuh"
#include "ops/weight.h"

namespace nibble::ops::gpu {

inline constexpr float kSumFactor = 0x1p32f;

// Pairs (k, k + 1) of bf16, k = 8j, from nibbles j and j + 4 of a word: the sign, and e2m1's three
// bits at the end of bf16's exponent, which makes value * 2^-126. One product moves a nibble to
// both places: multiplies run beside the integer pipe, which binds here.
__device__ __forceinline__ void spread_codes(uint32_t w, uint32_t (&out)[4]) {
  constexpr uint32_t kKept = 0x81c081c0u, kEven = 0x000f000fu, kOdd = 0x00f000f0u;
  const uint32_t high = w >> 8;
  out[0] = (w & kEven) * 0x1040u & kKept;
  out[1] = (w & kOdd) * 0x0104u & kKept;
  out[2] = (high & kEven) * 0x1040u & kKept;
  out[3] = (high & kOdd) * 0x0104u & kKept;
}
__device__ __forceinline__ void scale_pair(uint32_t& pair, uint32_t factor) {
  asm("mul.bf16x2 %0, %0, %1;" : "+r"(pair) : "r"(factor));
}
// All four under one scale.
__device__ __forceinline__ void dequantize(uint32_t w, uint32_t scale, uint32_t (&out)[4]) {
  spread_codes(w, out);
#pragma unroll
  for (int j = 0; j < 4; ++j) asm("mul.bf16x2 %0, %0, %1;" : "+r"(out[j]) : "r"(scale));
}

// What a lane has of a unit's codes.
struct NibbleCodes {
  uint4 words;
};
struct ByteCodes {
  uint4 half[2];  // of 32 k
};

template <Format kFormat>
struct UnitBytes {
  static constexpr int kCodeBytes = tile_code_bytes(kFormat), kBytes = tile_bytes(kFormat);
  static constexpr int kScaleBytes = kBytes - kCodeBytes;
  static constexpr bool kHasNibbles = kCodeBytes == 512;
  static constexpr bool kHasRowScales = format_row(kFormat).row_scales;
  static constexpr bool kScalesSums = false;
};

template <Format kFormat>
struct Unit;

// The codes and scales of a lane, of a unit in shared memory.
template <class Unit>
__device__ __forceinline__ auto codes_of(const char* unit) {
  const char* at = unit + threadIdx.x % 32 * 16;
  const uint4 first = *reinterpret_cast<const uint4*>(at);
  if constexpr (Unit::kHasNibbles)
    return NibbleCodes{first};
  else
    return ByteCodes{{first, *reinterpret_cast<const uint4*>(at + 512)}};
}
template <class Unit>
__device__ __forceinline__ auto load_codes(uint32_t at) {  // of the lane's first bytes
  const uint4 first = cuda::load_shared_16(at);
  if constexpr (Unit::kHasNibbles)
    return NibbleCodes{first};
  else
    return ByteCodes{{first, cuda::load_shared_16(at + 512)}};
}
template <class Unit>
__device__ __forceinline__ typename Unit::Scales scales_of(const char* unit) {
  using Scales = typename Unit::Scales;
  if constexpr (Unit::kScaleBytes == 0)
    return {};
  else
    return *reinterpret_cast<const Scales*>(unit + Unit::kCodeBytes +
                                            threadIdx.x % 32 / 4 * sizeof(Scales));
}
template <class Scales>
__device__ __forceinline__ Scales load_scales_at(uint32_t at) {
  if constexpr (sizeof(Scales) == 16) {
    const uint4 s = cuda::load_shared_16(at);
    return {{s.x, s.y, s.z, s.w}};
  } else if constexpr (std::is_same_v<Scales, uint2>) {
    return cuda::load_shared_8(at);
  } else if constexpr (sizeof(Scales) == 8) {
    const uint2 s = cuda::load_shared_8(at);
    return {{s.x, s.y}};
  } else {
    static_assert(sizeof(Scales) == 4);
    return cuda::load_shared_4(at);
  }
}
template <class Unit>
__device__ __forceinline__ typename Unit::Scales load_scales(uint32_t unit) {
  if constexpr (Unit::kScaleBytes == 0)
    return {};
  else
    return load_scales_at<typename Unit::Scales>(
        unit + Unit::kCodeBytes + threadIdx.x % 32 / 4 * sizeof(typename Unit::Scales));
}

// 32 k, the first or the second of the unit: the A registers of two steps of 16.
template <class Unit, int kHalf>
__device__ __forceinline__ void decode_half(const NibbleCodes& q,
                                            const typename Unit::Scales& scales, uint32_t (&a0)[4],
                                            uint32_t (&a1)[4]) {
  const uint4& w = q.words;
  Unit::template decode<kHalf>(kHalf == 0 ? w.x : w.z, kHalf == 0 ? w.y : w.w, scales, a0, a1);
}
template <class Unit, int kHalf>
__device__ __forceinline__ void decode_half(const ByteCodes& q, const typename Unit::Scales& scales,
                                            uint32_t (&a0)[4], uint32_t (&a1)[4]) {
  Unit::template decode<kHalf>(q.half[kHalf], scales, a0, a1);
}

// 2^(s - 127) * 2^kLog as a pair of bf16, s the byte of `scales` at bit `at`; 255 - kLog: infinite,
// above: NaN.
template <int kLog, int kAt>
__device__ __forceinline__ uint32_t factor_of_e8m0(uint32_t scales) {
  const uint32_t both = __byte_perm(scales, 0, 0x4040 | kAt / 8 << 8 | kAt / 8);
  return __vminu2(both * 0x80u + kLog * 0x800080u, 0x7fc07fc0u);
}

template <>
struct Unit<Format::kMxfp4> : UnitBytes<Format::kMxfp4> {
  using Scales = uint32_t;

  template <int kAt>
  static __device__ __forceinline__ uint32_t factor(uint32_t scales) {
    return factor_of_e8m0<94, kAt>(scales);
  }
  // Words of rows g and g + 8.
  template <int kHalf>
  static __device__ __forceinline__ void decode(uint32_t low, uint32_t high, const Scales& scales,
                                                uint32_t (&a0)[4], uint32_t (&a1)[4]) {
    uint32_t v[4];
    dequantize(low, factor<16 * kHalf>(scales), v);
    a0[0] = v[0], a0[2] = v[1], a1[0] = v[2], a1[2] = v[3];
    dequantize(high, factor<16 * kHalf + 8>(scales), v);
    a0[1] = v[0], a0[3] = v[1], a1[1] = v[2], a1[3] = v[3];
  }
};

template <>
struct Unit<Format::kNvfp4> : UnitBytes<Format::kNvfp4> {
  using Scales = uint2;

  // 2^94 times the E4M3 of rows g and g + 8 in the low and the high half, of the 16 k whose bytes
  // are 2 kBlock and 2 kBlock + 1 of `scales`. E4M3's bits are bf16's for 2^-120 of the value.
  template <int kBlock>
  static __device__ __forceinline__ uint32_t factors(uint32_t scales) {
    uint32_t both = __byte_perm(scales, 0, kBlock == 0 ? 0x4140 : 0x4342) * 16;
    scale_pair(both, 0x7b807b80u);  // 2^120
    scale_pair(both, 0x6e806e80u);  // 2^94
    return both;
  }
  template <int kHalf>
  static __device__ __forceinline__ void decode(uint32_t low, uint32_t high, const Scales& scales,
                                                uint32_t (&a0)[4], uint32_t (&a1)[4]) {
    const uint32_t s = kHalf == 0 ? scales.x : scales.y;
    const uint32_t f0 = factors<0>(s), f1 = factors<1>(s);
    const uint32_t first0 = __byte_perm(f0, 0, 0x1010), last0 = __byte_perm(f0, 0, 0x3232);
    const uint32_t first1 = __byte_perm(f1, 0, 0x1010), last1 = __byte_perm(f1, 0, 0x3232);
    uint32_t v[4];
    spread_codes(low, v);
    scale_pair(v[0], first0), scale_pair(v[1], first0);
    scale_pair(v[2], first1), scale_pair(v[3], first1);
    a0[0] = v[0], a0[2] = v[1], a1[0] = v[2], a1[2] = v[3];
    spread_codes(high, v);
    scale_pair(v[0], last0), scale_pair(v[1], last0);
    scale_pair(v[2], last1), scale_pair(v[3], last1);
    a0[1] = v[0], a0[3] = v[1], a1[1] = v[2], a1[3] = v[3];
  }
};

// Pairs (k, k + 1) and (k + 8, k + 9) of bf16 from a word of E4M3, whose bits are bf16's for 2^-120
// of the value.
__device__ __forceinline__ void spread_bytes(uint32_t w, uint32_t& first, uint32_t& last) {
  constexpr uint32_t kSign = 0x80008000u, kRest = 0x07f007f0u;
  first = (w & kSign) | (w >> 4 & kRest);
  last = (w * 256 & kSign) | (w * 16 & kRest);
}
// Half a unit; every pair by scale(pair, whether of row g + 8).
template <class Scale>
__device__ __forceinline__ void decode_bytes(const uint4& q, const Scale& scale, uint32_t (&a0)[4],
                                             uint32_t (&a1)[4]) {
  spread_bytes(q.x, a0[0], a0[2]), spread_bytes(q.y, a0[1], a0[3]);
  spread_bytes(q.z, a1[0], a1[2]), spread_bytes(q.w, a1[1], a1[3]);
#pragma unroll
  for (int i = 0; i < 4; ++i) scale(a0[i], i % 2), scale(a1[i], i % 2);
}

template <>
struct Unit<Format::kFp8Row> : UnitBytes<Format::kFp8Row> {
  struct Scales {};

  template <int kHalf>
  static __device__ __forceinline__ void decode(const uint4& q, const Scales&, uint32_t (&a0)[4],
                                                uint32_t (&a1)[4]) {
    decode_bytes(
        q, [](uint32_t& pair, int) { scale_pair(pair, 0x6b806b80u); }, a0, a1);  // 2^88
  }
};

template <>
struct Unit<Format::kMxfp8> : UnitBytes<Format::kMxfp8> {
  using Scales = uint32_t;

  template <int kHalf>
  static __device__ __forceinline__ void decode(const uint4& q, const Scales& s, uint32_t (&a0)[4],
                                                uint32_t (&a1)[4]) {
    const uint32_t of_rows[] = {factor_of_e8m0<88, 16 * kHalf>(s),
                                factor_of_e8m0<88, 16 * kHalf + 8>(s)};
    decode_bytes(
        q, [&](uint32_t& pair, int last) { scale_pair(pair, of_rows[last]); }, a0, a1);
  }
};

// A float32 as two bf16, each in both halves: 16 bits of it.
struct TwoFactors {
  uint32_t high, low;

  __device__ __forceinline__ explicit TwoFactors(float v) {
    high = cuda::pack_bf16(v, v);
    const float rest = v - cuda::bf16_lo(high);
    low = cuda::pack_bf16(rest, rest);
  }
  // Rounded once, but for the last of these 16 bits.
  __device__ __forceinline__ void scale(uint32_t& pair) const {
    uint32_t small = pair;
    scale_pair(small, low);
    asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(pair) : "r"(high), "r"(small));
  }
};

template <>
struct Unit<Format::kFp8Block> : UnitBytes<Format::kFp8Block> {
  static constexpr bool kScalesSums = true;
  using Scales = uint2;  // of rows g and g + 8

  template <int kHalf>
  static __device__ __forceinline__ float2 scales_of_sums(const Scales& s) {
    return {__uint_as_float(s.x), __uint_as_float(s.y)};
  }
  template <int kHalf>
  static __device__ __forceinline__ void decode_codes(const ByteCodes& q, const Scales&,
                                                      uint32_t (&a0)[4], uint32_t (&a1)[4]) {
    Unit<Format::kFp8Row>::decode<kHalf>(q.half[kHalf], {}, a0, a1);
  }
  template <int kHalf>
  static __device__ __forceinline__ void decode(const uint4& q, const Scales& s, uint32_t (&a0)[4],
                                                uint32_t (&a1)[4]) {
    const TwoFactors of_rows[] = {TwoFactors(__uint_as_float(s.x) * 0x1p88f),
                                  TwoFactors(__uint_as_float(s.y) * 0x1p88f)};
    decode_bytes(
        q, [&](uint32_t& pair, int last) { of_rows[last].scale(pair); }, a0, a1);
  }
};

// Whole numbers less their group's zero point; a group's scale is float16 or bfloat16.
template <Format kFormat>
struct Int4Unit : UnitBytes<kFormat> {
  static constexpr bool kScalesSums = true;
  static constexpr bool kHasHalves = kFormat == Format::kInt4G32;  // groups of 32 k
  // Of rows g and g + 8 of each group, as formats/int4.h has them.
  struct Scales {
    uint32_t groups[kHasHalves ? 4 : 2];
  };
  template <int kHalf>
  static __device__ __forceinline__ uint32_t group_of(const Scales& s, int last) {
    return s.groups[(kHasHalves ? 2 * kHalf : 0) + last];
  }
  static __device__ __forceinline__ float scale_of(uint32_t group) {
    return group >> 24 != 0 ? cuda::values_of_f16(group).x : cuda::bf16_lo(group);
  }
  // 128 + n in bf16 is 0x4300 + n.
  static __device__ __forceinline__ void spread(uint32_t w, uint32_t group, uint32_t (&out)[4]) {
    const uint32_t zero = 0x43004300u + __byte_perm(group, 0, 0x4242);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t pair = (w >> 4 * j & 0x000f000fu) | 0x43004300u;
      asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(out[j]) : "r"(pair), "r"(zero));
    }
  }
  template <int kHalf>
  static __device__ __forceinline__ float2 scales_of_sums(const Scales& s) {
    return {scale_of(group_of<kHalf>(s, 0)) / kSumFactor,
            scale_of(group_of<kHalf>(s, 1)) / kSumFactor};
  }
  template <int kHalf, class Scale>
  static __device__ __forceinline__ void decode_by(uint32_t low, uint32_t high, const Scales& s,
                                                   const Scale& scale, uint32_t (&a0)[4],
                                                   uint32_t (&a1)[4]) {
#pragma unroll
    for (int last = 0; last < 2; ++last) {
      uint32_t v[4];
      spread(last ? high : low, group_of<kHalf>(s, last), v);
#pragma unroll
      for (int j = 0; j < 4; ++j) scale(v[j], last);
      a0[last] = v[0], a0[last + 2] = v[1], a1[last] = v[2], a1[last + 2] = v[3];
    }
  }
  template <int kHalf>
  static __device__ __forceinline__ void decode_codes(const NibbleCodes& q, const Scales& s,
                                                      uint32_t (&a0)[4], uint32_t (&a1)[4]) {
    const uint4& w = q.words;
    decode_by<kHalf>(
        kHalf == 0 ? w.x : w.z, kHalf == 0 ? w.y : w.w, s, [](uint32_t&, int) {}, a0, a1);
  }
  template <int kHalf>
  static __device__ __forceinline__ void decode(uint32_t low, uint32_t high, const Scales& s,
                                                uint32_t (&a0)[4], uint32_t (&a1)[4]) {
    const float2 by = scales_of_sums<kHalf>(s);
    const TwoFactors of_rows[] = {TwoFactors(by.x), TwoFactors(by.y)};
    decode_by<kHalf>(
        low, high, s, [&](uint32_t& pair, int last) { of_rows[last].scale(pair); }, a0, a1);
  }
};
template <>
struct Unit<Format::kInt4G32> : Int4Unit<Format::kInt4G32> {};
template <>
struct Unit<Format::kInt4G128> : Int4Unit<Format::kInt4G128> {};

// decode_half() for who multiplies the sums of blocks: by what is returned, of rows g and g + 8.
template <class Unit, int kHalf, class Codes>
__device__ __forceinline__ float2 decode_for_sums(const Codes& q,
                                                  const typename Unit::Scales& scales,
                                                  uint32_t (&a0)[4], uint32_t (&a1)[4]) {
  if constexpr (Unit::kScalesSums) {
    Unit::template decode_codes<kHalf>(q, scales, a0, a1);
    return Unit::template scales_of_sums<kHalf>(scales);
  } else {
    decode_half<Unit, kHalf>(q, scales, a0, a1);
    return {1, 1};
  }
}
// As mma has them: two columns of row g, two of row g + 8.
__device__ __forceinline__ void add_scaled(float (&sum)[4], const float (&part)[4], float2 scale) {
  sum[0] = fmaf(part[0], scale.x, sum[0]), sum[1] = fmaf(part[1], scale.x, sum[1]);
  sum[2] = fmaf(part[2], scale.y, sum[2]), sum[3] = fmaf(part[3], scale.y, sum[3]);
}

// Calls fn.operator()<kFormat>() with the format of a weight in kTiles16x64 other than MXFP4.
template <typename Fn>
void with_unit_format(const Weight& w, const Fn& fn) {
  CHECK(w.layout == Layout::kTiles16x64);
  switch (w.format) {
    case Format::kNvfp4:
      return fn.template operator()<Format::kNvfp4>();
    case Format::kMxfp8:
      return fn.template operator()<Format::kMxfp8>();
    case Format::kFp8Row:
      return fn.template operator()<Format::kFp8Row>();
    case Format::kFp8Block:
      return fn.template operator()<Format::kFp8Block>();
    case Format::kInt4G32:
      return fn.template operator()<Format::kInt4G32>();
    case Format::kInt4G128:
      return fn.template operator()<Format::kInt4G128>();
    default:
      CHECK(false && "a format without a unit");
  }
}

}  // namespace nibble::ops::gpu
