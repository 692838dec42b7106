# Run at every build: writes FILE with the commit that the tree is at, if that changed.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
set(text "#define NIBBLE_COMMIT \"${commit}\"\n")
if(EXISTS ${FILE})
  file(READ ${FILE} old)
endif()
if(NOT text STREQUAL old)
  file(WRITE ${FILE} "${text}")
endif()
