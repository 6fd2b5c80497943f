#include <pianola/graph/path_check.hpp>

#include <utility>

namespace pianola::graph {

trace::OpObserver& PathCheck::next_call() {
  before_ = std::exchange(last_, std::nullopt);
  return last_.emplace();
}

std::optional<Diagnosis> PathCheck::difference() const {
  if (!before_ || !last_ || recorded_.empty()) return std::nullopt;
  if (trace::OperationLog::difference(*before_, *last_, /*numbers_count=*/false)) return std::nullopt;
  return trace::OperationLog::difference_of_capture(*before_, *last_, recorded_);
}

std::optional<Diagnosis> PathCheck::changing_number() const {
  if (!before_ || !last_) return std::nullopt;
  return trace::OperationLog::changing_number(*before_, *last_, recorded_);
}

}  // namespace pianola::graph
