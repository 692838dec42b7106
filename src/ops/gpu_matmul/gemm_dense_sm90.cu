// Launches of gemm_dense_sm90.cuh.
#include "ops/gpu_matmul/gemm_dense_sm90.h"

#include "ops/gpu_matmul/gemm_dense_sm90.cuh"

namespace nibble::ops::gpu {
namespace {

constexpr int kTokensAtOnce = 2048;  // whose rows of x stay in L2 while all rows of W meet them

// Of 128 bytes of `of_box` rows: bf16, or float32.
CUtensorMap boxes(const void* data, int64_t rows, int64_t cols, int of_box, bool is_f32 = false) {
  const uint32_t size = is_f32 ? 4 : 2;
  return cuda::tensor_map(
      {.type = is_f32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
       .data = data,
       .cols = static_cast<uint64_t>(cols),
       .rows = static_cast<uint64_t>(rows),
       .pitch_bytes = static_cast<uint64_t>(size * cols),
       .box_cols = 128 / size,
       .box_rows = static_cast<uint32_t>(of_box),
       .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
}

template <GemmOut kOut>
void launch(Ctx& cx, const Weight& w, const GemmArgs& args) {
  using S = sm90::DenseShape<kOut>;
  const sm90::DenseParams params{
      args_of(w, args),
      boxes(w.codes, w.rows, w.cols, S::kRows),
      boxes(args.x, args.num_slots, w.cols, S::kN),
      S::kStagesOutput ? CUtensorMap{} : boxes(args.y, args.num_slots, w.rows, 32, true),
      static_cast<int>((w.rows + S::kRows - 1) / S::kRows),
      (args.num_slots + S::kN - 1) / S::kN,
      kTokensAtOnce / S::kN};
  const int items = params.row_tiles * params.token_tiles;
  cuda::launch(cx.stream, sm90::dense_kernel<S>,
               {.grid = dim3(static_cast<unsigned>(std::min(cx.kernels.gpu.num_sms, items))),
                .block = dim3(S::kThreads),
                .smem_bytes = S::kBytes,
                .release = cuda::Release::kAfterWait},
               params);
}

}  // namespace

bool has_items_of_gemm_dense(const Weight& w, int32_t tokens, int num_sms) {
  using S = sm90::DenseShape<GemmOut::kF32>;
  const int64_t items = (w.rows + S::kRows - 1) / S::kRows * ((tokens + S::kN - 1) / S::kN);
  return w.format == Format::kBF16 && tokens >= 1024 && 2 * items > num_sms;
}

void gemm_dense(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args) {
  CHECK(w.format == Format::kBF16 && w.layout == Layout::kRows && args.token == nullptr &&
        args.offsets == nullptr);
  if (out == GemmOut::kSwiglu) return launch<GemmOut::kSwiglu>(cx, w, args);
  CHECK(out == GemmOut::kF32);
  launch<GemmOut::kF32>(cx, w, args);
}

}  // namespace nibble::ops::gpu
