// WholeLogits: of a model whose vocabulary is cut over several GPUs, room on each for the logits of
// all of them, side by side: where they reach each other's memory a rank keeps its own there, for
// others to read; elsewhere all are gathered.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/ctx.h"
#include "tensor/buffer.h"

namespace nibble::ops {

struct VocabCut {
  int64_t vocab = 0;            // V
  int64_t begin = 0, size = 0;  // the rank's columns
};

class WholeLogits {
 public:
  // Of up to max_rows rows; on all ranks of cx.comm at once. Throws Error(kUnsupported) on all
  // where a rank has no such room, or it cannot be shared, with that rank's reason.
  WholeLogits(Ctx& cx, const VocabCut& cut, int64_t max_rows);
  static int64_t bytes(int64_t vocab, int64_t max_rows);

  // Whether a rank finds the others' columns where they are.
  bool are_apart() const { return !of_ranks_.empty(); }
  // Where it does not. mine [R, n] f32, this rank's columns. Returns [R, V], the same bits on each
  // rank: so each finds the same ids in them, and no id is to be sent.
  Tensor gather(Ctx& cx, const Tensor& mine);
  // Where it does: puts them where read() finds them; waits for nobody.
  void keep(Ctx& cx, const Tensor& mine);
  // Copies a row [V] of the last step to page-locked memory: behind an exchange of that step, which
  // says that all ranks have theirs, and before the next one.
  void read(Ctx& cx, int64_t row, std::span<float> to) const;

 private:
  VocabCut cut_;
  Buffer mine_;                   // float [max_rows, V]
  std::vector<Buffer> of_ranks_;  // mine_ of each, where the GPUs reach each other's memory
  std::vector<VocabCut> cuts_;
};

namespace gpu {
// mine [R, n] to the columns from cut.begin on of room [R, V].
void place_columns(Ctx& cx, float* room, const Tensor& mine, const VocabCut& cut);
// The same with zeros in all others.
void place_among_zeros(Ctx& cx, float* room, const Tensor& mine, const VocabCut& cut);
}  // namespace gpu
}  // namespace nibble::ops
