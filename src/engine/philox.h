// Philox4x32-10: random numbers as a pure function of (key, counter). Salmon et al., "Parallel
// random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

namespace nibble {

using PhiloxBlock = std::array<uint32_t, 4>;

constexpr PhiloxBlock philox(std::array<uint32_t, 2> key, PhiloxBlock x) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * x[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * x[2];
    x = {static_cast<uint32_t>(b >> 32) ^ x[1] ^ key[0], static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ x[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return x;
}

// What the numbers of one output index are for: drafts that were drawn by numbers of their own have
// one for each place in a chain, as what comes of a chain may depend on all of it.
enum RandomUse : uint32_t { kDrawsId, kMakesUp, kKeepsDrafts, kDrawsOther, kDrawsDraft };

// Uniform in [0, 1), 53 bits: the `draw`-th number for output `index` of the request with `seed`.
constexpr double uniform(uint64_t seed, uint64_t index, uint32_t draw) {
  const PhiloxBlock x =
      philox({static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
             {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), draw, 0});
  return static_cast<double>((uint64_t{x[0]} << 21) ^ (x[1] >> 11)) * 0x1p-53;
}

}  // namespace nibble
