#pragma once
#include <pianola/cuda/cupti.hpp>

#include <cstdint>
#include <set>
#include <utility>

namespace pianola {

/// A CUPTI without a GPU, for tests: has room for one subscriber, and makes calls as the runtime and the driver would.
/// One at a time per process.
class FakeCupti {
 public:
  FakeCupti() {
    current = this;
    table.subscribe = [](CUpti_SubscriberHandle* handle, CUpti_CallbackFunc given, void*) {
      if (current->refusal != CUPTI_SUCCESS) return current->refusal;
      if (current->callback != nullptr) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
      current->callback = given;
      *handle = reinterpret_cast<CUpti_SubscriberHandle>(current);
      return CUPTI_SUCCESS;
    };
    table.unsubscribe = [](CUpti_SubscriberHandle) {
      current->callback = nullptr;
      current->enabled.clear();
      return CUPTI_SUCCESS;
    };
    table.enable_callback = [](std::uint32_t enable, CUpti_SubscriberHandle, CUpti_CallbackDomain domain,
                               CUpti_CallbackId id) {
      if (enable != 0) current->enabled.insert({domain, id});
      return CUPTI_SUCCESS;
    };
    table.result_string = [](CUptiResult, const char** text) {
      *text = "CUPTI_ERROR_OF_A_TEST";
      return CUPTI_SUCCESS;
    };
  }

  void begin(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* parameters = nullptr) {
    call(domain, id, parameters, CUPTI_API_ENTER);
  }
  void end(CUpti_CallbackDomain domain, CUpti_CallbackId id) { call(domain, id, nullptr, CUPTI_API_EXIT); }
  void runtime_call(CUpti_CallbackId id, const void* parameters = nullptr) {
    begin(CUPTI_CB_DOMAIN_RUNTIME_API, id, parameters);
    end(CUPTI_CB_DOMAIN_RUNTIME_API, id);
  }

  static inline FakeCupti* current = nullptr;
  Cupti table;
  CUptiResult refusal = CUPTI_SUCCESS;
  CUpti_CallbackFunc callback = nullptr;
  std::set<std::pair<CUpti_CallbackDomain, CUpti_CallbackId>> enabled;

 private:
  void call(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* parameters, CUpti_ApiCallbackSite site) {
    if (callback == nullptr || enabled.count({domain, id}) == 0) return;
    CUpti_CallbackData data{};
    data.callbackSite = site;
    data.functionParams = parameters;
    callback(nullptr, domain, id, &data);
  }
};

}  // namespace pianola
