#include "models/shard.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace nibble {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

[[noreturn]] void refuse(const Shard& shard, const std::string& what) {
  throw Error(ErrorKind::kUnsupported, "--tensor-parallel-size " + std::to_string(shard.size) +
                                           ": " + what +
                                           " are fewer than the ranks; say a smaller size");
}

}  // namespace

Cut cut_units(int64_t n, int64_t unit, const Shard& shard) {
  const int64_t units = ceil_div(n, unit), each = units / shard.size, more = units % shard.size;
  const auto first = [&](int64_t rank) {
    return std::min(n, unit * (rank * each + std::min(rank, more)));
  };
  return {n, first(shard.rank), first(shard.rank + 1) - first(shard.rank)};
}

Cut cut_columns(int64_t n, int64_t block, const Shard& shard) {
  constexpr int64_t kTile = 64;
  for (int64_t unit = std::max(block, kTile); unit >= block; unit /= 2)
    if (unit % block == 0 && ceil_div(n, unit) >= shard.size) return cut_units(n, unit, shard);
  refuse(shard, std::to_string(ceil_div(n, block)) + " blocks of " + std::to_string(block) +
                    " in a row of " + std::to_string(n));
}

Cut on_first(int64_t n, const Shard& shard) { return {n, 0, shard.rank == 0 ? n : 0}; }

HeadCuts cut_heads(int64_t q_heads, int64_t kv_heads, const Shard& shard) {
  const int64_t group = q_heads / kv_heads;
  if (shard.size <= kv_heads) {
    const Cut kv = cut_units(kv_heads, 1, shard);
    return {kv.times(group), kv};
  }
  const int64_t head = shard.rank * kv_heads / shard.size;
  const auto first = static_cast<int32_t>(ceil_div(head * shard.size, kv_heads));
  const auto next = static_cast<int32_t>(ceil_div((head + 1) * shard.size, kv_heads));
  if (group < next - first) refuse(shard, std::to_string(q_heads) + " query heads");
  const Cut q = cut_units(group, 1, {shard.rank - first, next - first});
  return {{q_heads, head * group + q.begin, q.size}, {kv_heads, head, 1}};
}

}  // namespace nibble
