// OpLaunch: one op by itself with operands in place, as `bench ops` times it and the self check
// compares it with its twin.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cli/op_operands.h"
#include "ops/site.h"

namespace nibble::cli {

struct OpLaunch {
  // Returns the bytes that it has to move. Turns take other weights and experts.
  std::function<int64_t(size_t turn)> run;
  std::vector<std::pair<std::string, Tensor>> outputs = {};  // by their names in the op's header
  std::vector<OpOperands::Choice> choices = {};              // of experts
};

// Makes launches of `kernel` for steps of desc.tokens tokens. What they read and write lives as
// long as `operands`; they run on cx, with its scratch.
class OpLaunches {
 public:
  OpLaunches(ops::Ctx& cx, OpOperands& operands, const OpSequences& sequences = {})
      : cx_(cx), operands_(operands), sequences_(sequences) {}

  OpLaunch of(const ops::EmbedDesc& desc, const ops::EmbedKernel& kernel);
  OpLaunch of(const ops::NormQkvDesc& desc, const ops::NormQkvKernel& kernel);
  OpLaunch of(const ops::AttentionDesc& desc, const ops::AttentionKernel& kernel);
  // Both, the second to the heads that the first leaves it, where it takes them.
  OpLaunch of(const ops::NormQkvDesc& heads, const ops::NormQkvKernel& leaves,
              const ops::AttentionDesc& desc, const ops::AttentionKernel& takes);
  OpLaunch of(const ops::OutProjDesc& desc, const ops::OutProjKernel& kernel);
  OpLaunch of(const ops::MlpUpDesc& desc, const ops::MlpUpKernel& kernel);
  OpLaunch of(const ops::NormRouteDesc& desc, const ops::NormRouteKernel& kernel);
  OpLaunch of(const ops::MoeUpDesc& desc, const ops::MoeUpKernel& kernel);
  // Takes what `up` leaves, by the experts that it chose; without it random values.
  OpLaunch of(const ops::MoeDownDesc& desc, const ops::MoeDownKernel& kernel,
              const OpLaunch* up = nullptr);
  OpLaunch of(const ops::NormUnembedDesc& desc, const ops::NormUnembedKernel& kernel);
  OpLaunch of(const ops::NormLinearDesc& desc, const ops::NormLinearKernel& kernel);
  OpLaunch of(const ops::DeltaRuleDesc& desc, const ops::DeltaRuleKernel& kernel);
  OpLaunch of(const ops::Mamba2Desc& desc, const ops::Mamba2Kernel& kernel);
  // In place: each run gates what the one before left.
  OpLaunch of(const ops::OutputGateDesc& desc, const ops::OutputGateKernel& kernel);
  OpLaunch of(const ops::SharedUpDesc& desc, const ops::SharedUpKernel& kernel);

 private:
  OpLaunch norm_qkv(const ops::NormQkvDesc& desc, const ops::NormQkvKernel& kernel,
                    const OpOperands::Sequences& s, bool is_left);
  std::vector<ops::Site> weights(Weight like, Layout layout);
  std::vector<OpOperands::Choice> choices(int64_t tokens, int64_t experts, int64_t top_k,
                                          int64_t shared);

  ops::Ctx& cx_;
  OpOperands& operands_;
  OpSequences sequences_;
};

// Of what OpLaunches makes launches: bench ops times it, and the self check runs it.
template <typename Desc>
concept HasLaunch = requires(OpLaunches& launches, const Desc& desc) {
  launches.of(desc, kernels_of(desc).front());
};

}  // namespace nibble::cli
