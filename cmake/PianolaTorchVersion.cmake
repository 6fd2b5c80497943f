# Which versions of torch Pianola has been tried with: docs/reference/torch_versions.md, made by tools/matrix.py.
#
# Reads  Libtorch_VERSION
set(PIANOLA_OLDEST_TORCH 2.11)
set(PIANOLA_NEWEST_TORCH 2.15)

string(REGEX MATCH "^[0-9]+\\.[0-9]+" torch_minor "${Libtorch_VERSION}")
if(torch_minor VERSION_LESS PIANOLA_OLDEST_TORCH)
  message(FATAL_ERROR "Pianola needs torch ${PIANOLA_OLDEST_TORCH} or newer, and this is torch ${Libtorch_VERSION}: install a newer one, \
or name an interpreter that has it by -DPIANOLA_PYTHON=<path> or make PYTHON=<path>.")
elseif(torch_minor VERSION_GREATER PIANOLA_NEWEST_TORCH)
  message(WARNING "torch ${Libtorch_VERSION} is newer than what this Pianola knows, ${PIANOLA_OLDEST_TORCH} to ${PIANOLA_NEWEST_TORCH}. \
Where it compiles, 'pianola info --check' tries what it builds on inside torch, as the first capture does.")
endif()
