// attention on a Hopper GPU for spans of several tokens (prefill), by wgmma.
//   q       [T, Q * D] bf16, in      att [T, Q * D] bf16, out
//   k, v    [pages, G, P, D] bf16 or E4M3, in, P a power of two, P % 16 == 0; page_table [slots,
//   max_pages]
//           i32, in                  sinks [Q] bf16 or none, in     D = 64, Q / G <= 8
// Operations: 4 D Q for each key that a token sees: at 8,192 tokens of gpt-oss-120b 0.55 T in a
// full layer, 0.7 ms at the 790 TFLOP/s that an H200's dense products reach (its exponentials alone
// take 0.58 ms of the special function units); 17 G in a window layer. Idea: see
// attention_tiles.cuh. A warpgroup has 64 rows; queries and weights are operands from registers,
// keys and values from shared memory, where a tile's rows of 128 bytes are swizzled as wgmma wants
// them: the keys [N][K], the values transposed. The product of a tile's values runs on while the
// scores of the next tile are made; four warpgroups an SM hide each other's exponentials.
// Reached on one H200, 2026-11-21: 354 TFLOP/s at 8,192 tokens (1.55 ms a full layer, 0.15 a window
// layer), 290 at 2,048, 121 at 512, 363 for the last 8,192 of 131,072.
// Lost: mbarriers in place of the block's barrier (359), blocks of one warpgroup, four an SM (335),
// one block an SM (353): neither barriers nor occupancy bind it, instructions do.
#include "ops/attention/attention_tiles.cuh"

namespace nibble::ops::gpu {
namespace {

using namespace tiles;  // NOLINT

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kM = 1;
constexpr int kRows = kWarps * 16 * kM;  // (token, head) pairs of a tile
constexpr int kStages = 4;
constexpr int kAhead = kStages - 2;  // tiles on their way; one is used, one's values are read late
constexpr int kBlocksPerSm = 16 / kWarps;
constexpr int kSmemBytes = kStages * 2 * kTileBytes + 1024;  // to align it

// Rows of 128 bytes from `address` on, 16-byte chunk c of row r at place c ^ (r % 8).
__device__ __forceinline__ uint64_t swizzled_rows(uint32_t address) {
  constexpr uint64_t kGroup = 1024 >> 4;  // of 8 rows
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | kGroup << 16 | kGroup << 32 |
         uint64_t{1} << 62;
}

// d [64][64] (+)= a [64][16] b, b [N][K] rows, or (kByValue) [K][N] rows.
template <int kByValue>
__device__ __forceinline__ void multiply(float (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                         int is_added) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
      "%27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(is_added), "n"(kByValue));
}
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// Grid (G, tiles of rows).
template <bool kFp8>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    attend_tiles(const __grid_constant__ TileParams a) {
  extern __shared__ uint8_t stages[];
  __shared__ Rows rows;  // there, it takes no registers
  const auto shared = (static_cast<uint32_t>(__cvta_generic_to_shared(stages)) + 1023) & ~1023u;
  const int32_t kv_head = blockIdx.x;
  if (threadIdx.x < 32 && !find_rows(rows, a, blockIdx.y)) rows.num_rows = 0;
  __syncthreads();
  if (rows.num_rows == 0) return cuda::griddep_wait();
  const int32_t first_pos = rows.span.context + rows.first;
  const Copier<kThreads, kFp8> copier{
      .table = a.page_table + int64_t{rows.span.slot} * a.max_pages,
      .kv_head = kv_head,
      .oldest = a.window > 0 ? max(0, first_pos - a.window + 1) : 0};
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const auto fetch = [&](int stage, int32_t key) {
    if (key < rows.key_end) copier.copy(a, shared + stage * 2 * kTileBytes, key, rows.key_end);
    commit_copies();  // empty past the end, so that groups count tiles
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) fetch(i, rows.key_begin + i * kKeys);
  State<kM> state;
  start(state, a, rows, kv_head);
  int stage = 0;
  for (int32_t key = rows.key_begin; key < rows.key_end; key += kKeys) {
    wait_copies<kAhead - 1>();
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();  // the tile is there; nobody reads the one before the last any more
    fetch((stage + kAhead) % kStages, key + kAhead * kKeys);
    const uint32_t keys = shared + stage * 2 * kTileBytes;
    Scores<kM> s;
    begin_products();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step)
      multiply<0>(s[0], state.q[0][step], swizzled_rows(keys + 32 * step), step > 0);
    commit_products();
    wait_products();  // the last tile's values too
    if (!all_seen(a, rows, key)) mask(s, a, first_pos, key);
    weigh(s, state, a.scale);
    uint32_t weights[kKeys / 16][4];
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        weights[step][i] = cuda::pack_bf16(s[0][8 * step + 2 * i], s[0][8 * step + 2 * i + 1]);
    begin_products();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      multiply<1>(state.o[0], weights[step],
                  swizzled_rows(keys + kTileBytes + step * 16 * kDim * 2), 1);
    commit_products();
    stage = (stage + 1) % kStages;
  }
  wait_products();
  store(state, a, rows, kv_head);
}

}  // namespace

void attend_spans_sm90(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                       const AttentionParams& params, const Step& s) {
  // Spans of one token go by the other kernel.
  if (s.num_spans > 1 || s.num_tokens == 1)
    attend_rows(cx, att, q, kv, params, s, /*by_span=*/true);
  if (s.num_tokens == s.num_spans) return;
  const TileParams a = tile_params(att, q, kv, params, s, kRows);
  const auto kernel = kv.k.dtype == DType::kF8E4M3 ? attend_tiles<true> : attend_tiles<false>;
  cuda::launch(cx.stream, kernel,
               {.grid = tile_grid(a, s), .block = dim3(kThreads), .smem_bytes = kSmemBytes}, a);
}

}  // namespace nibble::ops::gpu
