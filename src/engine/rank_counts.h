// What of logits goes from rank to rank.
#pragma once

#include <cstdint>

namespace nibble {

struct RankCounts {
  int64_t rows = 0;        // of which ids were sampled, or prompts scored
  int64_t whole_rows = 0;  // of them, those that had to be gathered
  int64_t bytes = 0;       // that rank 0 sent and received for all of them
};

}  // namespace nibble
