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

sm90::DenseParams params_of(const Weight& w, const GemmArgs& args) {
  return {args_of(w, args),
          boxes(w.codes, w.rows, w.cols, kDenseRows),
          boxes(args.x, args.num_slots, w.cols, kDenseTokens),
          {},
          static_cast<int>((w.rows + kDenseRows - 1) / kDenseRows),
          (args.num_slots + kDenseTokens - 1) / kDenseTokens,
          kTokensAtOnce / kDenseTokens};
}

template <GemmOut kOut>
void launch(Ctx& cx, const typename sm90::DenseShape<kOut>::Params& params) {
  using S = sm90::DenseShape<kOut>;
  const int items = params.row_tiles * params.token_tiles;
  cuda::launch(cx.stream, sm90::dense_kernel<S>,
               {.grid = dim3(static_cast<unsigned>(std::min(cx.kernels.gpu.num_sms, items))),
                .block = dim3(S::kThreads),
                .smem_bytes = S::kBytes,
                .release = cuda::Release::kAfterWait},
               params);
}

}  // namespace

void gemm_dense(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args) {
  CHECK(w.format == Format::kBF16 && w.layout == Layout::kRows && args.token == nullptr &&
        args.offsets == nullptr);
  sm90::DenseParams params = params_of(w, args);
  if (out == GemmOut::kSwiglu) return launch<GemmOut::kSwiglu>(cx, params);
  CHECK(out == GemmOut::kF32);
  params.y_boxes = boxes(args.y, args.num_slots, w.rows, 32, true);
  launch<GemmOut::kF32>(cx, params);
}

void gemm_over_ranks(Ctx& cx, const PeerMemory& peers, const Weight& w, const uint16_t* x,
                     int64_t tokens, uint16_t* y) {
  CHECK(w.format == Format::kBF16 && w.layout == Layout::kRows);
  CHECK(tokens <= most_rows(peers.row_bytes, w.rows) && peers.size <= PeerMemory::kMostRanks);
  const auto slots = static_cast<int32_t>(tokens);
  sm90::SendingParams params{{params_of(w, {.x = x, .y = y, .num_slots = slots})}};
  params.y_boxes = boxes(y, tokens, w.rows, 32);
  params.counts = peers.counts;
  for (int r = 1; r < peers.size; ++r) {
    const int of = (peers.rank + r) % peers.size;
    for (const uint32_t slot : {0, 1})
      params.sent_boxes[params.others][slot] =
          boxes(rows_of(peers, of, peers.rank, slot), tokens, w.rows, 32);
    ++params.others;
  }
  launch<GemmOut::kBF16>(cx, params);
}

}  // namespace nibble::ops::gpu
