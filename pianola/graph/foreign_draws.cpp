#include <pianola/graph/foreign_draws.hpp>

#include <pianola/graph/fork.hpp>
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/Context.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

namespace pianola::graph {

namespace {

constexpr auto kSlot = c10::DebugInfoKind::TEST_INFO;  // as OpStream's: one that torch's library code does not use

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

// All that are open, for callbacks, which are plain functions.
struct ForeignDrawsRegistry {
  using Watches = std::vector<ForeignDraws*>;
  static inline std::mutex mutex;
  static inline Watches watches;
  static inline std::atomic<int> open{0};
  static inline std::uint64_t numbers = 0;
  static inline at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
  static inline ProcessMark process;  // of the callback: a child that was forked inherits it, and maybe a lock for ever

  // What a span has counted as begun.
  struct Begun : at::ObserverContext {
    struct Draw {
      std::uint64_t watch;
      std::size_t generator;
    };
    std::vector<Draw> draws;
  };

  // Of this thread; `may_be` tells from which generators.
  template <typename MayBe>
  static std::unique_ptr<Begun> begin(const MayBe& may_be) {
    const void* own = CaptureThreads::current();
    auto begun = std::make_unique<Begun>();
    const std::lock_guard lock(mutex);
    for (ForeignDraws* watch : watches) {
      if (watch->own_ == own) continue;
      for (std::size_t i = 0; i < watch->watched_.size(); ++i) {
        if (!may_be(watch->watched_[i].generator)) continue;
        ++watch->watched_[i].count.begun;
        begun->draws.push_back({watch->number_, i});
      }
    }
    if (begun->draws.empty()) begun.reset();
    return begun;
  }

  static void end(const Begun& begun) noexcept {
    const std::lock_guard lock(mutex);
    for (const auto& [number, generator] : begun.draws) {
      for (ForeignDraws* watch : watches) {
        if (watch->number_ == number) ++watch->watched_[generator].count.ended;
      }
    }
  }

  // A callback may not throw: what cannot be looked at is not counted.
  static std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& span) {
    if (!process.is_this_process()) return nullptr;
    try {
      const trace::OpInfo* info = trace::find_op(span);
      if (info == nullptr || !info->seeded || info->transparent_now(span.inputs())) return nullptr;
      const Drawn drawn(span.inputs());
      return begin([&](const at::Generator& watched) { return drawn.may_be(watched); });
    } catch (...) {
      return nullptr;
    }
  }

  static void on_end(const at::RecordFunction& /*span*/, at::ObserverContext* context) {
    if (context != nullptr && process.is_this_process()) end(*static_cast<const Begun*>(context));
  }

  static void add(ForeignDraws& watch) {
    const std::lock_guard lock(mutex);
    watch.number_ = ++numbers;
    watches.push_back(&watch);
    if (++open > 1) return;
    process = ProcessMark();
    callback = at::addGlobalCallback(
        at::RecordFunctionCallback(&on_begin, &on_end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }

  static void remove(ForeignDraws& watch) {
    const std::lock_guard lock(mutex);
    std::erase(watches, &watch);
    if (--open == 0) at::removeCallback(std::exchange(callback, at::INVALID_CALLBACK_HANDLE));
  }
};

CaptureThreads::CaptureThreads() : identity_(std::make_shared<Identity>()), guard_(kSlot, identity_) {}

const void* CaptureThreads::current() noexcept { return c10::ThreadLocalDebugInfo::get(kSlot); }

ForeignDraws::ForeignDraws() : own_(CaptureThreads::current()) { ForeignDrawsRegistry::add(*this); }
ForeignDraws::~ForeignDraws() { ForeignDrawsRegistry::remove(*this); }

std::size_t ForeignDraws::watch(const at::Generator& generator) {
  const std::lock_guard lock(ForeignDrawsRegistry::mutex);
  watched_.push_back({.generator = generator, .count = {}});
  return watched_.size() - 1;
}

ForeignDraws::Count ForeignDraws::count(std::size_t generator) const {
  const std::lock_guard lock(ForeignDrawsRegistry::mutex);
  return watched_[generator].count;
}

ForeignDraws::Unseen::Unseen(const std::vector<at::Generator>& generators) {
  if (ForeignDrawsRegistry::open.load(std::memory_order_relaxed) == 0) [[likely]]
    return;
  if (!ForeignDrawsRegistry::process.is_this_process()) return;
  begun_ = ForeignDrawsRegistry::begin([&](const at::Generator& watched) {
    return std::find(generators.begin(), generators.end(), watched) != generators.end();
  });
}

ForeignDraws::Unseen::~Unseen() {
  if (begun_ != nullptr) ForeignDrawsRegistry::end(static_cast<const ForeignDrawsRegistry::Begun&>(*begun_));
}

}  // namespace pianola::graph
