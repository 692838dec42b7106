# Writes OUTPUT, the C++ source with the chat page's FILES. All but the page itself, which is small
# and which people look at with curl, are compressed with GZIP.
set(type_html "text/html; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_txt "text/plain; charset=utf-8")
set(type_svg image/svg+xml)
set(arrays "")
set(rows "")
set(packed ${OUTPUT}.gz)
foreach(path ${FILES})
  get_filename_component(name ${path} NAME)
  string(REGEX REPLACE ".*\\." "" extension ${name})
  if(NOT type_${extension})
    message(FATAL_ERROR "${path}: the chat page has no such files")
  endif()
  set(url "/ui/${name}")
  set(encoding gzip)
  execute_process(COMMAND ${GZIP} -9nc ${path} OUTPUT_FILE ${packed} COMMAND_ERROR_IS_FATAL ANY)
  if(name STREQUAL "index.html")
    set(url "/")
    set(encoding "")
    configure_file(${path} ${packed} COPYONLY)
  endif()
  file(SHA256 ${path} hash)
  string(SUBSTRING ${hash} 0 16 hash)
  file(READ ${packed} bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(MAKE_C_IDENTIFIER ${name} id)
  string(APPEND arrays "constexpr unsigned char ${id}[] = {${bytes}};\n")
  string(APPEND rows
         "    {\"${url}\", \"${type_${extension}}\", \"\\\"${hash}\\\"\", \"${encoding}\", ${id}, sizeof ${id}},\n")
endforeach()
file(REMOVE ${packed})
file(WRITE ${OUTPUT}
     "// Made by CMake from src/server/ui and build/page.\n#include \"server/chat_page.h\"\n\n"
     "namespace nibble::server {\nnamespace {\n\n${arrays}\n"
     "constexpr PageFile kFiles[] = {\n${rows}};\n\n}  // namespace\n\n"
     "const std::span<const PageFile> kPageFiles = kFiles;\n\n}  // namespace nibble::server\n")
