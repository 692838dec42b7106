// What a head that drafts from hidden rows does beside the ops of every model: it puts rows side by
// side, each normed by itself, and turns and stores q, k and v that a product of its own left; and
// the rows that it will read are put by. All move a few kilobytes a token.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "ops/ctx.h"
#include "ops/step.h"
#include "ops/weight.h"

namespace nibble::ops {

// One part of a joined row t: row rows[t] of x + d; without `rows` row t, without d of x alone.
struct RowPart {
  Tensor x;                       // [.., W] f32
  Tensor d = {};                  // [.., W] f32, or none
  const int32_t* rows = nullptr;  // [T], where the step lies
  // Those that have weights: a norm, and one more of what that gives.
  Norm first = {}, norm = {};
};

struct JoinOut {
  Tensor joined = {};        // [T, parts * W], stored as h is, or none
  Tensor y = {};             // [T, W] f32, or none: the last part before its `norm`
  bool y_is_normed = false;  // or behind it
};

inline constexpr size_t kMostParts = 4;

// `all`, where it has a weight, is a norm [parts * W] of the whole row, the last.
using JoinRowsFn = void(Ctx& cx, const JoinOut& out, std::span<const RowPart> parts,
                        const Norm& all);
JoinRowsFn join_rows;

// q [T, Q * D], stored; kv: the layer's pages; qkv [T, (Q + 2G) * D] f32, which it may overwrite.
// As norm_qkv does behind its product.
using StoreHeadsFn = void(Ctx& cx, const Tensor& q, const KvLayer& kv, const Tensor& qkv,
                          const Tensor& cos_sin, const Step& s);
StoreHeadsFn store_heads;

// Of each span of the step the last rows, at most `length`: row t of from[i] to row
// slot * length + position % length of to[i]. from [.., W], to [slots * length, W] f32.
using PutRowsByFn = void(Ctx& cx, std::span<const Tensor> to, std::span<const Tensor> from,
                         int32_t length, const Step& s);
PutRowsByFn put_rows_by;

// ids[i] = table[ids[i]] for n ids, on the device.
using TranslateIdsFn = void(Ctx& cx, int32_t* ids, int64_t n, const int32_t* table);
TranslateIdsFn translate_ids;
// to[copies[i].to] = from[copies[i].from] for n of them, on the device.
struct IdCopy {
  int32_t to, from;
};
using CopyIdsFn = void(Ctx& cx, int32_t* to, const int32_t* from, const IdCopy* copies, int64_t n);
CopyIdsFn copy_ids;

namespace cpu_rows {
JoinRowsFn join_rows;
StoreHeadsFn store_heads;
PutRowsByFn put_rows_by;
}  // namespace cpu_rows
namespace gpu {
JoinRowsFn join_rows;
StoreHeadsFn store_heads;
PutRowsByFn put_rows_by;
TranslateIdsFn translate_ids;
CopyIdsFn copy_ids;
}  // namespace gpu
}  // namespace nibble::ops
