// How many drafts a step should verify: as many as give the most tokens a second, by what steps of
// so many tokens have taken and how often drafts come true. None is an answer like any other.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/sequence.h"
#include "engine/speculation_counts.h"

namespace nibble {

// What steps that only decode take, by how many tokens they hold: a share by their size, times what
// makes all of them slow or fast (how long the texts are, what else the machine does).
class StepTimes {
 public:
  void add(int32_t tokens, double seconds);
  // Of steps of `first` tokens, one more, and so on. Between sizes that were seen by a straight
  // line; larger ones are hoped to take no more than the largest seen, and those not seen for long
  // less and less, so that they are tried: the sooner, the fewer times they were seen. 0: none is
  // known.
  void of(int32_t first, std::span<double> seconds) const;

 private:
  struct Seen {
    int64_t times = 0;
    double share = 0;  // of pace_
    int64_t at = 0;    // num_steps_
  };
  double hoped(const Seen& seen) const;

  std::map<int32_t, Seen> seen_;
  double pace_ = 1;
  int64_t num_steps_ = 0;
};

// What it takes to make drafts, by how many the longest chain has. Those not seen yet are hoped to
// take what the next shorter does, each.
class DraftTimes {
 public:
  void add(int32_t length, double seconds);
  double of(int32_t length) const;  // 0 of none, and where none is known

 private:
  struct Seen {
    int64_t times = 0;
    double seconds = 0;
  };
  std::array<Seen, kMaxDrafts + 1> seen_ = {};
};

class DraftLengths {
 public:
  // Sets num_wanted of each of the sequences, which take a token each and may go by their
  // drafts; no more than max_drafts in all.
  void choose(std::span<Sequence* const> sequences, int32_t max_drafts, const StepTimes& times,
              const DraftTimes& draft_times);

 private:
  struct Gain {
    double tokens;  // that the draft adds, if it is verified
    int32_t sequence, place;
  };
  std::vector<Gain> gains_;
  std::vector<double> seconds_;  // of steps with 0, 1, ... of them
};

}  // namespace nibble
