// shared_up for many tokens: the dense wgmma GEMM, with weights in tiles by slices of K where row
// tiles are too few to fill the GPU, then weigh_up.
#include "ops/gpu_matmul/gemm_sm90.h"
#include "ops/scratch.h"
#include "ops/shared_up/shared_up.h"
#include "ops/shared_up/weigh_up.h"

namespace nibble::ops::gpu {

void shared_up_gemm(Ctx& cx, const Tensor& u, const Tensor& h, const Weight& up,
                    const uint16_t* gate, const Swiglu& act) {
  const int64_t tokens = h.dim(0);
  if (tokens == 0) return;
  Scratch scratch(cx.scratch);
  float* const y = scratch.take<float>(tokens * up.rows);
  if (has_slices(up.format))
    gemm_slices(cx, scratch, up, h.as<uint16_t>(), tokens, y);
  else
    gemm(cx, up, h.as<uint16_t>(), tokens, y);
  weigh_up(cx, u, h, y, gate, act);
}

}  // namespace nibble::ops::gpu
