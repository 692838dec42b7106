#include "cli/gpu_profile.h"

#include <algorithm>

namespace nibble::cli {

void GpuProfile::mark(const char* name) {
  if (!marks_.empty() && marks_.back().name == "end") marks_.clear();  // another kind of step
  marks_.emplace_back();
  marks_.back().name = name;
  marks_.back().event.record(stream_);
}

void GpuProfile::add_step() {
  for (size_t i = 0; i + 1 < marks_.size(); ++i)
    sums_[marks_[i].name] += 1e3 * marks_[i + 1].event.ms_since(marks_[i].event);
  ++num_steps_;
}

std::vector<GpuProfile::Row> GpuProfile::rows() const {
  std::vector<Row> rows;
  for (const Mark& mark : marks_) {
    if (mark.name == "end") continue;
    auto row = std::ranges::find(rows, mark.name, &Row::op);
    if (row == rows.end()) row = rows.insert(row, {.op = mark.name});
    ++row->launches;
  }
  for (Row& row : rows) row.us = sums_.at(row.op) / num_steps_;
  return rows;
}

}  // namespace nibble::cli
