# Toolchain of preset spark. Machines with a GB10 are arm64; on x86-64 this is a cross build for
# them: nvcc takes arm64's compiler for the host code, and programs link the CUDA runtime for arm64
# that `tools/setup.sh spark` unpacks into build/cuda-arm64.
cmake_host_system_information(RESULT host QUERY OS_PLATFORM)
if(host STREQUAL x86_64)
  include(${CMAKE_CURRENT_LIST_DIR}/arm64.cmake)
  set(CMAKE_CUDA_HOST_COMPILER aarch64-linux-gnu-g++)
  set(NIBBLE_CUDA_TARGET ${CMAKE_CURRENT_LIST_DIR}/../build/cuda-arm64)
  # nvcc looks for headers of a target that the toolkit of this machine does not have; they are the
  # same for all targets.
  find_path(NIBBLE_CUDA_HEADERS cuda_runtime.h NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH
            HINTS /usr/local/cuda/include ${CMAKE_CURRENT_LIST_DIR}/../build/cuda/include)
  set(CMAKE_CUDA_FLAGS "-I${NIBBLE_CUDA_HEADERS} -isystem ${NIBBLE_CUDA_HEADERS}/cccl -L${NIBBLE_CUDA_TARGET}/lib" CACHE STRING
                       "of every CUDA source")
endif()
