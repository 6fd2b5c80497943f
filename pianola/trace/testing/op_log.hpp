#pragma once
#include <pianola/trace/op_stream.hpp>

#include <functional>
#include <string>
#include <vector>

namespace pianola::testing {

/// Writes down what a stream shows: "+aten::mm" at begin, "-aten::mm" at end.
class OpLog : public trace::OpObserver {
 public:
  void on_op_begin(const trace::OpSpan& op) override {
    events.push_back("+" + op.info->name);
    begun.push_back(op.info->name);
    numbers.push_back(op.number);
    backward.emplace_back(op.backward == nullptr ? "" : op.backward->name);
    std::string joined;
    for (const std::string& scope : op.scopes) joined += "/" + scope;
    scopes.push_back(joined);
    callers.emplace_back(op.callers.begin(), op.callers.end());
  }
  void on_op_end(const trace::OpSpan& op) override {
    events.push_back("-" + op.info->name);
    results.push_back(op.outputs.size());
  }

  // One entry for each operation.
  std::vector<std::string> begun, backward, scopes;
  std::vector<std::vector<std::string>> callers;
  std::vector<std::uint64_t> numbers;
  std::vector<std::size_t> results;
  std::vector<std::string> events;
};

inline OpLog log_of(const std::function<void()>& step) {
  OpLog log;
  const trace::OpStream stream({&log});
  step();
  return log;
}

}  // namespace pianola::testing
