#pragma once
#include <pianola/cuda/api_call.hpp>

#include <cupti_callbacks.h>

#include <functional>
#include <memory>
#include <string>

namespace pianola {

/// CUPTI's functions, loaded when first asked for: the library that torch has loaded, else one beside the CUDA runtime,
/// else any that is found. A plain struct, so that a test can pass a table of its own functions.
struct Cupti {
  decltype(&cuptiSubscribe) subscribe = nullptr;
  decltype(&cuptiUnsubscribe) unsubscribe = nullptr;
  decltype(&cuptiEnableCallback) enable_callback = nullptr;
  decltype(&cuptiGetResultString) result_string = nullptr;

  /// nullptr where there is no CUPTI. Threads: any. Never unloaded.
  [[nodiscard]] static const Cupti* try_get() noexcept;
};

/// While it lives, shows the process's calls of CUDA that decode() understands: of all threads, each once, also where
/// the runtime calls the driver for it.
///
/// CUPTI has one subscriber per process: while another tool is it (torch.profiler after its first use, Nsight Systems),
/// there is no subscription. The end of this one leaves CUPTI as it was, for the next; cuptiFinalize, which would end
/// other users' sessions too, is not called.
class CuptiSubscription {
 public:
  /// Called when a call begins, on its thread, several threads at once; calls of CUDA in it are not shown. Must not
  /// throw.
  using Handler = std::function<void(const ApiCall&)>;

  struct Opening {
    std::unique_ptr<CuptiSubscription> subscription;  ///< nullptr: there is none.
    std::string problem;                              ///< Why not: half a sentence.
  };
  [[nodiscard]] static Opening open(Handler handler, const Cupti* cupti = Cupti::try_get());

  CuptiSubscription(const CuptiSubscription&) = delete;
  CuptiSubscription& operator=(const CuptiSubscription&) = delete;
  /// No call that begins afterwards is shown; one that another thread makes at this moment may still be in the handler.
  ~CuptiSubscription();

 private:
  struct Listener;
  CuptiSubscription(const Cupti& cupti, CUpti_SubscriberHandle handle) : cupti_(cupti), handle_(handle) {}
  static void CUPTIAPI on_call(void* user, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data);

  const Cupti& cupti_;
  CUpti_SubscriberHandle handle_;
};

}  // namespace pianola
