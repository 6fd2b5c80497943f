# pianola_room(<name>
#   [LIBRARY profile]                                         which it goes into, instead of libpianola.so
#   [NO_PRECOMPILE]                                           where few of its own files include torch
#   SOURCES a.cpp ...           [CUDA_SOURCES b.cpp ...]      the latter only in a build with CUDA
#   PUBLIC_HEADERS a.hpp ...    [PRIVATE_HEADERS ...]         the former are installed, and must each compile alone
#   [DEPENDS core cuda ...]                                   rooms above this one
#   [NEEDS torch cuda fmt json]                               libraries; `cuda` without `torch` is the CUDA runtime alone
#   [TESTS a_test.cpp ...]      [CUDA_TESTS b_test.cpp ...]
#   [TEST_NEEDS torch_api ...]                                libraries for the tests alone
#   [TEST_PRECOMPILES <torch/torch.h> ...])                   headers that most tests include and that take long
#
# Makes the static library pianola_<name>, which goes into a library (pianola_library), and the test <name>. In a build without CUDA
# the entry `cuda` of DEPENDS, NEEDS and TEST_NEEDS is left out. PIANOLA_WITH_CUDA is defined as 1 or 0 in the code.
function(pianola_room name)
  set(lists SOURCES CUDA_SOURCES PUBLIC_HEADERS PRIVATE_HEADERS DEPENDS NEEDS TESTS CUDA_TESTS TEST_NEEDS
    TEST_PRECOMPILES)
  cmake_parse_arguments(PARSE_ARGV 1 room "NO_PRECOMPILE" "LIBRARY" "${lists}")
  if(room_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "pianola_room(${name}): unknown arguments: ${room_UNPARSED_ARGUMENTS}")
  endif()
  if(PIANOLA_WITH_CUDA)
    list(APPEND room_SOURCES ${room_CUDA_SOURCES})
    list(APPEND room_TESTS ${room_CUDA_TESTS})
  else()
    list(REMOVE_ITEM room_DEPENDS cuda)
  endif()
  list(TRANSFORM room_DEPENDS PREPEND pianola_)
  _pianola_libraries(needs ${room_NEEDS})

  set(target pianola_${name})
  add_library(${target} STATIC ${room_SOURCES} ${room_PRIVATE_HEADERS})
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${room_PUBLIC_HEADERS})
  set_target_properties(${target} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  pianola_compile_settings(${target})
  _pianola_split(public private ${needs})
  target_link_libraries(${target} PUBLIC ${room_DEPENDS} ${public} PRIVATE ${private})
  target_compile_definitions(${target} PUBLIC PIANOLA_WITH_CUDA=${PIANOLA_WITH_CUDA})
  set_property(GLOBAL APPEND PROPERTY PIANOLA_ROOMS_${room_LIBRARY} ${target})
  pianola_unity(${target})
  if(NOT room_NO_PRECOMPILE)
    _pianola_precompiles(headers ${room_NEEDS})
    pianola_precompile(${target} ${headers})
  endif()

  if(PIANOLA_TESTS AND room_TESTS)
    _pianola_libraries(test_needs ${room_TEST_NEEDS})
    add_executable(${target}_test ${room_TESTS})
    pianola_unity(${target}_test)
    pianola_compile_settings(${target}_test)
    target_compile_options(${target}_test PRIVATE -O0)  # they run for seconds and compile for minutes
    set(test_headers_of ${room_NEEDS})
    if(room_NO_PRECOMPILE)
      list(REMOVE_ITEM test_headers_of torch)
    endif()
    _pianola_test_precompiles(headers ${test_headers_of} ${room_TEST_PRECOMPILES})
    target_link_libraries(${target}_test PRIVATE ${target} ${needs} ${test_needs} GTest::gmock GTest::gtest_main)
    pianola_precompile(${target}_test ${headers})
    pianola_gtest(${name} ${target}_test)
  endif()
endfunction()

# What the files of a room that NEEDS torch spend most of their time on: what a tensor is, what an operator takes, and what
# the header of any operator includes (ATen/ops/full.h stands for all of them). The others compile in a few seconds.
function(_pianola_precompiles out)
  set(headers "")
  if("torch" IN_LIST ARGN)
    set(headers <ATen/core/Tensor.h> <ATen/core/ivalue.h> <ATen/ops/full.h> <fmt/format.h>)
  endif()
  set(${out} ${headers} PARENT_SCOPE)
endfunction()

# The same for its tests, whose steps add and multiply tensors and run backward; torch/torch.h has all of that. What nobody
# needs is left out: templates that the functions of a precompiled header use are instantiated in each file again.
function(_pianola_test_precompiles out)
  set(headers <gmock/gmock.h>)
  if("<torch/torch.h>" IN_LIST ARGN)
    set(headers <torch/torch.h> <gmock/gmock.h>)
  elseif("torch" IN_LIST ARGN)
    _pianola_precompiles(headers ${ARGN})
    list(APPEND headers <ATen/TensorOperators.h> <torch/csrc/autograd/autograd.h> <gmock/gmock.h>)
  endif()
  set(${out} ${headers} PARENT_SCOPE)
endfunction()

# Translates the words of NEEDS into targets.
function(_pianola_libraries out)
  set(libraries "")
  foreach(need IN LISTS ARGN)
    if(need STREQUAL "torch")
      list(APPEND libraries libtorch::torch)
    elseif(need STREQUAL "torch_api")
      list(APPEND libraries libtorch::api)
    elseif(need STREQUAL "cuda")
      if(PIANOLA_WITH_CUDA AND "torch" IN_LIST ARGN)
        list(APPEND libraries libtorch::cuda)
      elseif(PIANOLA_WITH_CUDA)
        list(APPEND libraries libtorch::cudart)
      endif()
    elseif(need STREQUAL "fmt")
      list(APPEND libraries pianola_fmt)
    elseif(need STREQUAL "json")
      list(APPEND libraries nlohmann_json::nlohmann_json)
    else()
      message(FATAL_ERROR "pianola_room: unknown library '${need}', known are torch, torch_api, cuda, fmt and json")
    endif()
  endforeach()
  set(${out} ${libraries} PARENT_SCOPE)
endfunction()

# Public headers may include torch and CUDA, never fmt or nlohmann: those are not passed on.
function(_pianola_split public private)
  set(passed_on ${ARGN})
  list(FILTER passed_on INCLUDE REGEX "^libtorch::")
  set(kept ${ARGN})
  list(FILTER kept EXCLUDE REGEX "^libtorch::")
  set(${public} ${passed_on} PARENT_SCOPE)
  set(${private} ${kept} PARENT_SCOPE)
endfunction()

# pianola_page(<room> <namespace>): show/page.html, with show/page.css and show/page.js in it, as kPage of <room>/show/page_html.hpp.
function(pianola_page room page_namespace)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS show/page.html show/page.css show/page.js)
  file(READ show/page.html page)
  file(READ show/page.css page_css)
  file(READ show/page.js page_js)
  string(CONFIGURE "${page}" page @ONLY)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/page_html.hpp.in ${PROJECT_BINARY_DIR}/pianola/${room}/show/page_html.hpp @ONLY)
  target_include_directories(pianola_${room} PRIVATE ${PROJECT_BINARY_DIR})
endfunction()
