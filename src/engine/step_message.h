// StepMessage: what rank 0 tells the others of a step: the arrays of a Step, and what has changed
// in page tables and pages since the step before. A follower that has done all of it in order has
// the sequence state of rank 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "models/model.h"
#include "ops/sample/draw.h"
#include "ops/step.h"

namespace nibble {

// Page `from` to page `to` of a tensor, numbered in the order in which the cache took them.
struct PageCopy {
  int32_t tensor, from, to;
  bool operator==(const PageCopy&) const = default;
};
// An entry of a page table, numbered likewise.
struct TableChange {
  int32_t table, value;
  int64_t index;
  bool operator==(const TableChange&) const = default;
};

struct StepMessage {
  bool ends = false;      // no step: rank 0 is through
  bool compares = false;  // the step ends with a comparison of what all ranks have alike
  bool is_fed = false;    // its tokens are the ids that the step before it found; GPUs only
  Step step;              // views
  std::span<const ops::Draw> draws;  // of each of its rows; GPUs only: none where no row draws
  std::span<const PageCopy> copies;
  std::span<const TableChange> changes;
};

// What a message may hold. Throws Error(kUnsupported) where it holds anything else.
struct StepBounds {
  StepLimits limits;
  int32_t max_seqs = 0, max_len = 0, vocab_size = 0;
  bool may_be_fed = false;       // on GPUs
  std::vector<int64_t> pages;    // of each tensor
  std::vector<int64_t> entries;  // of each table
  std::vector<int32_t> values;   // below which those of each table are
  int64_t written = -1;          // the table of the slots that steps write states to; -1: none
  int64_t most_bytes() const;    // of a message; changes of all entries, and as many copies
};

void write_message(const StepMessage& message, std::vector<std::byte>& to);
// Views into `bytes`, which are aligned as ints are.
StepMessage read_message(std::span<const std::byte> bytes, const StepBounds& bounds);

}  // namespace nibble
