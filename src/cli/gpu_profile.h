// GpuProfile: how long each op of one kind of step takes on the GPU, by events between them.
// Kernels do not overlap then as they do without: the sum is more than a step takes.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "cuda/stream.h"

namespace nibble::cli {

class GpuProfile {
 public:
  explicit GpuProfile(cuda::StreamHandle stream) : stream_(stream) {}

  // For Engine::set_on_op(): an event before each op, the last one named "end". Where a step is
  // recorded as a graph, the events fire whenever it runs.
  void mark(const char* name);
  // Of the step that ran last: adds to each op what it took.
  void add_step();

  struct Row {
    std::string op;
    int launches = 0;  // in a step
    double us = 0;     // of a step
  };
  std::vector<Row> rows() const;  // in order of first appearance

 private:
  struct Mark {
    std::string name;
    cuda::Event event{cuda::Event::Kind::kTiming};
  };
  cuda::StreamHandle stream_;
  std::deque<Mark> marks_;
  std::map<std::string, double> sums_;
  int num_steps_ = 0;
};

}  // namespace nibble::cli
