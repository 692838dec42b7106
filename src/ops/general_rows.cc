#include "ops/general_rows.h"

#include <algorithm>
#include <set>

#include "ops/refuse.h"

namespace nibble::ops {
namespace {

// The row is for another device or instruction set: no shape or format would make it run here.
bool is_for_another_machine(const std::string& reason) {
  if (reason == kRunsOnCpus || reason == kNeedsGpu) return true;
  if (reason.find("Hopper GPU") != std::string::npos) return true;
  const KernelOptions plain{.isa = cpu::Isa::kScalar};
  for (int isa = 1; isa < cpu::kNumIsas; ++isa)
    if (reason == refuse_isa(static_cast<cpu::Isa>(isa), plain)) return true;
  return false;
}

// No other row is for this kind of device: the general one is not a second best.
bool is_only_row(const PlanEntry& entry) {
  return std::all_of(entry.refused.begin(), entry.refused.end(), [](const Refusal& r) {
    return r.reason == kRunsOnCpus || r.reason == kNeedsGpu;
  });
}

bool says_more(const Refusal& refusal, const Refusal* than) {
  return than == nullptr || (is_of_step_size(than->reason) && !is_of_step_size(refusal.reason));
}

// The last of the better rows that are for this machine; rather one that steps of no size would
// run by.
const Refusal* nearest(const PlanEntry& entry) {
  const Refusal* last = nullptr;
  for (auto r = entry.refused.rbegin(); r != entry.refused.rend(); ++r)
    if (!is_for_another_machine(r->reason) && says_more(*r, last)) last = &*r;
  return last;
}

// Of an op that runs by `kernel`.
std::string line(Op op, const std::string& kernel, std::span<const PlanEntry> entries) {
  std::set<int> layers;
  const Refusal* refusal = nullptr;
  for (const PlanEntry& entry : entries) {
    if (entry.site.op != op || entry.kernel != kernel) continue;
    layers.insert(entry.site.layer);
    if (const Refusal* of = nearest(entry); of != nullptr && says_more(*of, refusal)) refusal = of;
  }
  std::string text = op_name(op);
  if (!layers.contains(-1))
    text += " of " + std::to_string(layers.size()) + (layers.size() == 1 ? " layer" : " layers");
  const bool of_prompts = kernel.ends_with("_or_any");
  text += " by " + kernel +
          (of_prompts ? ", which runs prompts as cuda_any does; " : ", which takes any shape; ");
  if (refusal == nullptr) return text + "the better ones are for other machines";
  return text + refusal->kernel + ": " + refusal->reason;
}

}  // namespace

std::vector<std::string> say_general_rows(std::span<const PlanEntry> entries) {
  std::vector<std::string> lines;
  std::set<std::pair<Op, std::string>> said;
  for (const PlanEntry& entry : entries)
    if (is_general(entry.kernel) && !is_only_row(entry) &&
        said.emplace(entry.site.op, entry.kernel).second)
      lines.push_back(line(entry.site.op, entry.kernel, entries));
  return lines;
}

}  // namespace nibble::ops
