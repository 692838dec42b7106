#include "cuda/graph.h"

#include <cuda_runtime.h>

#include <utility>

#include "cuda/check.cuh"

namespace nibble::cuda {

Graph::Graph(StreamHandle stream, const std::function<void()>& work) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "graph capture");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "graph capture");
  cudaGraphGetNodes(graph, nullptr, &num_nodes_);
  const cudaError_t error = cudaGraphInstantiate(&exec_, graph, 0);
  cudaGraphDestroy(graph);
  check(error, "cudaGraphInstantiate");
  // Its memory on the device is set up now, not at the first launch.
  check(cudaGraphUpload(exec_, stream), "cudaGraphUpload");
}

Graph::Graph(Graph&& other) noexcept
    : exec_(std::exchange(other.exec_, nullptr)), num_nodes_(other.num_nodes_) {}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(exec_, other.exec_);
  std::swap(num_nodes_, other.num_nodes_);
  return *this;
}

Graph::~Graph() {
  if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
}

void Graph::launch(StreamHandle stream) const {
  check(cudaGraphLaunch(exec_, stream), "cudaGraphLaunch");
}

}  // namespace nibble::cuda
