// The attention tile by products of bf16 (cpu/bf16_products.h), on AMX or AVX-512 BF16: queries and
// softmax weights are rounded to bf16, keys and values are taken as they are (bf16 or E4M3 pages),
// sums are float32.
//
// Keys are met in blocks of kBf16KeyBlock positions, aligned to absolute positions; a row's sums
// are its own: so a token has the same bits alone, in a batch, or in a chunk.
#pragma once

#include "cpu/isa.h"
#include "ops/cpu_matmul/float_kernels.h"

namespace nibble::ops {

inline constexpr int kBf16KeyBlock = 64;

// As FloatKernels::attend, for head dims that are multiples of 32 and pages that are not float32;
// AttendTile::scratch holds attend_bf16_scratch_floats(). `isa`: kAmx or kAvx512Bf16.
using AttendFn = void(const AttendTile& tile);
AttendFn* attend_bf16(cpu::Isa isa);

int64_t attend_bf16_scratch_floats(int64_t rows, int64_t head_dim);

}  // namespace nibble::ops
