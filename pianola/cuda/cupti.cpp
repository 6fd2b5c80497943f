#include <pianola/cuda/cupti.hpp>

#include <pianola/cuda/cupti_library.hpp>

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <utility>

namespace pianola {
namespace {

Cupti load() {
  Cupti cupti;
  void* from = cupti_library();
  if (from == nullptr) return cupti;
  bind_symbol(cupti.subscribe, from, "cuptiSubscribe");
  bind_symbol(cupti.unsubscribe, from, "cuptiUnsubscribe");
  bind_symbol(cupti.enable_callback, from, "cuptiEnableCallback");
  bind_symbol(cupti.result_string, from, "cuptiGetResultString");
  return cupti;
}

std::string explain(CUptiResult result, const Cupti& cupti) {
  if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
    return "another tool uses CUPTI (torch.profiler keeps it after its first use, Nsight Systems while it runs)";
  }
  const char* text = nullptr;
  if (cupti.result_string == nullptr || cupti.result_string(result, &text) != CUPTI_SUCCESS) text = nullptr;
  return text == nullptr ? fmt::format("CUPTI refused (error {})", static_cast<int>(result))
                         : fmt::format("CUPTI refused ({})", text);
}

// Where one thread stands. Another subscription begins anew: the end of a call that began before may never be seen.
struct Nesting {
  std::uint64_t subscription = 0;
  int runtime_calls = 0;  // open ones
  bool handling = false;
};

Nesting& nesting(std::uint64_t subscription) {
  thread_local Nesting here;
  if (here.subscription != subscription) here = {.subscription = subscription};
  return here;
}

// Whether a call is the outermost one: the runtime calls itself and the driver. Keeps count.
bool is_outermost_begin(Nesting& here, bool driver, CUpti_ApiCallbackSite site) {
  if (driver) return site == CUPTI_API_ENTER && here.runtime_calls == 0;
  if (site == CUPTI_API_ENTER) return here.runtime_calls++ == 0;
  if (here.runtime_calls > 0) --here.runtime_calls;
  return false;
}

}  // namespace

// Shared with the calls that are in the handler: they may be on their way when the subscription ends.
struct CuptiSubscription::Listener {
  Handler handler;
  std::uint64_t number;

  static std::atomic<std::shared_ptr<Listener>>& active() {
    static auto& listener = *new std::atomic<std::shared_ptr<Listener>>;  // CUDA is called until the very end
    return listener;
  }
};

const Cupti* Cupti::try_get() noexcept {
  static const Cupti cupti = load();
  const bool complete = cupti.subscribe != nullptr && cupti.unsubscribe != nullptr && cupti.enable_callback != nullptr;
  return complete ? &cupti : nullptr;
}

CuptiSubscription::Opening CuptiSubscription::open(Handler handler, const Cupti* cupti) {
  static std::atomic<std::uint64_t> subscriptions{0};
  if (cupti == nullptr) return {.subscription = nullptr, .problem = "there is no CUPTI library on this machine"};
  CUpti_SubscriberHandle handle = nullptr;
  if (const CUptiResult result = cupti->subscribe(&handle, &on_call, nullptr); result != CUPTI_SUCCESS) {
    return {.subscription = nullptr, .problem = explain(result, *cupti)};
  }
  Opening opening;
  opening.subscription.reset(new CuptiSubscription(*cupti, handle));
  auto listener = std::make_shared<Listener>();
  listener->handler = std::move(handler);
  listener->number = ++subscriptions;
  Listener::active().store(std::move(listener));
  for (std::size_t i = 0; const auto entry = api_entry(i); ++i) {
    // One that this CUPTI does not know is one that nobody calls.
    (void)cupti->enable_callback(1, handle, entry->driver ? CUPTI_CB_DOMAIN_DRIVER_API : CUPTI_CB_DOMAIN_RUNTIME_API,
                                 entry->id);
  }
  return opening;
}

CuptiSubscription::~CuptiSubscription() {
  // There is nobody to tell of a failure, and nothing to do about it: without a listener nothing is shown in any case.
  (void)cupti_.unsubscribe(handle_);
  Listener::active().store(nullptr);
}

void CuptiSubscription::on_call(void* /*user*/, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
  const bool driver = domain == CUPTI_CB_DOMAIN_DRIVER_API;
  if (!driver && domain != CUPTI_CB_DOMAIN_RUNTIME_API) return;
  const std::shared_ptr<Listener> listener = Listener::active().load();
  if (listener == nullptr) return;
  Nesting& here = nesting(listener->number);
  const auto& told = *static_cast<const CUpti_CallbackData*>(data);
  if (!is_outermost_begin(here, driver, told.callbackSite) || here.handling) return;
  std::optional<ApiCall> call = decode({.driver = driver, .id = id}, told.functionParams);
  if (!call) return;
  call->context = told.context;
  here.handling = true;
  listener->handler(*call);
  here.handling = false;
}

}  // namespace pianola
