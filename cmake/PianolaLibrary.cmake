# pianola_library(<target> [LIBRARY <name>] HEADER <umbrella> LINKS <library> ...): the shared library of the objects of the rooms that
# go into it. What is not marked PIANOLA_API stays inside by compiler visibility. There is no linker version script: it would also
# cut off the inline variables that torch's libraries and ours have to share.
function(pianola_library target)
  cmake_parse_arguments(PARSE_ARGV 1 library "" "LIBRARY;HEADER" "LINKS")
  get_property(rooms GLOBAL PROPERTY PIANOLA_ROOMS_${library_LIBRARY})
  add_library(${target} SHARED)
  foreach(room IN LISTS rooms)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${room}>)
    get_target_property(headers ${room} HEADER_SET)
    list(APPEND public_headers ${headers})
  endforeach()
  target_sources(${target}
    PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${PROJECT_SOURCE_DIR}/${library_HEADER} ${public_headers})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_definitions(${target} PUBLIC PIANOLA_WITH_CUDA=${PIANOLA_WITH_CUDA})
  target_link_libraries(${target} ${library_LINKS})
  target_link_options(${target} PRIVATE LINKER:--no-undefined)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${PIANOLA_INSTALL_RPATH}")
  if(NOT PIANOLA_WHEEL)  # a wheel knows no links: it would hold the library three times
    set_target_properties(${target} PROPERTIES
      VERSION ${PROJECT_VERSION}
      SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  endif()
endfunction()

# libpianola.so: what graphs, audits and verifies.
pianola_library(pianola HEADER pianola/pianola.hpp LINKS
  PUBLIC libtorch::torch $<$<BOOL:${PIANOLA_WITH_CUDA}>:libtorch::cuda> $<BUILD_INTERFACE:pianola_build>
  PRIVATE pianola_fmt Threads::Threads ${CMAKE_DL_LIBS} ${PIANOLA_YAML})
add_library(pianola::pianola ALIAS pianola)

# libpianola_profile.so: what profiles, which a program that trains does without.
pianola_library(pianola_profile_library LIBRARY profile HEADER pianola/profile.hpp LINKS
  PUBLIC pianola PRIVATE pianola_fmt Threads::Threads ${PIANOLA_ZLIB})
set_target_properties(pianola_profile_library PROPERTIES OUTPUT_NAME pianola_profile EXPORT_NAME profile)
add_library(pianola::profile ALIAS pianola_profile_library)
