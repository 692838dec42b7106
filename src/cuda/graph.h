// Graph: a recorded sequence of kernels and copies, launched as one. Move-only owner.
#pragma once

#include <cstddef>
#include <functional>

#include "cuda/caps.h"

struct CUgraphExec_st;

namespace nibble::cuda {

class Graph {
 public:
  Graph() = default;
  // Records what `work` puts on `stream`; nothing of it runs. Throws std::runtime_error where the
  // work cannot be recorded (it waits, or allocates).
  Graph(StreamHandle stream, const std::function<void()>& work);
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  ~Graph();

  explicit operator bool() const { return exec_ != nullptr; }
  size_t num_nodes() const { return num_nodes_; }
  void launch(StreamHandle stream) const;

 private:
  CUgraphExec_st* exec_ = nullptr;
  size_t num_nodes_ = 0;
};

}  // namespace nibble::cuda
