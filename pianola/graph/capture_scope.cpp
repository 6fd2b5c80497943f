#include <pianola/graph/graph.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/capture_session.hpp>
#include <pianola/graph/graph_impl.hpp>

#include <fmt/format.h>

#include <optional>

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
  if (!impl_->session) throw UsageError({.what = "end() was called twice on a CaptureScope"});
  struct Close {  // whether commit() throws or not, the session is over
    std::optional<graph::CaptureSession>& session;
    ~Close() { session.reset(); }
  } close{impl_->session};
  impl_->graph.adopt(impl_->session->commit());
}

}  // namespace pianola
