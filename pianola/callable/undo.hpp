#pragma once
#include <pianola/callable/checked_reads.hpp>
#include <pianola/core/error.hpp>
#include <pianola/graph/generator_states.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace pianola::callable {

/// The reads of a step cannot be checked by its replays.
class UncheckedReads : public UsageError {
 public:
  using UsageError::UsageError;
};

/// The call that is captured reads other values than the one before it.
class OtherReads : public UsageError {
 public:
  using UsageError::UsageError;
};

/// What a replay has done when a check of a read ends it, to be taken back: what it wrote before the last check, and what it drew.
class Undo {
 public:
  /// @param reads  Of the recording. @throws UncheckedReads  It could not be taken back, or would be too much to copy at each call.
  /// @param generators  That the step may draw from, besides the default one.
  Undo(const CheckedReads& reads, c10::Device device, std::vector<at::Generator> generators);

  /// Before a replay.
  void save();
  /// After one that ended at a check.
  void put_back() const;

 private:
  std::vector<at::Tensor> written_;  // bytes
  std::vector<at::Tensor> copies_;
  std::vector<at::Generator> generators_;  // that are drawn from
  std::optional<graph::GeneratorStates> states_;
};

}  // namespace pianola::callable
