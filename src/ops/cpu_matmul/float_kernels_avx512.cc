// The blocked float path for Avx512. What other files share is included before
// NIBBLE_TARGET (cpu/simd_target.h).
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu/simd_target.h"
#include "formats/bf16.h"
#include "formats/f16.h"
#include "formats/fp8.h"
#include "formats/fp8_block.h"
#include "formats/int4.h"
#include "formats/mxfp4.h"
#include "formats/mxfp8.h"
#include "ops/cpu_matmul/float_kernels.h"
#include "ops/kv_pages.h"
#include "ops/swiglu.h"

NIBBLE_TARGET(NIBBLE_AVX512)

#include "cpu/simd_avx512.h"
#include "ops/attention/attend_impl.h"
#include "ops/cpu_matmul/float_kernels_impl.h"
#include "ops/delta_rule/delta_rule_impl.h"
#include "ops/mamba2/mamba2_impl.h"

namespace nibble::ops {

extern const FloatKernels kAvx512Kernels;
constinit const FloatKernels kAvx512Kernels =
    make_float_kernels<cpu::Avx512>(Attend<cpu::Avx512>::run, DeltaRuleOn<cpu::Avx512>::kernels(),
                                    Mamba2On<cpu::Avx512>::kernels());

}  // namespace nibble::ops

NIBBLE_TARGET_END
#endif
