#include <pianola/graph/cuda/driver_watch.hpp>

#include <pianola/cuda/nvml.hpp>
#include <pianola/graph/cuda/device_account.hpp>
#include <pianola/trace/call_site.hpp>

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string>

namespace pianola::graph {
namespace {

constexpr std::string_view kKernels = "kernels", kOutside = "outside of operations";

// In the order in which they are looked for in an operator's name.
constexpr std::array<std::pair<std::string_view, std::string_view>, 21> kLibraries = {{
    {"cudnn", "cuDNN"},       {"conv", "cuDNN"},      {"lstm", "cuDNN"},    {"gru", "cuDNN"},
    {"rnn", "cuDNN"},         {"sparse", "cuSPARSE"}, {"_fft", "cuFFT"},    {"linalg", "cuSOLVER"},
    {"cholesky", "cuSOLVER"}, {"_mm", "cuBLAS"},      {"::mm", "cuBLAS"},   {"addmm", "cuBLAS"},
    {"bmm", "cuBLAS"},        {"addbmm", "cuBLAS"},   {"::mv", "cuBLAS"},   {"addmv", "cuBLAS"},
    {"::dot", "cuBLAS"},      {"::vdot", "cuBLAS"},   {"::addr", "cuBLAS"}, {"::linear", "cuBLAS"},
    {"::_addmm", "cuBLAS"},
}};

// Free bytes; 0: nobody tells.
std::size_t free_before_a_context(c10::Device device) {
  std::array<char, 32> pci_bus_id{};
  if (cudaDeviceGetPCIBusId(pci_bus_id.data(), static_cast<int>(pci_bus_id.size()), device.index()) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return device_memory_by_nvml(pci_bus_id.data()).value_or(DeviceMemory{}).free_bytes;
}

DeviceMemory make_context(c10::Device device) {
  const c10::cuda::CUDAGuard on_device(device);
  C10_CUDA_CHECK(cudaFree(nullptr));
  DeviceMemory memory;
  C10_CUDA_CHECK(cudaMemGetInfo(&memory.free_bytes, &memory.total_bytes));
  return memory;
}

}  // namespace

std::string_view library_of(const trace::OpInfo& op) {
  if (op.collective) return "NCCL";
  const std::string_view name = op.schema().name();
  const auto known = std::ranges::find_if(
      kLibraries, [&](const auto& library) { return name.find(library.first) != std::string_view::npos; });
  return known == kLibraries.end() ? kKernels : known->second;
}

WatchedDevices& WatchedDevices::of_this_process() {
  static auto* const all = new WatchedDevices;
  return *all;
}

WatchedMemory& WatchedDevices::line_of(Found& found, std::string_view what) {
  const auto known = std::ranges::find(found.all, what, &WatchedMemory::what);
  return known != found.all.end()
             ? *known
             : found.all.emplace_back(WatchedMemory{.what = std::string(what), .bytes = 0, .first = {}});
}

void WatchedDevices::begin(c10::Device device, bool had_context, std::size_t free_before) {
  const DeviceMemory memory = make_context(device);
  const std::lock_guard lock(mutex_);
  Found& found = found_[device.index()];
  if (found.watches++ != 0) return;  // the open one sees it all
  const std::int64_t now = used_outside_of_torch(device);
  const std::int64_t before = found.last.value_or(0);
  const bool nvml_tells = free_before >= memory.free_bytes && free_before <= memory.total_bytes;
  if (found.last) {
    if (now != before) line_of(found, "while nobody watched").bytes += now - before;
  } else if (nvml_tells) {
    line_of(found, "before this process").bytes = static_cast<std::int64_t>(memory.total_bytes - free_before);
    line_of(found, "context").bytes = now - line_of(found, "before this process").bytes;
  } else {
    line_of(found, had_context ? "before the watch, the context included" : "context, and other processes").bytes = now;
  }
  found.last = now;
}

void WatchedDevices::end(c10::Device device) {
  const std::lock_guard lock(mutex_);
  --found_[device.index()].watches;
}

// The words are found without the lock: they take Python's.
void WatchedDevices::settle(c10::Device device, std::string_view what, const std::function<std::string()>& where) {
  const auto take = [&] {
    const std::lock_guard lock(mutex_);
    Found& found = found_[device.index()];
    const std::int64_t now = used_outside_of_torch(device);
    const std::int64_t taken = now - found.last.value_or(now);
    found.last = now;
    if (taken == 0) return false;
    WatchedMemory& line = line_of(found, what);
    line.bytes += taken;
    return line.first.empty();
  };
  if (!take()) return;
  const std::string words = where();
  const std::lock_guard lock(mutex_);
  line_of(found_[device.index()], what).first = words;
}

std::vector<WatchedMemory> WatchedDevices::found_on(c10::Device device) {
  const std::lock_guard lock(mutex_);
  return found_[device.index()].all;
}

DriverWatch::DriverWatch(c10::Device device) : device_(device) {
  at::globalContext().lazyInitDevice(c10::kCUDA);
  c10::cuda::CUDACachingAllocator::init(c10::cuda::device_count());
  const bool has_context = at::detail::getCUDAHooks().hasPrimaryContext(device_.index());
  WatchedDevices::of_this_process().begin(device_, has_context, has_context ? 0 : free_before_a_context(device_));
}

DriverWatch::~DriverWatch() {
  try {
    running_.clear();
    settle();
    WatchedDevices::of_this_process().end(device_);
  } catch (const std::exception& error) {
    TORCH_WARN("pianola: a memory watch could not take its last reading: ", error.what());
  }
}

// What is missing since the last time is the innermost running operation's.
void DriverWatch::settle() {
  const trace::OpInfo* const op = running_.empty() ? nullptr : running_.back().second;
  const auto words = [op]() -> std::string {
    if (op == nullptr) return "-";
    const std::string place = trace::CallSite::here().describe();
    const std::string name = op->schema().name();
    return place.empty() ? name : fmt::format("{}, at {}", name, place);
  };
  WatchedDevices::of_this_process().settle(device_, op == nullptr ? kOutside : library_of(*op), words);
}

void DriverWatch::on_op_begin(const trace::OpSpan& op) {
  settle();
  running_.emplace_back(op.number, op.info);
}

void DriverWatch::on_op_end(const trace::OpSpan& op) {
  settle();
  std::erase_if(running_, [&](const auto& one) { return one.first == op.number; });
}

}  // namespace pianola::graph
