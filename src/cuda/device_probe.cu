#include "cuda/device_probe.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "cuda/cluster.cuh"
#include "cuda/graph.h"
#include "cuda/launch.cuh"
#include "cuda/memory.h"
#include "cuda/mma_bf16.cuh"
#include "cuda/mma_sm12x.cuh"
#include "cuda/stream.h"

namespace nibble::cuda {
namespace {

// ---- rates of matrix instructions ----

struct Hmma {
  static constexpr const char* kName = "hmma_bf16";
  static constexpr bool kHasScales = false;
  static constexpr int64_t kFlops = 2 * 16 * 8 * 16;
  static __device__ __forceinline__ void run(float (&d)[4], const uint32_t (&a)[4], uint2 b) {
    mma_bf16(d, a[0], a[1], a[2], a[3], b.x, b.y);
  }
};

struct Qmma {
  static constexpr const char* kName = "qmma_e4m3";
  static constexpr bool kHasScales = false;
  static constexpr int64_t kFlops = 2 * 16 * 8 * 32;
  static __device__ __forceinline__ void run(float (&d)[4], const uint32_t (&a)[4], uint2 b) {
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
  }
};

struct QmmaSf {
  static constexpr const char* kName = "qmma_sf_e2m1_e4m3";
  static constexpr bool kHasScales = true;  // SM12x alone
  static constexpr int64_t kFlops = 2 * 16 * 8 * 32;
  static __device__ __forceinline__ void run(float (&d)[4], const uint32_t (&a)[4], uint2 b) {
#if NIBBLE_HAS_BLOCK_SCALED_MMA
    sm12x::mma_e4m3<sm12x::Values::kE2m1, sm12x::Body::kFast, 0>(d, {{a[0], a[1], a[2], a[3]}}, b,
                                                                 0x7f7f7f7fu);
#endif
  }
};

struct OmmaSf {
  static constexpr const char* kName = "omma_sf_nvfp4";
  static constexpr bool kHasScales = true;  // SM12x alone
  static constexpr int64_t kFlops = 2 * 16 * 8 * 64;
  static __device__ __forceinline__ void run(float (&d)[4], const uint32_t (&a)[4], uint2 b) {
#if NIBBLE_HAS_BLOCK_SCALED_MMA
    sm12x::mma_e2m1<sm12x::Scales::kE4m3, sm12x::Body::kExact>(d, {{a[0], a[1], a[2], a[3]}}, b,
                                                               0x38383838u, 0x38383838u);
#endif
  }
};

constexpr int kWarps = 16, kSums = 8;

// clocks [blocks]: those that a block took.
template <typename Mma>
__global__ void __launch_bounds__(32 * kWarps)
    multiply(int rounds, uint32_t word, int64_t* clocks, float* sink) {
  float d[kSums][4] = {};
  // Small values of both signs in any of the formats: zeros would take less power.
  const auto bits = [&](uint32_t i) { return (threadIdx.x * 4 + i) * word & 0xb7b7b7b7u; };
  const uint32_t a[4] = {bits(0), bits(1), bits(2), bits(3)};
  const uint2 b = {bits(4), bits(5)};
  __syncthreads();
  const int64_t start = clock64();
  for (int i = 0; i < rounds; ++i)
#pragma unroll
    for (int s = 0; s < kSums; ++s) Mma::run(d[s], a, b);
  __syncthreads();
  if (threadIdx.x == 0) clocks[blockIdx.x] = clock64() - start;
  float sum = 0;
#pragma unroll
  for (int s = 0; s < kSums; ++s) sum += d[s][0] + d[s][1] + d[s][2] + d[s][3];
  if (sum == 12345) *sink = sum;  // as good as never
}

struct Load {
  double seconds = 0, clocks = 0;  // of the kernel
};

template <typename Mma>
Load run_multiply(const Caps& caps, const Stream& stream, int rounds) {
  const Buffer clocks = device_buffer(caps.num_sms * int64_t{8}), sink = device_buffer(4);
  Event begin(Event::Kind::kTiming), end(Event::Kind::kTiming);
  begin.record(stream.handle());
  launch(stream.handle(), multiply<Mma>,
         {.grid = dim3(static_cast<unsigned>(caps.num_sms)), .block = 32 * kWarps, .pdl = false},
         rounds, 0x9e3779b9u, static_cast<int64_t*>(clocks.data()),
         static_cast<float*>(sink.data()));
  end.record(stream.handle());
  stream.wait();
  std::vector<int64_t> all(static_cast<size_t>(caps.num_sms));
  copy(all.data(), clocks.data(), clocks.size_bytes());
  return {end.ms_since(begin) * 1e-3,
          static_cast<double>(*std::max_element(all.begin(), all.end()))};
}

template <typename Mma>
MmaRate measure_mma(const Caps& caps) {
  MmaRate rate{.name = Mma::kName};
  rate.exists = !Mma::kHasScales || caps.sm / 10 == 12;
  if (!rate.exists) return rate;
  constexpr int kRounds = 1 << 15;  // some ten milliseconds
  const Stream stream;
  run_multiply<Mma>(caps, stream, kRounds);
  const Load load = run_multiply<Mma>(caps, stream, kRounds);
  const double flops_of_sm = double{kRounds} * kSums * kWarps * Mma::kFlops;
  rate.flops_per_clock = flops_of_sm / load.clocks;
  rate.flops = flops_of_sm * caps.num_sms / load.seconds;
  rate.clock_hz = load.clocks / load.seconds;
  return rate;
}

// ---- L2 ----

constexpr int kReadThreads = 512, kInFlight = 8;

// Every round a block reads another's part of the round before.
__global__ void __launch_bounds__(kReadThreads)
    read_again(const uint4* from, int64_t n, int rounds, uint32_t* sink) {
  constexpr int64_t kPart = int64_t{kReadThreads} * kInFlight;
  const int64_t parts = n / kPart;
  uint32_t bits = 0;
  for (int r = 0; r < rounds; ++r)
    for (int64_t part = (blockIdx.x + r) % gridDim.x; part < parts; part += gridDim.x) {
      uint4 v[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j)
        v[j] = __ldcg(from + part * kPart + j * kReadThreads + threadIdx.x);
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) bits |= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
  if (bits == 1) *sink = bits;  // never: the memory is zero
}

// ---- bits ----

struct Fragments {
  uint4 a;
  uint2 b;
  uint32_t scale_a, scale_b;
  float4 d;
};

template <bool kNvfp4>
__global__ void multiply_once(const Fragments* in, float4* out) {
  const Fragments f = in[blockIdx.x * 32 + threadIdx.x];
  float d[4] = {f.d.x, f.d.y, f.d.z, f.d.w};
  if constexpr (kNvfp4)
    sm12x::mma_e2m1<sm12x::Scales::kE4m3, sm12x::Body::kExact>(d, {{f.a.x, f.a.y, f.a.z, f.a.w}},
                                                               f.b, f.scale_a, f.scale_b);
  else
    sm12x::mma_e4m3<sm12x::Values::kE2m1, sm12x::Body::kExact, 0>(d, {{f.a.x, f.a.y, f.a.z, f.a.w}},
                                                                  f.b, f.scale_a);
  out[blockIdx.x * 32 + threadIdx.x] = {d[0], d[1], d[2], d[3]};
}

// Scales that make sums of the old sum's size and others; no NaNs.
template <bool kNvfp4>
std::vector<Fragments> random_fragments(int64_t warps) {
  std::mt19937 generator(17);
  std::normal_distribution<float> normal;
  const auto bits = [&] { return static_cast<uint32_t>(generator()); };
  const auto e4m3 = [&] {
    uint32_t word = bits();
    for (int byte = 0; byte < 4; ++byte)
      if ((word >> 8 * byte & 0x7f) == 0x7f) word ^= 1u << 8 * byte;
    return word;
  };
  constexpr uint32_t kCodes = kNvfp4 ? ~0u : 0x3c3c3c3cu;
  std::vector<Fragments> all(static_cast<size_t>(32 * warps));
  for (Fragments& f : all) {
    f.a = {bits() & kCodes, bits() & kCodes, bits() & kCodes, bits() & kCodes};
    f.b = {e4m3(), e4m3()};
    f.scale_a = kNvfp4 ? e4m3() & 0x7f7f7f7fu : 110 + bits() % 30;
    f.scale_b = e4m3() & 0x7f7f7f7fu;
    f.d = {normal(generator) * 16, normal(generator), 0, normal(generator) * 4096};
  }
  return all;
}

// Codes of k as A's row g or g + 8 (`half`) has them in the four lanes from `quad` on, and B's
// column in its four.
struct CodeOfA {
  const Fragments* quad;
  int half;
  NIBBLE_BOTH_SIDES uint32_t word(int lane, bool is_high) const {
    const uint4& a = quad[lane].a;
    return is_high ? (half == 0 ? a.z : a.w) : (half == 0 ? a.x : a.y);
  }
};
struct CodeOfB {
  const Fragments* quad;
  NIBBLE_BOTH_SIDES uint32_t word(int lane, bool is_high) const {
    return is_high ? quad[lane].b.y : quad[lane].b.x;
  }
};
struct E2m1Byte : CodeOfA {
  NIBBLE_BOTH_SIDES sm12x::Term operator()(int k) const {
    return sm12x::e2m1_term(word(k / 4 % 4, k >= 16) >> (8 * (k % 4) + 2) & 15);
  }
};
struct E4m3Byte : CodeOfB {
  NIBBLE_BOTH_SIDES sm12x::Term operator()(int k) const {
    return sm12x::e4m3_term(word(k / 4 % 4, k >= 16) >> 8 * (k % 4) & 255);
  }
};
template <typename Codes>
struct Nibble : Codes {
  NIBBLE_BOTH_SIDES uint32_t operator()(int k) const {
    return this->word(k / 8 % 4, k >= 32) >> 4 * (k % 8) & 15;
  }
};
struct ByteOf {
  uint32_t scales;
  NIBBLE_BOTH_SIDES sm12x::Term operator()(int group) const {
    return sm12x::e4m3_term(scales >> 8 * group & 127);
  }
};

// Element i of a lane's sums, by the model.
template <bool kNvfp4>
float modelled(const Fragments* warp, int lane, int i) {
  const Fragments* const quad = warp + (lane & ~3);
  const Fragments* const column = warp + 4 * (2 * (lane & 3) + i % 2);
  const float4 d = warp[lane].d;
  const float old = i == 0 ? d.x : i == 1 ? d.y : i == 2 ? d.z : d.w;
  const uint32_t scale_a = quad[i / 2].scale_a;
  if constexpr (kNvfp4)
    return sm12x::dot_k64(Nibble<CodeOfA>{{quad, i / 2}}, Nibble<CodeOfB>{{column}},
                          ByteOf{scale_a}, ByteOf{column->scale_b}, old);
  else
    return sm12x::dot_k32(E2m1Byte{{quad, i / 2}}, E4m3Byte{{column}}, scale_a, 127u, old);
}

template <bool kNvfp4>
BitModelCheck check_bits(const char* name) {
  constexpr int64_t kBlocks = 1024;
  const std::vector<Fragments> in = random_fragments<kNvfp4>(kBlocks);
  std::vector<float4> got(in.size());
  const auto in_bytes = static_cast<int64_t>(in.size() * sizeof(Fragments)),
             out_bytes = static_cast<int64_t>(got.size() * sizeof(float4));
  const Buffer from = device_buffer(in_bytes), to = device_buffer(out_bytes);
  copy(from.data(), in.data(), in_bytes);
  const Stream stream;
  launch(stream.handle(), multiply_once<kNvfp4>, {.grid = kBlocks, .block = 32, .pdl = false},
         static_cast<const Fragments*>(from.data()), static_cast<float4*>(to.data()));
  stream.wait();
  copy(got.data(), to.data(), out_bytes);
  BitModelCheck check{.name = name, .is_native = NIBBLE_CUDA_SM / 10 == 12};
  for (size_t at = 0; at < in.size(); ++at) {
    const Fragments* const warp = in.data() + at / 32 * 32;
    const float values[] = {got[at].x, got[at].y, got[at].z, got[at].w};
    for (int i = 0; i < 4; ++i, ++check.sums) {
      const float want = modelled<kNvfp4>(warp, static_cast<int>(at % 32), i);
      if (sm12x::bits_of(want) == sm12x::bits_of(values[i])) continue;
      ++check.differ;
      check.worst = std::max(check.worst, std::fabs(double{values[i]} - want) /
                                              std::max(1e-30, std::fabs(double{want})));
    }
  }
  return check;
}

// ---- launches ----

__global__ void do_nothing() { griddep_wait(); }

// Each of two blocks leaves its number, and reads the other's.
__global__ void __cluster_dims__(2, 1, 1) read_neighbour(int* seen) {
  __shared__ int mine;
  mine = 1 + static_cast<int>(blockIdx.x);
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  cluster_wait();
  const uint32_t there =
      remote_address(static_cast<uint32_t>(__cvta_generic_to_shared(&mine)), 1 - blockIdx.x);
  int value;
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(value) : "r"(there) : "memory");
  seen[blockIdx.x] = value;
  cluster_arrive_relaxed();
  cluster_wait();  // or it would end while the other reads
}

double time_graph(const Stream& stream, bool dependent) {
  constexpr int kKernels = 1000, kReplays = 5;
  const Graph graph(stream.handle(), [&] {
    for (int i = 0; i < kKernels; ++i)
      launch(stream.handle(), do_nothing, {.grid = 1, .block = 32, .pdl = dependent && i > 0});
  });
  double best = INFINITY;
  for (int i = 0; i <= kReplays; ++i) {
    Event begin(Event::Kind::kTiming), end(Event::Kind::kTiming);
    begin.record(stream.handle());
    graph.launch(stream.handle());
    end.record(stream.handle());
    stream.wait();
    if (i > 0) best = std::min(best, 1e3 * end.ms_since(begin) / kKernels);
  }
  return best;
}

}  // namespace

std::vector<MmaRate> measure_mma_rates(const Caps& caps) {
  return {measure_mma<Hmma>(caps), measure_mma<Qmma>(caps), measure_mma<QmmaSf>(caps),
          measure_mma<OmmaSf>(caps)};
}

Clocks measure_clocks(const Caps& caps, double seconds) {
  constexpr int kRounds = 1 << 14;
  const Stream stream;
  const auto clock = [&] {
    const Load load = run_multiply<Hmma>(caps, stream, kRounds);
    return load.clocks / load.seconds;
  };
  Clocks clocks{.first_hz = clock()};
  const auto start = std::chrono::steady_clock::now();
  do clocks.steady_hz = clock();
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds);
  return clocks;
}

double measure_l2_read(const Caps& caps, int64_t bytes) {
  constexpr int kRounds = 64, kRepeats = 5;
  constexpr int64_t kPartBytes = int64_t{16} * kReadThreads * kInFlight;
  const int64_t used = std::max<int64_t>(1, bytes / kPartBytes) * kPartBytes;
  const Buffer memory = device_buffer(used), sink = device_buffer(4);
  fill(memory.data(), 0, used);
  const Stream stream;
  double best = 0;
  for (int i = 0; i < kRepeats; ++i) {
    Event begin(Event::Kind::kTiming), end(Event::Kind::kTiming);
    begin.record(stream.handle());
    launch(stream.handle(), read_again,
           {.grid = static_cast<unsigned>(2 * caps.num_sms), .block = kReadThreads, .pdl = false},
           static_cast<const uint4*>(memory.data()), used / 16, kRounds,
           static_cast<uint32_t*>(sink.data()));
    end.record(stream.handle());
    stream.wait();
    best = std::max(best, static_cast<double>(used) * kRounds / (end.ms_since(begin) * 1e-3));
  }
  return best;
}

std::vector<BitModelCheck> check_bit_models() {
  return {check_bits<false>(QmmaSf::kName), check_bits<true>(OmmaSf::kName)};
}

bool run_cluster() {
  const Buffer seen = device_buffer(2 * sizeof(int));
  fill(seen.data(), 0, seen.size_bytes());
  read_neighbour<<<2, 32>>>(static_cast<int*>(seen.data()));
  if (cudaGetLastError() != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) return false;
  int numbers[2];
  copy(numbers, seen.data(), sizeof(numbers));
  return numbers[0] == 2 && numbers[1] == 1;
}

LaunchGaps measure_launch_gaps() {
  const Stream stream;
  return {time_graph(stream, false), time_graph(stream, true)};
}

}  // namespace nibble::cuda
