// From NIBBLE_TARGET on this file may use AVX-512 with VNNI and VBMI; tiles
// are written as assembly and need no flag.
#include "ops/cpu_matmul/int8_row_kernels.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "cpu/amx_tiles.h"
#include "cpu/simd_target.h"
#include "formats/int8.h"
#include "formats/mxfp4.h"
#include "ops/cpu_matmul/int8_kernels.h"

NIBBLE_TARGET(NIBBLE_AVX512 ",avx512vnni,avx512vbmi")

#include "cpu/simd_int8_avx512.h"

namespace nibble::ops {
namespace {

using cpu::kTileBytes;
using S = cpu::Avx512Vnni;

// Up to which weights are not looked up ahead of the products: before tiles, before lines.
constexpr int64_t kFewBeforeTiles = 3, kFewBeforeLines = 8;
constexpr int kLineTokens = 8;                 // vectors that meet two panels in multiply_lines()
constexpr int kFetchTokens = 2 * kLineTokens;  // the last, that fetch what comes next
constexpr int kRing = 8;                       // tiles of weights ahead in multiply_few_tiles()
constexpr int64_t kChunk = 9;                  // steps of weights in L1 in multiply_many_tiles()
constexpr int64_t kPassTiles = 16;             // of inputs that stay in L2 meanwhile
constexpr int64_t kAhead = 8192;               // as PanelProduct
// Scales are first read by panel_bases(): they have to be there one run before.
int64_t scales_ahead(const PanelRun& run) { return run.panels * 2 * run.steps * kPanelRows; }
static_assert((2 * kPassTiles + 2 * kChunk) * kTileBytes <= run_scratch_bytes(0));

// What one pass over a panel takes: see panel_bases().
struct Panel {
  const uint8_t *codes, *scales;
  const uint16_t* bias;
  float* y;
  bool adds;  // to y, which holds what the passes before gave
  alignas(16) uint8_t base[16];
};

// The bases of a panel that takes one pass, as most do: the least exponents, no other of a row
// more than kMostExponentSpread above. As panel_bases() otherwise.
int find_bases(const uint8_t* scales, int64_t blocks, PanelBases& bases) {
  __m512i least = _mm512_set1_epi8(-1), most = _mm512_setzero_si512();
  const int64_t bytes = 16 * blocks;
  for (int64_t i = 0; i < bytes; i += 64) {
    const __mmask64 there = ~uint64_t{0} >> std::max<int64_t>(0, i + 64 - bytes);
    const __m512i e = _mm512_maskz_loadu_epi8(there, scales + i);
    least = _mm512_min_epu8(least, _mm512_mask_mov_epi8(least, there, e));
    most = _mm512_max_epu8(most, e);
  }
  __m128i base = _mm512_castsi512_si128(least), top = _mm512_castsi512_si128(most);
  base = _mm_min_epu8(
      _mm_min_epu8(base, _mm512_extracti32x4_epi32(least, 1)),
      _mm_min_epu8(_mm512_extracti32x4_epi32(least, 2), _mm512_extracti32x4_epi32(least, 3)));
  top = _mm_max_epu8(
      _mm_max_epu8(top, _mm512_extracti32x4_epi32(most, 1)),
      _mm_max_epu8(_mm512_extracti32x4_epi32(most, 2), _mm512_extracti32x4_epi32(most, 3)));
  const __m128i spread = _mm_sub_epi8(top, base);
  if (_mm_cmpgt_epu8_mask(spread, _mm_set1_epi8(kMostExponentSpread)) != 0)
    return panel_bases(scales, blocks, bases);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(bases[0]), base);
  return 1;
}

// One step of a panel's weights, plus kOffset, as a B tile: 64 k x 16 rows. vpermb looks up code
// and shift at once; weights of other passes count as zero.
template <int kOffset>
void dequantize(const PanelRun& run, const Panel& p, int64_t step, std::byte* tile) {
  struct Tables {
    alignas(64) uint8_t value[64], lane[64];
    constexpr Tables() : value(), lane() {
      constexpr int kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
      for (int i = 0; i < 64; ++i) {
        value[i] = static_cast<uint8_t>(kTwice[i % 16] * (1 << (i / 16)) + kOffset);
        lane[i] = static_cast<uint8_t>(i / 4);
      }
    }
  };
  static constexpr Tables kTables;
  const __m512i values = _mm512_load_si512(kTables.value);
  const __m512i lanes = _mm512_load_si512(kTables.lane);
  const __m128i base = _mm_load_si128(reinterpret_cast<const __m128i*>(p.base));
  if (step % 2 == 0) __builtin_prefetch(p.scales + 32 * step + scales_ahead(run), 0, 1);
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t block = 2 * step + half;
    const __m128i e = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p.scales + 16 * block));
    const __m128i above = _mm_sub_epi8(e, base);
    const __mmask16 inside = _mm_cmple_epu8_mask(above, _mm_set1_epi8(kMostExponentSpread));
    const auto of_rows = [&](__m128i x) {
      return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_maskz_mov_epi8(inside, x)), lanes);
    };
    // At most 3 << 4 in each byte: what the shift of words brings over from the byte below goes.
    const __m512i shifts =
        of_rows(_mm_and_si128(_mm_slli_epi16(above, 4), _mm_set1_epi8(kMostExponentSpread << 4)));
    const __m512i low = of_rows(_mm_set1_epi8(15));
    const uint8_t* codes = p.codes + 256 * block;
    std::byte* to = tile + half * kTileBytes / 2;
    for (int i = 0; i < 4; ++i) {
      const __m512i bytes = _mm512_loadu_si512(codes + 64 * i);
      __builtin_prefetch(codes + kAhead + 64 * i, 0, 1);
      constexpr int kAndOr = 0xea;  // (a & b) | c
      const __m512i first = _mm512_ternarylogic_epi32(bytes, low, shifts, kAndOr);
      const __m512i second =
          _mm512_ternarylogic_epi32(_mm512_srli_epi16(bytes, 4), low, shifts, kAndOr);
      _mm512_store_si512(to + 128 * i, _mm512_permutexvar_epi8(first, values));
      _mm512_store_si512(to + 128 * i + 64, _mm512_permutexvar_epi8(second, values));
    }
  }
}

// y of vectors and the panel's 16 rows, from their sums.
class Finish {
 public:
  explicit Finish(const Panel& p)
      : scale_(S::scales(p.base)),
        bias_(p.bias == nullptr ? S::zero() : S::load_bf16(p.bias)),
        adds_(p.adds) {}
  void operator()(__m512i sum, float half_step, float* y) const {
    const __m512 scale = _mm512_mul_ps(scale_, _mm512_set1_ps(half_step));
    S::store(y, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, adds_ ? S::load(y) : bias_));
  }

 private:
  __m512 scale_, bias_;
  bool adds_;
};

// y of one C tile: inputs of tile `index` by the panel's rows.
void finish_tile(const PanelRun& run, const Panel& p, int64_t index, const std::byte* c) {
  const Finish finish(p);
  const int64_t first = index * kAmxTileTokens;
  const int64_t tokens = std::min<int64_t>(kAmxTileTokens, run.tokens - first);
  for (int64_t m = 0; m < tokens; ++m)
    finish(_mm512_load_si512(c + 64 * m), run.half_steps[first + m], p.y + (first + m) * run.ldy);
}

// Up to 4 tiles of inputs, over all of K at once: 4 C tiles by one B tile. B passes through a ring
// in L1: after each step one more tile is looked up, while the tile unit works.
template <typename Tiles, int kTiles>
void multiply_few_tiles(const PanelRun& run, const Panel* panels, int64_t count, int64_t first) {
  std::byte *ring = run.scratch, *c = ring + kRing * kTileBytes;
  const int64_t stride = run.steps * kTileBytes;
  const auto* a0 = reinterpret_cast<const std::byte*>(run.tiles) + first * stride;
  int64_t next_panel = 0, next_step = 0, written = 0, read = 0;
  const auto feed = [&] {
    if (next_panel == count) return;
    dequantize<0>(run, panels[next_panel], next_step, ring + written++ % kRing * kTileBytes);
    if (++next_step == run.steps) next_step = 0, ++next_panel;
  };
  for (int i = 0; i < kRing / 2; ++i) feed();
  for (int64_t p = 0; p < count; ++p) {
    Tiles::template zero<0>(), Tiles::template zero<1>();
    Tiles::template zero<2>(), Tiles::template zero<3>();
    const std::byte* a = a0;
    for (int64_t k = 0; k < run.steps; ++k, a += kTileBytes) {
      Tiles::template load<7>(ring + read++ % kRing * kTileBytes);
      Tiles::template load<4>(a), Tiles::template dot<0, 4, 7>();
      if constexpr (kTiles > 1) Tiles::template load<5>(a + stride), Tiles::template dot<1, 5, 7>();
      if constexpr (kTiles > 2)
        Tiles::template load<6>(a + 2 * stride), Tiles::template dot<2, 6, 7>();
      if constexpr (kTiles > 3)
        Tiles::template load<4>(a + 3 * stride), Tiles::template dot<3, 4, 7>();
      feed();
    }
    Tiles::template store<0>(c), Tiles::template store<1>(c + kTileBytes);
    Tiles::template store<2>(c + 2 * kTileBytes), Tiles::template store<3>(c + 3 * kTileBytes);
    for (int64_t i = 0; i < kTiles; ++i) finish_tile(run, panels[p], first + i, c + i * kTileBytes);
  }
}

// An even number of tiles of inputs by two panels: 2 x 2 C tiles. Chunks of B stay in L1, C waits
// in memory between them.
template <typename Tiles>
void multiply_many_tiles(const PanelRun& run, const Panel* panels, int64_t first, int64_t tiles) {
  std::byte *b = run.scratch, *c = b + 2 * kChunk * kTileBytes;
  const int64_t stride = run.steps * kTileBytes;
  const auto* inputs = reinterpret_cast<const std::byte*>(run.tiles) + first * stride;
  for (int64_t k0 = 0; k0 < run.steps; k0 += kChunk) {
    const int64_t steps = std::min(kChunk, run.steps - k0);
    const auto feed = [&](int64_t k) {
      for (int j = 0; j < 2; ++j)
        dequantize<0>(run, panels[j], k0 + k, b + (2 * k + j) * kTileBytes);
    };
    for (int64_t k = 0; k < std::min<int64_t>(2, steps); ++k) feed(k);
    for (int64_t t = 0; t < tiles; t += 2) {
      const std::byte *a = inputs + t * stride + k0 * kTileBytes, *a1 = a + stride, *bk = b;
      std::byte* ct = c + 2 * t * kTileBytes;
      if (k0 == 0) {
        Tiles::template zero<0>(), Tiles::template zero<1>();
        Tiles::template zero<2>(), Tiles::template zero<3>();
      } else {
        Tiles::template load<0>(ct), Tiles::template load<1>(ct + kTileBytes);
        Tiles::template load<2>(ct + 2 * kTileBytes), Tiles::template load<3>(ct + 3 * kTileBytes);
      }
      for (int64_t k = 0; k < steps; ++k) {
        if (t == 0 && k + 2 < steps) feed(k + 2);
        Tiles::template load<6>(bk), Tiles::template load<4>(a);
        Tiles::template load<7>(bk + kTileBytes), Tiles::template dot<0, 4, 6>();
        Tiles::template dot<1, 4, 7>(), Tiles::template load<5>(a1);
        Tiles::template dot<2, 5, 6>(), Tiles::template dot<3, 5, 7>();
        a += kTileBytes, a1 += kTileBytes, bk += 2 * kTileBytes;
      }
      Tiles::template store<0>(ct), Tiles::template store<1>(ct + kTileBytes);
      Tiles::template store<2>(ct + 2 * kTileBytes), Tiles::template store<3>(ct + 3 * kTileBytes);
      if (k0 + steps < run.steps) continue;
      for (int j = 0; j < 4; ++j)
        finish_tile(run, panels[j % 2], first + t + j / 2, ct + j * kTileBytes);
    }
  }
}

// Products of many vectors and `count` passes over panels.
using Many = void(const PanelRun& run, const Panel* panels, int64_t count);

template <typename Tiles>
void multiply_tiles(const PanelRun& run, const Panel* panels, int64_t count) {
  const int64_t tiles = (run.tokens + kAmxTileTokens - 1) / kAmxTileTokens;
  Tiles::begin();
  for (int64_t first = 0, n; first < tiles; first += n) {
    n = std::min(tiles - first, kPassTiles);
    if (n > 4) {
      n += n % 2;  // a tile too many costs less than one by itself: its results go nowhere
      int64_t p = 0;
      for (; p + 2 <= count; p += 2) multiply_many_tiles<Tiles>(run, panels + p, first, n);
      for (int64_t t = 0; p < count && t < n; t += 2)
        multiply_few_tiles<Tiles, 2>(run, panels + p, 1, first + t);
    } else if (n == 4) {
      multiply_few_tiles<Tiles, 4>(run, panels, count, first);
    } else if (n == 3) {
      multiply_few_tiles<Tiles, 3>(run, panels, count, first);
    } else if (n == 2) {
      multiply_few_tiles<Tiles, 2>(run, panels, count, first);
    } else {
      multiply_few_tiles<Tiles, 1>(run, panels, count, first);
    }
  }
  Tiles::end();
}

// M vectors from `first` on by P panels, whose bytes lie at `lines`. On VNNI, whose weights have no
// sign: they are looked up kLineOffset too large. Meanwhile `fetched` lines a step come into L2.
struct Fetch {
  const uint8_t *codes, *scales;
  int lines;  // a step, of codes; of scales as much as belongs to them
};
constexpr int kLineOffset = 96;
template <int M, int P>
void multiply_lines(const PanelRun& run, const Panel* panels, const std::byte* w, int64_t first,
                    const Fetch& fetch) {
  const int64_t stride = run.steps * kTileBytes;
  const int8_t* x = run.tiles + first / kAmxTileTokens * stride + first % kAmxTileTokens * 64;
  __m512i acc[P][M];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) acc[p][m] = _mm512_set1_epi32(-kLineOffset * run.sums[first + m]);
  for (int64_t k = 0; k < run.steps; ++k, x += kAmxTileBytes, w += kTileBytes) {
    for (int64_t i = fetch.lines * k; i < fetch.lines * (k + 1); ++i) {
      __builtin_prefetch(fetch.codes + 64 * i, 0, 1);
      if (i % 16 == 0) __builtin_prefetch(fetch.scales + 4 * i, 0, 1);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; ++i) {
      __m512i lines[P];
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) lines[p] = _mm512_load_si512(w + p * stride + 64 * i);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        int32_t four;
        __builtin_memcpy(&four, x + 64 * m + 4 * i, sizeof(four));
        const __m512i xs = _mm512_set1_epi32(four);
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) acc[p][m] = _mm512_dpbusd_epi32(acc[p][m], lines[p], xs);
      }
    }
  }
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) {
    const Finish finish(panels[p]);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
      finish(acc[p][m], run.half_steps[first + m], panels[p].y + (first + m) * run.ldy);
  }
}

// Up to kMostPanels, looked up at once: vectors that wait in L1 meet them all.
void multiply_all_lines(const PanelRun& run, const Panel* panels, int64_t count) {
  const int64_t stride = run.steps * kTileBytes;
  for (int64_t p = 0; p < count; ++p)
    for (int64_t k = 0; k < run.steps; ++k)
      dequantize<kLineOffset>(run, panels[p], k, run.scratch + p * stride + k * kTileBytes);
  using Lines = void(const PanelRun&, const Panel*, const std::byte*, int64_t, const Fetch&);
  static constexpr auto kBySize = []<int... kM>(std::integer_sequence<int, kM...>) {
    return std::array{
        std::array<Lines*, 2>{multiply_lines<kM + 1, 1>, multiply_lines<kM + 1, 2>}...};
  }
  (std::make_integer_sequence<int, kLineTokens>());
  // What comes next is fetched by the last vectors: any earlier, and inputs drive it out again.
  static_assert(kFewBeforeLines >= kLineTokens);
  const int64_t whole = run.tokens / kLineTokens * kLineTokens;
  const int64_t fetching = std::min<int64_t>(whole, kFetchTokens);
  Fetch fetch{panels[count - 1].codes + 512 * run.steps, panels[count - 1].scales + 32 * run.steps,
              0};
  for (int64_t first = 0; first < run.tokens; first += kLineTokens) {
    const int64_t m = std::min<int64_t>(kLineTokens, run.tokens - first);
    for (int64_t p = 0; p < count; p += 2) {
      const int64_t n = std::min<int64_t>(2, count - p);
      fetch.lines = first >= whole - fetching && first < whole
                        ? static_cast<int>(8 * n * kLineTokens / fetching)
                        : 0;
      kBySize[m - 1][n - 1](run, panels + p, run.scratch + p * stride, first, fetch);
      fetch.codes += 64 * fetch.lines * run.steps, fetch.scales += 4 * fetch.lines * run.steps;
    }
  }
}

void multiply_by_lines(const PanelRun& run, const Panel* panels, int64_t count) {
  for (int64_t p = 0; p < count; p += kMostPanels)
    multiply_all_lines(run, panels + p, std::min(kMostPanels, count - p));
}

__m512i to_int32(const uint8_t* e) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(e)));
}

// The same sums for few vectors, straight from the nibbles, in kPasses at once. M: the size of
// their tile.
template <int M, int kPasses>
void multiply_few(const PanelRun& run, const Panel* passes) {
  constexpr int kBeside = M % 4 == 0 ? 4 : M % 3 == 0 ? 3 : M;  // as PanelProduct
  const uint8_t *codes = passes->codes, *scales = passes->scales;
  const std::byte* x = run.block_tile;
  float half_steps[M];  // those of any block are those of all
  __builtin_memcpy(half_steps, x + 32 * M, sizeof(half_steps));
  __m512i acc[kPasses][M], base[kPasses];
#pragma GCC unroll 2
  for (int p = 0; p < kPasses; ++p) {
    base[p] = to_int32(passes[p].base);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) acc[p][m] = _mm512_setzero_si512();
  }
  for (int64_t b = 0; b < 2 * run.steps; ++b) {
    __m512i w[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __builtin_prefetch(codes + kAhead + 64 * i, 0, 1);
      S::decode(codes + 64 * i, w[2 * i], w[2 * i + 1]);
    }
    if (b % 4 == 0) __builtin_prefetch(scales + scales_ahead(run), 0, 1);
    __m512i shift[kPasses];
    __mmask16 inside[kPasses];
#pragma GCC unroll 2
    for (int p = 0; p < kPasses; ++p) {
      shift[p] = _mm512_sub_epi32(to_int32(scales), base[p]);
      inside[p] = _mm512_cmple_epu32_mask(shift[p], _mm512_set1_epi32(kMostExponentSpread));
    }
    const auto* offsets = reinterpret_cast<const int32_t*>(x + 36 * M);
#pragma GCC unroll 8
    for (int m = 0; m < M; m += kBeside) {
      __m512i sums[kBeside];
      S::dot<kBeside, 8>(w, reinterpret_cast<const int8_t*>(x) + 32 * m, offsets + m, sums);
#pragma GCC unroll 4
      for (int j = 0; j < kBeside; ++j)
#pragma GCC unroll 2
        for (int p = 0; p < kPasses; ++p)
          acc[p][m + j] = _mm512_add_epi32(acc[p][m + j],
                                           _mm512_maskz_sllv_epi32(inside[p], sums[j], shift[p]));
    }
    codes += 256, scales += kPanelRows, x += M * int8_tile_bytes(1);
  }
#pragma GCC unroll 2
  for (int p = 0; p < kPasses; ++p) {
    const Finish finish(passes[p]);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
      if (m < run.tokens) finish(acc[p][m], half_steps[m], passes[p].y + m * run.ldy);
  }
}

template <int kPasses>
void multiply_few(const PanelRun& run, const Panel* passes) {
  static constexpr std::array kByTokens{multiply_few<1, kPasses>, multiply_few<2, kPasses>,
                                        multiply_few<3, kPasses>, multiply_few<4, kPasses>,
                                        multiply_few<6, kPasses>, multiply_few<6, kPasses>,
                                        multiply_few<8, kPasses>, multiply_few<8, kPasses>};
  static_assert(std::max(kFewBeforeTiles, kFewBeforeLines) <= int64_t{kByTokens.size()});
  kByTokens[run.tokens - 1](run, passes);  // by tile_size()
}

void multiply_few(const PanelRun& run, const Panel* passes, int64_t count) {
  for (; count >= 2; passes += 2, count -= 2) multiply_few<2>(run, passes);
  if (count == 1) multiply_few<1>(run, passes);
}

// int8_encode() of n values, a multiple of 64.
RowCodes encode(const float* x, int64_t n, int8_t* q) {
  __m512i largest = _mm512_setzero_si512(), sums = largest;
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int64_t i = 0; i < n; i += 16)
    largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude));
  const Int8Step step = int8_step(_mm512_reduce_max_epu32(largest));
  const __m512 inverse = _mm512_set1_ps(step.inverse);
  const __mmask16 any = step.inverse == 0 ? 0 : 0xffff;
  for (int64_t i = 0; i < n; i += 64) {
#pragma GCC unroll 4
    for (int j = 0; j < 64; j += 16) {
      const __m512i codes =
          _mm512_maskz_cvtps_epi32(any, _mm512_mul_ps(_mm512_loadu_ps(x + i + j), inverse));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(q + i + j), _mm512_cvtepi32_epi8(codes));
      sums = _mm512_add_epi32(sums, codes);
    }
  }
  return {.half_step = step.step / 2, .sum = _mm512_reduce_add_epi32(sums)};
}

template <int64_t kFew, Many* kMany>
void multiply_panels(const PanelRun& run) {
  CHECK(run.panels <= kMostPanels);
  const int64_t blocks = 2 * run.steps;
  Panel passes[kMostPanels * kMostPasses];
  int64_t count = 0;
  for (int64_t i = 0; i < run.panels; ++i) {
    Panel p{.codes = run.codes + i * blocks * 256,
            .scales = run.scales + i * blocks * kPanelRows,
            .bias = run.bias == nullptr ? nullptr : run.bias + i * kPanelRows,
            .y = run.y + i * kPanelRows,
            .adds = false,
            .base = {}};
    PanelBases bases;
    const int num_passes = find_bases(p.scales, blocks, bases);
    const int64_t first = run.tokens <= kFew ? 0 : count;
    for (int pass = 0; pass < num_passes; ++pass, p.adds = true) {
      std::copy_n(bases[pass], kPanelRows, p.base);
      passes[first + pass] = p;
    }
    if (run.tokens <= kFew)
      multiply_few(run, passes, num_passes);
    else
      count += num_passes;
  }
  if (count > 0) kMany(run, passes, count);
}

}  // namespace

const Int8RowKernels& int8_row_kernels(cpu::Isa isa) {
  static constexpr Int8RowKernels kAmx{
      kFewBeforeTiles, encode, multiply_panels<kFewBeforeTiles, multiply_tiles<cpu::AmxTiles>>};
  static constexpr Int8RowKernels kVnni{kFewBeforeLines, encode,
                                        multiply_panels<kFewBeforeLines, multiply_by_lines>};
  CHECK(isa == cpu::Isa::kAmx || isa == cpu::Isa::kAvx512Vnni);
  return isa == cpu::Isa::kAmx ? kAmx : kVnni;
}

const Int8RowKernels& emulated_int8_row_kernels() {
  static constexpr Int8RowKernels kKernels{
      kFewBeforeTiles, encode,
      multiply_panels<kFewBeforeTiles, multiply_tiles<cpu::EmulatedTiles>>};
  return kKernels;
}

}  // namespace nibble::ops

NIBBLE_TARGET_END

#else  // not x86-64

namespace nibble::ops {
const Int8RowKernels& int8_row_kernels(cpu::Isa) {
  CHECK(!"no AVX-512 on this architecture");
  __builtin_unreachable();
}
const Int8RowKernels& emulated_int8_row_kernels() {
  return int8_row_kernels(cpu::Isa::kAvx512Vnni);
}
}  // namespace nibble::ops

#endif
