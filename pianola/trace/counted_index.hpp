#pragma once
#include <pianola/trace/op_trace.hpp>

#include <string>

namespace pianola::trace {

/// An operator of the step that takes an index from whole numbers, or a single one of any kind, which the step itself counts up, in
/// memory from outside: the position in a cache, say. Each more run of the step moves it on, in the end out of bounds. Empty: there is none.
std::string index_that_is_counted(const OpTrace& trace);

}  // namespace pianola::trace
