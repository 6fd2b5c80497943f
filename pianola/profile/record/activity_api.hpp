#pragma once
#include <pianola/core/error.hpp>

#include <cupti_activity.h>
#include <cupti_callbacks.h>
#include <cupti_version.h>

#include <cstdint>
#include <optional>
#include <string>

namespace pianola::profiling {

/// CUPTI's functions of its activity API, which records without stopping the program. A plain struct, so that a test can
/// pass a table of its own functions.
struct ActivityApi {
  decltype(&cuptiGetVersion) get_version = nullptr;
  decltype(&cuptiGetResultString) result_string = nullptr;
  decltype(&cuptiGetCallbackName) callback_name = nullptr;
  decltype(&cuptiGetTimestamp) get_timestamp = nullptr;
  decltype(&cuptiSetThreadIdType) set_thread_id_type = nullptr;
  decltype(&cuptiSubscribe) subscribe = nullptr;
  decltype(&cuptiUnsubscribe) unsubscribe = nullptr;
  decltype(&cuptiActivitySetAttribute) set_attribute = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityEnableRuntimeApi) enable_runtime_api = nullptr;
  decltype(&cuptiActivityEnableDriverApi) enable_driver_api = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped_records = nullptr;
};

struct ActivityApiOpening {
  std::optional<ActivityApi> api;
  Diagnosis problem;  ///< Why there is none.
};
/// Of the library that cupti_library() finds. @param fallback  As there.
[[nodiscard]] ActivityApiOpening open_activity_api(const std::string& fallback);
/// Of a library that is loaded; nullptr: there is none.
[[nodiscard]] ActivityApiOpening activity_api_of(void* library);

/// The oldest version of CUPTI whose records are laid out as this recorder reads them. Later ones append fields only.
inline constexpr std::uint32_t kOldestCupti = CUPTI_API_VERSION / 10'000 * 10'000;

/// What to tell of a call that CUPTI refused.
/// @param call  What was tried: "cuptiSubscribe".
[[nodiscard]] Diagnosis explain(const ActivityApi& api, CUptiResult result, const char* call);

/// Why this version of the library cannot be used; nothing where it can.
[[nodiscard]] std::optional<Diagnosis> check_version(const ActivityApi& api);

}  // namespace pianola::profiling
