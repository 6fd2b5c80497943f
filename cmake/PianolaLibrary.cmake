# libpianola.so: the objects of all rooms. What is not marked PIANOLA_API stays inside by compiler visibility. There is
# no linker version script: it would also cut off the inline variables that torch's libraries and ours have to share.
get_property(rooms GLOBAL PROPERTY PIANOLA_ROOMS)
add_library(pianola SHARED)
add_library(pianola::pianola ALIAS pianola)
foreach(room IN LISTS rooms)
  target_sources(pianola PRIVATE $<TARGET_OBJECTS:${room}>)
  get_target_property(headers ${room} HEADER_SET)
  list(APPEND public_headers ${headers})
endforeach()
target_sources(pianola
  PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${PROJECT_SOURCE_DIR}/pianola/pianola.hpp ${public_headers})
target_compile_features(pianola PUBLIC cxx_std_20)
target_compile_definitions(pianola PUBLIC PIANOLA_WITH_CUDA=${PIANOLA_WITH_CUDA})
target_link_libraries(pianola
  PUBLIC libtorch::torch $<$<BOOL:${PIANOLA_WITH_CUDA}>:libtorch::cuda> $<BUILD_INTERFACE:pianola_build>
  PRIVATE pianola_fmt Threads::Threads ${CMAKE_DL_LIBS} ${PIANOLA_YAML} ${PIANOLA_ZLIB} ${PIANOLA_SQLITE})
target_link_options(pianola PRIVATE LINKER:--no-undefined)
set_target_properties(pianola PROPERTIES INSTALL_RPATH "${PIANOLA_INSTALL_RPATH}")
if(NOT PIANOLA_WHEEL)  # a wheel knows no links: it would hold the library three times
  set_target_properties(pianola PROPERTIES
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
endif()
