# The chat page is built into the program: the files of src/server/ui and the libraries that
# tools/setup.sh unpacks into build/page, each compressed, as arrays of one generated source.
set(NIBBLE_PAGE_LIBRARIES ${CMAKE_SOURCE_DIR}/build/page)
if(NOT EXISTS ${NIBBLE_PAGE_LIBRARIES}/math.woff)
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/tools/setup.sh page)
endif()
if(NOT EXISTS ${NIBBLE_PAGE_LIBRARIES}/math.woff)
  message(FATAL_ERROR "no libraries of the chat page in build/page: run tools/setup.sh")
endif()
find_program(NIBBLE_GZIP gzip REQUIRED)
file(GLOB page_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/server/ui/*
                                       ${NIBBLE_PAGE_LIBRARIES}/*)
set(page_script ${CMAKE_CURRENT_LIST_DIR}/nibble_page_data.cmake)
set(page_source ${CMAKE_BINARY_DIR}/chat_page_data.cc)
add_custom_command(OUTPUT ${page_source} DEPENDS ${page_files} ${page_script} VERBATIM
                   COMMAND ${CMAKE_COMMAND} -D "FILES=${page_files}" -D GZIP=${NIBBLE_GZIP}
                           -D OUTPUT=${page_source} -P ${page_script})
target_sources(nibble_server PRIVATE ${page_source})
