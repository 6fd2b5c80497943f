#include "trace_case.hpp"

#include "models/mlp.hpp"

#include <pianola/core/error.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/trace_recorder.hpp>

#include <fmt/format.h>

namespace pianola::bench {
namespace {

at::Tensor traced_forward(const Mlp& model, TraceRecorder& recorder) {
  const trace::OpStream stream({&recorder});
  return model.forward();
}

void check_trace(const Mlp& model, std::size_t operations) {
  TraceRecorder recorder;
  const at::Tensor output = traced_forward(model, recorder);
  check_equal("the traced forward", {output}, {model.forward()});
  if (recorder.trace().ops().size() != operations) {
    throw Error({.what = fmt::format("the trace holds {} operations instead of {}", recorder.trace().ops().size(),
                                     operations)});
  }
}

}  // namespace

Case trace_case(const Settings& settings, c10::Device device, const Timer& timer, int iterations) {
  const MlpShape shape;
  const Mlp model(shape, device);
  check_trace(model, static_cast<std::size_t>(2 * shape.layers - 1));  // addmm, with relu between
  const Contender contenders[] = {{"plain", [&] { model.forward(); }}, {"traced", [&] {
                                                                          TraceRecorder recorder;
                                                                          traced_forward(model, recorder);
                                                                        }}};
  const Plan plan = settings.plan(iterations);
  Case result{.name = fmt::format("MLP {} x {} forward under grad", shape.layers, shape.width),
              .measure = "host time per forward",
              .unit = "us",
              .baseline = "plain",
              .iterations = plan.iterations,
              .series = interleave(timer, contenders, plan)};
  // The bar is for a forward that waits for launches; on the CPU the operations themselves are what it waits for.
  if (device.is_cuda()) result.requirements = {at_most_ratio(result, "traced", 1.15)};
  return result;
}

}  // namespace pianola::bench
