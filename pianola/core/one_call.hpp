#pragma once
#include <atomic>
#include <cstdint>

namespace pianola {

/// Turns two calls of one object at a time, where its class allows one, into an error instead of a crash. Costs one atomic
/// exchange a call. Nobody waits, but for those who only look.
class OneCall {
 public:
  OneCall() = default;
  OneCall(const OneCall&) = delete;
  OneCall& operator=(const OneCall&) = delete;
  ~OneCall() = default;

  /// A call of the object, while it lives.
  class Scope {
   public:
    /// @param call     What is called: "replay()".
    /// @param subject  Of what: "a graph".
    /// @throws UsageError  Another call is running, on another thread or around this one.
    Scope(OneCall& object, const char* call, const char* subject) : object_(&object) {
      std::uintptr_t running = 0;
      if (!object.thread_.compare_exchange_strong(running, this_thread(), std::memory_order_acquire)) [[unlikely]]
        object.enter_behind(running, call, subject);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { object_->thread_.store(0, std::memory_order_release); }

   private:
    OneCall* object_;
  };

  /// Somebody reads the object, while it lives, and never gets in the way of a call: one that begins meanwhile waits.
  class Look {
   public:
    /// @throws UsageError  As Scope's. A Look of another thread is waited for.
    Look(OneCall& object, const char* call, const char* subject) : object_(&object) {
      object.begin_look(call, subject);
    }
    Look(const Look&) = delete;
    Look& operator=(const Look&) = delete;
    ~Look() { object_->thread_.store(0, std::memory_order_release); }

   private:
    OneCall* object_;
  };

  /// Whether any thread is in a call of the object.
  [[nodiscard]] bool is_running() const noexcept { return thread_.load(std::memory_order_relaxed) != 0; }
  /// Whether this thread is.
  [[nodiscard]] bool is_ours() const noexcept { return thread_.load(std::memory_order_relaxed) == this_thread(); }

 private:
  // The address of something that each thread has one of.
  static std::uintptr_t this_thread() noexcept {
    thread_local const char here = 0;
    return reinterpret_cast<std::uintptr_t>(&here);
  }
  static constexpr std::uintptr_t kSomebodyLooks = 1;  // no such address
  void enter_behind(std::uintptr_t running, const char* call, const char* subject);
  void begin_look(const char* call, const char* subject);
  [[noreturn]] static void refuse(std::uintptr_t running, const char* call, const char* subject);

  std::atomic<std::uintptr_t> thread_ = 0;  // that runs a call; 0: none, or kSomebodyLooks
};

}  // namespace pianola
