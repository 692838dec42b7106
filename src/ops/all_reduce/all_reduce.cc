#include "ops/all_reduce/all_reduce.h"

#include <algorithm>
#include <array>
#include <utility>

#include "dist/comm.h"
#include "ops/all_reduce/gpu_ranks.h"
#include "ops/all_reduce/one_shot.h"
#include "ops/refuse.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

// By --kernel: then it takes every size.
bool is_forced(const KernelOptions& o, std::string_view row) {
  return std::ranges::any_of(o.forced, [&](const auto& f) {
    return f.first == op_name(Op::kAllReduce) && f.second == row;
  });
}

const char* refuse_apart(const KernelOptions& o) {
  if (const char* reason = refuse_cpu(o)) return reason;
  return o.has_peer_memory ? nullptr : "the GPUs do not reach each other's memory";
}

// The most ranks to each of which values in bf16, or exact ones in float32, are no more bytes than
// the float32 of a ring.
constexpr int64_t kMostOfBlocks = 4, kMostOfBlocksExact = 2;

constexpr auto kKernels = std::to_array<AllReduceKernel>({
    {"one_shot",
     [](const AllReduceDesc& d, const KernelOptions& o) -> const char* {
       if (const char* reason = refuse_apart(o)) return reason;
       if (d.hidden % 2 != 0) return "its packets are of two floats";
       const bool is_large = !gpu::is_for_packets(d.tokens * d.hidden, d.ranks);
       const bool has_other = o.has_nccl || d.hidden % 4 == 0;
       return is_large && has_other && !o.any_size && !is_forced(o, "one_shot")
                  ? "it sends twice the bytes, which large sums pay for"
                  : nullptr;
     },
     NIBBLE_CUDA_KERNEL(gpu::sum_one_shot)},
    {kOneShotBlocks,
     [](const AllReduceDesc& d, const KernelOptions& o) -> const char* {
       if (const char* reason = refuse_apart(o)) return reason;
       if (d.hidden % 4 != 0) return "it sends four floats at a time";
       const bool is_many = d.ranks > (o.exact ? kMostOfBlocksExact : kMostOfBlocks);
       return is_many && o.has_nccl && !o.any_size && !is_forced(o, "one_shot_blocks")
                  ? "it sends all to each rank, where a ring sends twice in all"
                  : nullptr;
     },
     NIBBLE_CUDA_KERNEL(gpu::sum_blocks)},
    {"nccl",
     [](const AllReduceDesc&, const KernelOptions& o) -> const char* {
       if (const char* reason = refuse_cpu(o)) return reason;
       return o.has_nccl ? nullptr : "NCCL is not there: NIBBLE_NCCL=FILE says where it lies";
     },
     NIBBLE_CUDA_KERNEL(gpu::sum_nccl)},
    {"tcp",
     [](const AllReduceDesc&, const KernelOptions& o) -> const char* {
       return o.gpu.sm != 0 ? "its sums are made by CPUs" : nullptr;
     },
     sockets::all_reduce},
    {"ref", [](const AllReduceDesc&, const KernelOptions& o) { return refuse_ref(o); },
     ref::all_reduce},
});

}  // namespace

std::span<const AllReduceKernel> all_reduce_kernels() { return kKernels; }

void all_reduce(Ctx& cx, const Site& site, const Tensor& t) {
  CHECK(cx.comm != nullptr);
  if (t.dim(0) >= site.left_from) {
    if (!cx.begin(site)) return;
    const bool is_sent = sends_sum(cx, t.dim(0));
    cx.left_sum = {&site, is_sent ? make_tensor(t.data, DType::kBF16, {t.dim(0), t.dim(1)}) : t};
    return;
  }
  run_site<AllReduceKernel>(cx, site, t.dim(0), t);
  cx.wrote({t.data});
}

bool sends_sum(const Ctx& cx, int64_t tokens) {
  if (cx.site == nullptr || tokens < cx.site->sent_from) return false;
  const auto hidden = [&] {
    if (const auto* sum = std::get_if<AllReduceDesc>(&cx.site->problem)) return sum->hidden;
    return std::get<OutProjDesc>(cx.site->problem).hidden;
  }();
  return tokens <= gpu::most_rows(gpu::row_bytes_of(cx.comm->size()), hidden);
}

bool leaves_choices(const Ctx& cx, int64_t tokens) {
  return cx.site != nullptr && tokens >= cx.site->choices_left_from;
}

void make_left_sum(Ctx& cx) {
  const auto [site, t] = std::exchange(cx.left_sum, {});
  if (site == nullptr) return;
  CHECK(t.dtype == DType::kF32);  // find_left_sums
  site->plan.row<AllReduceKernel>(t.dim(0)).run(cx, t);
  cx.wrote({t.data});
}

int64_t bytes(const AllReduceDesc& d, int64_t tokens, int64_t) {
  return 2 * d.ranks * tokens * d.hidden * int64_t{sizeof(float)};
}

int64_t flops(const AllReduceDesc& d, int64_t tokens) { return (d.ranks - 1) * tokens * d.hidden; }

void sockets::all_reduce(Ctx& cx, const Tensor& t) {
  cx.comm->all_reduce({t.as<float>(), static_cast<size_t>(t.num_elements())});
}

}  // namespace nibble::ops
