#include <pianola/trace/number_span.hpp>

#include <utility>

namespace pianola::trace {
namespace {

thread_local const std::vector<int>* open_sources = nullptr;

}  // namespace

NumberSpan::NumberSpan(std::vector<int> sources) : sources_(std::move(sources)), outer_(open_sources) {
  open_sources = &sources_;
}
NumberSpan::~NumberSpan() { open_sources = outer_; }

const std::vector<int>* NumberSpan::open() noexcept { return open_sources; }

}  // namespace pianola::trace
