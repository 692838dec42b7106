# nibble_flags: what every translation unit of ours is compiled with.
add_library(nibble_flags INTERFACE)
# Designated initialisers leave fields to their defaults: that is what they are for.
set(warnings -Wall -Wextra -Werror -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees overlaps in std::string's own code that are not there (GCC bug 105651).
  list(APPEND warnings -Wno-restrict)
elseif(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # GCC 13 takes every reference that a function with a temporary argument returns for dangling.
  list(APPEND warnings -Wno-dangling-reference)
endif()
target_compile_options(nibble_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${warnings};-fno-math-errno;-ffp-contract=off>")
if(NIBBLE_CUDA)
  # Registers that spill cost more than any other mistake in a kernel: an error.
  target_compile_options(nibble_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Werror;-Xptxas=-warn-spills,-Werror>")
  # Programs are carried to the machine that has the GPU.
  target_link_options(nibble_flags INTERFACE -static-libstdc++ -static-libgcc)
endif()
if(NIBBLE_SANITIZE)
  target_compile_options(nibble_flags INTERFACE -fsanitize=${NIBBLE_SANITIZE} -fno-omit-frame-pointer
                                                -fno-sanitize-recover=all)
  target_link_options(nibble_flags INTERFACE -fsanitize=${NIBBLE_SANITIZE})
endif()
if(NIBBLE_FUZZ)
  # Without what watches every comparison of integers, a third to a half of a parser's time.
  target_compile_options(nibble_flags INTERFACE -fsanitize=fuzzer-no-link
                                                -fno-sanitize-coverage=trace-cmp)
  # clang 14 cannot instrument coroutines.
  set_source_files_properties(src/cli/load_client.cc src/cli/load_run.cc src/cli/web_client.cc
                              PROPERTIES COMPILE_OPTIONS "-fno-sanitize=all")
endif()
find_package(Threads REQUIRED)
target_link_libraries(nibble_flags INTERFACE Threads::Threads)

# Seconds until a test counts as hanging; under ThreadSanitizer it runs some thirty times as long.
set(NIBBLE_TEST_TIMEOUT 600)
if(NIBBLE_SANITIZE MATCHES thread)
  set(NIBBLE_TEST_TIMEOUT 7200)
endif()

# The tests and fuzz corpora of modules that read bytes from outside: what `make test-parsers` builds.
add_custom_target(nibble_parser_tests)
# What `make test-gpu` builds.
add_custom_target(nibble_gpu_tests)

# nibble_module(<name> [PARSER] [LINK modules...] [PRIVATE dependencies...] [EXCLUDE files...])
#   nibble_<name>            static library of src/<name>/**/*.cc, less the files below, main.cc and
#                            EXCLUDE; with NIBBLE_CUDA **/*.cu too (*_sm90.cu: for Hopper alone)
#   nibble_<name>_test       gtest program of src/<name>/**/*_test.cc: one CTest entry
#   nibble_<name>_gpu_test   with NIBBLE_CUDA, of *_gpu_test.cc and .cu: label gpu, needs the GPU to run
#   nibble_<name>_slow_test  the same of *_slow_test.cc, labelled slow
#   <file>_bench             Google Benchmark program of each *_bench.cc
#   <file>_fuzz              each *_fuzz.cc: a libFuzzer program (with NIBBLE_FUZZ), else a program
#                            that replays tests/fuzz/<file>/, a CTest entry
# PARSER: the module reads bytes from outside; its tests get the label parser.
function(nibble_module name)
  cmake_parse_arguments(ARG "PARSER" "" "LINK;PRIVATE;EXCLUDE" ${ARGN})
  set(dir ${CMAKE_SOURCE_DIR}/src/${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${dir}/*.cc)
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS ${dir}/*_test.cc)
  file(GLOB_RECURSE slow_tests CONFIGURE_DEPENDS ${dir}/*_slow_test.cc)
  file(GLOB_RECURSE gpu_tests CONFIGURE_DEPENDS ${dir}/*_gpu_test.cc ${dir}/*_gpu_test.cu)
  file(GLOB_RECURSE benches CONFIGURE_DEPENDS ${dir}/*_bench.cc)
  file(GLOB_RECURSE fuzzers CONFIGURE_DEPENDS ${dir}/*_fuzz.cc)
  list(REMOVE_ITEM sources ${tests} ${benches} ${fuzzers} ${dir}/main.cc)
  list(REMOVE_ITEM tests ${slow_tests} ${gpu_tests})
  list(TRANSFORM ARG_EXCLUDE PREPEND ${dir}/)
  list(REMOVE_ITEM sources ${ARG_EXCLUDE})
  if(NIBBLE_CUDA)
    file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${dir}/*.cu)
    if(NOT NIBBLE_CUDA_SM EQUAL 90)
      list(FILTER kernels EXCLUDE REGEX "_sm90\\.cu$")
    endif()
    list(REMOVE_ITEM kernels ${gpu_tests})
    list(APPEND sources ${kernels})
  endif()
  list(TRANSFORM ARG_LINK PREPEND nibble_)
  list(TRANSFORM ARG_PRIVATE PREPEND nibble_dep_)
  if(sources)
    add_library(nibble_${name} STATIC ${sources})
    target_include_directories(nibble_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(nibble_${name} PUBLIC ${ARG_LINK} PRIVATE nibble_flags ${ARG_PRIVATE})
  else()
    add_library(nibble_${name} INTERFACE)
    target_include_directories(nibble_${name} INTERFACE ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(nibble_${name} INTERFACE ${ARG_LINK})
  endif()

  set(labels unit)
  if(ARG_PARSER)
    list(APPEND labels parser)
  endif()
  if(NIBBLE_TESTS)
    nibble_program(nibble_${name}_test "${tests}" LINK ${name} gtest ${ARG_PRIVATE}
                   TEST ${name} LABELS ${labels})
    nibble_program(nibble_${name}_slow_test "${slow_tests}" LINK ${name} gtest ${ARG_PRIVATE}
                   TEST ${name}_slow LABELS slow)
    if(NIBBLE_CUDA)
      nibble_program(nibble_${name}_gpu_test "${gpu_tests}" LINK ${name} gtest ${ARG_PRIVATE}
                     TEST ${name}_gpu LABELS gpu)
      if(gpu_tests)
        add_dependencies(nibble_gpu_tests nibble_${name}_gpu_test)
      endif()
    endif()
    foreach(bench ${benches})
      get_filename_component(stem ${bench} NAME_WE)
      nibble_program(${stem} ${bench} LINK ${name} benchmark ${ARG_PRIVATE})
      set_target_properties(${stem} PROPERTIES EXCLUDE_FROM_ALL ON)
    endforeach()
  endif()
  foreach(fuzzer ${fuzzers})
    get_filename_component(stem ${fuzzer} NAME_WE)
    if(NIBBLE_FUZZ)
      nibble_program(${stem} ${fuzzer} LINK ${name} ${ARG_PRIVATE})
      target_link_options(${stem} PRIVATE -fsanitize=fuzzer)
    elseif(NIBBLE_TESTS)
      string(REGEX REPLACE "_fuzz$" "" corpus ${stem})
      nibble_program(${stem} "${fuzzer};${CMAKE_SOURCE_DIR}/tests/fuzz/replay_main.cc"
                     LINK ${name} ${ARG_PRIVATE} TEST ${stem} LABELS ${labels}
                     ARGS ${CMAKE_SOURCE_DIR}/tests/fuzz/${corpus})
    endif()
  endforeach()
endfunction()

# nibble_program(<target> <sources> LINK <module or dependency>... [TEST <name> LABELS l... ARGS a...])
# Nothing where there are no sources.
function(nibble_program target sources)
  cmake_parse_arguments(ARG "" "TEST" "LINK;LABELS;ARGS" ${ARGN})
  if(NOT sources)
    return()
  endif()
  add_executable(${target} ${sources})
  target_link_libraries(${target} PRIVATE nibble_flags)
  foreach(link ${ARG_LINK})
    string(REGEX REPLACE "^nibble_dep_" "" link ${link})
    if(TARGET nibble_dep_${link})
      target_link_libraries(${target} PRIVATE nibble_dep_${link})
    else()
      target_link_libraries(${target} PRIVATE nibble_${link})
    endif()
  endforeach()
  target_compile_definitions(${target} PRIVATE NIBBLE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  if(ARG_TEST)
    # What CI builds compiles in half of the time, and in three quarters, that optimizing it all the
    # way takes. Tests of texts, of the engine and of ranks compute little. Under ThreadSanitizer, and
    # emulated as arm64's, it is running them that is long.
    if(NIBBLE_PRESET MATCHES "^(cpu|asan)$")
      if(ARG_LINK MATCHES "nlohmann_json|engine|dist")
        target_compile_options(${target} PRIVATE -O0)
        if(ARG_LINK MATCHES gtest)  # where GCC optimizes it warns of what it precompiled
          target_precompile_headers(${target} PRIVATE <gmock/gmock.h>)
        endif()
      else()
        target_compile_options(${target} PRIVATE -O1)
      endif()
    endif()
    add_test(NAME ${ARG_TEST} COMMAND ${target} ${ARG_ARGS})
    set_tests_properties(${ARG_TEST} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${NIBBLE_TEST_TIMEOUT})
    if("parser" IN_LIST ARG_LABELS)
      add_dependencies(nibble_parser_tests ${target})
    endif()
  endif()
endfunction()
