# Third-party libraries, from the distribution's packages (tools/setup.sh), linked statically or header-only.
function(nibble_header_dep name header)
  find_path(NIBBLE_${name}_INCLUDE ${header} REQUIRED)
  add_library(nibble_dep_${name} INTERFACE)
  target_include_directories(nibble_dep_${name} SYSTEM INTERFACE ${NIBBLE_${name}_INCLUDE})
endfunction()

function(nibble_static_dep name header library)
  nibble_header_dep(${name} ${header})
  find_library(NIBBLE_${name}_LIBRARY lib${library}.a REQUIRED)
  target_link_libraries(nibble_dep_${name} INTERFACE ${NIBBLE_${name}_LIBRARY})
endfunction()

nibble_header_dep(nlohmann_json nlohmann/json.hpp)
nibble_header_dep(cli11 CLI/CLI.hpp)
nibble_header_dep(boost boost/beast.hpp)
target_compile_definitions(nibble_dep_boost INTERFACE BOOST_ASIO_NO_DEPRECATED)
# Boost 1.74 does not know the coroutines of clang 14, which builds the fuzz targets.
target_compile_definitions(nibble_dep_boost INTERFACE
  $<$<CXX_COMPILER_ID:Clang>:BOOST_ASIO_HAS_CO_AWAIT>
  $<$<CXX_COMPILER_ID:Clang>:BOOST_ASIO_HAS_STD_COROUTINE>)
if(NIBBLE_SANITIZE MATCHES thread)  # it does not know fences; Asio's queues have mutexes besides
  target_compile_definitions(nibble_dep_boost INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
endif()
# When instrumented: of boost::optional, and, at -O1, of a coroutine's frame, whose operators are pairs.
if(NIBBLE_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(nibble_dep_boost INTERFACE -Wno-maybe-uninitialized
                                                    -Wno-mismatched-new-delete)
endif()
nibble_header_dep(spdlog spdlog/spdlog.h)
target_compile_definitions(nibble_dep_spdlog INTERFACE SPDLOG_HEADER_ONLY SPDLOG_FMT_EXTERNAL
                                                       FMT_HEADER_ONLY)
nibble_static_dep(pcre2 pcre2.h pcre2-8)
target_compile_definitions(nibble_dep_pcre2 INTERFACE PCRE2_CODE_UNIT_WIDTH=8)
nibble_static_dep(utf8proc utf8proc.h utf8proc)
target_compile_definitions(nibble_dep_utf8proc INTERFACE UTF8PROC_STATIC)
# libedit's own needs come after it in the link.
nibble_static_dep(libedit histedit.h edit)
foreach(library tinfo bsd md)
  find_library(NIBBLE_${library}_LIBRARY lib${library}.a REQUIRED)
  target_link_libraries(nibble_dep_libedit INTERFACE ${NIBBLE_${library}_LIBRARY})
endforeach()

if(NIBBLE_TESTS)
  find_package(GTest REQUIRED)
  add_library(nibble_dep_gtest INTERFACE)
  target_link_libraries(nibble_dep_gtest INTERFACE GTest::gtest_main GTest::gmock)
  find_package(benchmark REQUIRED)
  add_library(nibble_dep_benchmark INTERFACE)
  target_link_libraries(nibble_dep_benchmark INTERFACE benchmark::benchmark_main)
endif()
nibble_static_dep(openssl openssl/ssl.h ssl)
find_library(NIBBLE_crypto_LIBRARY libcrypto.a REQUIRED)
target_link_libraries(nibble_dep_openssl INTERFACE ${NIBBLE_crypto_LIBRARY} ${CMAKE_DL_LIBS})

# xgrammar: from the source that tools/setup.sh unpacks, without its Python bindings. What it has to
# say goes to src/text/grammar, which defines the functions that LOG_CUSTOMIZE leaves open.
set(NIBBLE_XGRAMMAR ${CMAKE_SOURCE_DIR}/build/xgrammar)
if(NOT EXISTS ${NIBBLE_XGRAMMAR}/include/xgrammar/xgrammar.h)
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/tools/setup.sh xgrammar)
endif()
if(NOT EXISTS ${NIBBLE_XGRAMMAR}/include/xgrammar/xgrammar.h)
  message(FATAL_ERROR "no xgrammar in build/xgrammar: run tools/setup.sh")
endif()
file(GLOB_RECURSE xgrammar_sources ${NIBBLE_XGRAMMAR}/cpp/*.cc)
list(FILTER xgrammar_sources EXCLUDE REGEX "/tvm_ffi/")
add_library(nibble_dep_xgrammar STATIC EXCLUDE_FROM_ALL ${xgrammar_sources})
target_link_libraries(nibble_dep_xgrammar PRIVATE nibble_flags)
if(CMAKE_CXX_COMPILER_ID STREQUAL Clang)  # as C++20 it takes no variant of incomplete types
  set_target_properties(nibble_dep_xgrammar PROPERTIES CXX_STANDARD 17)
endif()
target_compile_options(nibble_dep_xgrammar PRIVATE -w $<IF:$<CONFIG:Release>,-O2,-g0>)
target_compile_definitions(nibble_dep_xgrammar PRIVATE XGRAMMAR_LOG_CUSTOMIZE=1
                           XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
target_include_directories(nibble_dep_xgrammar SYSTEM
                           PUBLIC ${NIBBLE_XGRAMMAR}/include ${NIBBLE_XGRAMMAR}/3rdparty/dlpack/include
                           PRIVATE ${NIBBLE_XGRAMMAR}/3rdparty/picojson)

# The Jinja engine of llama.cpp: from the source that tools/setup.sh unpacks and patches. What it asks
# before it goes on (cmake/jinja.patch) is in src/text/chat/template_bounds.h; how it prints numbers, in
# template_texts.h.
set(NIBBLE_JINJA ${CMAKE_SOURCE_DIR}/build/jinja)
if(NOT EXISTS ${NIBBLE_JINJA}/common/jinja/runtime.h)
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/tools/setup.sh jinja)
endif()
if(NOT EXISTS ${NIBBLE_JINJA}/common/jinja/runtime.h)
  message(FATAL_ERROR "no template engine in build/jinja: run tools/setup.sh")
endif()
set(jinja_sources lexer parser runtime string value)
list(TRANSFORM jinja_sources REPLACE "(.+)" ${NIBBLE_JINJA}/common/jinja/\\1.cpp)
add_library(nibble_dep_jinja STATIC EXCLUDE_FROM_ALL ${jinja_sources}
                                                     ${NIBBLE_JINJA}/common/unicode.cpp)
target_link_libraries(nibble_dep_jinja PRIVATE nibble_flags)
# What a template negates wraps; what it asserts of a template it then checks, or cannot be.
target_compile_options(nibble_dep_jinja PRIVATE -w -fwrapv -DNDEBUG
                                                $<IF:$<CONFIG:Release>,-O2,-g0>)
target_include_directories(nibble_dep_jinja PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_include_directories(nibble_dep_jinja SYSTEM PUBLIC ${NIBBLE_JINJA}/common)
