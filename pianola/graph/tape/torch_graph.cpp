#include <pianola/graph/torch_graph.hpp>

#include <pianola/core/error.hpp>
#include <pianola/torch_abi/torch_graph.hpp>

#if PIANOLA_TORCH_HAS_GRAPHS
#include <pianola/graph/graph.hpp>

#include <c10/core/DeviceType.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#endif

namespace pianola {

#if PIANOLA_TORCH_HAS_GRAPHS

namespace {

class TapeAsTorchGraph final : public at::GraphImplInterface {
 public:
  explicit TapeAsTorchGraph(const at::GraphImplArgs& /*args*/) {}

  void capture_begin(at::MempoolId_t pool, at::GraphCaptureMode /*mode*/) override {
    CaptureOptions options{.warmup = 0};
    if (pool != at::MempoolId_t{0, 0}) options.pool = GraphPool(at::kCPU, pool);
    scope_ = std::make_unique<CaptureScope>(graph_, std::move(options));
  }

  void capture_end() override {
    if (!scope_) {
      throw UsageError(
          {.what = "capture_end() was called while no capture is open", .fix = "call capture_begin() first"});
    }
    const auto ending = std::move(scope_);  // also where it throws
    ending->end();
  }

  void instantiate() override { graph_.instantiate(); }
  void replay() override { graph_.replay(); }

  void reset() override {
    scope_.reset();
    graph_.reset();
  }

  at::MempoolId_t pool() const override { return graph_.pool().id(); }
  void enable_debug_mode() override {}
  void debug_dump(const std::string& path) override { graph_.dump_dot(path); }

 private:
  Graph graph_{at::kCPU};
  std::unique_ptr<CaptureScope> scope_;
};

}  // namespace

void register_tape() {
  static std::mutex one_at_a_time;
  static bool is_registered = false;
  const std::lock_guard lock(one_at_a_time);
  if (is_registered) return;
  const std::string cpu = c10::DeviceTypeName(at::kCPU, /*lower_case=*/false);
  if (at::has_graph_impl(at::kCPU)) {
    throw UsageError({.what = "somebody else has registered graphs of the CPU with torch",
                      .fix = "register one implementation in a process, or use pianola::Graph"});
  }
  at::GraphImplRegistry()->Register(
      cpu, [](const at::GraphImplArgs& args) { return std::make_unique<TapeAsTorchGraph>(args); });
  is_registered = true;
}

#else

void register_tape() {
  throw UnsupportedError({.what = "this torch has no graphs that a device can register",
                          .fix = "use torch 2.12 or newer, or pianola::Graph"});
}

#endif

}  // namespace pianola
