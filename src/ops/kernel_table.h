// Kernel tables: each op lists its kernels, best first, in <op>.cc; pick() takes the first that
// does not refuse. The choice is a pure function of (problem, device): a unit test can make it for
// a machine that is not there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cpu/isa.h"
#include "cuda/caps.h"
#include "formats/layout.h"

namespace nibble::ops {

enum class Op : uint8_t {
  kEmbed,
  kNormQkv,
  kAttention,
  kOutProj,
  kMlpUp,
  kNormRoute,
  kMoeUp,
  kMoeDown,
  kNormUnembed,
  kNormLinear,
  kDeltaRule,
  kOutputGate,
  kSharedUp,
  kAllReduce,
  kMamba2
};
inline constexpr int kNumOps = 15;
const char* op_name(Op op);  // "embed", "norm_qkv", ...
std::optional<Op> find_op(std::string_view name);

// What the inputs of matrix products are rounded to (--activations). It belongs to a layer, never
// to a step: a kernel either serves it for every number of tokens or refuses it. But for kFp8 and
// kFp4, by which GPUs gain only where math binds: steps of few tokens keep to bf16.
enum class ActFormat : uint8_t {
  kFloat,    // as they are
  kBF16,     // h, q, att and u are stored as bf16
  kInt8,     // blocks of 32, for weights of 4 bits; others take bf16 or floats
  kInt8Row,  // the same with one scale per token, for weights in mxfp4
  kFp8,      // E4M3 with one scale per token, for weights that many rows meet (takes_e4m3())
  kFp4       // E2M1 in blocks, for weights in mxfp4 and nvfp4, as theirs; others as kFp8
};

const char* act_format_name(ActFormat format);  // "float", "bf16", "int8", "int8-row", ...

// The fastest kernel of an op for steps of up to max_tokens tokens, as timed on the machine.
struct TunedKernel {
  Op op;
  std::string weights;  // "mxfp4": the format of its matrix; empty: it has none
  int64_t max_tokens;   // of kTokenBuckets (ops/plan.h)
  std::string kernel;
};

// What a machine offers, and what its user allows.
struct KernelOptions {
  cpu::Isa isa = cpu::detect_isa();
  ActFormat activations = ActFormat::kFloat;
  cuda::Caps gpu = {};     // gpu.sm == 0: the model runs on the CPU
  bool exact = false;      // --exact: sums must not depend on the batch
  bool allow_ref = false;  // --allow-ref: the twins may run
  // How the GPUs of several ranks reach each other: both, until start-up has found out.
  bool has_peer_memory = true, has_nccl = true;
  // Rows that a step's size makes no more than slow do not refuse it: for timing them.
  bool any_size = false;
  std::vector<std::pair<std::string, std::string>> forced;  // --kernel op=name

  std::vector<TunedKernel> tuned;  // --kernel-table: goes before the order of the tables

  // Adds one "op=name". Throws Error(kUsage) for another shape or an unknown op.
  void force(const std::string& op_and_name);
};

// The kernel of a row, in builds that compile it; nullptr in others, where the row can be chosen
// for a machine that is not there but not run. CMake sets NIBBLE_CUDA_SM to what *.cu files are
// compiled for: 90, 121, or 0 without CUDA.
#if NIBBLE_CUDA_SM
#define NIBBLE_CUDA_KERNEL(fn) fn
#else
#define NIBBLE_CUDA_KERNEL(fn) nullptr
#endif
#if NIBBLE_CUDA_SM == 90
#define NIBBLE_SM90_KERNEL(fn) fn
#else
#define NIBBLE_SM90_KERNEL(fn) nullptr
#endif

// A row: why a kernel cannot serve a problem (nullptr: it can), and the kernel.
template <typename Desc, typename Fn>
struct Kernel {
  const char* name;
  const char* (*refuse)(const Desc&, const KernelOptions&);
  Fn* run;
  Layout layout = Layout::kRows;  // in which it reads its matrix
  // In steps of so many tokens at most it finishes what the op in front leaves undone: of ops that
  // read a Routing, norm_route's choice; of attention, norm_qkv's heads (norm_qkv/left_heads.h); of
  // those that begin with a norm, all_reduce's sum over ranks (norm/add_norm_over_ranks.h).
  int32_t takes = 0;
};
inline constexpr int32_t kAnyTokens = std::numeric_limits<int32_t>::max();

// The last row of a table before the twin: it takes every shape and format, and is slower than the
// rows above it. doctor and start-up say where it runs.
inline bool is_general(std::string_view kernel) { return kernel.ends_with("_any"); }

inline constexpr const char* kSlowerHere = "the kernel table says that it is slower here";

struct Refusal {
  std::string kernel;
  std::string reason;
  bool operator==(const Refusal&) const = default;
};

// What pick() found. `refused` are the rows above the chosen one, or all of them.
template <typename Row>
struct Picked {
  const Row* row = nullptr;
  std::vector<Refusal> refused;
};

namespace internal {
const std::string* forced_name(Op op, const KernelOptions& options);
const std::string* tuned_name(Op op, std::string_view weights, int64_t tokens,
                              const KernelOptions& options);
[[noreturn]] void throw_unknown_kernel(Op op, const std::string& kernel);
[[noreturn]] void throw_no_kernel(Op op, const std::vector<Refusal>& refused);

// "mxfp4"; empty where the problem has no matrix.
template <typename Desc>
std::string_view weights_of(const Desc& desc) {
  if constexpr (requires { desc.format; }) return format_name(desc.format);
  return {};
}
}  // namespace internal

// The first row that serves `desc`, or the tuned one, if it does; of those that read `layout`,
// where one is given. No row where all refuse.
template <typename Desc, typename Fn>
Picked<Kernel<Desc, Fn>> find_kernel(Op op, std::span<const Kernel<Desc, Fn>> table,
                                     const Desc& desc, const KernelOptions& options,
                                     std::optional<Layout> layout = std::nullopt) {
  Picked<Kernel<Desc, Fn>> picked;
  const std::string* forced = internal::forced_name(op, options);
  const auto refusal = [&](const Kernel<Desc, Fn>& row, const KernelOptions& o) {
    const char* reason = row.refuse(desc, o);
    if (reason == nullptr && layout && row.layout != *layout)
      reason = "no kernel for other sizes of step reads its layout of the weights";
    if (reason == nullptr && forced != nullptr && *forced != row.name)
      reason = "another kernel is forced";
    return reason;
  };
  const Kernel<Desc, Fn>* tuned = nullptr;
  if (const auto* name =
          internal::tuned_name(op, internal::weights_of(desc), desc.tokens, options)) {
    KernelOptions any_size = options;
    any_size.any_size = true;
    for (const auto& row : table)
      if (*name == row.name && refusal(row, any_size) == nullptr) tuned = &row;
  }
  for (const auto& row : table) {
    const char* reason = &row == tuned ? nullptr : refusal(row, options);
    if (reason == nullptr && tuned != nullptr && &row != tuned) reason = kSlowerHere;
    if (reason == nullptr) {
      picked.row = &row;
      return picked;
    }
    picked.refused.push_back({row.name, reason});
  }
  return picked;
}

// Throws Error(kUnsupported) that lists every refusal where no row serves.
template <typename Desc, typename Fn>
Picked<Kernel<Desc, Fn>> pick(Op op, std::span<const Kernel<Desc, Fn>> table, const Desc& desc,
                              const KernelOptions& options) {
  auto picked = find_kernel(op, table, desc, options);
  if (picked.row == nullptr) internal::throw_no_kernel(op, picked.refused);
  return picked;
}

}  // namespace nibble::ops
