# What all objects of one build have to agree on: link pianola_build, or pianola::pianola, which passes it on in this
# tree (not to those who use an installed Pianola).
add_library(pianola_build INTERFACE)
# In every configuration: torch's wheels are built so, and without it at::RecordFunction has another layout.
target_compile_definitions(pianola_build INTERFACE NDEBUG)
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  # addr2line finds no name of an inlined function in what clang writes for -g1 alone.
  target_compile_options(pianola_build INTERFACE -fdebug-info-for-profiling)
endif()
if(PIANOLA_SANITIZE)
  target_compile_options(pianola_build INTERFACE -fsanitize=${PIANOLA_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(pianola_build INTERFACE -fsanitize=${PIANOLA_SANITIZE})
endif()

# Once installed: our library beside the program, and the torch that both were built with. CMake's own
# INSTALL_RPATH_USE_LINK_PATH would leave out what lies in .venv, inside the project.
set(PIANOLA_INSTALL_RPATH $ORIGIN/../${CMAKE_INSTALL_LIBDIR} ${Libtorch_LIBRARY_DIRS})
set(PIANOLA_MODULE_INSTALL_RPATH ${PIANOLA_INSTALL_RPATH})
if(PIANOLA_WHEEL)
  # In any site-packages: torch and the CUDA wheels are neighbours of our package.
  set(PIANOLA_INSTALL_RPATH $ORIGIN/../${CMAKE_INSTALL_LIBDIR})
  set(PIANOLA_MODULE_INSTALL_RPATH $ORIGIN/${CMAKE_INSTALL_LIBDIR})
  cmake_path(GET Libtorch_ROOT PARENT_PATH site)
  foreach(folder IN LISTS Libtorch_LIBRARY_DIRS)
    cmake_path(IS_PREFIX site "${folder}" NORMALIZE is_neighbour)
    if(is_neighbour)
      cmake_path(RELATIVE_PATH folder BASE_DIRECTORY "${site}")
      list(APPEND PIANOLA_INSTALL_RPATH $ORIGIN/../../${folder})
      list(APPEND PIANOLA_MODULE_INSTALL_RPATH $ORIGIN/../${folder})
    else()
      list(APPEND PIANOLA_INSTALL_RPATH "${folder}")  # a CUDA toolkit
      list(APPEND PIANOLA_MODULE_INSTALL_RPATH "${folder}")
    endif()
  endforeach()
endif()

# pianola_compile_settings(<target>): how each of our own targets is compiled.
function(pianola_compile_settings target)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON
    INSTALL_RPATH "${PIANOLA_INSTALL_RPATH}")
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PRIVATE pianola_warnings PUBLIC pianola_build)
endfunction()

# A compiler cache, where there is one: a second build of the same sources takes seconds, in another folder too. What is
# built there names this folder as its own in the debug information, in which all paths are absolute. What includes a
# precompiled header is kept too, which needs the word of the user (sloppiness) that __TIME__ and its like do not matter.
find_program(PIANOLA_CCACHE ccache)
mark_as_advanced(PIANOLA_CCACHE)
if(PIANOLA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
    env CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros ${PIANOLA_CCACHE})
endif()

# pianola_unity(<target>): compiles its files in units of several, each of which reads torch's headers once: nearly all that most
# files cost. Names in anonymous namespaces differ within a room, therefore, and each test has a namespace of its own. Files that include what
# cannot be included twice stay alone (pianola_alone), as do those with COMPILE_OPTIONS of their own.
function(pianola_unity target)
  if(NOT PIANOLA_UNITY)
    return()
  endif()
  if(PIANOLA_PRECOMPILED_IN)
    _pianola_take_units(${target})
  else()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE BATCH UNITY_BUILD_BATCH_SIZE 12)
  endif()
endfunction()

# Puts the units of another build tree in the place of the files that they include: a compiler cache knows them.
function(_pianola_take_units target)
  get_target_property(folder ${target} BINARY_DIR)
  cmake_path(RELATIVE_PATH folder BASE_DIRECTORY "${PROJECT_BINARY_DIR}")
  file(GLOB units "${PIANOLA_PRECOMPILED_IN}/${folder}/CMakeFiles/${target}.dir/Unity/unity_*_cxx.cxx")
  get_target_property(sources ${target} SOURCES)
  list(TRANSFORM sources REPLACE "^([^/].*)$" "${CMAKE_CURRENT_SOURCE_DIR}/\\1")
  foreach(unit IN LISTS units)
    file(STRINGS "${unit}" files REGEX "^#include")
    list(TRANSFORM files REPLACE "^#include \"(.*)\"$" "\\1")
    set(others ${files})
    list(REMOVE_ITEM others ${sources})
    if(NOT others)  # else this build leaves some of them out, or the unit is of an earlier configuration
      list(REMOVE_ITEM sources ${files})
      list(APPEND sources "${unit}")
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES SOURCES "${sources}")
endfunction()

function(pianola_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# pianola_precompile(<target> <header> ...): headers that most of its files include and that take long to compile. Targets of
# one kind with the same headers, all with torch or all without, share what the first of them precompiles. Those of another build tree
# (PIANOLA_PRECOMPILED_IN) are used where that one is named: a compiler cache knows what includes them.
function(pianola_precompile target)
  if(NOT PIANOLA_PRECOMPILE OR NOT ARGN)
    return()
  endif()
  # What a precompiled header was made with must be what it is used with: programs and libraries differ in -fPIE, and torch
  # defines which layout the standard library's classes have.
  get_target_property(type ${target} TYPE)
  get_target_property(options ${target} COMPILE_OPTIONS)
  get_target_property(libraries ${target} LINK_LIBRARIES)
  set(has_torch FALSE)
  if("libtorch::torch" IN_LIST libraries OR "libtorch::api" IN_LIST libraries)
    set(has_torch TRUE)
  endif()
  string(SHA1 key "${type};${options};${has_torch};${ARGN}")
  get_property(owner GLOBAL PROPERTY PIANOLA_PRECOMPILED_${key})
  if(NOT owner)
    set_property(GLOBAL PROPERTY PIANOLA_PRECOMPILED_${key} ${target})
    set(owner ${target})
  endif()
  if(PIANOLA_PRECOMPILED_IN)
    get_target_property(folder ${owner} BINARY_DIR)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY "${PROJECT_BINARY_DIR}")
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources INCLUDE REGEX "\\.(cpp|cxx)$")
    # Of the sources, which puts them where CMake puts its own.
    set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS
      "-Winvalid-pch;-include;${PIANOLA_PRECOMPILED_IN}/${folder}/CMakeFiles/${owner}.dir/cmake_pch.hxx")
  elseif(owner STREQUAL target)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  else()
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
endfunction()
