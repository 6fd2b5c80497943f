# Makes `find_package(pianola [COMPONENTS profile])` work after `cmake --install`: targets pianola::pianola and pianola::profile.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/pianola)
install(TARGETS pianola pianola_profile_library EXPORT pianolaTargets FILE_SET HEADERS)
install(EXPORT pianolaTargets NAMESPACE pianola:: DESTINATION ${package_dir})
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/pianolaConfig.cmake.in ${PROJECT_BINARY_DIR}/pianolaConfig.cmake
  INSTALL_DESTINATION ${package_dir})
# Until 1.0 a minor version may break: only the same one is compatible.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/pianolaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(
  FILES
    ${PROJECT_BINARY_DIR}/pianolaConfig.cmake
    ${PROJECT_BINARY_DIR}/pianolaConfigVersion.cmake
    ${PROJECT_SOURCE_DIR}/cmake/FindLibtorch.cmake
  DESTINATION ${package_dir})
