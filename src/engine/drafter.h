// Drafter: drafts how a sequence goes on, so that one step can verify several tokens. A draft
// costs time where it is wrong, and never changes what is said.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/sequence.h"
#include "engine/speculation_options.h"

namespace nibble {

class Drafter {
 public:
  virtual ~Drafter() = default;
  // Up to `k` ids that may follow sequence.tokens, into the empty `ids`; none where nothing is
  // known. On the engine's thread, between steps.
  virtual void propose(const Sequence& sequence, int32_t k, std::vector<int32_t>& ids) = 0;
  // The sequence has ended by itself: others may go on like it.
  virtual void has_ended(const Sequence& /*sequence*/) {}
  // Of memory that it keeps of a sequence of up to `tokens`; thread-safe.
  virtual int64_t bytes_for(int32_t /*tokens*/) const { return 0; }
};

std::shared_ptr<Drafter> make_drafter(const SpeculationOptions& options);

}  // namespace nibble
