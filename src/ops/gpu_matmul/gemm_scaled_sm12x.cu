// Launches of the block-scaled GEMM with E4M3 activations; activations in E4M3 and E2M1.
#include "ops/gpu_matmul/e4m3_rows.cuh"
#include "ops/gpu_matmul/gemm_scaled_sm12x.cuh"
#include "ops/gpu_matmul/gemm_scaled_sm12x.h"
#include "ops/gpu_matmul/lane_order.h"

namespace nibble::ops::gpu::sm12x {
namespace {

constexpr int kThreads = 128;

// A block a row; bytes: 3 a value.
__global__ void __launch_bounds__(kThreads)
    quantize(const E4m3Rows out, const uint16_t* x, int cols, Format weights) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int64_t row = blockIdx.x;
  const float inverse = scale_row<kThreads>(out, x, cols);
  auto* to = reinterpret_cast<uint32_t*>(out.codes + row * cols);
  for (int word = threadIdx.x; word < cols / 4; word += kThreads) {
    const uint16_t* from = x + row * cols + word / 16 * 64;
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      v[j] = cuda::bf16_value(from[column_of_place(weights, word % 16 * 4 + j)]) * inverse;
    to[word] = cuda::e4m3_pair(v[0], v[1]) | cuda::e4m3_pair(v[2], v[3]) << 16;
  }
}

// What 16 bytes hold, as float32.
struct Eight {
  float v[8];
  __device__ __forceinline__ explicit Eight(uint4 q) {
    const uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      v[2 * i] = cuda::bf16_lo(words[i]), v[2 * i + 1] = cuda::bf16_hi(words[i]);
  }
};
template <int kN>
__device__ __forceinline__ void load_block(const uint16_t* from, float (&v)[kN], uint32_t& most) {
  most = 0;  // magnitudes are in order as unsigned numbers, infinity and NaN behind them
#pragma unroll
  for (int i = 0; i < kN / 8; ++i) {
    const Eight eight(reinterpret_cast<const uint4*>(from)[i]);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      v[8 * i + j] = eight.v[j];
      most = max(most, __float_as_uint(eight.v[j]) & 0x7fffffffu);
    }
  }
}
// Nibbles of a word of lane p, of a block of values.
template <Format kWeights, int kN>
__device__ __forceinline__ uint32_t e2m1_word(const float (&v)[kN], float inverse, int p) {
  uint32_t word = 0;
#pragma unroll
  for (int n = 0; n < 8; n += 2)
    word |= cuda::sm12x::e2m1_pair(v[column_of_nibble(kWeights, p, 0, n)] * inverse,
                                   v[column_of_nibble(kWeights, p, 0, n + 1)] * inverse)
            << 4 * n;
  return word;
}

// A block a row, a thread for 32 columns; bytes: 2.6 a value.
__global__ void __launch_bounds__(kThreads)
    quantize_mxfp4(uint8_t* out, const uint16_t* x, int cols) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int64_t row = blockIdx.x;
  uint8_t* const to = out + row * e2m1_pitch(cols);
  for (int block = threadIdx.x; block < cols / 32; block += kThreads) {
    float v[32];
    uint32_t most;
    load_block(x + row * cols + block * 32, v, most);
    const uint32_t scale = e2m1_e8m0_scale(most);
    const float inverse = __uint_as_float(inverse_e8m0_bits(scale));
    auto* const words = reinterpret_cast<uint32_t*>(to + block / 2 * 32 + block % 2 * 4);
#pragma unroll
    for (int p = 0; p < 4; ++p) words[2 * p] = e2m1_word<Format::kMxfp4>(v, inverse, p);
    to[cols / 2 + block / 2 * 4 + block % 2] = static_cast<uint8_t>(scale);
  }
}

// The same, a thread for 16 columns, behind a pass for the row's largest.
__global__ void __launch_bounds__(kThreads)
    quantize_nvfp4(uint8_t* out, float* scales, const uint16_t* x, int cols) {
  __shared__ uint32_t most_of_warp[kThreads / 32];
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int64_t row = blockIdx.x;
  float v[16];
  uint32_t most, largest = 0;
  for (int block = threadIdx.x; block < cols / 16; block += kThreads) {
    load_block(x + row * cols + block * 16, v, most);
    largest = max(largest, most);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    largest = max(largest, __shfl_xor_sync(~0u, largest, step));
  if (threadIdx.x % 32 == 0) most_of_warp[threadIdx.x / 32] = largest;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) largest = max(largest, most_of_warp[w]);
  const E2m1RowScale of_row = e2m1_row_scale(__uint_as_float(largest));
  if (threadIdx.x == 0) scales[row] = of_row.scale;
  uint8_t* const to = out + row * e2m1_pitch(cols);
  for (int block = threadIdx.x; block < cols / 16; block += kThreads) {
    load_block(x + row * cols + block * 16, v, most);
    const uint32_t code = cuda::e4m3_pair(__uint_as_float(most) * of_row.of_block, 0) & 255;
    const float scale = cuda::values_of_f16(cuda::f16_of_e4m3_lo(code)).x * of_row.scale;
    const float inverse = scale > 0 ? 1 / scale : 0;
    const bool is_last =
        block % 2 != 0;  // of 32 columns: in lanes 2 and 3, which begin with theirs
    auto* const words =
        reinterpret_cast<uint32_t*>(to + block / 4 * 32 + block / 2 % 2 * 4) + (is_last ? 4 : 0);
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const uint32_t word = e2m1_word<Format::kNvfp4>(v, inverse, p);
      words[2 * p] = is_last ? __byte_perm(word, 0, 0x1032) : word;
    }
    to[cols / 2 + block] = static_cast<uint8_t>(code);
  }
}

InputRows quantize_to_e2m1(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x,
                           int64_t rows) {
  const bool is_nvfp4 = w.format == Format::kNvfp4;
  const int cols = static_cast<int>(w.cols);
  InputRows to{scratch.take<uint8_t>(rows * e2m1_pitch(cols)), nullptr};
  if (is_nvfp4) to.scales = scratch.take<float>(rows);
  const cuda::LaunchShape shape{.grid = dim3(static_cast<unsigned>(rows)),
                                .block = dim3(kThreads),
                                .release = cuda::Release::kAfterWait};
  if (rows == 0) return to;
  if (is_nvfp4)
    cuda::launch(cx.stream, quantize_nvfp4, shape, to.codes, to.scales, x, cols);
  else
    cuda::launch(cx.stream, quantize_mxfp4, shape, to.codes, x, cols);
  return to;
}

}  // namespace

InputRows quantize_rows(Ctx& cx, Scratch& scratch, ActFormat format, const Weight& w,
                        const uint16_t* x, int64_t rows) {
  if (format == ActFormat::kFp4) return quantize_to_e2m1(cx, scratch, w, x, rows);
  const E4m3Rows to = take_e4m3_rows(scratch, rows, w.cols);
  if (rows > 0)
    cuda::launch(cx.stream, quantize,
                 {.grid = dim3(static_cast<unsigned>(rows)),
                  .block = dim3(kThreads),
                  .release = cuda::Release::kAfterWait},
                 to, x, static_cast<int>(w.cols), w.format);
  return {to.codes, to.scales};
}

void gemm_w4a8(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args) {
  switch (out) {
    case GemmOut::kSwiglu:
      return launch_scaled<ScaledShape<Format::kMxfp4, GemmOut::kSwiglu>>(cx, w, args);
    case GemmOut::kBF16:
      return launch_scaled<ScaledShape<Format::kMxfp4, GemmOut::kBF16>>(cx, w, args);
    case GemmOut::kF32:
      return launch_scaled<ScaledShape<Format::kMxfp4, GemmOut::kF32>>(cx, w, args);
    case GemmOut::kQkv:
      return launch_scaled<ScaledShape<Format::kMxfp4, GemmOut::kQkv>>(cx, w, args);
    case GemmOut::kSlices:
    case GemmOut::kRelu2:
      CHECK(false);
  }
}

void gemm_scaled(Ctx& cx, ActFormat x, const Weight& w, GemmOut out, const GemmArgs& args) {
  if (x == ActFormat::kFp4) return gemm_w4a4(cx, w, out, args);
  if (w.format == Format::kNvfp4) return gemm_nvfp4a8(cx, w, out, args);
  if (w.format == Format::kMxfp4) return gemm_w4a8(cx, w, out, args);
  gemm_w8a8(cx, w, out, args);
}

void gemm_scaled(Ctx& cx, Scratch& scratch, ActFormat to, const Weight& w, const uint16_t* x,
                 int64_t tokens, float* y) {
  const InputRows rows = quantize_rows(cx, scratch, to, w, x, tokens);
  gemm_scaled(
      cx, to, w, GemmOut::kF32,
      {.x = rows.codes, .y = y, .num_slots = static_cast<int32_t>(tokens), .x_scale = rows.scales});
}

}  // namespace nibble::ops::gpu::sm12x
