// A libcupti.so.13 without a GPU, for tests of the library that is loaded into programs: what CUPTI exports, made of
// FakeActivity, and functions by which a program does "work". PIANOLA_FAKE_CUPTI says what is refused.
#include <pianola/core/export.hpp>
#include <pianola/profile/testing/fake_activity.hpp>

#include <cupti_driver_cbid.h>
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>

#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <string_view>

namespace pianola::profiling {
namespace {

FakeActivity& fake() {
  static auto& only = *new FakeActivity;
  static const bool configured = [] {
    const char* variable = std::getenv("PIANOLA_FAKE_CUPTI");
    const std::string_view wish = variable == nullptr ? "" : variable;
    if (wish == "busy") only.subscribed = true;
    if (wish == "old") only.version = 24;
    if (wish == "forbidden") {
      only.enable_results[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL] = CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
    }
    return true;
  }();
  (void)configured;
  return only;
}

std::uint64_t now() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(time.tv_nsec);
}

std::uint32_t next_id = 0;
std::uint32_t open_marker = 0;

int push(const char* name) {
  open_marker = ++next_id;
  fake().put(marker_record(CUPTI_ACTIVITY_FLAG_MARKER_START, open_marker, now(), name));
  return 0;
}

int pop() {
  fake().put(marker_record(CUPTI_ACTIVITY_FLAG_MARKER_END, open_marker, now(), nullptr));
  return 0;
}

void name_thread(std::uint32_t, const char*) { std::abort(); }

}  // namespace
}  // namespace pianola::profiling

using pianola::profiling::fake;

extern "C" {

/// A launch and a kernel, `count` times.
PIANOLA_API void pianola_fake_work(int count) {
  for (int i = 0; i < count; ++i) {
    const std::uint32_t id = ++pianola::profiling::next_id;
    const std::uint64_t time = pianola::profiling::now();
    fake().put(pianola::profiling::call_record(true, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, time, time + 1, id));
    fake().put(pianola::profiling::kernel_record("fake_kernel", time + 2, time + 4, id));
  }
}

PIANOLA_API int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size);
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&pianola::profiling::push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&pianola::profiling::pop);
  *table[NVTX_CBID_CORE_NameOsThreadA] = reinterpret_cast<NvtxFunctionPointer>(&pianola::profiling::name_thread);
  return 1;
}

PIANOLA_API CUptiResult cuptiGetVersion(std::uint32_t* version) { return fake().table.get_version(version); }
PIANOLA_API CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
  return fake().table.result_string(result, text);
}
PIANOLA_API CUptiResult cuptiGetTimestamp(std::uint64_t* time) {
  *time = pianola::profiling::now();
  return CUPTI_SUCCESS;
}
PIANOLA_API CUptiResult cuptiSetThreadIdType(CUpti_ActivityThreadIdType type) {
  return fake().table.set_thread_id_type(type);
}
PIANOLA_API CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, std::uint32_t id, const char** name) {
  return fake().table.callback_name(domain, id, name);
}
PIANOLA_API CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc callback, void* user) {
  return fake().table.subscribe(handle, callback, user);
}
PIANOLA_API CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle handle) { return fake().table.unsubscribe(handle); }
PIANOLA_API CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute attribute, std::size_t* size, void* value) {
  return fake().table.set_attribute(attribute, size, value);
}
PIANOLA_API CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                                       CUpti_BuffersCallbackCompleteFunc complete) {
  return fake().table.register_callbacks(request, complete);
}
PIANOLA_API CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) { return fake().table.enable(kind); }
PIANOLA_API CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) { return fake().table.disable(kind); }
PIANOLA_API CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId id, std::uint8_t on) {
  return fake().table.enable_runtime_api(id, on);
}
PIANOLA_API CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId id, std::uint8_t on) {
  return fake().table.enable_driver_api(id, on);
}
PIANOLA_API CUptiResult cuptiActivityFlushAll(std::uint32_t flag) { return fake().table.flush_all(flag); }
PIANOLA_API CUptiResult cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid, CUpti_Activity** record) {
  return fake().table.next_record(buffer, valid, record);
}
PIANOLA_API CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, std::uint32_t stream,
                                                          std::size_t* dropped) {
  return fake().table.dropped_records(context, stream, dropped);
}

}  // extern "C"
