#include "kernels.h"

#include <cuda_runtime.h>

#include "cuda/arrivals.cuh"
#include "cuda/async_copy.cuh"
#include "cuda/bulk_copy.cuh"
#include "cuda/cluster.cuh"
#include "cuda/fp8.cuh"
#include "cuda/mma_bf16.cuh"
#include "cuda/mma_sm12x.cuh"
#include "cuda/tensor_map.cuh"

namespace nibble::emulated {
namespace {

__device__ void mma_of(Mma what, const MatrixProblem& p, uint32_t* d) {
  const int l = static_cast<int>(threadIdx.x);
  const uint32_t *a = p.a[l], *b = p.b[l];
#define NIBBLE_MMA(text)                                         \
  asm volatile("mma.sync.aligned." text                          \
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
               "{%0, %1, %2, %3};"                               \
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define NIBBLE_MMA_F(text)                                       \
  asm volatile("mma.sync.aligned." text                          \
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
               "{%0, %1, %2, %3};"                               \
               : "+f"(f[0]), "+f"(f[1]), "+f"(f[2]), "+f"(f[3])  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  float f[4];
  for (int i = 0; i < 4; ++i) f[i] = __uint_as_float(d[i]);
  switch (what) {
    case Mma::kBf16:
      NIBBLE_MMA_F("m16n8k16.row.col.f32.bf16.bf16.f32");
      break;
    case Mma::kF16:
      NIBBLE_MMA_F("m16n8k16.row.col.f32.f16.f16.f32");
      break;
    case Mma::kTf32:
      NIBBLE_MMA_F("m16n8k8.row.col.f32.tf32.tf32.f32");
      break;
    case Mma::kE4m3:
      NIBBLE_MMA_F("m16n8k32.row.col.f32.e4m3.e4m3.f32");
      break;
    case Mma::kS8:
      NIBBLE_MMA("m16n8k32.row.col.s32.s8.s8.s32");
      return;
    case Mma::kE2m1E4m3:
      cuda::sm12x::mma_e4m3<cuda::sm12x::Values::kE2m1, cuda::sm12x::Body::kExact, 0>(
          f, {{a[0], a[1], a[2], a[3]}}, {b[0], b[1]}, p.scale_a[l]);
      break;
    case Mma::kScaledE4m3:
      cuda::sm12x::mma_e4m3<cuda::sm12x::Values::kE4m3, cuda::sm12x::Body::kExact, 0>(
          f, {{a[0], a[1], a[2], a[3]}}, {b[0], b[1]}, p.scale_a[l]);
      break;
    case Mma::kNvfp4:
      cuda::sm12x::mma_e2m1<cuda::sm12x::Scales::kE4m3, cuda::sm12x::Body::kExact>(
          f, {{a[0], a[1], a[2], a[3]}}, {b[0], b[1]}, p.scale_a[l], p.scale_b[l]);
      break;
    case Mma::kMxfp4:
      cuda::sm12x::mma_e2m1<cuda::sm12x::Scales::kE8m0, cuda::sm12x::Body::kExact>(
          f, {{a[0], a[1], a[2], a[3]}}, {b[0], b[1]}, p.scale_a[l], p.scale_b[l]);
      break;
  }
  for (int i = 0; i < 4; ++i) d[i] = __float_as_uint(f[i]);
}
__global__ void mma_kernel(Mma what, const MatrixProblem* p, uint32_t* out) {
  uint32_t d[4];
  for (int i = 0; i < 4; ++i) d[i] = p->c[threadIdx.x][i];
  mma_of(what, *p, d);
  for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = d[i];
}

__device__ uint32_t collatz(uint32_t n) {
  uint32_t steps = 0;
  while (n > 1) {
    if (n % 2 == 0)
      n /= 2;
    else
      for (uint32_t i = 0; i < 1; ++i) n = 3 * n + 1;
    ++steps;
  }
  return steps;
}
// Rows of four 8x8 matrices at row addresses of lanes: matrix 0 of x, 1 of y.
template <bool kTrans>
__device__ uint32_t load_matrix(uint32_t x, uint32_t y) {
  __shared__ __align__(16) uint32_t rows[4][32];
  rows[0][threadIdx.x] = x, rows[1][threadIdx.x] = y;
  rows[2][threadIdx.x] = ~x, rows[3][threadIdx.x] = ~y;
  __syncwarp();
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(&rows[0][4 * threadIdx.x]));
  uint32_t r[4];
  if (kTrans)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
  return r[0] + 3 * r[1] + 5 * r[2] + 7 * r[3];
}
__device__ uint32_t asm_of(Lanes what, uint32_t x, uint32_t y) {
  uint32_t r = 0;
  switch (what) {
    case Lanes::kFma2:
      asm("fma.rn.bf16x2 %0, %1, %2, %2;" : "=r"(r) : "r"(x), "r"(y));
      break;
    case Lanes::kSub2:
      asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
      break;
    case Lanes::kLargest2:
      asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
      break;
    case Lanes::kTf32:
      asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "r"(x));
      break;
    case Lanes::kExp2:
      asm("ex2.approx.ftz.f32 %0, %1;" : "=r"(r) : "r"(x));
      break;
    case Lanes::kMatch:
      asm volatile("match.any.sync.b32 %0, %1, -1;" : "=r"(r) : "r"(x));
      break;
    default:
      break;
  }
  return r;
}
__device__ uint32_t lanes_of(Lanes what, uint32_t x, uint32_t y) {
  const float fx = __uint_as_float(x), fy = __uint_as_float(y);
  switch (what) {
    case Lanes::kE4m3:
      return cuda::e4m3_pair(fx, fy);
    case Lanes::kE5m2:
      return cuda::e5m2_pair(fx, fy);
    case Lanes::kBf16x2:
      return cuda::pack_bf16(fx, fy);
    case Lanes::kF16x2:
      return cuda::pack_f16(fx, fy);
    case Lanes::kE4m3ToF16:
      return cuda::f16_of_e4m3_lo(x);
    case Lanes::kPermute:
      return __byte_perm(x, ~x, y & 0x7777);
    case Lanes::kDot4:
      return static_cast<uint32_t>(__dp4a(static_cast<int>(x), static_cast<int>(y), 17));
    case Lanes::kFunnel:
      return __funnelshift_l(x, ~x, y);
    case Lanes::kRoundDown:
      return __float_as_uint(__fmaf_rd(fx, fy, fx));
    case Lanes::kShuffleUp:
      return __shfl_up_sync(~0u, x, 3);
    case Lanes::kShuffleXor:
      return __shfl_xor_sync(~0u, x, 5, 8);
    case Lanes::kShuffleIndex:
      return __shfl_sync(~0u, x, static_cast<int>(y), 16);
    case Lanes::kBallot:
      return __ballot_sync(~0u, (x & 1) != 0);
    case Lanes::kReduceMax:
      return __reduce_max_sync(~0u, x);
    case Lanes::kReduceAdd:
      return static_cast<uint32_t>(__reduce_add_sync(~0u, static_cast<int>(x)));
    case Lanes::kTranspose:
      return cuda::transpose_8x8(x);
    case Lanes::kLoadMatrix:
      return load_matrix<false>(x, y);
    case Lanes::kLoadMatrixTransposed:
      return load_matrix<true>(x, y);
    case Lanes::kCollatz:
      return collatz(x);
    case Lanes::kPartedVote: {  // lanes part and vote apart
      const uint32_t lower = __ballot_sync(~0u, threadIdx.x % 3 == 0);
      if (threadIdx.x % 3 == 0) return __ballot_sync(lower, (x & 2) != 0);
      return __ballot_sync(~lower, (x & 4) != 0);
    }
    case Lanes::kPopulation:
      return static_cast<uint32_t>(__popc(x) * 64 + __clz(static_cast<int>(y)));
    case Lanes::kDivision:
      return x / y + 7 * (x % y) +
             static_cast<uint32_t>(static_cast<int>(x) / static_cast<int>(y | 1));
    case Lanes::kHighProduct:
      return __umulhi(x, y);
    default:
      return asm_of(what, x, y);
  }
}
__global__ void lanes_kernel(Lanes what, const uint32_t* x, const uint32_t* y, uint32_t* out) {
  out[threadIdx.x] = lanes_of(what, x[threadIdx.x], y[threadIdx.x]);
}

__global__ void meeting_kernel(uint32_t* counter, int* parts, int* out) {
  parts[blockIdx.x] = 1 + static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0) cuda::meet(counter, gridDim.x);
  __syncthreads();
  int sum = 0;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += 32) sum += parts[i];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

__global__ void copies_kernel(bool waits, const uint32_t* in, uint32_t* out) {
  __shared__ __align__(16) uint32_t part[512];
  const auto at = cuda::shared_address(&part[4 * threadIdx.x]);
  cuda::async_copy_16(at, in + 512 * blockIdx.x + 4 * threadIdx.x);
  cuda::async_copy_commit();
  if (waits) cuda::async_copy_wait<0>();
  __syncthreads();
  for (int i = 0; i < 4; ++i)
    out[512 * blockIdx.x + 4 * threadIdx.x + i] = part[511 - 4 * threadIdx.x - i];
}
__global__ void engine_kernel(bool waits, const uint32_t* in, uint32_t* out) {
  __shared__ __align__(16) uint32_t part[512];
  __shared__ uint64_t bar;
  const uint32_t barrier = cuda::shared_address(&bar);
  if (threadIdx.x == 0) {
    cuda::barrier_init(barrier, 1);
    cuda::barrier_init_fence();
    cuda::bulk_copy(cuda::shared_address(part), in + 512 * blockIdx.x, 2048, barrier);
  }
  __syncthreads();
  if (waits) cuda::barrier_wait(barrier, 0);
  for (int i = 0; i < 4; ++i)
    out[512 * blockIdx.x + 4 * threadIdx.x + i] = part[511 - 4 * threadIdx.x - i];
}
// Shared memory is written anew behind the store.
__global__ void store_kernel(bool waits, const uint32_t* in, uint32_t* out) {
  __shared__ __align__(16) uint32_t part[512];
  const auto fill = [&](uint32_t by) {
    for (int i = 0; i < 4; ++i)
      part[4 * threadIdx.x + i] = in[512 * blockIdx.x + 4 * threadIdx.x + i] ^ by;
    cuda::bulk_store_fence();
    __syncthreads();
  };
  fill(0);
  if (threadIdx.x == 0) {
    cuda::bulk_store(out + 512 * blockIdx.x, cuda::shared_address(part), 2048);
    cuda::bulk_store_commit();
    if (waits) cuda::bulk_store_wait_read<0>();
  }
  __syncthreads();
  fill(~0u);
  cuda::bulk_store_wait_read<0>();
}

__global__ void box_kernel(const __grid_constant__ CUtensorMap map, const uint32_t* in, int x,
                           int y) {
  __shared__ __align__(1024) uint32_t part[32 * 32];
  for (int row = 0; row < 32; ++row) {
    const int column = static_cast<int>(threadIdx.x);
    part[row * 32 + ((column / 4 ^ row % 8) * 4 + column % 4)] = in[row * 32 + column];
  }
  cuda::bulk_store_fence();
  __syncthreads();
  if (threadIdx.x > 0) return;
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
          &map),
      "r"(x), "r"(y), "r"(cuda::shared_address(part))
      : "memory");
  cuda::bulk_store_commit();
  cuda::bulk_store_wait_read<0>();
}

__global__ void __cluster_dims__(2, 1, 1) cluster_kernel(uint32_t* out) {
  __shared__ float got;
  __shared__ uint64_t bar;
  const uint32_t barrier = cuda::shared_address(&bar);
  if (threadIdx.x == 0) {
    cuda::barrier_init(barrier, 1);
    cuda::barrier_init_fence();
    cuda::barrier_expect(barrier, 4);
  }
  cuda::cluster_arrive_relaxed();
  cuda::cluster_wait();
  const int other = 1 - static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0)
    cuda::store_remote(cuda::remote_address(cuda::shared_address(&got), other), 10.f + blockIdx.x,
                       cuda::remote_address(barrier, other));
  cuda::barrier_wait(barrier, 0);
  if (threadIdx.x == 0) out[blockIdx.x] = static_cast<uint32_t>(got);
}

__global__ void atomics_kernel(uint32_t* counters) {
  __shared__ uint32_t mine;
  if (threadIdx.x == 0) mine = 0;
  __syncthreads();
  atomicAdd(&mine, threadIdx.x);
  atomicMax(&counters[1], threadIdx.x + 1000 * blockIdx.x);
  atomicAdd(reinterpret_cast<float*>(&counters[2]), 0.5f);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(&counters[0], mine);
}

__global__ void wrong_kernel(Wrong what, uint32_t* memory, uint32_t n) {
  extern __shared__ uint32_t shared[];
  const uint32_t i = threadIdx.x;
  switch (what) {
    case Wrong::kGlobal:
    case Wrong::kFreed:
      memory[i + n] = 1;
      break;
    case Wrong::kShared:
      shared[i + n] = memory[i];
      break;
    case Wrong::kMisaligned:
      *reinterpret_cast<uint2*>(memory + 1 + i) = {1, 2};
      break;
    case Wrong::kBarrier:
      if (i % 32 < 16)
        asm volatile("bar.sync 1;" ::: "memory");
      else
        asm volatile("bar.sync 2;" ::: "memory");
      break;
    case Wrong::kNoCluster: {
      const uint32_t at = cuda::shared_address(shared);
      cuda::store_remote(cuda::remote_address(at, 0), 1.f, cuda::remote_address(at + 8, 0));
      break;
    }
    case Wrong::kEndless: {
      uint32_t v;
      do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(memory) : "memory");
      while (v != 0xabcdef);
      break;
    }
    case Wrong::kUnread:
      if (i == 0) cuda::bulk_store(memory, cuda::shared_address(shared), 16);
      break;
  }
}

template <typename T>
T* device_copy(const T* from, size_t n) {
  T* to = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&to), n * sizeof(T));
  cudaMemcpy(to, from, n * sizeof(T), cudaMemcpyDefault);
  return to;
}
template <typename T>
void take_back(T* to, T* from, size_t n) {
  cudaMemcpy(to, from, n * sizeof(T), cudaMemcpyDefault);
  cudaFree(from);
}

}  // namespace

void run_mma(Mma what, const MatrixProblem& problem, uint32_t (&d)[32][4]) {
  MatrixProblem* const p = device_copy(&problem, 1);
  uint32_t* const out = device_copy(&d[0][0], 128);
  mma_kernel<<<1, 32>>>(what, p, out);
  take_back(&d[0][0], out, 128);
  cudaFree(p);
}
void run_lanes(Lanes what, const uint32_t (&x)[32], const uint32_t (&y)[32], uint32_t (&out)[32]) {
  uint32_t *const a = device_copy(x, 32), *const b = device_copy(y, 32),
                  *const to = device_copy(out, 32);
  lanes_kernel<<<1, 32>>>(what, a, b, to);
  take_back(out, to, 32);
  cudaFree(a);
  cudaFree(b);
}
void run_meeting(int blocks, int* out) {
  const uint32_t zero = 0;
  uint32_t* const counter = device_copy(&zero, 1);
  int *const to = device_copy(out, static_cast<size_t>(blocks)), *const parts = device_copy(
                                                                     out,
                                                                     static_cast<size_t>(blocks));
  meeting_kernel<<<static_cast<unsigned>(blocks), 32>>>(counter, parts, to);
  take_back(out, to, static_cast<size_t>(blocks));
  cudaFree(counter);
  cudaFree(parts);
}
void run_copies(bool by_engine, bool waits, const uint32_t* in, uint32_t* out, int n) {
  const auto size = static_cast<size_t>(n);
  uint32_t *const from = device_copy(in, size), *const to = device_copy(out, size);
  if (by_engine)
    engine_kernel<<<static_cast<unsigned>(n / 512), 128>>>(waits, from, to);
  else
    copies_kernel<<<static_cast<unsigned>(n / 512), 128>>>(waits, from, to);
  take_back(out, to, size);
  cudaFree(from);
}
void run_stores(bool waits, const uint32_t* in, uint32_t* out, int n) {
  const auto size = static_cast<size_t>(n);
  uint32_t *const from = device_copy(in, size), *const to = device_copy(out, size);
  store_kernel<<<static_cast<unsigned>(n / 512), 128>>>(waits, from, to);
  take_back(out, to, size);
  cudaFree(from);
}
void run_box_store(const uint32_t* in, uint32_t* out, int rows, int cols, int x, int y) {
  const auto size = static_cast<size_t>(rows) * static_cast<size_t>(cols);
  uint32_t *const from = device_copy(in, 1024), *const to = device_copy(out, size);
  box_kernel<<<1, 32>>>(cuda::tensor_map({.type = CU_TENSOR_MAP_DATA_TYPE_UINT32,
                                          .data = to,
                                          .cols = static_cast<uint64_t>(cols),
                                          .rows = static_cast<uint64_t>(rows),
                                          .pitch_bytes = static_cast<uint64_t>(4 * cols),
                                          .box_cols = 32,
                                          .box_rows = 32,
                                          .swizzle = CU_TENSOR_MAP_SWIZZLE_128B}),
                        from, x, y);
  take_back(out, to, size);
  cudaFree(from);
}
void run_cluster(uint32_t* out) {
  uint32_t* const to = device_copy(out, 2);
  cluster_kernel<<<2, 64>>>(to);
  take_back(out, to, 2);
}
void run_atomics(uint32_t* counters, int blocks) {
  uint32_t* const to = device_copy(counters, 3);
  atomics_kernel<<<static_cast<unsigned>(blocks), 96>>>(to);
  take_back(counters, to, 3);
}
void run_wrong(Wrong what, uint32_t* memory) {
  uint32_t* const to = device_copy(memory, 64);
  if (what == Wrong::kFreed) cudaFree(to);
  wrong_kernel<<<1, 64, 256>>>(what, to, what == Wrong::kFreed ? 0 : 1);
  std::exit(cudaDeviceSynchronize() == cudaSuccess ? 0 : 1);
}

}  // namespace nibble::emulated
