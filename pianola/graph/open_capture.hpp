#pragma once
#include <pianola/memory/step_run.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace pianola::graph {

enum class CaptureStage : std::uint8_t { none, warm_up, recording };

/// What the open capture of this thread does. One at a time: the current stream, the generators and the open recording
/// are per thread or shared; and memory must not go back to the device meanwhile.
inline CaptureStage& capture_stage() {
  thread_local CaptureStage stage = CaptureStage::none;
  return stage;
}

/// The kind of device whose work the open capture of this thread records.
inline c10::DeviceType& capture_device() {
  thread_local c10::DeviceType device = c10::kCPU;
  return device;
}

inline bool capture_is_open() { return capture_stage() != CaptureStage::none; }

/// How many GraphPool::Allocations live on this thread.
inline int& allocations_into_pools() {
  thread_local int count = 0;
  return count;
}

/// While it lives, captures of this thread keep pinned copies of what the step copies from pageable memory of the host. See
/// Note [Copies from the host] in trace/host_copy.hpp.
class KeepHostCopies {
 public:
  explicit KeepHostCopies(bool wanted) : before_(std::exchange(wanted_now(), wanted)) {}
  KeepHostCopies(const KeepHostCopies&) = delete;
  KeepHostCopies& operator=(const KeepHostCopies&) = delete;
  ~KeepHostCopies() { wanted_now() = before_; }

  [[nodiscard]] static bool are_wanted() { return wanted_now(); }

 private:
  static bool& wanted_now() {
    thread_local bool wanted = false;
    return wanted;
  }
  bool before_;
};

/// While it lives, captures of this thread with `plan_memory` and without a warm-up plan by an eager run.
class RunToPlanBy {
 public:
  /// @param run  Lives as long as this.
  explicit RunToPlanBy(const memory::StepRun& run) : before_(std::exchange(now(), &run)) {}
  RunToPlanBy(const RunToPlanBy&) = delete;
  RunToPlanBy& operator=(const RunToPlanBy&) = delete;
  ~RunToPlanBy() { now() = before_; }

  /// nullptr: there is none.
  [[nodiscard]] static const memory::StepRun* known() { return now(); }
  /// Nothing to plan by: torch's allocator lays the blocks out, also in a pool that plans for all.
  [[nodiscard]] static const memory::StepRun& none() {
    static const memory::StepRun none;
    return none;
  }

 private:
  static const memory::StepRun*& now() {
    thread_local const memory::StepRun* run = nullptr;
    return run;
  }
  const memory::StepRun* before_;
};

/// While it lives, captures of this thread are of steps that have been observed to their end, with other ranks.
class ObservedBefore {
 public:
  /// @param leaves  That the step asks gradients of.
  explicit ObservedBefore(std::span<const at::Tensor> leaves)
      : before_(std::exchange(is_true_now(), true)), leaves_before_(std::exchange(leaves_now(), leaves)) {}
  ObservedBefore(const ObservedBefore&) = delete;
  ObservedBefore& operator=(const ObservedBefore&) = delete;
  ~ObservedBefore() {
    is_true_now() = before_;
    leaves_now() = leaves_before_;
  }

  [[nodiscard]] static bool is_true() { return is_true_now(); }
  [[nodiscard]] static std::span<const at::Tensor> leaves() { return leaves_now(); }

 private:
  static bool& is_true_now() {
    thread_local bool is_true = false;
    return is_true;
  }
  static std::span<const at::Tensor>& leaves_now() {
    thread_local std::span<const at::Tensor> leaves;
    return leaves;
  }
  bool before_;
  std::span<const at::Tensor> leaves_before_;
};

/// The generators that the capture which is open on this thread knows, its warm-up included; nullptr: none is open.
inline const std::vector<at::Generator>*& open_generators() {
  thread_local const std::vector<at::Generator>* generators = nullptr;
  return generators;
}

}  // namespace pianola::graph
