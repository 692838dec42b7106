// embed on a GPU: x[t] = table[tokens[t]], d = 0, the angles of the step's positions.
//   table   [V, H] bf16, in         tokens, positions [T] i32, in     inv_freq [D / 2] by value
//   x, d    [T, H] f32, out         cos_sin [T, D] f32, out
// Needs H % 8 == 0, D <= 1,024. Bytes: 10 H + 4 D a token; at T = 1 it is one launch's latency.
// One block a token; the last warps of a row turn the angles in double precision, reduced to a
// quarter turn first, so that no slow path for large angles (with its stack) is compiled in.
#include <algorithm>

#include "cuda/bf16.cuh"
#include "cuda/launch.cuh"
#include "ops/embed/embed.h"
#include "ops/gpu_matmul/decode.cuh"

namespace nibble::ops::gpu {
namespace {

using nibble::cuda::griddep_launch_dependents;
using nibble::cuda::griddep_wait;

constexpr int kThreads = 256;
constexpr int kFewPairs = 128, kMostPairs = 512;

template <int kPairs>
struct Angles {
  static constexpr int kMost = kPairs;
  float inv_freq[kPairs];
  int pairs;
  double concentration;
};

// Taylor series to x^15 and x^14: on [-pi/4, pi/4] their errors stay below 2e-15.
__device__ double sin_near_zero(double r) {
  const double s = r * r;
  double p = -7.6471637318198164e-13;
  p = fma(p, s, 1.6059043836821613e-10);
  p = fma(p, s, -2.5052108385441720e-8);
  p = fma(p, s, 2.7557319223985893e-6);
  p = fma(p, s, -1.9841269841269841e-4);
  p = fma(p, s, 8.3333333333333332e-3);
  p = fma(p, s, -1.6666666666666666e-1);
  return fma(p * s, r, r);
}
__device__ double cos_near_zero(double r) {
  const double s = r * r;
  double p = -1.1470745597729725e-11;
  p = fma(p, s, 2.0876756987868099e-9);
  p = fma(p, s, -2.7557319223985888e-7);
  p = fma(p, s, 2.4801587301587302e-5);
  p = fma(p, s, -1.3888888888888889e-3);
  p = fma(p, s, 4.1666666666666664e-2);
  p = fma(p, s, -0.5);
  return fma(p, s, 1.0);
}

// cosine and sine of `angle` (up to 2^30), times `scale`.
__device__ float2 cos_sin_of(float angle, double scale) {
  const double turns = rint(angle * 0.63661977236758134);  // quarter turns
  double r = fma(turns, -1.5707963267948966, static_cast<double>(angle));
  r = fma(turns, -6.1232339957367660e-17, r);  // pi / 2 less its double
  const double c = cos_near_zero(r), s = sin_near_zero(r);
  const int quarter = static_cast<int>(static_cast<long long>(turns)) & 3;
  const double cosine = quarter & 1 ? s : c, sine = quarter & 1 ? c : s;
  const bool negative_cosine = quarter == 1 || quarter == 2, negative_sine = quarter >= 2;
  return {static_cast<float>((negative_cosine ? -cosine : cosine) * scale),
          static_cast<float>((negative_sine ? -sine : sine) * scale)};
}

// The angles of token t. From the far end: the first threads have more of the row.
template <int kPairs>
__device__ __forceinline__ void store_angles(float* cos_sin, const int32_t* positions, int64_t t,
                                             const Angles<kPairs>& angles) {
  for (int pair = kThreads - 1 - static_cast<int>(threadIdx.x); pair < angles.pairs;
       pair += kThreads) {
    const float angle = static_cast<float>(positions[t]) * angles.inv_freq[pair];
    const float2 value = cos_sin_of(angle, angles.concentration);
    cos_sin[t * 2 * angles.pairs + pair] = value.x;
    cos_sin[(t * 2 + 1) * angles.pairs + pair] = value.y;
  }
}

template <int kPairs>
__global__ void __launch_bounds__(kThreads)
    embed_rows(float* x, float* d, float* cos_sin, const uint16_t* table, const int32_t* tokens,
               const int32_t* positions, int hidden,
               const __grid_constant__ Angles<kPairs> angles) {
  const int64_t t = blockIdx.x;
  griddep_wait();  // the step before may still read x, d and cos_sin
  griddep_launch_dependents();
  const uint4* row = reinterpret_cast<const uint4*>(table + tokens[t] * int64_t{hidden});
  for (int i = threadIdx.x; i < hidden / 8; i += kThreads) {
    const uint4 v = row[i];
    float4* to = reinterpret_cast<float4*>(x + t * hidden) + 2 * i;
    to[0] = {cuda::bf16_lo(v.x), cuda::bf16_hi(v.x), cuda::bf16_lo(v.y), cuda::bf16_hi(v.y)};
    to[1] = {cuda::bf16_lo(v.z), cuda::bf16_hi(v.z), cuda::bf16_lo(v.w), cuda::bf16_hi(v.w)};
    float4* zero = reinterpret_cast<float4*>(d + t * hidden) + 2 * i;
    zero[0] = zero[1] = {0, 0, 0, 0};
  }
  store_angles(cos_sin, positions, t, angles);
}

// What embed_any() reads of the table.
struct Table {
  const uint8_t* codes;
  const uint8_t* scales;
  const float* row_scales;  // or none
  int64_t row_code_bytes, row_scale_bytes;
  int hidden;
  bool is_wide;  // rows are whole pieces of 16 bytes, aligned
};

// The values of a piece as the format's twin has them, each rounded as often.
template <Format kFormat>
__device__ __forceinline__ void decode_values(float (&values)[Decode<kFormat>::kElems],
                                              const Piece& piece, float row_scale) {
  using D = Decode<kFormat>;
  Piece from = piece;
  float step = row_scale;
  if constexpr (kFormat == Format::kNvfp4) {
    constexpr uint32_t kOne = 0x38;
    step *= cuda::values_of_f16(cuda::f16_of_e4m3_lo(piece.scales)).x;
    from.scales = kOne;
  }
  if constexpr (D::kHasFactors) step = D::factor(piece);
  for (float& v : values) v = 0;
#pragma unroll
  for (int part = 0; part < D::kParts; ++part) {
    uint32_t pairs[D::kElems / 2];
    D::decode(from, pairs, part);
#pragma unroll
    for (int i = 0; i < D::kElems / 2; ++i)
      values[2 * i] += cuda::bf16_lo(pairs[i]), values[2 * i + 1] += cuda::bf16_hi(pairs[i]);
  }
#pragma unroll
  for (float& v : values) v *= step;
}

// Any H and format: a piece of 16 bytes a thread.
template <Format kFormat, int kPairs>
__global__ void __launch_bounds__(kThreads)
    embed_pieces(float* x, float* d, float* cos_sin, const __grid_constant__ Table table,
                 const int32_t* tokens, const int32_t* positions,
                 const __grid_constant__ Angles<kPairs> angles) {
  using D = Decode<kFormat>;
  const int64_t t = blockIdx.x;
  griddep_wait();
  griddep_launch_dependents();
  const int64_t token = tokens[t];
  const float row_scale = table.row_scales == nullptr ? 1 : table.row_scales[token];
  for (int k = threadIdx.x * D::kElems; k < table.hidden; k += kThreads * D::kElems) {
    float values[D::kElems];
    decode_values<kFormat>(values,
                           load_piece<kFormat>(table.codes + token * table.row_code_bytes,
                                               table.scales + token * table.row_scale_bytes, k,
                                               table.hidden, table.is_wide),
                           row_scale);
#pragma unroll
    for (int i = 0; i < D::kElems; ++i) {
      if (k + i >= table.hidden) break;
      const int64_t at = t * table.hidden + k + i;
      x[at] = values[i];
      d[at] = 0;
    }
  }
  store_angles(cos_sin, positions, t, angles);
}

// launch(angles) with the smaller table of angles that holds them.
template <typename Launch>
void with_angles(const Rope& rope, const Launch& launch) {
  const auto fill = [&](auto angles) {
    CHECK(rope.inv_freq.size() <= decltype(angles)::kMost);
    angles.pairs = static_cast<int>(rope.inv_freq.size());
    angles.concentration = rope.concentration;
    std::copy(rope.inv_freq.begin(), rope.inv_freq.end(), angles.inv_freq);
    launch(angles);
  };
  if (rope.inv_freq.size() <= kFewPairs)
    fill(Angles<kFewPairs>{});
  else
    fill(Angles<kMostPairs>{});
}

}  // namespace

void embed(Ctx& cx, const EmbedOut& out, const Weight& table, const Rope& rope, const Step& s) {
  with_angles(rope, [&]<int kPairs>(const Angles<kPairs>& angles) {
    cuda::launch(
        cx.stream, embed_rows<kPairs>,
        {.grid = dim3(s.num_tokens), .block = dim3(kThreads), .release = cuda::Release::kAfterWait},
        out.x.as<float>(), out.d.as<float>(), out.cos_sin.as<float>(),
        reinterpret_cast<const uint16_t*>(table.codes), s.tokens, s.positions,
        static_cast<int>(table.cols), angles);
  });
}

void embed_any(Ctx& cx, const EmbedOut& out, const Weight& w, const Rope& rope, const Step& s) {
  const Table table{
      .codes = w.codes,
      .scales = w.scales,
      .row_scales = w.row_scales,
      .row_code_bytes = w.row_code_bytes(),
      .row_scale_bytes = w.row_scale_bytes(),
      .hidden = static_cast<int>(w.cols),
      .is_wide = w.row_code_bytes() % 16 == 0 && reinterpret_cast<uintptr_t>(w.codes) % 16 == 0};
  with_angles(rope, [&]<int kPairs>(const Angles<kPairs>& angles) {
    with_format(w.format, [&]<Format kFormat>() {
      cuda::launch(cx.stream, embed_pieces<kFormat, kPairs>,
                   {.grid = dim3(s.num_tokens),
                    .block = dim3(kThreads),
                    .release = cuda::Release::kAfterWait},
                   out.x.as<float>(), out.d.as<float>(), out.cos_sin.as<float>(), table, s.tokens,
                   s.positions, angles);
    });
  });
}

}  // namespace nibble::ops::gpu
