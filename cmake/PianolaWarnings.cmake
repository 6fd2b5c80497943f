# Warnings for our own code: link pianola_warnings PRIVATE.
add_library(pianola_warnings INTERFACE)
target_compile_options(pianola_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-qual
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>  # g++ 12 warns of every `"literal" + std::string` (gcc bug 105651)
  # g++ warns inside its own std::copy and std::string
  "$<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>"
  $<$<AND:$<BOOL:${PIANOLA_UNITY}>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>  # a file of a unit is no header
  $<$<BOOL:${PIANOLA_WERROR}>:-Werror>)
