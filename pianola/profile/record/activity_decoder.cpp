#include <pianola/profile/record/activity_decoder.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>

namespace pianola::profiling {
namespace {

// CUPTI of any CUDA 13 has these fields where the header's records have them: new ones were appended.
template <class New, class Old>
constexpr bool kSameLayout = offsetof(New, start) == offsetof(Old, start) && offsetof(New, end) == offsetof(Old, end) &&
                             offsetof(New, deviceId) == offsetof(Old, deviceId) &&
                             offsetof(New, streamId) == offsetof(Old, streamId) &&
                             offsetof(New, correlationId) == offsetof(Old, correlationId) &&
                             offsetof(New, graphId) == offsetof(Old, graphId);
static_assert(kSameLayout<CUpti_ActivityKernel10, CUpti_ActivityKernel9> &&
              offsetof(CUpti_ActivityKernel10, name) == offsetof(CUpti_ActivityKernel9, name));
static_assert(kSameLayout<CUpti_ActivityMemcpy6, CUpti_ActivityMemcpy5> &&
              offsetof(CUpti_ActivityMemcpy6, bytes) == offsetof(CUpti_ActivityMemcpy5, bytes));

// In the words of torch.profiler, so that a recording and its traces read alike.
const char* copy_kind(std::uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "HtoD";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "DtoH";
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOA:
      return "HtoA";
    case CUPTI_ACTIVITY_MEMCPY_KIND_ATOH:
      return "AtoH";
    case CUPTI_ACTIVITY_MEMCPY_KIND_ATOA:
      return "AtoA";
    case CUPTI_ACTIVITY_MEMCPY_KIND_ATOD:
      return "AtoD";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOA:
      return "DtoA";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "DtoD";
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOH:
      return "HtoH";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
      return "PtoP";
    default:
      return "<unknown>";
  }
}

const char* memory_kind(std::uint16_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE:
      return "Pageable";
    case CUPTI_ACTIVITY_MEMORY_KIND_PINNED:
      return "Pinned";
    case CUPTI_ACTIVITY_MEMORY_KIND_DEVICE:
      return "Device";
    case CUPTI_ACTIVITY_MEMORY_KIND_ARRAY:
      return "Array";
    case CUPTI_ACTIVITY_MEMORY_KIND_MANAGED:
      return "Managed";
    case CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC:
      return "Device Static";
    case CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC:
      return "Managed Static";
    default:
      return "Unknown";
  }
}

template <class Record>
TimeSpan time_of(const Record& record) {
  return {.begin = static_cast<Nanoseconds>(record.start), .end = static_cast<Nanoseconds>(record.end)};
}

template <class Record>
DeviceWork work_of(const Record& record, DeviceWork::Kind kind) {
  return {.time = time_of(record),
          .name = 0,
          .kind = kind,
          .device = static_cast<std::int32_t>(record.deviceId),
          .stream = record.streamId,
          .correlation = record.correlationId,
          .graph = record.graphId};
}

// Of ranges that begin and end on different threads too: the one on which it began.
std::int64_t thread_of(const CUpti_ActivityMarker2& marker) {
  return marker.objectKind == CUPTI_ACTIVITY_OBJECT_THREAD ? marker.objectId.pt.threadId : 0;
}

}  // namespace

void ActivityDecoder::decode(const CUpti_Activity& record) {
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return add_kernel(reinterpret_cast<const CUpti_ActivityKernel10&>(record));
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return add_copy(reinterpret_cast<const CUpti_ActivityMemcpy6&>(record));
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      return add_copy(reinterpret_cast<const CUpti_ActivityMemcpyPtoP4&>(record));
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return add_memset(reinterpret_cast<const CUpti_ActivityMemset4&>(record));
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
      return add_call(reinterpret_cast<const CUpti_ActivityAPI&>(record));
    case CUPTI_ACTIVITY_KIND_MARKER:
      return add_marker(reinterpret_cast<const CUpti_ActivityMarker2&>(record));
    case CUPTI_ACTIVITY_KIND_DEVICE:
      return add_device(reinterpret_cast<const CUpti_ActivityDevice5&>(record));
    default:
      return;
  }
}

void ActivityDecoder::finish() {
  for (const auto& [id, range] : open_) {
    writer_.add(HostRange{.time = {.begin = range.begin, .end = std::max(range.begin, last_)},
                          .name = range.name,
                          .thread = range.thread});
  }
  open_.clear();
  lost_ranges_ += early_ends_.size();
  early_ends_.clear();
  if (untimed_ > 0) {
    writer_.add_note(
        fmt::format("{} kernels, copies and memsets have no times and were left out: they had not ended, or "
                    "CUPTI had no device memory for them",
                    untimed_));
  }
  if (lost_ranges_ > 0) {
    writer_.add_note(fmt::format(
        "{} NVTX ranges were left out: they began before the recording, or were too many at once", lost_ranges_));
  }
}

void ActivityDecoder::add_kernel(const CUpti_ActivityKernel10& kernel) {
  DeviceWork work = work_of(kernel, DeviceWork::Kind::kernel);
  work.name = writer_.name(kernel.name == nullptr ? "(a kernel without a name)" : kernel.name);
  add_work(work);
}

template <class Record>
void ActivityDecoder::add_copy(const Record& copy) {
  DeviceWork work = work_of(copy, DeviceWork::Kind::copy);
  work.name = writer_.name(fmt::format("Memcpy {} ({} -> {})", copy_kind(copy.copyKind), memory_kind(copy.srcKind),
                                       memory_kind(copy.dstKind)));
  work.bytes = copy.bytes;
  add_work(work);
}

void ActivityDecoder::add_memset(const CUpti_ActivityMemset4& memset) {
  DeviceWork work = work_of(memset, DeviceWork::Kind::memset);
  work.name = writer_.name(fmt::format("Memset ({})", memory_kind(memset.memoryKind)));
  work.bytes = memset.bytes;
  add_work(work);
}

void ActivityDecoder::add_work(DeviceWork work) {
  if (work.time.begin == 0 || work.time.end == 0 || work.time.end < work.time.begin) {
    ++untimed_;
    return;
  }
  saw(work.time.end);
  writer_.add(work);
}

void ActivityDecoder::add_call(const CUpti_ActivityAPI& call) {
  const RecordedCall* known = calls_.find(call.kind == CUPTI_ACTIVITY_KIND_DRIVER, call.cbid);
  if (known == nullptr || call.start == 0 || call.end < call.start) return;
  if (static_cast<Nanoseconds>(call.start) < first_call_) return;
  saw(static_cast<Nanoseconds>(call.end));
  writer_.add(HostCall{.time = time_of(call),
                       .name = writer_.name(known->name),
                       .kind = known->kind,
                       .thread = call.threadId,
                       .correlation = call.correlationId});
}

void ActivityDecoder::add_marker(const CUpti_ActivityMarker2& marker) {
  if (marker.timestamp == 0) return;
  saw(static_cast<Nanoseconds>(marker.timestamp));
  if ((marker.flags & CUPTI_ACTIVITY_FLAG_MARKER_START) != 0) begin_range(marker);
  if ((marker.flags & CUPTI_ACTIVITY_FLAG_MARKER_END) != 0)
    end_range(marker.id, static_cast<Nanoseconds>(marker.timestamp));
}

void ActivityDecoder::begin_range(const CUpti_ActivityMarker2& marker) {
  if (open_.size() >= kMostOpenRanges) {
    ++lost_ranges_;
    return;
  }
  open_[marker.id] = {.name = writer_.name(marker.name == nullptr ? "(a range without a name)" : marker.name),
                      .begin = static_cast<Nanoseconds>(marker.timestamp),
                      .thread = thread_of(marker)};
  const auto early = early_ends_.find(marker.id);
  if (early == early_ends_.end()) return;
  const Nanoseconds end = early->second;
  early_ends_.erase(early);
  end_range(marker.id, end);
}

void ActivityDecoder::end_range(std::uint32_t id, Nanoseconds time) {
  const auto range = open_.find(id);
  if (range != open_.end()) {
    writer_.add(HostRange{.time = {.begin = range->second.begin, .end = std::max(range->second.begin, time)},
                          .name = range->second.name,
                          .thread = range->second.thread});
    open_.erase(range);
  } else if (early_ends_.size() < kMostOpenRanges) {
    early_ends_.emplace(id, time);
  } else {
    ++lost_ranges_;
  }
}

void ActivityDecoder::add_device(const CUpti_ActivityDevice5& device) {
  if (device.name == nullptr || device.isCudaVisible == 0 || !devices_.insert(device.id).second) return;
  // CUPTI would have its reader free the name: that is left, lest the two use different allocators.
  writer_.add_device(static_cast<std::int32_t>(device.id), device.name);
}

}  // namespace pianola::profiling
