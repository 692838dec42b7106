// shared_up for many tokens by mma.sync: the GEMM, then weigh_up.
#include "ops/gpu_matmul/gemm_mma.h"
#include "ops/scratch.h"
#include "ops/shared_up/shared_up.h"
#include "ops/shared_up/weigh_up.h"

namespace nibble::ops::gpu {

void shared_up_mma(Ctx& cx, const Tensor& u, const Tensor& h, const Weight& up,
                   const uint16_t* gate, const Swiglu& act) {
  const int64_t tokens = h.dim(0);
  if (tokens == 0) return;
  Scratch scratch(cx.scratch);
  float* const y = scratch.take<float>(tokens * up.rows);
  mma::gemm(cx, up, GemmOut::kF32,
            {.x = h.data, .y = y, .num_slots = static_cast<int32_t>(tokens)});
  weigh_up(cx, u, h, y, gate, act);
}

}  // namespace nibble::ops::gpu
