#include <pianola/core/moved_from.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>

namespace pianola {

void refuse_moved_from(const char* object) {
  throw UsageError({.what = fmt::format("{} was called that has been moved from", object),
                    .fix = "call the object that it was moved into"});
}

}  // namespace pianola
