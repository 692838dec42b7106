// The self check: each row that a plan chose is run once on a small problem on this very device and
// compared with its twin, before anything is served: GPUs have computed products of 4 bits wrongly
// without a word.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/ctx.h"
#include "ops/site.h"

namespace nibble::cli {

// What a row made of its problem: of the output that is furthest from the twin's.
struct CheckedRow {
  std::string row;      // "out_proj/cuda_w4a16_decode"; of experts "moe_up/... + moe_down/..."
  std::string weights;  // "mxfp4", or empty
  int64_t tokens = 0;   // of the step that it was run with
  int64_t launches = 0;
  std::string output = {};
  // As shares of the twin's root mean square: that of the differences, and the largest one.
  double rms = 0, worst = 0;
  double most_rms = 0, most_worst = 0;  // that rounding explains
  double milliseconds = 0;              // its first run, operands included
  double excess() const { return std::max(rms / most_rms, worst / most_worst); }
  bool passed() const { return excess() <= 1; }
};

class SelfCheck {
 public:
  // Rows are run on `cx`, with keys and values in `kv`; twins on the threads of its pool.
  SelfCheck(const ops::Ctx& cx, DType kv) : cx_(cx), kv_(kv) {}

  // Runs what `sites` chose and has not been run before.
  std::vector<CheckedRow> run(const ops::Sites& sites);

  // The same, not run: where the device is not here.
  std::vector<CheckedRow> list(const ops::Sites& sites);

  // Names of ops that it knows no problem for, of all that it was given.
  const std::set<std::string>& unchecked() const { return unchecked_; }

  struct Case;

 private:
  std::vector<Case> cases_of(const ops::Sites& sites);

  ops::Ctx cx_;
  DType kv_;
  std::vector<std::pair<std::string, ops::Problem>> done_;  // rows, and what they were run on
  std::set<std::string> unchecked_;
};

// Throws Error(kUnsupported) that names the rows that did not pass, and by how much.
void require_passed(const std::vector<CheckedRow>& rows, const std::string& device);

}  // namespace nibble::cli
