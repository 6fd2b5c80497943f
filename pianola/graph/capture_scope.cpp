#include <pianola/graph/graph.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/capture_session.hpp>
#include <pianola/graph/graph_impl.hpp>

#include <fmt/format.h>

#include <exception>
#include <optional>
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
  std::optional<pianola::graph::CaptureSession> session = {};

  struct Close {  // whether ending throws or not, the session is over
    std::optional<pianola::graph::CaptureSession>& session;
    ~Close() { session.reset(); }
  };
  std::optional<pianola::graph::CaptureSession>& open_session(const char* call) {
    if (!session) throw UsageError({.what = fmt::format("{} was called on a CaptureScope that has ended", call)});
    return session;
  }
};

CaptureScope::CaptureScope(Graph& graph, CaptureOptions options) {
  graph.impl_->check_empty();
  impl_.reset(new Impl{.graph = *graph.impl_});
  impl_->graph.inputs = options.inputs.size();
  impl_->session.emplace(*impl_->graph.backend, without_warmup(options));
  impl_->session->begin();
}

CaptureScope::~CaptureScope() = default;

void CaptureScope::end() {
  const Impl::Close close{impl_->open_session("end()")};
  impl_->graph.adopt(close.session->commit());
}

void CaptureScope::fail(std::exception_ptr error) {
  const Impl::Close close{impl_->open_session("fail()")};
  close.session->fail(std::move(error));
}

}  // namespace pianola
