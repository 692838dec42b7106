// Tensor maps: what the copy engine needs to know of a matrix to fetch boxes of it (sm_90 on).
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "cuda/check.cuh"

namespace nibble::cuda {

struct BoxedMatrix {
  CUtensorMapDataType type;
  const void* data;  // 16-byte aligned
  uint64_t cols, rows;
  uint64_t pitch_bytes;  // from row to row; a multiple of 16
  uint32_t box_cols, box_rows;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
};

// What a box holds beyond the matrix is zero. Throws std::runtime_error.
inline CUtensorMap tensor_map(const BoxedMatrix& m) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                           cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
    if (found != cudaDriverEntryPointSuccess)
      throw std::runtime_error("the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<Encode>(entry);
  }();
  CUtensorMap map;
  const cuuint64_t dims[2] = {m.cols, m.rows}, pitch[1] = {m.pitch_bytes};
  const cuuint32_t box[2] = {m.box_cols, m.box_rows}, ones[2] = {1, 1};
  const CUresult result =
      encode(&map, m.type, 2, const_cast<void*>(m.data), dims, pitch, box, ones,
             CU_TENSOR_MAP_INTERLEAVE_NONE, m.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw std::runtime_error("cuTensorMapEncodeTiled: error " + std::to_string(result));
  return map;
}

}  // namespace nibble::cuda
