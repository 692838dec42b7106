#include "ops/all_reduce/all_reduce.h"

#include "dist/comm.h"
#include "ops/refuse.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

constexpr auto kKernels = std::to_array<AllReduceKernel>({
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
  run_site<AllReduceKernel>(cx, site, t.dim(0), t);
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
