// Hopper's own instructions as functions (sm_90a only): copies, wgmma with its A
// operand in registers and B in shared memory. Source: PTX ISA 9.0, sections 9.7.13 to 9.7.15.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/mbarrier.cuh"

namespace nibble::cuda::sm90 {

// What kernels of this architecture use of cuda/mbarrier.cuh, under one roof.
using cuda::barrier_arrive, cuda::barrier_arrive_after_copies, cuda::barrier_expect;
using cuda::barrier_init, cuda::barrier_init_fence, cuda::barrier_wait;
using cuda::barrier_wait_together, cuda::shared_address;

// Makes shared memory written by ordinary stores and cp.async visible to wgmma.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- copies to shared memory

__device__ __forceinline__ void copy_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}
// `size` bytes, 0 or 16; zeros for the rest.
__device__ __forceinline__ void copy_16_or_zeros(uint32_t to, const void* from, int size) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(size)
               : "memory");
}
// A box of the matrix that `map` (a __grid_constant__ parameter) describes, from column x of row y
// on; completes on `bar`.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap& map, int x, int y,
                                         uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(bar)
      : "memory");
}

// ---- register budgets of warpgroups

template <int kRegs>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegs));
}
template <int kRegs>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegs));
}

// Of the 128 threads of a warpgroup, by one of the block's barriers 1 to 15.
__device__ __forceinline__ void warpgroup_barrier(int barrier) {
  asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory");
}

// ---- wgmma

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// A value in a register, not to be made anew for every use as the compiler else does where it
// knows how: in loops of wgmma instructions cost more than registers.
__device__ __forceinline__ uint32_t kept(uint32_t value) {
  asm volatile("shfl.sync.idx.b32 %0, %0, %1, 31, -1;" : "+r"(value) : "r"(threadIdx.x % 32));
  return value;
}

// What is the same in all lanes, told so: loops and descriptors that depend on it stay in uniform
// registers.
__device__ __forceinline__ uint32_t uniform(uint32_t value) {
  return __reduce_or_sync(0xffffffff, value);
}
__device__ __forceinline__ int uniform(int value) {
  return static_cast<int>(uniform(static_cast<uint32_t>(value)));
}

// B as [N][64] bf16, K contiguous, rows of 128 bytes, 16-byte chunk c of row r at place c ^ (r %
// 8); `address` 1024-byte aligned, plus 32 bytes for each step of 16 in K.
__device__ __forceinline__ uint64_t swizzled_128(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | (uint64_t{1} << 16) |
         (uint64_t{1024 >> 4} << 32) | (uint64_t{1} << 62);
}

// d[64][N] (+)= a[64][16] b[N][16]^T in bf16. d: per lane N/2 sums: of its warp's 16 rows, rows g
// and g + 8, columns 8j + 2p, + 1 at d[4j..4j+3] (g = lane / 4, p = lane % 4); a: bf16 pairs of row
// g, row g + 8 at k = 2p, then the same at k = 8 + 2p; b: the low word of its descriptor: one
// register, one addition. `accumulate` false: d is overwritten.
template <int kN>
__device__ __forceinline__ void wgmma_bf16(float (&d)[kN / 2], const uint32_t (&a)[4], uint32_t b,
                                           int accumulate);
// The same with a in shared memory, [64][64] as b, both by their descriptors.
template <int kN>
__device__ __forceinline__ void wgmma_bf16(float (&d)[kN / 2], uint64_t a, uint64_t b,
                                           int accumulate);

// Lists of 8 registers of an asm statement.
#define NIBBLE_D8(i)                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define NIBBLE_R8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define NIBBLE_R16 NIBBLE_R8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define NIBBLE_R24 NIBBLE_R16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define NIBBLE_R32 NIBBLE_R24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define NIBBLE_R40 NIBBLE_R32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define NIBBLE_R48 NIBBLE_R40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define NIBBLE_R56 NIBBLE_R48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define NIBBLE_R64 NIBBLE_R56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define NIBBLE_R72 NIBBLE_R64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define NIBBLE_R80 NIBBLE_R72 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define NIBBLE_R88 NIBBLE_R80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define NIBBLE_R96 NIBBLE_R88 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define NIBBLE_R104 NIBBLE_R96 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define NIBBLE_R112 NIBBLE_R104 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define NIBBLE_R120 NIBBLE_R112 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define NIBBLE_R128 NIBBLE_R120 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define NIBBLE_O8 NIBBLE_D8(0)
#define NIBBLE_O16 NIBBLE_O8, NIBBLE_D8(8)
#define NIBBLE_O24 NIBBLE_O16, NIBBLE_D8(16)
#define NIBBLE_O32 NIBBLE_O24, NIBBLE_D8(24)
#define NIBBLE_O40 NIBBLE_O32, NIBBLE_D8(32)
#define NIBBLE_O48 NIBBLE_O40, NIBBLE_D8(40)
#define NIBBLE_O56 NIBBLE_O48, NIBBLE_D8(48)
#define NIBBLE_O64 NIBBLE_O56, NIBBLE_D8(56)
#define NIBBLE_O72 NIBBLE_O64, NIBBLE_D8(64)
#define NIBBLE_O80 NIBBLE_O72, NIBBLE_D8(72)
#define NIBBLE_O88 NIBBLE_O80, NIBBLE_D8(80)
#define NIBBLE_O96 NIBBLE_O88, NIBBLE_D8(88)
#define NIBBLE_O104 NIBBLE_O96, NIBBLE_D8(96)
#define NIBBLE_O112 NIBBLE_O104, NIBBLE_D8(104)
#define NIBBLE_O120 NIBBLE_O112, NIBBLE_D8(112)
#define NIBBLE_O128 NIBBLE_O120, NIBBLE_D8(120)
// n, its sums, and the numbers of the operands: a, b and accumulate with a in registers, in memory.
#define NIBBLE_WGMMA_BF16(n, regs, outs, a, b, acc, a_m, b_m, acc_m)                          \
  template <>                                                                                 \
  __device__ __forceinline__ void wgmma_bf16<n>(float(&d)[n / 2], const uint32_t(&av)[4],     \
                                                uint32_t bd, int accumulate) {                \
    asm volatile("{\n.reg .pred p;\n.reg .b64 bd;\nmov.b64 bd, {" b                           \
                 ", 0x40000040};\nsetp.ne.b32 p, " acc                                        \
                 ", 0;\n"                                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" regs "}, {" a   \
                 "}, bd, p, 1, 1, 0;\n}"                                                      \
                 : outs                                                                       \
                 : "r"(av[0]), "r"(av[1]), "r"(av[2]), "r"(av[3]), "r"(bd), "r"(accumulate)); \
  }                                                                                           \
  template <>                                                                                 \
  __device__ __forceinline__ void wgmma_bf16<n>(float(&d)[n / 2], uint64_t ad, uint64_t bd,   \
                                                int accumulate) {                             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " acc_m                                    \
                 ", 0;\n"                                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" regs "}, " a_m  \
                 ", " b_m ", p, 1, 1, 0, 0;\n}"                                               \
                 : outs                                                                       \
                 : "l"(ad), "l"(bd), "r"(accumulate));                                        \
  }
NIBBLE_WGMMA_BF16(16, NIBBLE_R8, NIBBLE_O8, "%8,%9,%10,%11", "%12", "%13", "%8", "%9", "%10")
NIBBLE_WGMMA_BF16(32, NIBBLE_R16, NIBBLE_O16, "%16,%17,%18,%19", "%20", "%21", "%16", "%17", "%18")
NIBBLE_WGMMA_BF16(48, NIBBLE_R24, NIBBLE_O24, "%24,%25,%26,%27", "%28", "%29", "%24", "%25", "%26")
NIBBLE_WGMMA_BF16(64, NIBBLE_R32, NIBBLE_O32, "%32,%33,%34,%35", "%36", "%37", "%32", "%33", "%34")
NIBBLE_WGMMA_BF16(80, NIBBLE_R40, NIBBLE_O40, "%40,%41,%42,%43", "%44", "%45", "%40", "%41", "%42")
NIBBLE_WGMMA_BF16(96, NIBBLE_R48, NIBBLE_O48, "%48,%49,%50,%51", "%52", "%53", "%48", "%49", "%50")
NIBBLE_WGMMA_BF16(112, NIBBLE_R56, NIBBLE_O56, "%56,%57,%58,%59", "%60", "%61", "%56", "%57", "%58")
NIBBLE_WGMMA_BF16(128, NIBBLE_R64, NIBBLE_O64, "%64,%65,%66,%67", "%68", "%69", "%64", "%65", "%66")
NIBBLE_WGMMA_BF16(144, NIBBLE_R72, NIBBLE_O72, "%72,%73,%74,%75", "%76", "%77", "%72", "%73", "%74")
NIBBLE_WGMMA_BF16(160, NIBBLE_R80, NIBBLE_O80, "%80,%81,%82,%83", "%84", "%85", "%80", "%81", "%82")
NIBBLE_WGMMA_BF16(176, NIBBLE_R88, NIBBLE_O88, "%88,%89,%90,%91", "%92", "%93", "%88", "%89", "%90")
NIBBLE_WGMMA_BF16(192, NIBBLE_R96, NIBBLE_O96, "%96,%97,%98,%99", "%100", "%101", "%96", "%97",
                  "%98")
NIBBLE_WGMMA_BF16(208, NIBBLE_R104, NIBBLE_O104, "%104,%105,%106,%107", "%108", "%109", "%104",
                  "%105", "%106")
NIBBLE_WGMMA_BF16(224, NIBBLE_R112, NIBBLE_O112, "%112,%113,%114,%115", "%116", "%117", "%112",
                  "%113", "%114")
NIBBLE_WGMMA_BF16(240, NIBBLE_R120, NIBBLE_O120, "%120,%121,%122,%123", "%124", "%125", "%120",
                  "%121", "%122")
NIBBLE_WGMMA_BF16(256, NIBBLE_R128, NIBBLE_O128, "%128,%129,%130,%131", "%132", "%133", "%128",
                  "%129", "%130")

// d[64][N] (+)= a[64][32] b[N][32]^T in E4M3, summed to about 14 bits: see wgmma_bf16 for d. a:
// four bytes of row g, row g + 8 at k = 4p, then the same at k = 16 + 4p; b: [N][128] bytes, as
// there, by the low word of its descriptor alone: one register, one addition.
template <int kN>
__device__ __forceinline__ void wgmma_e4m3(float (&d)[kN / 2], const uint32_t (&a)[4], uint32_t b,
                                           int accumulate);
#define NIBBLE_WGMMA_E4M3(n, regs, outs, a, b, acc)                                           \
  template <>                                                                                 \
  __device__ __forceinline__ void wgmma_e4m3<n>(float(&d)[n / 2], const uint32_t(&av)[4],     \
                                                uint32_t bd, int accumulate) {                \
    asm volatile("{\n.reg .pred p;\n.reg .b64 bd;\nmov.b64 bd, {" b                           \
                 ", 0x40000040};\nsetp.ne.b32 p, " acc                                        \
                 ", 0;\n"                                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" regs "}, {" a   \
                 "}, bd, p, 1, 1;\n}"                                                         \
                 : outs                                                                       \
                 : "r"(av[0]), "r"(av[1]), "r"(av[2]), "r"(av[3]), "r"(bd), "r"(accumulate)); \
  }
NIBBLE_WGMMA_E4M3(16, NIBBLE_R8, NIBBLE_O8, "%8,%9,%10,%11", "%12", "%13")
NIBBLE_WGMMA_E4M3(32, NIBBLE_R16, NIBBLE_O16, "%16,%17,%18,%19", "%20", "%21")
NIBBLE_WGMMA_E4M3(48, NIBBLE_R24, NIBBLE_O24, "%24,%25,%26,%27", "%28", "%29")
NIBBLE_WGMMA_E4M3(64, NIBBLE_R32, NIBBLE_O32, "%32,%33,%34,%35", "%36", "%37")
NIBBLE_WGMMA_E4M3(80, NIBBLE_R40, NIBBLE_O40, "%40,%41,%42,%43", "%44", "%45")
NIBBLE_WGMMA_E4M3(96, NIBBLE_R48, NIBBLE_O48, "%48,%49,%50,%51", "%52", "%53")
NIBBLE_WGMMA_E4M3(112, NIBBLE_R56, NIBBLE_O56, "%56,%57,%58,%59", "%60", "%61")
NIBBLE_WGMMA_E4M3(128, NIBBLE_R64, NIBBLE_O64, "%64,%65,%66,%67", "%68", "%69")

NIBBLE_WGMMA_E4M3(144, NIBBLE_R72, NIBBLE_O72, "%72,%73,%74,%75", "%76", "%77")

NIBBLE_WGMMA_E4M3(160, NIBBLE_R80, NIBBLE_O80, "%80,%81,%82,%83", "%84", "%85")

}  // namespace nibble::cuda::sm90
