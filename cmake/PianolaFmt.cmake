# pianola_fmt: fmt, compiled once and linked into what uses it. Where its headers are all there is, each file compiles it anew,
# which takes up to three seconds of each. Not the system's libfmt.so, which would have to be there where Pianola is used.
#
# There may be two: torch brings headers of fmt with it, which what includes torch finds first. Their names differ by version.
set(versions ${fmt_VERSION})
set(torch_fmt "")
foreach(header base.h core.h)  # as of version 11, and before
  if(EXISTS ${Libtorch_ROOT}/include/fmt/${header} AND NOT torch_fmt)
    file(STRINGS ${Libtorch_ROOT}/include/fmt/${header} torch_fmt REGEX "#define FMT_VERSION [0-9]+")
    string(REGEX REPLACE ".*FMT_VERSION ([0-9]*)[0-9][0-9][0-9][0-9]" "\\1" torch_fmt "${torch_fmt}")
  endif()
endforeach()
list(APPEND versions ${torch_fmt})
list(TRANSFORM versions REPLACE "\\..*" "")
list(FILTER versions EXCLUDE REGEX "^(9|12)$")

add_library(pianola_fmt INTERFACE)
if(versions)  # others' implementations ask for other instantiations
  target_link_libraries(pianola_fmt INTERFACE fmt::fmt-header-only)
  return()
endif()
function(_pianola_fmt target)
  add_library(${target} STATIC ${PROJECT_SOURCE_DIR}/cmake/fmt_implementation.cpp)
  pianola_compile_settings(${target})
  target_include_directories(${target} SYSTEM PRIVATE ${ARGN})
  target_link_libraries(pianola_fmt INTERFACE ${target})
endfunction()
get_target_property(includes fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
target_include_directories(pianola_fmt SYSTEM INTERFACE ${includes})
_pianola_fmt(pianola_fmt_of_system ${includes})
if(torch_fmt)
  _pianola_fmt(pianola_fmt_of_torch ${Libtorch_ROOT}/include)
endif()
