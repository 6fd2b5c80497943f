#include <pianola/graph/graph.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/capture_session.hpp>
#include <pianola/graph/graph_impl.hpp>

#include <c10/util/Exception.h>

#include <fmt/format.h>

#include <exception>
#include <optional>
#include <thread>
#include <utility>

namespace pianola {
namespace {

const CaptureOptions& without_warmup(const CaptureOptions& options) {
  if (options.warmup != 0) {
    throw UsageError({.what = fmt::format("a CaptureScope cannot warm up: warmup must be 0, got {}", options.warmup),
                      .fix = "run the code eagerly first, or use Graph::capture, which takes it as a function"});
  }
  return options;
}

}  // namespace

struct CaptureScope::Impl {
  Graph::Impl& graph;
  std::optional<OneCall::Scope> call = {};  // of the graph, as long as the scope is open
  std::optional<pianola::graph::CaptureSession> session = {};
  std::thread::id thread = std::this_thread::get_id();  // that is captured

  struct Close {  // whether ending throws or not, the session is over
    Impl& scope;
    ~Close() {
      scope.session.reset();
      scope.call.reset();
    }
  };
  Impl& open(const char* name) {
    if (!session) throw UsageError({.what = fmt::format("{} was called on a CaptureScope that has ended", name)});
    if (thread != std::this_thread::get_id()) {
      throw UsageError(
          {.what = fmt::format(
               "{} was called on another thread than the one that began the capture; the capture continues", name),
           .fix = "begin and end a capture on one thread"});
    }
    return *this;
  }
};

CaptureScope::CaptureScope(Graph& graph, CaptureOptions options) {
  impl_.reset(new Impl{.graph = *graph.impl_});
  impl_->call.emplace(impl_->graph.calls, "CaptureScope()", "a graph");
  impl_->graph.check_may_capture();
  if (!impl_->graph.numbers.empty()) {
    throw UsageError({.what = "a CaptureScope cannot capture a graph with numbers, which needs calls with other ones",
                      .fix = "use Graph::capture, which takes the step as a function"});
  }
  impl_->graph.keep_shapes(options.inputs);
  impl_->session.emplace(*impl_->graph.backend, without_warmup(options));
  impl_->session->begin();
}

// What is bound to a thread cannot be undone on another one: the session stays behind, without the graph.
CaptureScope::~CaptureScope() {
  if (impl_ == nullptr || !impl_->session || impl_->thread == std::this_thread::get_id()) return;
  impl_->session->leave_behind();
  impl_->call.reset();
  (void)impl_.release();
  TORCH_WARN(
      "pianola: a capture was dropped on another thread than the one that began it; nothing of it is kept, but that "
      "thread "
      "can capture no more. Begin and end a capture on one thread.");
}

void CaptureScope::end() {
  const Impl::Close close{impl_->open("end()")};
  impl_->graph.adopt(impl_->session->commit());
}

void CaptureScope::fail(std::exception_ptr error) {
  const Impl::Close close{impl_->open("fail()")};
  impl_->session->fail(std::move(error));
}

}  // namespace pianola
