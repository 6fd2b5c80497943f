#include <pianola/profile/record/activity_api.hpp>

#include <pianola/cuda/cupti_library.hpp>

#include <fmt/format.h>

namespace pianola::profiling {
namespace {

// The first symbol that the library lacks; nullptr: none.
const char* bind_all(ActivityApi& api, void* library) {
  return SymbolBinder(library)
      .bind(api.get_version, "cuptiGetVersion")
      .bind(api.result_string, "cuptiGetResultString")
      .bind(api.callback_name, "cuptiGetCallbackName")
      .bind(api.get_timestamp, "cuptiGetTimestamp")
      .bind(api.set_thread_id_type, "cuptiSetThreadIdType")
      .bind(api.subscribe, "cuptiSubscribe")
      .bind(api.unsubscribe, "cuptiUnsubscribe")
      .bind(api.set_attribute, "cuptiActivitySetAttribute")
      .bind(api.register_callbacks, "cuptiActivityRegisterCallbacks")
      .bind(api.enable, "cuptiActivityEnable")
      .bind(api.disable, "cuptiActivityDisable")
      .bind(api.enable_runtime_api, "cuptiActivityEnableRuntimeApi")
      .bind(api.enable_driver_api, "cuptiActivityEnableDriverApi")
      .bind(api.flush_all, "cuptiActivityFlushAll")
      .bind(api.next_record, "cuptiActivityGetNextRecord")
      .bind(api.dropped_records, "cuptiActivityGetNumDroppedRecords")
      .missing();
}

std::string install_advice() {
  return fmt::format(
      "install CUPTI of CUDA {} (pip install nvidia-cuda-cupti, or the CUDA toolkit), which torch's wheels "
      "bring with them",
      kOldestCupti / 10'000);
}

// Until CUDA 12 versions were counted.
std::string in_words(std::uint32_t version) {
  return version < 10'000 ? fmt::format("{} (before CUDA 13)", version)
                          : fmt::format("{}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
}

std::string fix_of(CUptiResult result) {
  switch (result) {
    case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
      return "end the other profiler: run the command without Nsight Systems, Nsight Compute, cuda-gdb and DCGM's "
             "profiling, and without torch.profiler before CUDA is first used";
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
    case CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES:
      return "let the administrator allow profiling to all users (kernel module option "
             "NVreg_RestrictProfilingToAdminUsers=0, see https://developer.nvidia.com/ERR_NVGPUCTRPERM), or run as "
             "root; "
             "in a container add the capability SYS_ADMIN";
    case CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED:
    case CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED:
    case CUPTI_ERROR_CMP_DEVICE_NOT_SUPPORTED:
    case CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED:
    case CUPTI_ERROR_SLI_DEVICE_NOT_SUPPORTED:
    case CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED:
    case CUPTI_ERROR_NOT_SUPPORTED:
      return "record on a machine whose GPU is neither virtual, partitioned, nor in confidential computing mode, or "
             "read "
             "a trace of torch.profiler instead";
    default:
      return "see that `nvidia-smi` works and that the driver is at least as new as CUPTI; if so, read a trace of "
             "torch.profiler instead";
  }
}

std::string text_of(const ActivityApi& api, CUptiResult result) {
  const char* text = nullptr;
  if (api.result_string != nullptr && api.result_string(result, &text) == CUPTI_SUCCESS && text != nullptr) return text;
  return fmt::format("error {}", static_cast<int>(result));
}

}  // namespace

ActivityApiOpening open_activity_api(const std::string& fallback) { return activity_api_of(cupti_library(fallback)); }

ActivityApiOpening activity_api_of(void* library) {
  if (library == nullptr) {
    return {.api = {}, .problem = {.what = "there is no CUPTI library on this machine", .fix = install_advice()}};
  }
  ActivityApi api;
  if (const char* missing = bind_all(api, library)) {
    return {.api = {},
            .problem = {.what = fmt::format("the CUPTI library of this process has no {}: it is too old", missing),
                        .fix = install_advice()}};
  }
  return {.api = api, .problem = {}};
}

Diagnosis explain(const ActivityApi& api, CUptiResult result, const char* call) {
  const std::string text = text_of(api, result);
  switch (result) {
    case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
      return {.what = fmt::format("another profiler is attached to this process, and CUPTI serves only one ({})", text),
              .fix = fix_of(result)};
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
    case CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES:
      return {.what = fmt::format("profiling is not allowed to this user ({})", text), .fix = fix_of(result)};
    default:
      return {.what = fmt::format("CUPTI refused {} ({})", call, text), .fix = fix_of(result)};
  }
}

std::optional<Diagnosis> check_version(const ActivityApi& api) {
  std::uint32_t version = 0;
  if (const CUptiResult result = api.get_version(&version); result != CUPTI_SUCCESS) {
    return explain(api, result, "cuptiGetVersion");
  }
  if (version >= kOldestCupti) return std::nullopt;
  return Diagnosis{.what = fmt::format("the CUPTI library of this process is version {}, the recorder reads {} on",
                                       in_words(version), in_words(kOldestCupti)),
                   .fix = install_advice()};
}

}  // namespace pianola::profiling
