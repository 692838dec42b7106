# The CUDA backend (presets h200 and spark). Found: nvcc, from $CUDACXX, PATH, /usr/local/cuda or
# build/cuda, where tools/setup.sh puts it. A build that would hold no GPU kernel stops here: a
# binary of preset h200 or spark that ran on the CPU would be a silent slow path.
if(NOT NIBBLE_CUDA)
  return()
endif()
file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*.cu)
if(NOT cuda_sources)
  message(FATAL_ERROR
    "nibble has no GPU kernels yet: this tree holds no .cu file, so preset '${NIBBLE_PRESET}' "
    "(sm_${CMAKE_CUDA_ARCHITECTURES}) has nothing to build. To run on this machine's CPU, and "
    "knowingly so:\n  make serve PRESET=cpu ARGS='--device cpu'\n")
endif()
find_program(NIBBLE_NVCC nvcc HINTS $ENV{CUDACXX} /usr/local/cuda/bin ${CMAKE_SOURCE_DIR}/build/cuda/bin)
if(NOT NIBBLE_NVCC)
  message(FATAL_ERROR "no nvcc: run tools/setup.sh cuda, or put the CUDA toolkit 13.0 or newer on PATH")
endif()
set(CMAKE_CUDA_COMPILER ${NIBBLE_NVCC})
enable_language(CUDA)
