#include "engine/ngram_drafter.h"

#include <algorithm>
#include <span>

namespace nibble {

void NgramDrafter::propose(const Sequence& sequence, int32_t k, std::vector<int32_t>& ids) {
  const std::span<const int32_t> tokens = sequence.tokens;
  const auto last = tokens.end() - 1;
  int64_t best_length = min_ - 1;
  auto best_end = last;
  for (auto at = std::find(tokens.begin(), last, *last); at != last;
       at = std::find(at + 1, last, *last)) {
    const auto most = std::min<int64_t>(max_, at - tokens.begin() + 1);
    if (most <= best_length) continue;
    int64_t length = 1;
    while (length < most && *(at - length) == *(last - length)) ++length;
    if (length <= best_length) continue;
    best_length = length;
    best_end = at;
    if (length == max_) break;
  }
  if (best_end == last) return;
  const auto n = std::min<int64_t>(k, last - best_end);
  ids.assign(best_end + 1, best_end + 1 + n);
}

}  // namespace nibble
