// What the vector types of simd_avx512.h, simd_avx2.h, simd_neon.h and simd_plain.h share.
#pragma once

// A function of a vector type: vanishes into its caller, so that vectors stay in registers.
#define SIMD_FN static inline __attribute__((always_inline))
