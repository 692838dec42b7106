// Instructions for the rest of a file, behind what it shares with others: headers included before
// stay as they are for CPUs that have less.
//   NIBBLE_TARGET(NIBBLE_AVX2)        begins; another set of instructions may be added, ",avxvnni"
//   NIBBLE_TARGET_END                 at the end of the file, where templates are instantiated
#pragma once

#define NIBBLE_AVX2 "avx2,fma,f16c"
#define NIBBLE_AVX512 NIBBLE_AVX2 ",avx512f,avx512bw,avx512vl,avx512dq"

#define NIBBLE_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define NIBBLE_TARGET(set) \
  NIBBLE_PRAGMA(clang attribute push(__attribute__((target(set))), apply_to = function))
#define NIBBLE_TARGET_END NIBBLE_PRAGMA(clang attribute pop)
#define NIBBLE_NEON_DOT "dotprod"
#else
// gcc 12 takes the "undefined" operand inside its own intrinsics of AVX-512 for a bug (GCC bug
// 105593).
#define NIBBLE_TARGET(set)                                      \
  NIBBLE_PRAGMA(GCC diagnostic ignored "-Wmaybe-uninitialized") \
  NIBBLE_PRAGMA(GCC diagnostic ignored "-Wuninitialized")       \
  NIBBLE_PRAGMA(GCC target(set))
#define NIBBLE_TARGET_END
#define NIBBLE_NEON_DOT "arch=armv8.2-a+dotprod"
#endif
