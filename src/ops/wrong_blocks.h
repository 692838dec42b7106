// For tests of products: what bounds per element cannot see where they are wide, a block of columns
// that is wrong.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>

namespace nibble::ops {

// Sums over `cols` columns of which a block of 32 is missing, doubled or another's are off by
// sqrt(32 / cols) of themselves or more, root mean square. A quarter of that must not be reached by
// all results together, nor by those of a token or of 16 rows of the weight.
class WrongBlocks {
 public:
  explicit WrongBlocks(int64_t cols)
      : bound_(0.25 * std::sqrt(32.0 / static_cast<double>(std::max<int64_t>(cols, 32)))) {}

  void add(int64_t token, int64_t row, double got, double want) {
    for (Part* part : {&all_, &tokens_[token], &row_tiles_[row / 16]})
      part->off += (got - want) * (got - want), part->all += want * want, ++part->count;
  }
  // The largest share of the bound that is reached: less than 1 where no block is wrong.
  double worst() const {
    double most = share(all_);
    for (const auto* parts : {&tokens_, &row_tiles_})
      for (const auto& [at, part] : *parts)
        if (part.count >= kFewest) most = std::max(most, share(part));
    return most;
  }

 private:
  static constexpr int64_t kFewest = 32;  // of fewer, all might be right by chance, or small
  struct Part {
    double off = 0, all = 0;
    int64_t count = 0;
  };
  double share(const Part& p) const { return p.all > 0 ? std::sqrt(p.off / p.all) / bound_ : 0; }

  double bound_;
  Part all_;
  std::map<int64_t, Part> tokens_, row_tiles_;
};

}  // namespace nibble::ops
