# Warnings for our own code: link pianola_warnings PRIVATE.
add_library(pianola_warnings INTERFACE)
target_compile_options(pianola_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-qual
  -Wno-restrict  # g++ 12 warns of every `"literal" + std::string` (gcc bug 105651)
  -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread  # g++ warns inside its own std::copy and std::string
  $<$<AND:$<BOOL:${PIANOLA_UNITY}>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>  # a file of a unit is no header
  $<$<BOOL:${PIANOLA_WERROR}>:-Werror>)
