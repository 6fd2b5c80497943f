#include <pianola/callable/eager_run.hpp>

#include <pianola/core/error.hpp>
#include <pianola/trace/op_stream.hpp>

namespace pianola::callable {
namespace {

int& open_runs() {
  thread_local int open = 0;
  return open;
}

class OpenRun {
 public:
  OpenRun() { ++open_runs(); }
  OpenRun(const OpenRun&) = delete;
  OpenRun& operator=(const OpenRun&) = delete;
  ~OpenRun() { --open_runs(); }
};

}  // namespace

EagerRun::EagerRun(std::span<const at::Tensor> inputs, const std::function<void()>& run) : watch_(inputs) {
  const OpenRun open;
  const trace::OpStream stream({&watch_, &host_, &log_});
  run();
  odd_work_ = stream.odd_work();
  if (const auto failure = stream.failure()) failure_ = Error(*failure).what();
}

bool EagerRun::is_open() noexcept { return open_runs() != 0; }

}  // namespace pianola::callable
