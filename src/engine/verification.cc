#include "engine/verification.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace nibble {
namespace {

// p / q of draft i, which is finite. A draft cannot have been drawn where q is 0, but for what it
// was drawn with, a GPU's sums, being rounded otherwise.
double ratio(const DrawnDrafts& g, size_t i) {
  const double p = g.p[i][g.ids[i]];
  return p / std::max(g.q[i][g.ids[i]], std::numeric_limits<double>::min());
}

// How much of p[n] the rule gives to what comes behind n drafts, in the sense of
// next_distribution: 1 by the standard rule; by the block rule the product of all ratios so far,
// each cut off at 1.
double weight(VerificationRule rule, const DrawnDrafts& g, size_t n) {
  double c = 1;
  for (size_t i = 0; rule == VerificationRule::kBlock && i < n; ++i) {
    c = std::min(1.0, c * ratio(g, i));
  }
  return c;
}

// max(c p - q, 0), not yet normalised.
Distribution residual(double c, const Distribution& p, const Distribution& q) {
  Distribution rest(p.size());
  for (size_t v = 0; v < p.size(); ++v) rest[v] = std::max(c * p[v] - q[v], 0.0);
  return rest;
}

double sum_of(const Distribution& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

// The block rule's chance that n drafts are kept, if no more are.
double block_chance(const DrawnDrafts& g, size_t n) {
  const double c = weight(VerificationRule::kBlock, g, n);
  if (n == g.q.size()) return c;
  const double rest = sum_of(residual(c, g.p[n], g.q[n]));
  return rest + 1 - c > 0 ? rest / (rest + 1 - c) : 1;
}

int32_t draw(const Distribution& weights, double u) {
  const double target = u * sum_of(weights);
  double sum = 0;
  int32_t id = -1;
  for (size_t v = 0; v < weights.size(); ++v) {
    if (weights[v] == 0) continue;
    id = static_cast<int32_t>(v);  // the last one where rounding leaves the sum below the target
    sum += weights[v];
    if (sum > target) break;
  }
  CHECK(id >= 0);
  return id;
}

}  // namespace

std::vector<double> kept_probabilities(VerificationRule rule, const DrawnDrafts& g) {
  const size_t k = g.q.size();
  CHECK(g.ids.size() == k && (g.p.size() == k + 1 || g.p.size() == k));
  std::vector<double> kept(k + 1);
  double left = 1;
  if (rule == VerificationRule::kStandard) {
    for (size_t n = 0; n < k; ++n) {
      const double accept = std::min(1.0, ratio(g, n));
      kept[n] = left * (1 - accept);
      left *= accept;
    }
    kept[k] = left;
  } else {
    for (size_t n = k; n > 0; --n) {  // the most that its chance allows
      const double chance = block_chance(g, n);
      kept[n] = left * chance;
      left *= 1 - chance;
    }
    kept[0] = left;
  }
  return kept;
}

Distribution next_distribution(VerificationRule rule, const DrawnDrafts& g, int32_t n) {
  if (n == std::ssize(g.q)) return g.p[n];
  Distribution rest = residual(weight(rule, g, n), g.p[n], g.q[n]);
  const double sum = sum_of(rest);
  if (sum == 0) return g.p[n];  // p = q: this has no probability
  for (double& value : rest) value /= sum;
  return rest;
}

Verified verify(VerificationRule rule, const DrawnDrafts& g, double u_kept, double u_next) {
  const int32_t n = draw(kept_probabilities(rule, g), u_kept);
  if (n == std::ssize(g.p)) return {.num_kept = n, .next = -1};
  return {.num_kept = n, .next = draw(next_distribution(rule, g, n), u_next)};
}

}  // namespace nibble
