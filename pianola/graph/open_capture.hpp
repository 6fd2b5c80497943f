#pragma once
#include <pianola/memory/block.hpp>

#include <ATen/core/Generator.h>
#include <c10/core/DeviceType.h>

#include <cstdint>
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

/// While it lives, captures of this thread with `plan_memory` and without a warm-up plan by the blocks of an eager run.
class BlocksOfRun {
 public:
  /// @param blocks  In the order of `made`; lives as long as this.
  explicit BlocksOfRun(const std::vector<memory::Block>& blocks) : before_(std::exchange(now(), &blocks)) {}
  BlocksOfRun(const BlocksOfRun&) = delete;
  BlocksOfRun& operator=(const BlocksOfRun&) = delete;
  ~BlocksOfRun() { now() = before_; }

  /// nullptr: there are none.
  [[nodiscard]] static const std::vector<memory::Block>* known() { return now(); }

 private:
  static const std::vector<memory::Block>*& now() {
    thread_local const std::vector<memory::Block>* blocks = nullptr;
    return blocks;
  }
  const std::vector<memory::Block>* before_;
};

/// While it lives, captures of this thread are of steps that have been observed to their end, with other ranks.
class ObservedBefore {
 public:
  ObservedBefore() : before_(std::exchange(is_true_now(), true)) {}
  ObservedBefore(const ObservedBefore&) = delete;
  ObservedBefore& operator=(const ObservedBefore&) = delete;
  ~ObservedBefore() { is_true_now() = before_; }

  [[nodiscard]] static bool is_true() { return is_true_now(); }

 private:
  static bool& is_true_now() {
    thread_local bool is_true = false;
    return is_true;
  }
  bool before_;
};

/// The generators that the capture which is open on this thread knows, its warm-up included; nullptr: none is open.
inline const std::vector<at::Generator>*& open_generators() {
  thread_local const std::vector<at::Generator>* generators = nullptr;
  return generators;
}

}  // namespace pianola::graph
