# pianola_python_module(<target> <file> ...): an extension module of the interpreter PIANOLA_PYTHON. Its pybind11 is the
# one in torch's headers, so that both agree on how types are shared.

# Sets PIANOLA_PYTHON_INCLUDE, PIANOLA_PYTHON_SUFFIX (as in _C<suffix>) and PIANOLA_PYTHON_VERSION (3.11).
function(_pianola_ask_python)
  execute_process(
    COMMAND ${PIANOLA_PYTHON} -c [[
import sysconfig
print(sysconfig.get_path("include"))
print(sysconfig.get_config_var("EXT_SUFFIX"))
print(sysconfig.get_python_version())
]]
    COMMAND_ERROR_IS_FATAL ANY
    OUTPUT_VARIABLE answer)
  string(REGEX REPLACE "\n$" "" answer "${answer}")
  string(REPLACE "\n" ";" answer "${answer}")
  list(GET answer 0 include)
  list(GET answer 1 suffix)
  list(GET answer 2 version)
  if(NOT EXISTS "${include}/Python.h")
    message(FATAL_ERROR "'${PIANOLA_PYTHON}' has no ${include}/Python.h: install the headers of this Python (Debian's \
package python3-dev for its own), or leave the Python package out with -DPIANOLA_PYTHON_PACKAGE=OFF.")
  endif()
  set(PIANOLA_PYTHON_INCLUDE "${include}" PARENT_SCOPE)
  set(PIANOLA_PYTHON_SUFFIX "${suffix}" PARENT_SCOPE)
  set(PIANOLA_PYTHON_VERSION "${version}" PARENT_SCOPE)
endfunction()

_pianola_ask_python()

function(pianola_python_module target)
  add_library(${target} MODULE ${ARGN})
  pianola_compile_settings(${target})
  set_target_properties(${target} PROPERTIES PREFIX "" SUFFIX "${PIANOLA_PYTHON_SUFFIX}")
  target_compile_definitions(${target} PRIVATE TORCH_EXTENSION_NAME=${target})
  target_include_directories(${target} SYSTEM PRIVATE "${PIANOLA_PYTHON_INCLUDE}")
  # Not libpython: its symbols come from the interpreter that loads the module.
  target_link_libraries(${target} PRIVATE libtorch::python)
endfunction()
