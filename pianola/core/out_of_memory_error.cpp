#include <pianola/core/out_of_memory_error.hpp>

namespace pianola {

OutOfMemoryError::~OutOfMemoryError() = default;

}  // namespace pianola
