// AMX tiles: eight registers of 16 rows x 64 bytes, and their product with int8.
//
// A tile holds 16 rows of 64 int8 (A), 16 groups of 4 k x 16 columns (B: byte 4n + b of row r is
// k = 4r + b of column n), or 16 x 16 int32 (C). dot() is C += A B. AmxTiles are the instructions;
// EmulatedTiles do the same in plain code, so that all but the instructions is tested anywhere.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/simd.h"

namespace nibble::cpu {

inline constexpr int kTileRows = 16;
inline constexpr int kTileRowBytes = 64;
inline constexpr int kTileBytes = kTileRows * kTileRowBytes;

#if defined(__x86_64__)

// Each thread configures its tiles before use and releases them after.
struct AmxTiles {
  SIMD_FN void begin() {
    struct alignas(64) Config {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    static_assert(sizeof(Config) == 64);
    for (int i = 0; i < 8; ++i) config.row_bytes[i] = kTileRowBytes, config.rows[i] = kTileRows;
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  SIMD_FN void end() { asm volatile("tilerelease"); }
  template <int kTile>
  SIMD_FN void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  SIMD_FN void load(const void* from, int64_t row_bytes = kTileRowBytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row_bytes), "i"(kTile)
                 : "memory");
  }
  template <int kTile>
  SIMD_FN void store(void* to, int64_t row_bytes = kTileRowBytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row_bytes), "i"(kTile) : "memory");
  }
  template <int kC, int kA, int kB>
  SIMD_FN void dot() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
  // The same of bf16 pairs, with float32 sums: 32 k in place of 64.
  template <int kC, int kA, int kB>
  SIMD_FN void dot_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};

#endif

struct EmulatedTiles {
  struct Tile {
    int8_t bytes[kTileBytes];
  };
  static Tile& tile(int i) {
    static thread_local Tile tiles[8];
    return tiles[i];
  }
  static void begin() {
    for (int i = 0; i < 8; ++i) std::memset(&tile(i), 0x7f, kTileBytes);
  }
  static void end() {}
  template <int kTile>
  static void zero() {
    std::memset(&tile(kTile), 0, kTileBytes);
  }
  template <int kTile>
  static void load(const void* from) {
    std::memcpy(&tile(kTile), from, kTileBytes);
  }
  template <int kTile>
  static void store(void* to) {
    std::memcpy(to, &tile(kTile), kTileBytes);
  }
  template <int kC, int kA, int kB>
  static void dot() {
    const int8_t *a = tile(kA).bytes, *b = tile(kB).bytes;
    for (int m = 0; m < 16; ++m)
      for (int n = 0; n < 16; ++n) {
        int32_t sum;
        int8_t* c = tile(kC).bytes + 64 * m + 4 * n;
        std::memcpy(&sum, c, 4);
        for (int k = 0; k < 64; ++k) sum += a[64 * m + k] * b[64 * (k / 4) + 4 * n + k % 4];
        std::memcpy(c, &sum, 4);
      }
  }
};

}  // namespace nibble::cpu
