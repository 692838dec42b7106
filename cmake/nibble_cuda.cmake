# The CUDA backend (presets h200 and spark). Found: nvcc, from $CUDACXX, PATH, /usr/local/cuda or
# build/cuda, where tools/setup.sh puts it.
set(NIBBLE_CUDA_SM 0)  # what *.cu files are compiled for
if(NOT NIBBLE_CUDA)
  return()
endif()
find_program(NIBBLE_NVCC nvcc HINTS $ENV{CUDACXX} /usr/local/cuda/bin ${CMAKE_SOURCE_DIR}/build/cuda/bin)
if(NOT NIBBLE_NVCC)
  message(FATAL_ERROR "no nvcc: run tools/setup.sh cuda, or put the CUDA toolkit 13.0 or newer on PATH")
endif()
set(CMAKE_CUDA_COMPILER ${NIBBLE_NVCC})
set(CMAKE_CUDA_RUNTIME_LIBRARY $<IF:$<BOOL:${NIBBLE_EMULATED_CUDA}>,None,Static>)
enable_language(CUDA)
# The standard is the project's; CMake 3.25 does not know yet how nvcc is told.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
if(NIBBLE_CUBINS)  # nvcc's front end reads the host's code as well; GCC would take 40% of the time
  set(_CMAKE_CUDA_WHOLE_FLAG -fatbin)
endif()
string(REGEX MATCH "^[0-9]+" NIBBLE_CUDA_SM ${CMAKE_CUDA_ARCHITECTURES})

if(NIBBLE_EMULATED_CUDA)  # in the runtime's place: it reads the PTX of fat binaries
  string(APPEND CMAKE_CUDA_FLAGS " --no-compress")
  add_library(nibble_dep_cudart INTERFACE)
  target_link_libraries(nibble_dep_cudart INTERFACE nibble_emulated_cuda)
  target_include_directories(nibble_dep_cudart SYSTEM INTERFACE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  return()
endif()

# The runtime, linked statically: the program needs the driver alone.
list(TRANSFORM CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES REPLACE "include$" "lib" OUTPUT_VARIABLE cuda_libraries)
get_filename_component(nvcc_directory ${NIBBLE_NVCC} DIRECTORY)
find_library(NIBBLE_CUDART libcudart_static.a REQUIRED
             HINTS ${NIBBLE_CUDA_TARGET}/lib ${cuda_libraries} ${nvcc_directory}/../lib64
                   ${nvcc_directory}/../lib
             NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
add_library(nibble_dep_cudart INTERFACE)
target_link_libraries(nibble_dep_cudart INTERFACE ${NIBBLE_CUDART} dl rt)
if(NOT NIBBLE_CUDA_HEADERS)  # set where nvcc names a folder for the target that is not there
  set(NIBBLE_CUDA_HEADERS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
endif()
target_include_directories(nibble_dep_cudart SYSTEM INTERFACE ${NIBBLE_CUDA_HEADERS})
