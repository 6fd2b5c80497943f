#include <pianola/graph/foreign_draws.hpp>

#include <pianola/torch_abi/thread_slot.hpp>
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/Context.h>
#include <ATen/record_function.h>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace pianola::graph {

namespace {

struct Identity final : c10::DebugInfoBase {};

// What an operation draws from, as its arguments tell: the generator that is named, else the default one of its device.
struct Drawn {
  at::Generator generator;
  c10::DeviceType device = c10::kCPU;

  explicit Drawn(c10::ArrayRef<c10::IValue> inputs) {
    std::optional<c10::DeviceType> of_tensor, named;
    for (const c10::IValue& value : inputs) {
      if (value.isGenerator() && value.toGenerator().defined()) generator = value.toGenerator();
      if (value.isDevice()) named = value.toDevice().type();
      trace::for_each_tensor(value, [&](const at::Tensor& tensor) {
        if (!of_tensor) of_tensor = tensor.device().type();
      });
    }
    device = of_tensor.value_or(named.value_or(c10::kCPU));
  }
  [[nodiscard]] bool may_be(const at::Generator& other) const {
    if (generator.defined()) return generator == other;
    return other.device().type() == device && at::globalContext().defaultGenerator(other.device()) == other;
  }
};

}  // namespace

// Note [Draws that run when a watch opens]
// A draw that began before a watch opened may move the generator after the watch has looked at it. So draws are listed while
// they run, and a watch counts those that it finds. The callback stays for a while when the last watch has closed, since
// captures often follow each other; the first watch has not seen what runs, and gives that time to end.

// All that are open, for callbacks, which are plain functions.
struct ForeignDrawsRegistry {
  using Watches = std::vector<ForeignDraws*>;
  static inline Watches watches;
  static inline std::uint64_t numbers = 0;  // of watches and of draws
  static inline at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
  static inline std::atomic<bool> is_watched{false};
  static inline std::atomic<int> unwatched{0};  // operations since the last watch closed

  static constexpr int kMostUnwatched = 4096;
  static constexpr std::chrono::milliseconds kUnseenMayEnd{2};

  struct Counted {
    std::uint64_t watch;
    std::size_t generator;
  };
  struct Running {
    std::uint64_t number;
    const void* own;
    std::function<bool(const at::Generator&)> may_be;
    std::vector<Counted> counted;
  };
  static inline std::vector<Running> running;

  // A child that is forked off finds it open, and runs no draw of the parent's threads.
  static std::mutex& mutex() {
    static std::mutex one;
    [[maybe_unused]] static const int forks = pthread_atfork([] { one.lock(); }, [] { one.unlock(); },
                                                             [] {
                                                               running.clear();
                                                               watches.clear();
                                                               is_watched = false;
                                                               one.unlock();
                                                             });
    return one;
  }

  struct Context : at::ObserverContext {
    explicit Context(std::uint64_t number) : draw(number) {}
    std::uint64_t draw;
  };

  // With the lock.
  static void count(Running& draw, ForeignDraws& watch, std::size_t generator) {
    if (watch.own_ == draw.own || !draw.may_be(watch.watched_[generator].generator)) return;
    ++watch.watched_[generator].count.begun;
    draw.counted.push_back({watch.number_, generator});
  }

  // Of this thread; `may_be` tells from which generators.
  static std::uint64_t begin(std::function<bool(const at::Generator&)> may_be) {
    const std::lock_guard lock(mutex());
    Running& draw = running.emplace_back(
        Running{.number = ++numbers, .own = CaptureThreads::current(), .may_be = std::move(may_be), .counted = {}});
    for (ForeignDraws* watch : watches) {
      for (std::size_t i = 0; i < watch->watched_.size(); ++i) count(draw, *watch, i);
    }
    return draw.number;
  }

  static void end(std::uint64_t number) noexcept {
    const std::lock_guard lock(mutex());
    const auto draw =
        std::find_if(running.begin(), running.end(), [&](const Running& one) { return one.number == number; });
    if (draw == running.end()) return;
    for (const auto& [watched_by, generator] : draw->counted) {
      for (ForeignDraws* watch : watches) {
        if (watch->number_ == watched_by) ++watch->watched_[generator].count.ended;
      }
    }
    running.erase(draw);
  }

  // A callback may not throw: what cannot be looked at is not counted.
  static std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& span) {
    try {
      if (!is_watched.load(std::memory_order_relaxed)) [[unlikely]] {
        if (unwatched.fetch_add(1, std::memory_order_relaxed) == kMostUnwatched) stop_listening();
      }
      const trace::OpInfo* info = trace::find_op(span);
      if (info == nullptr || !info->seeded || info->transparent_now(span.inputs())) return nullptr;
      return std::make_unique<Context>(
          begin([drawn = Drawn(span.inputs())](const at::Generator& watched) { return drawn.may_be(watched); }));
    } catch (...) {
      return nullptr;
    }
  }

  static void on_end(const at::RecordFunction& /*span*/, at::ObserverContext* context) {
    if (context != nullptr) end(static_cast<const Context*>(context)->draw);
  }

  static void add(ForeignDraws& watch) {
    const bool heard_before = listen(watch);
    if (!heard_before) std::this_thread::sleep_for(kUnseenMayEnd);
  }

  static bool listen(ForeignDraws& watch) {
    const std::lock_guard lock(mutex());
    watch.number_ = ++numbers;
    watches.push_back(&watch);
    is_watched = true;
    if (callback != at::INVALID_CALLBACK_HANDLE) return true;
    callback = at::addGlobalCallback(
        at::RecordFunctionCallback(&on_begin, &on_end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
    return false;
  }

  static void stop_listening() {
    const std::lock_guard lock(mutex());
    if (watches.empty() && callback != at::INVALID_CALLBACK_HANDLE)
      at::removeCallback(std::exchange(callback, at::INVALID_CALLBACK_HANDLE));
  }

  static void remove(ForeignDraws& watch) {
    const std::lock_guard lock(mutex());
    std::erase(watches, &watch);
    if (!watches.empty()) return;
    unwatched = 0;
    is_watched = false;
  }

  static void watch_more(ForeignDraws& watch, const at::Generator& generator) {
    const std::lock_guard lock(mutex());
    watch.watched_.push_back({.generator = generator, .count = {}});
    for (Running& draw : running) count(draw, watch, watch.watched_.size() - 1);
  }
};

CaptureThreads::CaptureThreads()
    : identity_(std::make_shared<Identity>()), guard_(torch_abi::kSlotOfDraws, identity_) {}

const void* CaptureThreads::current() noexcept { return c10::ThreadLocalDebugInfo::get(torch_abi::kSlotOfDraws); }

ForeignDraws::ForeignDraws() : own_(CaptureThreads::current()) { ForeignDrawsRegistry::add(*this); }
ForeignDraws::~ForeignDraws() { ForeignDrawsRegistry::remove(*this); }

std::size_t ForeignDraws::watch(const at::Generator& generator) {
  ForeignDrawsRegistry::watch_more(*this, generator);
  return watched_.size() - 1;
}

ForeignDraws::Count ForeignDraws::count(std::size_t generator) const {
  const std::lock_guard lock(ForeignDrawsRegistry::mutex());
  return watched_[generator].count;
}

// Listed also where nobody listens: a watch may open while they run.
ForeignDraws::Unseen::Unseen(const std::vector<at::Generator>& generators)
    : draw_(ForeignDrawsRegistry::begin([&generators](const at::Generator& watched) {
        return std::find(generators.begin(), generators.end(), watched) != generators.end();
      })) {}

ForeignDraws::Unseen::~Unseen() { ForeignDrawsRegistry::end(draw_); }

}  // namespace pianola::graph
