// SiteModel's shared experts: when they are further ones of the experts, their weights then, and a
// layer that has one.
#include "models/site_model.h"
#include "ops/refuse.h"

namespace nibble {

bool SiteModel::joins_experts(const std::string& shared, const std::string& expert,
                              const std::vector<std::string>& of, int64_t experts, int64_t top_k,
                              Format of_bf16) const {
  if (ops::refuse_listed(experts) || ops::refuse_choices(top_k)) return false;
  return std::ranges::all_of(of, [&](const std::string& matrix) {
    Format format = quantization_.format_of(shared + "." + matrix);
    if (format != quantization_.format_of(expert + "." + matrix)) return false;
    if (format == Format::kBF16) {
      if (dense_.mlp != of_bf16) return false;
      format = of_bf16;
    }
    return format != Format::kMxfp4 || !ops::refuse_gemv_counts(experts, top_k);
  });
}

void SiteModel::last_expert(ops::Site& site, const std::string& name,
                            const std::vector<std::string>& of, const Cut& rows, const Cut& cols,
                            Fill fill) {
  CHECK(site.weight.experts > 0 && site.weight.rows == rows.size * std::ssize(of));
  ++site.weight.experts;
  for (size_t i = 0; i < of.size(); ++i) {
    WantedWeight& w =
        declare_matrix(site, "shared expert", {name + "." + of[i], rows}, cols, fill).want;
    w.joined = i == 0;
    w.interleaved = i == 1;
  }
}

ExpertSites SiteModel::gated_experts(int layer, const GatedExperts& e) {
  const std::string mlp = e.in + "mlp.", beside = mlp + "shared_expert";
  const int64_t experts = e.experts + e.shared_is_last, top_k = e.top_k + e.shared_is_last;
  const std::vector<std::string> ups = {"gate_proj", "up_proj"}, downs = {"down_proj"};
  ExpertSites sites;
  ops::Site& route = add(layer,
                         ops::NormRouteDesc{.hidden = e.hidden,
                                            .experts = experts,
                                            .top_k = top_k,
                                            .over_all = e.over_all,
                                            .shared = e.shared_is_last},
                         {"y", "d"}, {"x", "h", "routing"});
  norm(route, e.in + "post_attention_layernorm", e.hidden, e.norm_eps, 1);
  matrix(route, "router", {{mlp + "gate", e.experts}}, e.hidden, Fill::kRouter);
  if (e.shared_is_last) {
    gate(route, beside + "_gate", e.hidden);
  } else {
    ops::Site& up = add(layer, ops::SharedUpDesc{e.hidden, e.shared_width.size, dense_.mlp}, {"h"},
                        {"shared_u"});
    gate_up(up, "shared expert", {beside + ".gate_proj", e.shared_width},
            {beside + ".up_proj", e.shared_width}, e.hidden);
    gate(up, beside + "_gate", e.hidden);
    ops::Site& down = add(layer, ops::OutProjDesc{e.hidden, e.shared_width.size, dense_.mlp},
                          {"shared_u"}, {"d"}, "shared");
    matrix(down, "shared expert", {{beside + ".down_proj", e.hidden}}, e.shared_width,
           Fill::kResidual);
    sites.shared_up = &up, sites.shared_down = &down;
  }
  ops::Site& up = add(layer,
                      ops::MoeUpDesc{.hidden = e.hidden,
                                     .width = e.width.size,
                                     .experts = experts,
                                     .top_k = top_k,
                                     .format = e.of_bf16,
                                     .shared = e.shared_is_last},
                      {"h", "routing"}, {"u"});
  experts_apart(up, mlp + "experts", ups, e.width, e.hidden, Fill::kScaledNormal);
  if (e.shared_is_last) last_expert(up, beside, ups, e.width, e.hidden, Fill::kScaledNormal);
  std::vector<std::string> reads = {"u", "routing"};
  if (!e.shared_is_last) reads.push_back("d");
  ops::Site& down = add(layer,
                        ops::MoeDownDesc{.hidden = e.hidden,
                                         .width = e.width.size,
                                         .experts = experts,
                                         .top_k = top_k,
                                         .format = e.of_bf16,
                                         .adds = !e.shared_is_last,
                                         .shared = e.shared_is_last},
                        std::move(reads), {"d"});
  experts_apart(down, mlp + "experts", downs, e.hidden, e.width, Fill::kResidual);
  if (e.shared_is_last) last_expert(down, beside, downs, e.hidden, e.width, Fill::kResidual);
  sites.route = &route, sites.up = &up, sites.down = &down;
  sites.sum = add_sum(layer, "d", e.hidden, "down");
  return sites;
}

}  // namespace nibble
