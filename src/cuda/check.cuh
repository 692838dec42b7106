// Errors of the CUDA runtime as exceptions.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace nibble::cuda {

// Throws std::runtime_error("<what>: <the runtime's text>").
inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error) + " (" +
                           cudaGetErrorName(error) + ")");
}

}  // namespace nibble::cuda
