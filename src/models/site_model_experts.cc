// SiteModel's shared experts: when they are further ones of the experts, and their weights then.
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

}  // namespace nibble
