#include <pianola/cuda/cupti.hpp>

#include <fmt/format.h>

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>
#include <utility>

namespace pianola {
namespace {

// The versions whose numbers of entry points are the ones here: numbers are only ever added.
constexpr std::array kNames = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
constexpr std::array kRuntimeNames = {"libcudart.so.13", "libcudart.so.12"};

void* loaded_already() {
  for (const char* name : kNames) {
    if (void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) return library;
  }
  return nullptr;
}

// "/.../nvidia/cu13/lib/", as far as a CUDA runtime is loaded.
std::string folder_of_runtime() {
  for (const char* name : kRuntimeNames) {
    void* runtime = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    link_map* map = nullptr;
    if (runtime == nullptr || dlinfo(runtime, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0) continue;
    const std::string_view path = map->l_name;
    return std::string(path.substr(0, path.rfind('/') + 1));
  }
  return "";
}

// Never closed: CUPTI leaves hooks in the driver.
void* library() {
  if (void* found = loaded_already()) return found;
  const std::string folder = folder_of_runtime();
  for (const char* name : kNames) {
    if (void* found = folder.empty() ? nullptr : dlopen((folder + name).c_str(), RTLD_LAZY | RTLD_LOCAL)) return found;
  }
  for (const char* name : kNames) {
    if (void* found = dlopen(name, RTLD_LAZY | RTLD_LOCAL)) return found;
  }
  return nullptr;
}

template <class Function>
void bind(Function& member, void* library, const char* symbol) {
  member = reinterpret_cast<Function>(dlsym(library, symbol));
}

Cupti load() {
  Cupti cupti;
  void* from = library();
  if (from == nullptr) return cupti;
  bind(cupti.subscribe, from, "cuptiSubscribe");
  bind(cupti.unsubscribe, from, "cuptiUnsubscribe");
  bind(cupti.enable_callback, from, "cuptiEnableCallback");
  bind(cupti.result_string, from, "cuptiGetResultString");
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
