# What `make install` puts under PREFIX (or DESTDIR/PREFIX): the program, the small models, the first
# of which it finds there, a systemd unit that names the program where it is, and what a reader needs.
set(doc share/doc/nibble)
install(TARGETS nibble RUNTIME DESTINATION bin)
install(DIRECTORY models/nibble-tiny-gpt-oss models/nibble-tiny-qwen3-next
        DESTINATION share/nibble/models)
install(FILES README.md packaging/copyright packaging/nibble.env DESTINATION ${doc})
install(FILES packaging/nibble.sysusers DESTINATION lib/sysusers.d RENAME nibble.conf)
# The prefix is known only when it installs.
install(CODE "
  set(bindir \"\${CMAKE_INSTALL_PREFIX}/bin\")
  configure_file(\"${CMAKE_SOURCE_DIR}/packaging/nibble.service.in\"
                 \"${CMAKE_BINARY_DIR}/nibble.service\" @ONLY)")
install(FILES ${CMAKE_BINARY_DIR}/nibble.service DESTINATION lib/systemd/system)
