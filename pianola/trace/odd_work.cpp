#include <pianola/trace/odd_work.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace pianola::trace {

Diagnosis OddWork::diagnosis() const {
  std::vector<std::string> where;
  if (!scope.empty()) where.push_back(fmt::format("scope '{}'", scope));
  if (!backward.empty()) where.push_back(fmt::format("the backward pass ({})", backward));
  if (const std::string place = site.describe(); !place.empty()) where.push_back(place);
  return {.what = what,
          .where = fmt::format("{}", fmt::join(where, ", ")),
          .fix = remedy_of(oddity),
          .rule = rule_of(oddity)};
}

}  // namespace pianola::trace
