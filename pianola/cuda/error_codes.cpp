#include <pianola/cuda/error_codes.hpp>

#include <fmt/format.h>

#include <utility>

namespace pianola {
namespace {

struct Entry {
  CUresult code;
  CaptureCode words;
};

constexpr std::string_view kRestart = "find the kernel with compute-sanitizer; CUDA is unusable until a restart";
constexpr std::string_view kReport = "this is a fault of Pianola: please report it with the lines around it";

#define PIANOLA_CODE(code, meaning, fix) \
  Entry {                                \
    code, { #code, meaning, fix }        \
  }
constexpr Entry kEntries[] = {
    // Capture.
    PIANOLA_CODE(
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "an operation was issued that a capturing stream does not permit",
        "take host reads (item, cpu, nonzero, printing), synchronization and cudaMalloc out of the captured part"),
    PIANOLA_CODE(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "an earlier error had already broken the capture",
                 "look for the first operation that failed in the captured part"),
    PIANOLA_CODE(CUDA_ERROR_STREAM_CAPTURE_MERGE, "an operation would have joined two independent captures",
                 "wait only for events that were recorded in the same capture"),
    PIANOLA_CODE(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture was ended on a stream that did not begin it",
                 "end the capture on the stream on which it began"),
    PIANOLA_CODE(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "work that was forked to a side stream was not joined again",
                 "record an event behind the side stream's last work and let the capture stream wait for it"),
    PIANOLA_CODE(
        CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "captured work would have depended on work outside the capture",
        "wait only for events recorded inside the capture; finish earlier work on side streams before it begins"),
    PIANOLA_CODE(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "an operation would have waited for the default stream",
                 "run everything in the captured part on the capture stream, nothing on the default stream"),
    PIANOLA_CODE(CUDA_ERROR_CAPTURED_EVENT,
                 "an event recorded in a capture was queried, timed or waited for on the host",
                 "take event timing and event synchronization out of the captured part"),
    PIANOLA_CODE(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "the capture was ended by another thread than began it",
                 "begin and end the capture on one thread, or use the relaxed mode"),
    PIANOLA_CODE(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "the executable cannot take over the changes of the graph",
                 "instantiate the new graph instead"),
    // Memory and handles.
    PIANOLA_CODE(CUDA_ERROR_INVALID_VALUE, "an argument is out of range or a null handle", kReport),
    PIANOLA_CODE(CUDA_ERROR_OUT_OF_MEMORY, "the device is out of memory",
                 "free memory, share one pool between graphs, or capture fewer graphs"),
    PIANOLA_CODE(CUDA_ERROR_INVALID_CONTEXT, "this thread has no current CUDA context",
                 "use the device once on this thread before (torch: any CUDA tensor)"),
    PIANOLA_CODE(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the CUDA context has been destroyed", "do not reset the device"),
    PIANOLA_CODE(CUDA_ERROR_INVALID_HANDLE, "a handle is not valid or was destroyed", kReport),
    PIANOLA_CODE(CUDA_ERROR_LOSSY_QUERY, "a query left out edge data that the graph has", kReport),
    PIANOLA_CODE(CUDA_ERROR_NOT_FOUND, "a named symbol does not exist", ""),
    PIANOLA_CODE(CUDA_ERROR_NOT_READY, "earlier work has not finished", ""),
    PIANOLA_CODE(CUDA_ERROR_NO_BINARY_FOR_GPU, "a kernel has no code for this GPU",
                 "use a build of the library that supports the GPU"),
    PIANOLA_CODE(CUDA_ERROR_INVALID_PTX, "a kernel's PTX does not compile", ""),
    PIANOLA_CODE(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "a kernel's PTX is newer than the driver",
                 "update the NVIDIA driver"),
    // Kernels.
    PIANOLA_CODE(CUDA_ERROR_ILLEGAL_ADDRESS, "a kernel accessed memory that is not mapped: freed, or out of bounds",
                 "check that what the graph reads is still alive; CUDA is unusable until a restart"),
    PIANOLA_CODE(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "a kernel needs more registers or shared memory than there are",
                 ""),
    PIANOLA_CODE(CUDA_ERROR_LAUNCH_TIMEOUT, "a kernel ran too long for the display's watchdog", ""),
    PIANOLA_CODE(CUDA_ERROR_ASSERT, "an assertion failed in a kernel", kRestart),
    PIANOLA_CODE(CUDA_ERROR_HARDWARE_STACK_ERROR, "a kernel corrupted or overflowed its stack", kRestart),
    PIANOLA_CODE(CUDA_ERROR_ILLEGAL_INSTRUCTION, "a kernel met an illegal instruction", kRestart),
    PIANOLA_CODE(CUDA_ERROR_MISALIGNED_ADDRESS, "a kernel accessed an address that is not aligned", kRestart),
    PIANOLA_CODE(CUDA_ERROR_INVALID_ADDRESS_SPACE, "a kernel accessed an address of another memory space", kRestart),
    PIANOLA_CODE(CUDA_ERROR_INVALID_PC, "a kernel jumped out of its code", kRestart),
    PIANOLA_CODE(CUDA_ERROR_LAUNCH_FAILED, "a kernel was aborted", kRestart),
    PIANOLA_CODE(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "a cooperative kernel has more blocks than fit at once", ""),
    PIANOLA_CODE(CUDA_ERROR_ECC_UNCORRECTABLE, "the device's memory has an error that cannot be corrected",
                 "reset or replace the GPU"),
    // Driver and devices.
    PIANOLA_CODE(CUDA_ERROR_NOT_INITIALIZED, "the driver is not initialized: a forked process cannot use CUDA",
                 "start worker processes by spawn instead of fork"),
    PIANOLA_CODE(CUDA_ERROR_DEINITIALIZED, "the driver is shutting down", "destroy graphs before the program ends"),
    PIANOLA_CODE(CUDA_ERROR_STUB_LIBRARY, "the loaded libcuda is the toolkit's stub, not a driver",
                 "take the toolkit's stubs folder out of LD_LIBRARY_PATH"),
    PIANOLA_CODE(CUDA_ERROR_DEVICE_UNAVAILABLE, "the device is busy or exclusively used by another process",
                 "end the other process, or use another device"),
    PIANOLA_CODE(CUDA_ERROR_NO_DEVICE, "there is no CUDA device", "check CUDA_VISIBLE_DEVICES, or use device 'cpu'"),
    PIANOLA_CODE(CUDA_ERROR_INVALID_DEVICE, "there is no device of this number", "see `pianola info` for the devices"),
    PIANOLA_CODE(CUDA_ERROR_NOT_PERMITTED, "the operation is not permitted", ""),
    PIANOLA_CODE(CUDA_ERROR_NOT_SUPPORTED, "the device or driver does not support the operation", ""),
    PIANOLA_CODE(CUDA_ERROR_SYSTEM_NOT_READY, "the system is not ready for CUDA",
                 "check that the driver's services (fabric manager) run"),
    PIANOLA_CODE(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "kernel module and libcuda are of different versions",
                 "restart the machine after the driver's update"),
    PIANOLA_CODE(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
                 "the forward-compatible driver does not support this device", "update the NVIDIA driver"),
    PIANOLA_CODE(CUDA_ERROR_UNKNOWN, "CUDA gives no reason", "look into the kernel's log (dmesg) for lines with Xid"),
};
#undef PIANOLA_CODE

}  // namespace

CaptureCode describe(CUresult code) noexcept {
  for (const Entry& entry : kEntries) {
    if (entry.code == code) return entry.words;
  }
  return {"", "see CUresult in cuda.h", ""};
}

std::string in_words(CUresult code) {
  const CaptureCode words = describe(code);
  const auto number = static_cast<int>(code);
  if (words.name.empty()) return fmt::format("CUDA error {}: {}", number, words.meaning);
  return fmt::format("{} ({}): {}", words.name, number, words.meaning);
}

Diagnosis diagnose(CUresult code, std::string_view call, std::string where) {
  return {.what = fmt::format("{} failed: {}", call, in_words(code)),
          .where = std::move(where),
          .fix = std::string(describe(code).fix)};
}

void throw_device_error(CUresult code, const char* call) { throw DeviceError(diagnose(code, call)); }

}  // namespace pianola
