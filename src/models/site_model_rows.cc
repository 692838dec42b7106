// Which of a step's rows SiteModel keeps: those with logits, and what heads draft from.
#include <algorithm>
#include <numeric>

#include "models/site_model.h"
#include "ops/draft_head/draft_head.h"

namespace nibble {

using ops::Ctx, ops::Op, ops::Site;

namespace {
// The most rows with logits that out_rows_of() takes out, and of how many tokens each.
constexpr int32_t kMostOutRows = 256, kTokensAnOutRow = 16;
}  // namespace

int64_t rows_behind_mixers(int64_t out, int64_t tokens) {
  const int64_t rows = std::max<int64_t>(1, out);  // no op has to know steps of none
  return rows <= kMostOutRows && rows * kTokensAnOutRow <= tokens ? rows : tokens;
}

void SiteModel::reserve_first_rows(const Ctx& cx) {
  std::vector<int32_t> rows(kMostOutRows);
  std::iota(rows.begin(), rows.end(), 0);
  first_rows_ = cx.copy_of(rows.data(), kMostOutRows * 4);
}

Step SiteModel::out_rows_of(Ctx& cx, const Step& step, const Tensor& x, const Tensor& d,
                            const Tensor& room) {
  const auto rows = static_cast<int32_t>(rows_behind_mixers(step.num_out, step.num_tokens));
  if (rows == step.num_tokens || step.all_rows || shows_all_rows(cx)) return step;
  const Tensor all[] = {x, d};
  ops::make_left_sum(cx);
  shape_acts(cx, rows, step.num_out);
  for (const Tensor& from : all) {
    const ops::RowPart wanted{.x = from, .rows = step.num_out > 0 ? step.out_rows : nullptr};
    ops::join_rows(cx, {.y = room}, {&wanted, 1}, {});
    const ops::RowPart back{.x = room};
    ops::join_rows(cx, {.y = make_tensor(from.as<float>(), DType::kF32, {rows, from.dim(1)})},
                   {&back, 1}, {});
  }
  Step few = step;
  few.num_tokens = rows;
  few.out_rows = reinterpret_cast<const int32_t*>(first_rows_.data());
  return few;
}

// ---- what heads draft from ----

void SiteModel::keep_rows(const std::vector<int32_t>& layers) {
  const auto is_kept = [&](const Act& act) {
    return std::ranges::any_of(kept_, [&](const auto& k) { return act.tensor == &k.second; });
  };
  std::erase_if(acts_, is_kept);
  kept_.clear();
  const Site& embed = sites_.front();
  for (const int32_t layer : layers)
    act(kept_[layer], "kept." + std::to_string(layer), DType::kF32, Count::kTokens, 1,
        embed.weight.cols);
}

const Tensor& SiteModel::buffer(const std::string& name) const {
  const auto at = std::ranges::find(acts_, name, &Act::name);
  CHECK(at != acts_.end());
  return *at->tensor;
}

// What the last norm makes of every row, where that is kept.
void SiteModel::keep_normed(Ctx& cx) {
  const auto kept = kept_.find(info_.num_layers);
  if (kept == kept_.end()) return;
  const Site& unembed = sites_.back();
  CHECK(unembed.key.op == Op::kNormUnembed);
  const ops::RowPart row{
      .x = buffer(unembed.reads[0]), .d = buffer(unembed.reads[1]), .norm = unembed.norm};
  ops::join_rows(cx, {.y = kept->second, .y_is_normed = true}, {&row, 1}, {});
  ++num_entered_;
}

std::vector<Tensor> SiteModel::kept_rows() const {
  std::vector<Tensor> rows;
  for (const auto& [layer, kept] : kept_) rows.push_back(kept);
  return rows;
}

const Tensor& SiteModel::entering(int32_t layer, const Tensor& shared) {
  const auto kept = kept_.find(layer);
  if (kept == kept_.end()) return shared;
  ++num_entered_;
  return kept->second;
}

}  // namespace nibble
