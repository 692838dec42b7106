// WholeLogits: of a model whose vocabulary is cut over several GPUs, room on each for the logits of
// all of them, side by side.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/all_reduce/one_shot.h"
#include "ops/ctx.h"
#include "tensor/buffer.h"

namespace nibble::ops {

struct VocabCut {
  int64_t vocab = 0;            // V
  int64_t begin = 0, size = 0;  // the rank's columns
};

class WholeLogits {
 public:
  // Of up to max_rows rows; on all ranks of cx.comm at once. Throws Error(kUnsupported) where a
  // rank's room cannot be shared.
  WholeLogits(Ctx& cx, const VocabCut& cut, int64_t max_rows);
  static int64_t bytes(int64_t vocab, int64_t max_rows);

  // Whether a rank finds the others' columns where they are: then a step need not gather() them.
  bool are_apart() const { return !of_ranks_.empty(); }
  // mine [R, n] f32, this rank's columns. Returns [R, V], the same bits on each rank: so each finds
  // the same ids in them, and no id is to be sent.
  Tensor gather(Ctx& cx, const Tensor& mine);
  // Puts them where read() finds them; waits for nobody.
  void keep(Ctx& cx, const Tensor& mine);
  // Copies a row [V] of the last step to page-locked memory: behind an exchange of that step, which
  // says that all ranks have theirs, and before the next one.
  void read(Ctx& cx, int64_t row, std::span<float> to) const;

 private:
  VocabCut cut_;
  Buffer mine_;                   // float [max_rows * V + 3]
  std::vector<Buffer> of_ranks_;  // mine_ of each, where the GPUs reach each other's memory
  std::vector<VocabCut> cuts_;
};

namespace gpu {
// Where a step's logits go: one address for each rank that gets them, of its room.
struct LogitRooms {
  float* of[PeerMemory::kMostRanks]{};
  int n = 0;
};
// mine [R, n] to the columns from cut.begin on of each.
void place_columns(Ctx& cx, const LogitRooms& rooms, const Tensor& mine, const VocabCut& cut);
// The same to `room`, among zeros: [R, V], and zeros up to a multiple of 4.
void place_among_zeros(Ctx& cx, float* room, const Tensor& mine, const VocabCut& cut);
// Behind it all ranks have what each wrote to another's memory before.
void meet(Ctx& cx);
}  // namespace gpu
}  // namespace nibble::ops
