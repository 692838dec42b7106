// RandomBytes: what the bytes of a tensor of dummy weights are, for a device that makes them
// itself.
#pragma once

#include <cstdint>

namespace nibble {

// Of kE4m3Scales.
inline constexpr double kE4m3ScalesRms = 1.4657;

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
  };
  Kind kind = Kind::kConstant;
  uint16_t constant = 0;
  double rms = 0;
  uint64_t seed = 0;  // another one for each tensor
};

}  // namespace nibble
