#pragma once
#include <pianola/graph/generator_states.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/write_set.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <set>
#include <string>
#include <vector>

namespace pianola::graph {

/// What was there before a capture, and its runs move: tensors, gradients and generators. It puts them back. Lives in the scope of the
/// capture's threads.
class StateBefore {
 public:
  /// Once, before the first run.
  /// @param generators  That the runs may draw from; at least one.
  /// @param restore     CaptureOptions::restore. Off: what eager runs do stays, and recordings alone are put back.
  /// @param differentiates  CaptureOptions::differentiates.
  void remember(std::vector<at::Generator> generators, bool restore, bool differentiates);
  [[nodiscard]] const std::vector<at::Generator>& generators() const noexcept { return generators_; }

  /// An eager run begins. @return  Who has to be shown it.
  [[nodiscard]] std::vector<trace::OpObserver*> begin_eager_run();
  /// The same of a recording, from the place that eager runs began at. @param executes  Backend::executes_while_recording().
  [[nodiscard]] std::vector<trace::OpObserver*> begin_recording(bool executes);
  /// Saves what the capture itself is about to write.
  void save(const c10::Storage& storage) { written_.save(storage); }

  [[nodiscard]] bool wrote_lazy_state() const noexcept { return written_.wrote_lazy_state(); }
  [[nodiscard]] std::vector<at::Tensor> leaves_with_new_gradients() const {
    return written_.leaves_with_new_gradients();
  }

  /// All of it. @param keep_gradients  Those that a graph writes stay defined.
  void put_back(bool keep_gradients);
  /// Those that other threads have moved meanwhile stay.
  void put_generators_back();
  /// Devices of generators that were not put back.
  [[nodiscard]] const std::set<std::string>& moved_generators() const noexcept { return moved_generators_; }

 private:
  bool restore_ = true;
  std::vector<at::Generator> generators_;
  GeneratorStates generator_states_;
  std::set<std::string> moved_generators_;
  trace::WriteSet written_;
};

}  // namespace pianola::graph
