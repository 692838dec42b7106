// RandomBytes: what the bytes of a tensor of dummy weights are, for a device that makes them
// itself.
#pragma once

#include <cstdint>

namespace nibble {

// Of kE4m3Scales, and of kE4m3Codes.
inline constexpr double kE4m3ScalesRms = 1.4657;
inline constexpr double kE4m3CodesRms = 0.5984;

struct RandomBytes {
  enum class Kind : uint8_t {
    kConstant,    // `constant`, 16 bits after 16 bits
    kUniform,     // any
    kScales,      // E8M0 bytes s or s + 1, mixed so that the mean square of 2^(byte - 127) is rms^2
    kNormalBF16,  // deviation `rms`
    kTiles,       // units of 512 uniform bytes and 32 scales: formats/layout.h, kTiles16x64
    kE4m3Scales,  // positive E4M3 from 1 to 1.875
    kNvfp4Tiles,  // units of 512 uniform bytes and 64 such scales
    kFloats,      // float32, each `rms`
    kE4m3Codes,   // E4M3 below 2 of either sign
    kFp8Tiles,    // units of 1,024 such bytes and 16 float32, each `rms`
    kMxfp8Tiles,  // and 32 scales as kScales has them
  };
  Kind kind = Kind::kConstant;
  uint16_t constant = 0;
  double rms = 0;
  uint64_t seed = 0;  // another one for each tensor
};

}  // namespace nibble
