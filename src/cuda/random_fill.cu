// A thread makes 16 bytes from their index alone (splitmix64's output function; Steele, Lea, Flood
// 2014), so any shape of launch makes the same. 61 GiB take 25 ms of an H200's memory.
#include <algorithm>
#include <cmath>

#include "cuda/launch.cuh"
#include "cuda/memory.h"
#include "cuda/random_fill.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPiece = 16;                              // bytes of a thread
constexpr int kTilePieces = 34, kNvfp4TilePieces = 36;  // of a unit of kTiles, of kNvfp4Tiles
constexpr int kTileCodePieces = 32;
constexpr int kFp8TilePieces = 68, kMxfp8TilePieces = 66;  // of kFp8Tiles, of kMxfp8Tiles
constexpr int kFp8TileCodePieces = 64;

struct Args {
  uint8_t* data;
  int64_t bytes;
  RandomBytes::Kind kind;
  uint64_t seed;
  uint16_t constant;
  uint8_t scale;      // the lower of two
  uint8_t threshold;  // the share of the higher one, of 256
  float unit;         // of the sums behind normal values
  float value;        // of kFloats
};

__device__ uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

__device__ uint64_t random_word(const Args& a, int64_t i) {
  return mix(a.seed + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u);
}

__device__ uint64_t scales(const Args& a, uint64_t random) {
  uint64_t word = 0;
  for (int b = 0; b < 64; b += 8)
    word |= uint64_t{a.scale + unsigned{((random >> b) & 255) < a.threshold}} << b;
  return word;
}

__device__ uint64_t e4m3_scales(uint64_t random) {
  return (random & 0x0707070707070707u) | 0x3838383838383838u;
}

__device__ uint64_t e4m3_codes(uint64_t random) { return random & 0xbfbfbfbfbfbfbfbfu; }

__device__ uint64_t two_floats(float value) { return 0x0000000100000001u * __float_as_uint(value); }

// Sums of four random bytes: near enough to a normal distribution.
__device__ uint32_t two_normals(const Args& a, uint64_t random) {
  uint32_t word = 0;
  for (int half = 0; half < 2; ++half, random >>= 32) {
    int sum = 0;
    for (int b = 0; b < 32; b += 8) sum += (random >> b) & 255;
    // Round to nearest even, as bf16_from_float does.
    const uint32_t bits = __float_as_uint(static_cast<float>(sum - 510) * a.unit);
    word |= ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) << (16 * half);
  }
  return word;
}

__device__ uint64_t word_of(const Args& a, int64_t i) {
  switch (a.kind) {
    case RandomBytes::Kind::kConstant:
      return 0x0001000100010001u * a.constant;
    case RandomBytes::Kind::kUniform:
      return random_word(a, i);
    case RandomBytes::Kind::kScales:
      return scales(a, random_word(a, i));
    case RandomBytes::Kind::kNormalBF16:
      return two_normals(a, random_word(a, 2 * i)) |
             uint64_t{two_normals(a, random_word(a, 2 * i + 1))} << 32;
    case RandomBytes::Kind::kTiles:
      return i / 2 % kTilePieces < kTileCodePieces ? random_word(a, i)
                                                   : scales(a, random_word(a, i));
    case RandomBytes::Kind::kE4m3Scales:
      return e4m3_scales(random_word(a, i));
    case RandomBytes::Kind::kNvfp4Tiles:
      return i / 2 % kNvfp4TilePieces < kTileCodePieces ? random_word(a, i)
                                                        : e4m3_scales(random_word(a, i));
    case RandomBytes::Kind::kFloats:
      return two_floats(a.value);
    case RandomBytes::Kind::kE4m3Codes:
      return e4m3_codes(random_word(a, i));
    case RandomBytes::Kind::kFp8Tiles:
      return i / 2 % kFp8TilePieces < kFp8TileCodePieces ? e4m3_codes(random_word(a, i))
                                                         : two_floats(a.value);
    case RandomBytes::Kind::kMxfp8Tiles:
      return i / 2 % kMxfp8TilePieces < kFp8TileCodePieces ? e4m3_codes(random_word(a, i))
                                                           : scales(a, random_word(a, i));
  }
  return 0;
}

__global__ void __launch_bounds__(kThreads) random_kernel(const __grid_constant__ Args a) {
  const int64_t pieces = (a.bytes + kPiece - 1) / kPiece;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < pieces; i += stride) {
    const ulonglong2 piece = {word_of(a, 2 * i), word_of(a, 2 * i + 1)};
    if ((i + 1) * kPiece <= a.bytes) {
      *reinterpret_cast<ulonglong2*>(a.data + i * kPiece) = piece;
      continue;
    }
    for (int64_t b = i * kPiece; b < a.bytes; ++b) {
      const int at = static_cast<int>(b - i * kPiece);
      a.data[b] = static_cast<uint8_t>((at < 8 ? piece.x : piece.y) >> (8 * (at % 8)));
    }
  }
}

}  // namespace

void random_fill(void* data, int64_t bytes, const RandomBytes& what) {
  if (bytes == 0) return;
  Args args{.data = static_cast<uint8_t*>(data),
            .bytes = bytes,
            .kind = what.kind,
            .seed = what.seed,
            .constant = what.constant,
            .scale = 0,
            .threshold = 0,
            .unit = static_cast<float>(what.rms / std::sqrt(4 * 65535.0 / 12)),
            .value = static_cast<float>(what.rms)};
  if (what.rms > 0) {
    const int exponent = static_cast<int>(std::floor(std::log2(what.rms)));
    const double low = std::exp2(2 * exponent);
    args.scale = static_cast<uint8_t>(std::clamp(exponent + 127, 0, 253));
    args.threshold = static_cast<uint8_t>(
        std::min(255L, std::lround(256 * (what.rms * what.rms - low) / (3 * low))));
  }
  const int64_t blocks = (bytes / kPiece + kThreads) / kThreads;
  launch(nullptr, random_kernel,
         {.grid = static_cast<unsigned>(std::min<int64_t>(blocks, 1 << 16)),
          .block = kThreads,
          .pdl = false},
         args);
  wait(nullptr);
}

}  // namespace nibble::cuda
