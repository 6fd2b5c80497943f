#pragma once
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/op_trace.hpp>
#include <pianola/trace/trace_recorder.hpp>

#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pianola::testing {

inline OpTrace trace_of(const std::function<void()>& step, TraceRecorderOptions options = {}) {
  TraceRecorder recorder(std::move(options));
  {
    const trace::OpStream stream({&recorder});
    step();
  }
  return recorder.take();
}

inline std::vector<std::string> names_of(const OpTrace& trace) {
  std::vector<std::string> names;
  for (const OpRecord& op : trace.ops()) names.push_back(trace.name(op));
  return names;
}

/// The first operation of that name ("aten::add.Tensor"), forward or backward.
inline const OpRecord& op_named(const OpTrace& trace, std::string_view name) {
  for (const OpRecord& op : trace.ops()) {
    if (trace.name(op) == name) return op;
  }
  throw std::logic_error("the trace holds no " + std::string(name));
}

/// "aten::mm", "aten::add.Tensor".
inline trace::OpInfo op_info(const std::string& name) {
  const std::size_t dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return trace::OpInfo(c10::Dispatcher::singleton().findSchemaOrThrow(name.substr(0, dot).c_str(), overload.c_str()));
}

}  // namespace pianola::testing
