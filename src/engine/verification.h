// The rules by which drafts that were themselves drawn at random are kept, so that what is said is
// distributed as if the model had drawn it alone: for drafters that know how likely they held each
// of their drafts. (Drafts without that are verified by speculation.h's rule, which is both of
// these where q is certain.)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

using Distribution = std::vector<double>;  // [V], of sum 1

enum class VerificationRule : uint8_t {
  kStandard,  // one draft after the other (Leviathan et al., arXiv:2211.17192)
  kBlock      // all together: keeps at least as many (Sun et al., arXiv:2403.10444)
};

// K drafts of one sequence: draft i was drawn from q[i], where the model draws from p[i]; p[K] is
// what comes behind all of them. All after temperature, masks and whatever else is asked for.
struct DrawnDrafts {
  std::span<const Distribution> p;  // [K + 1]; [K] where what comes behind all is drawn elsewhere
  std::span<const Distribution> q;  // [K]
  std::span<const int32_t> ids;     // [K]
};

// Of each n in [0, K]: how likely it is that exactly the first n drafts are kept.
std::vector<double> kept_probabilities(VerificationRule rule, const DrawnDrafts& drafts);
// The distribution of the id behind n drafts that were kept.
Distribution next_distribution(VerificationRule rule, const DrawnDrafts& drafts, int32_t n);

struct Verified {
  int32_t num_kept;
  int32_t next;  // the id behind them; -1: it is drawn elsewhere
};
// With two numbers drawn from [0, 1).
Verified verify(VerificationRule rule, const DrawnDrafts& drafts, double u_kept, double u_next);

}  // namespace nibble
