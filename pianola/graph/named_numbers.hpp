#pragma once
#include <pianola/graph/graph_numbers.hpp>
#include <pianola/graph/number.hpp>
#include <pianola/graph/number_node.hpp>
#include <pianola/graph/number_slots.hpp>
#include <pianola/graph/options.hpp>
#include <pianola/trace/op_trace.hpp>
#include <pianola/trace/operation_log.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pianola::graph {

// Note [Numbers with names]
// A graph has to know which operations are given a named number, or what is calculated of it. So some warm-up calls are
// trials: each gives the numbers other values, far apart. An argument of an operation is a slot where its value was in every
// call what one calculation gives, of those that the step handed over shortly before (NumberSlots). An argument that changes with
// the numbers and is no such thing is refused, and so is a calculation that no operation was given. Trials cost nothing that
// stays: what warm-up calls write is put back.

/// The named numbers of a Graph.
class NamedNumbers {
 public:
  /// @throws UsageError  There is one of this name, or it has none.
  Number declare(std::string name, double value);
  /// @throws UsageError  There is none of this name.
  [[nodiscard]] Number find(std::string_view name) const;
  [[nodiscard]] bool empty() const noexcept { return all_.empty(); }

  /// The calls of one capture.
  class Trials;
  /// Drops what a capture bound: the numbers stay.
  void unbind();

  /// Before a replay: gives the graph what was set since the last one.
  void give(const GraphNumbers& graph) {
    if (*changed_) [[unlikely]]
      give_now(graph);
  }

 private:
  using NamedRef = std::shared_ptr<NamedNumber>;
  [[nodiscard]] std::vector<double> values() const;
  void put(std::span<const double> values) const;
  void give_now(const GraphNumbers& graph);

  std::vector<NamedRef> all_;
  std::shared_ptr<bool> changed_ = std::make_shared<bool>(false);
  struct Entry {
    NumberNodeRef calculation;
    bool takes_any;  // see Number::set
  };
  std::vector<Entry> table_;  // what slots are given
  NumberSlots slots_;
};

class NamedNumbers::Trials {
 public:
  /// @throws UsageError  Options that do not go with numbers.
  Trials(NamedNumbers& numbers, const CaptureOptions& options, const GraphNumbers& graph);

  Trials(const Trials&) = delete;
  Trials& operator=(const Trials&) = delete;
  ~Trials() { graph_.keep({}); }

  /// With as many warm-up calls as the trials need.
  [[nodiscard]] const CaptureOptions& options() const noexcept { return options_; }
  /// A warm-up call, or the recording.
  void run(const std::function<void()>& step);
  /// After the capture. @throws CaptureError  An operation was given numbers that no replay could follow.
  void bind(const OpTrace& trace);

 private:
  // A calculation that the step handed over, and what of it an operation was given.
  struct Calculation {
    std::size_t source;
    NumberNodeRef node;
  };
  using Values = std::vector<double>;
  [[nodiscard]] Values values_of_call(std::size_t call) const;
  [[nodiscard]] std::optional<Calculation> calculation_of(const NumberEvidence::Given& given,
                                                          const std::vector<Values>& calls) const;
  [[nodiscard]] bool gives(const NumberNode& node, const std::vector<c10::IValue>& numbers,
                           const std::vector<Values>& calls) const;
  void check_all_bound(const std::set<std::size_t>& bound) const;

  NamedNumbers& numbers_;
  CaptureOptions options_;
  GraphNumbers graph_;
  std::size_t calls_ = 0;
  NumberUses uses_;                     // of the latest call
  trace::OperationLog log_;             // of the latest call
  std::vector<NumberNodeRef> given_;    // in the latest call
  std::set<const NamedNumber*> asked_;  // for their value, in any call
  std::vector<NumberSample> samples_;
};

}  // namespace pianola::graph
