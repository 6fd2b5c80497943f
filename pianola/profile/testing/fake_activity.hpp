#pragma once
#include <pianola/profile/record/activity_api.hpp>

#include <cupti_driver_cbid.h>
#include <cupti_runtime_cbid.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace pianola::profiling {

/// CUPTI's activity API without a GPU, for tests: puts records into the recorder's buffers as CUPTI would, with the
/// header's structs one behind the other, and hands a buffer over when it is full or flushed. One at a time per process.
class FakeActivity {
 public:
  FakeActivity() {
    current = this;
    fill_table();
  }
  FakeActivity(const FakeActivity&) = delete;
  FakeActivity& operator=(const FakeActivity&) = delete;
  ~FakeActivity() { current = nullptr; }

  /// Appends a record, if its kind is enabled; counts it as dropped where there is no buffer for it.
  template <class Record>
  void put(const Record& record) {
    const std::lock_guard lock(mutex_);
    if (request_ == nullptr || !is_enabled(record)) return;
    if (!has_room(sizeof record)) {
      hand_over();
      request_(&buffer_, &size_, &most_records_);
      if (buffer_ == nullptr) {
        ++dropped_;
        return;
      }
    }
    std::memcpy(buffer_ + used_, &record, sizeof record);
    used_ += sizeof record;
  }

  /// From now on. Threads: any.
  void refuse(CUpti_ActivityKind kind, CUptiResult result) {
    const std::lock_guard lock(mutex_);
    enable_results[kind] = result;
  }

  /// CUPTI's names of some entry points.
  static CUptiResult name_of(CUpti_CallbackDomain domain, std::uint32_t id, const char** name) {
    struct Entry {
      CUpti_CallbackDomain domain;
      std::uint32_t id;
      const char* name;
    };
#define PIANOLA_FAKE_RUNTIME(name) \
  Entry { CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_##name, #name }
#define PIANOLA_FAKE_DRIVER(name) \
  Entry { CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_##name, #name }
    static const Entry entries[] = {
        PIANOLA_FAKE_RUNTIME(cudaLaunchKernel_v7000),
        PIANOLA_FAKE_RUNTIME(__cudaLaunchKernel_v13000),
        PIANOLA_FAKE_RUNTIME(cudaGraphLaunch_v10000),
        PIANOLA_FAKE_RUNTIME(cudaMemcpyAsync_v3020),
        PIANOLA_FAKE_RUNTIME(cudaMemcpyAsync_ptsz_v7000),
        PIANOLA_FAKE_RUNTIME(cudaMemcpyPeer_v4000),
        PIANOLA_FAKE_RUNTIME(cudaMemset_ptds_v7000),
        PIANOLA_FAKE_RUNTIME(cudaStreamSynchronize_v3020),
        PIANOLA_FAKE_RUNTIME(cudaDeviceSynchronize_v3020),
        PIANOLA_FAKE_RUNTIME(cudaEventSynchronize_v3020),
        PIANOLA_FAKE_RUNTIME(cudaFreeHost_v3020),
        PIANOLA_FAKE_RUNTIME(cudaEventQuery_v3020),
        PIANOLA_FAKE_RUNTIME(cudaGetDevice_v3020),
        PIANOLA_FAKE_RUNTIME(cudaMalloc_v3020),
        PIANOLA_FAKE_DRIVER(cuLaunchKernel),
        PIANOLA_FAKE_DRIVER(cuLaunchKernelEx_ptsz),
        PIANOLA_FAKE_DRIVER(cuGraphLaunch),
        PIANOLA_FAKE_DRIVER(cuGraphLaunch_ptsz),
        PIANOLA_FAKE_DRIVER(cuMemcpyDtoHAsync_v2),
        PIANOLA_FAKE_DRIVER(cuStreamSynchronize),
        PIANOLA_FAKE_DRIVER(cuStreamQuery),
    };
#undef PIANOLA_FAKE_DRIVER
#undef PIANOLA_FAKE_RUNTIME
    for (const Entry& entry : entries) {
      if (entry.domain != domain || entry.id != id) continue;
      *name = entry.name;
      return CUPTI_SUCCESS;
    }
    return CUPTI_ERROR_INVALID_PARAMETER;
  }
  /// Of all functions this one.
  static ActivityApi names() {
    ActivityApi api;
    api.callback_name = &name_of;
    return api;
  }

  static inline FakeActivity* current = nullptr;
  ActivityApi table;
  std::uint32_t version = CUPTI_API_VERSION;
  std::uint64_t clock = 1'000'000;
  CUptiResult subscribe_result = CUPTI_SUCCESS;
  std::map<CUpti_ActivityKind, CUptiResult> enable_results;  ///< Of kinds that are refused.
  std::atomic<int> refusals = 0;                             ///< Of kinds, so far.
  std::atomic<bool> holds_flushes = false;                   ///< A flush does not return, as when a driver hangs.
  std::atomic<bool> holds_reading = false;                   ///< Records in a buffer are not found yet.
  bool subscribed = false;
  std::set<CUpti_ActivityKind> enabled;
  std::set<CUpti_CallbackId> runtime_calls, driver_calls;
  std::vector<std::uint32_t> flushes;
  std::uint8_t zeroed = 0;
  CUpti_ActivityThreadIdType thread_ids = CUPTI_ACTIVITY_THREAD_ID_TYPE_DEFAULT;

  std::mutex& mutex() { return mutex_; }

  /// Of a record of the header's layout; 0: the kind is not known.
  static std::size_t size_of(CUpti_ActivityKind kind) {
    switch (kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        return sizeof(CUpti_ActivityKernel10);
      case CUPTI_ACTIVITY_KIND_MEMCPY:
        return sizeof(CUpti_ActivityMemcpy6);
      case CUPTI_ACTIVITY_KIND_MEMCPY2:
        return sizeof(CUpti_ActivityMemcpyPtoP4);
      case CUPTI_ACTIVITY_KIND_MEMSET:
        return sizeof(CUpti_ActivityMemset4);
      case CUPTI_ACTIVITY_KIND_RUNTIME:
      case CUPTI_ACTIVITY_KIND_DRIVER:
        return sizeof(CUpti_ActivityAPI);
      case CUPTI_ACTIVITY_KIND_MARKER:
        return sizeof(CUpti_ActivityMarker2);
      case CUPTI_ACTIVITY_KIND_DEVICE:
        return sizeof(CUpti_ActivityDevice5);
      default:
        return 0;
    }
  }

  static CUptiResult next_record(std::uint8_t* buffer, std::size_t valid_bytes, CUpti_Activity** record) {
    while (current->holds_reading) std::this_thread::yield();
    auto* here = reinterpret_cast<std::uint8_t*>(*record);
    auto* next = here == nullptr ? buffer : here + size_of((*record)->kind);
    if (next >= buffer + valid_bytes) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = reinterpret_cast<CUpti_Activity*>(next);
    return size_of((*record)->kind) == 0 ? CUPTI_ERROR_INVALID_KIND : CUPTI_SUCCESS;
  }

  /// Threads: any.
  [[nodiscard]] bool records(CUpti_ActivityKind kind) {
    const std::lock_guard lock(mutex_);
    return enabled.contains(kind);
  }

 private:
  template <class Record>
  bool is_enabled(const Record& record) const {
    return enabled.contains(record.kind);
  }
  bool is_enabled(const CUpti_ActivityAPI& call) const {
    return (call.kind == CUPTI_ACTIVITY_KIND_DRIVER ? driver_calls : runtime_calls).contains(call.cbid);
  }
  bool has_room(std::size_t bytes) const { return buffer_ != nullptr && used_ + bytes <= size_; }

  void hand_over() {
    if (buffer_ == nullptr) return;
    complete_(nullptr, 0, buffer_, size_, used_);
    buffer_ = nullptr;
    used_ = 0;
  }

  void fill_table() {
    table.get_version = [](std::uint32_t* to) {
      *to = current->version;
      return CUPTI_SUCCESS;
    };
    table.result_string = [](CUptiResult, const char** text) {
      *text = "CUPTI_ERROR_OF_A_TEST";
      return CUPTI_SUCCESS;
    };
    table.callback_name = &name_of;
    table.get_timestamp = [](std::uint64_t* time) {
      const std::lock_guard lock(current->mutex_);
      *time = current->clock;
      return CUPTI_SUCCESS;
    };
    table.set_thread_id_type = [](CUpti_ActivityThreadIdType type) {
      current->thread_ids = type;
      return CUPTI_SUCCESS;
    };
    table.subscribe = [](CUpti_SubscriberHandle* handle, CUpti_CallbackFunc, void*) {
      if (current->subscribe_result != CUPTI_SUCCESS) return current->subscribe_result;
      if (current->subscribed) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
      current->subscribed = true;
      *handle = reinterpret_cast<CUpti_SubscriberHandle>(current);
      return CUPTI_SUCCESS;
    };
    table.unsubscribe = [](CUpti_SubscriberHandle) {
      current->subscribed = false;
      return CUPTI_SUCCESS;
    };
    fill_activity();
  }

  void fill_activity() {
    table.set_attribute = [](CUpti_ActivityAttribute attribute, std::size_t* size, void* value) {
      if (attribute != CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER || *size != 1)
        return CUPTI_ERROR_INVALID_PARAMETER;
      current->zeroed = *static_cast<std::uint8_t*>(value);
      return CUPTI_SUCCESS;
    };
    table.register_callbacks = [](CUpti_BuffersCallbackRequestFunc request,
                                  CUpti_BuffersCallbackCompleteFunc complete) {
      current->request_ = request;
      current->complete_ = complete;
      return CUPTI_SUCCESS;
    };
    table.enable = [](CUpti_ActivityKind kind) {
      const std::lock_guard lock(current->mutex_);
      const auto refused = current->enable_results.find(kind);
      if (refused != current->enable_results.end()) {
        ++current->refusals;
        return refused->second;
      }
      current->enabled.insert(kind);
      return CUPTI_SUCCESS;
    };
    table.disable = [](CUpti_ActivityKind kind) {
      const std::lock_guard lock(current->mutex_);
      current->enabled.erase(kind);
      return CUPTI_SUCCESS;
    };
    table.enable_runtime_api = [](CUpti_CallbackId id, std::uint8_t on) {
      return current->mark(current->runtime_calls, id, on);
    };
    table.enable_driver_api = [](CUpti_CallbackId id, std::uint8_t on) {
      return current->mark(current->driver_calls, id, on);
    };
    table.flush_all = [](std::uint32_t flag) {
      while (current->holds_flushes) std::this_thread::yield();
      const std::lock_guard lock(current->mutex_);
      current->flushes.push_back(flag);
      current->hand_over();
      return CUPTI_SUCCESS;
    };
    table.next_record = &next_record;
    table.dropped_records = [](CUcontext, std::uint32_t, std::size_t* dropped) {
      const std::lock_guard lock(current->mutex_);
      *dropped = current->dropped_;
      current->dropped_ = 0;
      return CUPTI_SUCCESS;
    };
  }

  CUptiResult mark(std::set<CUpti_CallbackId>& calls, CUpti_CallbackId id, std::uint8_t on) {
    const std::lock_guard lock(mutex_);
    if (on != 0) {
      calls.insert(id);
    } else {
      calls.erase(id);
    }
    return CUPTI_SUCCESS;
  }

  std::mutex mutex_;
  CUpti_BuffersCallbackRequestFunc request_ = nullptr;
  CUpti_BuffersCallbackCompleteFunc complete_ = nullptr;
  std::uint8_t* buffer_ = nullptr;
  std::size_t size_ = 0, used_ = 0, most_records_ = 0;
  std::size_t dropped_ = 0;
};

// Records as CUPTI makes them, all other fields 0.

inline CUpti_ActivityKernel10 kernel_record(const char* name, std::uint64_t start, std::uint64_t end,
                                            std::uint32_t correlation, std::uint32_t graph = 0) {
  CUpti_ActivityKernel10 record{};
  record.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  record.name = name;
  record.start = start;
  record.end = end;
  record.deviceId = 1;
  record.streamId = 7;
  record.correlationId = correlation;
  record.graphId = graph;
  return record;
}

inline CUpti_ActivityAPI call_record(bool driver, CUpti_CallbackId id, std::uint64_t start, std::uint64_t end,
                                     std::uint32_t correlation, std::uint32_t thread = 42) {
  CUpti_ActivityAPI record{};
  record.kind = driver ? CUPTI_ACTIVITY_KIND_DRIVER : CUPTI_ACTIVITY_KIND_RUNTIME;
  record.cbid = id;
  record.start = start;
  record.end = end;
  record.threadId = thread;
  record.correlationId = correlation;
  return record;
}

inline CUpti_ActivityMarker2 marker_record(CUpti_ActivityFlag flag, std::uint32_t id, std::uint64_t time,
                                           const char* name, std::uint32_t thread = 42) {
  CUpti_ActivityMarker2 record{};
  record.kind = CUPTI_ACTIVITY_KIND_MARKER;
  record.flags = flag;
  record.id = id;
  record.timestamp = time;
  record.objectKind = CUPTI_ACTIVITY_OBJECT_THREAD;
  record.objectId.pt.threadId = thread;
  record.name = name;
  return record;
}

}  // namespace pianola::profiling
