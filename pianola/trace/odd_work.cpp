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

bool FirstOddWork::is_news(Oddity oddity) const noexcept {
  const std::optional<OddWork>& first = may_be_in_a_step(oddity) ? communication_ : odd_work_;
  return !first || (oddity == Oddity::data_parallel && first->oddity != oddity) ||
         (oddity == Oddity::compiling && first->oddity != oddity) ||
         (oddity == Oddity::compiled && first->oddity == Oddity::dispatch_mode);
}

void FirstOddWork::note(const OddWork& work) {
  if (is_news(work.oddity)) (may_be_in_a_step(work.oddity) ? communication_ : odd_work_) = work;
}

}  // namespace pianola::trace
