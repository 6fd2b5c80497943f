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
#include <optional>

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

void WatchedDevices::add(c10::Device device, std::string_view what, std::int64_t bytes, const std::string& where) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  std::vector<WatchedMemory>& all = found_[device.index()].all;
  const auto known = std::ranges::find(all, what, &WatchedMemory::what);
  if (known != all.end()) {
    known->bytes += bytes;
  } else {
    all.push_back({.what = std::string(what), .bytes = bytes, .first = where});
  }
}

std::vector<WatchedMemory> WatchedDevices::found_on(c10::Device device) {
  const std::lock_guard lock(mutex_);
  return found_[device.index()].all;
}

std::optional<std::int64_t> WatchedDevices::last_reading(c10::Device device) {
  const std::lock_guard lock(mutex_);
  return found_[device.index()].last_reading;
}

void WatchedDevices::leave(c10::Device device, std::int64_t reading) {
  const std::lock_guard lock(mutex_);
  found_[device.index()].last_reading = reading;
}

DriverWatch::DriverWatch(c10::Device device) : device_(device) { begin(); }

void DriverWatch::begin() {
  WatchedDevices& found = WatchedDevices::of_this_process();
  at::globalContext().lazyInitDevice(c10::kCUDA);
  const bool has_context = at::detail::getCUDAHooks().hasPrimaryContext(device_.index());
  const std::size_t free_before = has_context ? 0 : free_before_a_context(device_);
  const DeviceMemory now = make_context(device_);
  c10::cuda::CUDACachingAllocator::init(c10::cuda::device_count());
  last_ = used_outside_of_torch(device_);
  if (const auto earlier = found.last_reading(device_)) {
    found.add(device_, "while nobody watched", last_ - *earlier, "");
  } else if (free_before >= now.free_bytes && free_before <= now.total_bytes) {
    found.add(device_, "before this process", static_cast<std::int64_t>(now.total_bytes - free_before), "");
    found.add(device_, "context", static_cast<std::int64_t>(free_before - now.free_bytes), "");
  } else if (has_context) {
    found.add(device_, "before the watch, the context included", last_, "");
  } else {
    found.add(device_, "context, and other processes", last_, "");
  }
}

DriverWatch::~DriverWatch() {
  try {
    running_.clear();
    settle();
    WatchedDevices::of_this_process().leave(device_, last_);
  } catch (const std::exception& error) {
    TORCH_WARN("pianola: a memory watch could not take its last reading: ", error.what());
  }
}

// What is missing since the last time is the innermost running operation's.
void DriverWatch::settle() {
  const std::int64_t now = used_outside_of_torch(device_);
  const std::int64_t taken = now - last_;
  last_ = now;
  if (taken == 0) return;
  WatchedDevices& found = WatchedDevices::of_this_process();
  if (running_.empty()) return found.add(device_, kOutside, taken, "");
  const trace::OpInfo& op = *running_.back().second;
  const std::string place = trace::CallSite::here().describe();
  const std::string_view name = op.schema().name();
  found.add(device_, library_of(op), taken, place.empty() ? std::string(name) : fmt::format("{}, at {}", name, place));
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
