#include "audit_case.hpp"

#include "models/mlp.hpp"

#include <pianola/audit/audit.hpp>
#include <pianola/audit/session.hpp>
#include <pianola/core/error.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/verify/verify.hpp>

#include <fmt/format.h>

#include <memory>

namespace pianola::bench {
namespace {

// An audit that observes one run after the other; what it gathered is dropped between blocks.
class AuditedStep {
 public:
  AuditedStep(Mlp& model, bool sources) : model_(model), sources_(sources) {}

  void run() {
    if (!session_) session_ = std::make_unique<auditing::Session>(AuditOptions{.sources = sources_});
    session_->begin();
    model_.train_step();
    session_->end({model_.loss()});
  }
  void drop() { session_.reset(); }

 private:
  Mlp& model_;
  bool sources_;
  std::unique_ptr<auditing::Session> session_;
};

// What a step reads again: all of its state but the loss, which comes first and is a result.
std::vector<at::Tensor> lasting_state(const Mlp& model) {
  std::vector<at::Tensor> state = model.state();
  state.erase(state.begin());
  return state;
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.clone());
  return result;
}

void check_clean(Mlp& model) {
  const std::vector<at::Tensor> before = copies(lasting_state(model));
  const AuditReport report = audit([&] { model.train_step(); });
  if (!report.findings().empty()) throw Error({.what = "a clean training step has findings:\n" + report.to_text()});
  check_equal("the state after an audit", lasting_state(model), before);
}

Case run_cost(const Settings& settings, c10::Device device, const Timer& timer, int iterations) {
  const MlpShape shape;
  Mlp plain(shape, device), audited(shape, device);
  check_clean(audited);
  AuditedStep with_sources(audited, true), without(audited, false);
  const Contender contenders[] = {
      {"eager", [&] { plain.train_step(); }},
      {"audited", [&] { with_sources.run(); }, [&] { with_sources.drop(); }},
      {"audited, no source lines", [&] { without.run(); }, [&] { without.drop(); }},
  };
  const Plan plan = settings.plan(iterations);
  Case result{.name = fmt::format("MLP {} x {}, training step", shape.layers, shape.width),
              .measure = "host time per run",
              .unit = "us",
              .baseline = "eager",
              .iterations = plan.iterations,
              .series = interleave(timer, contenders, plan)};
  result.requirements = {at_most_ratio(result, "audited", 3), at_most_ratio(result, "audited, no source lines", 1.5)};
  return result;
}

Case whole_audit(const Settings& settings, c10::Device device, const Timer& timer) {
  Mlp model({}, device);
  const auto audited = [&](bool trial) {
    return [&model, trial] { (void)audit([&] { model.train_step(); }, {.trial = trial}); };
  };
  const Contender contenders[] = {{"four eager runs",
                                   [&] {
                                     for (int run = 0; run < 4; ++run) model.train_step();
                                   }},
                                  {"audit(), no trial", audited(false)},
                                  {"audit()", audited(true)}};
  const Plan plan = settings.plan(2);
  return {.name = "The same, a whole audit: one warm-up run, three observed ones, their comparison",
          .measure = "host time",
          .unit = "us",
          .baseline = "four eager runs",
          .iterations = plan.iterations,
          .series = interleave(timer, contenders, plan),
          .notes = {"The trial is a capture that is thrown away; on CUDA three."}};
}

}  // namespace

std::vector<Case> audit_cases(const Settings& settings, c10::Device device, const Timer& timer, int iterations) {
  return {run_cost(settings, device, timer, iterations), whole_audit(settings, device, timer)};
}

Case verify_case(const Settings& settings, c10::Device device, const std::function<void()>& synchronize) {
  Mlp eager({}, device);
  Graph graph(device);
  graph.capture([&] { eager.train_step(); });
  std::vector<NamedTensor> state;
  for (const at::Tensor& tensor : lasting_state(eager))
    state.push_back({fmt::format("tensor {}", state.size()), tensor});
  const VerifyStep step = [&](const auto&) {
    eager.train_step();
    return std::vector<at::Tensor>{eager.loss()};
  };
  const at::Tensor replayed_loss = eager.loss();
  const VerifyStep replay = [&](const auto&) {
    graph.replay();
    return std::vector<at::Tensor>{replayed_loss};
  };
  const int steps = 10;
  const auto verified = [&](bool poison) {
    const VerifyReport report = verify(step, replay, state, {.steps = steps, .poison = poison});
    if (!report.ok()) throw Error({.what = "a captured training step differs from eager:\n" + report.to_text()});
  };
  verified(true);
  const Contender contenders[] = {{"its steps",
                                   [&] {
                                     for (int run = 0; run < 2 * steps; ++run) eager.train_step();
                                     for (int run = 0; run < steps; ++run) graph.replay();
                                     synchronize();
                                   }},
                                  {"verify(), no poison", [&] { verified(false); }},
                                  {"verify()", [&] { verified(true); }}};
  const Plan plan = settings.plan(2);
  return {.name = "MLP 16 x 64, training step, 10 steps, eager twice",
          .measure = "time",
          .unit = "us",
          .baseline = "its steps",
          .iterations = plan.iterations,
          .series = interleave(host_timer(synchronize, 2), contenders, plan),
          .notes = {"Kept and compared at each step: parameters, moments, step counters and the loss, 129 tensors."}};
}

}  // namespace pianola::bench
