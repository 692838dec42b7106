// SiteModel's layers with a state: their weights, and what computes their states once more.
#include "models/site_model.h"

namespace nibble {

void SiteModel::delta(ops::Site& site, const std::string& name, float eps, const Cuts& channels,
                      const Cut& heads) {
  const auto& d = std::get<ops::DeltaRuleDesc>(site.problem);
  ops::DeltaRuleWeights& w = site.delta;
  const auto add_floats = [&](const char* of, std::vector<int64_t> shape, Fill fill,
                              const float*& to) -> WantedWeight& {
    return declare_floats(site, "delta net", name + of, std::move(shape), fill, to);
  };
  add_floats("conv1d.weight", {channels.all(), 1, d.taps}, Fill::kScaledNormal, w.conv).rows =
      channels;
  add_floats("A_log", {heads.all}, Fill::kZero, w.a_log).cols = heads;
  add_floats("dt_bias", {heads.all}, Fill::kZero, w.dt_bias).cols = heads;
  add_floats("norm.weight", {d.value_dim}, Fill::kOne, w.norm);
  w.eps = eps;
  auto& [qkvz, gates] = delta_inputs_[site.key.layer];
  const std::string layer = "." + std::to_string(site.key.layer);
  act(qkvz, "qkvz" + layer, DType::kF32, Count::kReplayed, 1, d.width());
  if (!d.joined) act(gates, "gates" + layer, DType::kF32, Count::kReplayed, 1, d.num_gates());
}

void SiteModel::mamba(ops::Site& site, const std::string& name, float eps, const Cuts& channels,
                      const Cut& heads) {
  const auto& d = std::get<ops::Mamba2Desc>(site.problem);
  ops::Mamba2Weights& w = site.mamba;
  const auto add_floats = [&](const char* of, std::vector<int64_t> shape, Fill fill,
                              const float*& to) -> WantedWeight& {
    return declare_floats(site, "mamba", name + of, std::move(shape), fill, to);
  };
  const Cut inner = heads.times(d.head_dim);
  add_floats("conv1d.weight", {channels.all(), 1, d.taps}, Fill::kScaledNormal, w.conv).rows =
      channels;
  add_floats("conv1d.bias", {channels.all()}, Fill::kZero, w.conv_bias).cols = channels;
  add_floats("A_log", {heads.all}, Fill::kZero, w.a_log).cols = heads;
  add_floats("D", {heads.all}, Fill::kOne, w.d).cols = heads;
  add_floats("dt_bias", {heads.all}, Fill::kZero, w.dt_bias).cols = heads;
  add_floats("norm.weight", {inner.all}, Fill::kOne, w.norm).cols = inner;
  w.eps = eps;
  act(mamba_inputs_[site.key.layer], "zxbcdt." + std::to_string(site.key.layer), DType::kF32,
      Count::kReplayed, 1, d.width());
}

// Token by token a layer's state depends on its inputs alone: no layer waits for another's, and
// what else they write, all in one place, is anything.
void SiteModel::replay(ops::Ctx& cx, const Step& step, const SeqState& kv) {
  CHECK(step.num_tokens <= limits_.max_replayed);
  begin(cx, step);
  cx.whose = "replay/";
  for (const auto& [layer, in] : delta_inputs_) cx.wrote({in.qkvz.data, in.gates.data});
  Step again = step;
  again.is_replay = true;
  for (const ops::Site& site : sites_) {
    const int32_t layer = site.key.layer;
    if (site.key.op == ops::Op::kDeltaRule)
      ops::delta_rule(cx, site, buffer(site.writes.at(0)), kv.recurrent_layer(layer),
                      delta_inputs_.at(layer), again);
    if (site.key.op == ops::Op::kMamba2)
      ops::mamba2(cx, site, buffer(site.writes.at(0)), kv.recurrent_layer(layer),
                  mamba_inputs_.at(layer), again);
  }
  cx.whose.clear();
}

const ops::DeltaRuleIn& SiteModel::inputs(int32_t layer, const ops::DeltaRuleIn& shared) const {
  const ops::DeltaRuleIn& kept = delta_inputs_.at(layer);
  return kept.qkvz.dim(0) > 0 ? kept : shared;
}

const Tensor& SiteModel::inputs(int32_t layer, const Tensor& shared) const {
  const Tensor& kept = mamba_inputs_.at(layer);
  return kept.dim(0) > 0 ? kept : shared;
}

}  // namespace nibble
