# Finds what Pianola is built from. Sets PIANOLA_WITH_CUDA to 1 or 0.

# The default is what `make` sets up; STRING, since CMake would turn a bare `python3` of type FILEPATH into a path.
set(default_python python3)
if(EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  set(default_python ${PROJECT_SOURCE_DIR}/.venv/bin/python)
endif()
set(PIANOLA_PYTHON ${default_python} CACHE STRING "Python interpreter whose torch is used")

find_package(Libtorch REQUIRED)
if(PIANOLA_CUDA STREQUAL "ON" AND NOT TARGET libtorch::cuda)
  message(FATAL_ERROR "PIANOLA_CUDA=ON, but the torch of ${PIANOLA_PYTHON} has no CUDA: use a torch that has, or OFF.")
endif()
if(TARGET libtorch::cuda)
  set(PIANOLA_WITH_CUDA 1)
else()
  set(PIANOLA_WITH_CUDA 0)
endif()
message(STATUS "Pianola: torch ${Libtorch_VERSION}, CUDA backend: ${PIANOLA_WITH_CUDA}")

find_package(Threads REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
if(PIANOLA_PROGRAM OR PIANOLA_EXAMPLES)
  find_package(CLI11 2.1 REQUIRED)
endif()
if(PIANOLA_TESTS)
  find_package(GTest 1.12 REQUIRED)
endif()
