#include "ops/draft_head/draft_head.h"

#include "base/check.h"
#include "ops/kernel_table.h"

namespace nibble::ops {

void join_rows(Ctx& cx, const JoinOut& out, std::span<const RowPart> parts, const Norm& all) {
  CHECK(!parts.empty() && parts.size() <= kMostParts);
  CHECK(cx.left_sum.site == nullptr);
  constexpr JoinRowsFn* kKernel = NIBBLE_CUDA_KERNEL(gpu::join_rows);
  JoinRowsFn* const run = cx.on_gpu() ? kKernel : cpu_rows::join_rows;
  CHECK(run != nullptr);
  if (cx.begin("join_rows")) run(cx, out, parts, all);
  cx.wrote({out.joined.data, out.y.data});
}

void store_heads(Ctx& cx, const Tensor& q, const KvLayer& kv, const Tensor& qkv,
                 const Tensor& cos_sin, const Step& s) {
  constexpr StoreHeadsFn* kKernel = NIBBLE_CUDA_KERNEL(gpu::store_heads);
  StoreHeadsFn* const run = cx.on_gpu() ? kKernel : cpu_rows::store_heads;
  CHECK(run != nullptr);
  if (cx.begin("store_heads")) run(cx, q, kv, qkv, cos_sin, s);
  cx.wrote({q.data});
}

void put_rows_by(Ctx& cx, std::span<const Tensor> to, std::span<const Tensor> from, int32_t length,
                 const Step& s) {
  CHECK(to.size() == from.size() && !to.empty() && to.size() <= kMostParts);
  constexpr PutRowsByFn* kKernel = NIBBLE_CUDA_KERNEL(gpu::put_rows_by);
  PutRowsByFn* const run = cx.on_gpu() ? kKernel : cpu_rows::put_rows_by;
  CHECK(run != nullptr);
  if (cx.begin("put_rows_by")) run(cx, to, from, length, s);
  for (const Tensor& rows : to) cx.wrote({rows.data});
}

void translate_ids(Ctx& cx, int32_t* ids, int64_t n, const int32_t* table) {
  constexpr TranslateIdsFn* kKernel = NIBBLE_CUDA_KERNEL(gpu::translate_ids);
  CHECK(cx.on_gpu() && kKernel != nullptr);
  kKernel(cx, ids, n, table);
}

void copy_ids(Ctx& cx, int32_t* to, const int32_t* from, const IdCopy* copies, int64_t n) {
  constexpr CopyIdsFn* kKernel = NIBBLE_CUDA_KERNEL(gpu::copy_ids);
  CHECK(cx.on_gpu() && kKernel != nullptr);
  kKernel(cx, to, from, copies, n);
}

}  // namespace nibble::ops
