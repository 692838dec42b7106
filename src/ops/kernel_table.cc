#include "ops/kernel_table.h"

namespace nibble::ops {
namespace {

constexpr const char* kOpNames[kNumOps] = {
    "embed",      "norm_qkv",    "attention", "out_proj",     "mlp_up",
    "norm_route", "moe_up",      "moe_down",  "norm_unembed", "norm_linear",
    "delta_rule", "output_gate", "shared_up", "all_reduce",   "mamba2"};

}  // namespace

const char* op_name(Op op) { return kOpNames[static_cast<int>(op)]; }

std::optional<Op> find_op(std::string_view name) {
  for (int op = 0; op < kNumOps; ++op)
    if (name == kOpNames[op]) return static_cast<Op>(op);
  return std::nullopt;
}

const char* act_format_name(ActFormat format) {
  constexpr const char* kNames[] = {"float", "bf16", "int8", "int8-row", "fp8", "fp4"};
  return kNames[static_cast<int>(format)];
}

void KernelOptions::force(const std::string& op_and_name) {
  const size_t equals = op_and_name.find('=');
  std::string known;
  for (const char* name : kOpNames) {
    if (op_and_name.substr(0, equals) == name && equals != std::string::npos) {
      forced.emplace_back(name, op_and_name.substr(equals + 1));
      return;
    }
    known += std::string(known.empty() ? "" : ", ") + name;
  }
  throw Error(ErrorKind::kUsage,
              "--kernel " + op_and_name + ": expected op=kernel, op being one of " + known);
}

namespace internal {

const std::string* forced_name(Op op, const KernelOptions& options) {
  for (const auto& [name, kernel] : options.forced)
    if (name == op_name(op)) return &kernel;
  return nullptr;
}

const std::string* tuned_name(Op op, std::string_view weights, int64_t tokens,
                              const KernelOptions& options) {
  for (const TunedKernel& tuned : options.tuned)
    if (tuned.op == op && tuned.max_tokens == tokens && tuned.weights == weights)
      return &tuned.kernel;
  return nullptr;
}

void throw_unknown_kernel(Op op, const std::string& kernel) {
  throw Error(ErrorKind::kUsage, "--kernel-table: " + std::string(op_name(op)) + " has no kernel " +
                                     kernel + "; time them again with this build");
}

void throw_no_kernel(Op op, const std::vector<Refusal>& refused) {
  std::string text = std::string("no kernel for ") + op_name(op) + ":";
  for (const Refusal& r : refused) text += "\n  " + r.kernel + ": " + r.reason;
  throw Error(ErrorKind::kUnsupported, text);
}

}  // namespace internal
}  // namespace nibble::ops
