# cmake --install: the daemons, the command, libbandoneon, and what find_package and pkg-config read. The tree
# that it makes can be moved.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(programs bandoneon_cli bandoneon-scheduler bandoneon-server bandoneon-worker bandoneon-bench-codecs bandoneon-bench-roof)
set_target_properties(${programs} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
install(TARGETS ${programs} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS bandoneon EXPORT bandoneonTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/bandoneon)
install(EXPORT bandoneonTargets NAMESPACE bandoneon:: DESTINATION ${package_dir})
configure_package_config_file(cmake/bandoneonConfig.cmake.in ${CMAKE_BINARY_DIR}/bandoneonConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/bandoneonConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/bandoneonConfig.cmake ${CMAKE_BINARY_DIR}/bandoneonConfigVersion.cmake
  DESTINATION ${package_dir})
configure_file(cmake/bandoneon.pc.in ${CMAKE_BINARY_DIR}/bandoneon.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/bandoneon.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
