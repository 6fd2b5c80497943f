#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>
#include <bindings/plain_value.hpp>

#include <pianola/training/adam.hpp>
#include <pianola/training/ema.hpp>
#include <pianola/training/sgd.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

// Parameters and their options, by torch's names.
using Groups = std::vector<std::pair<std::vector<at::Tensor>, py::dict>>;

SGDOptions sgd_options(const py::dict& given) {
  return {.lr = given["lr"].cast<double>(),
          .momentum = given["momentum"].cast<double>(),
          .dampening = given["dampening"].cast<double>(),
          .weight_decay = given["weight_decay"].cast<double>(),
          .nesterov = given["nesterov"].cast<bool>(),
          .maximize = given["maximize"].cast<bool>()};
}

template <typename Options>
Options adam_options(const py::dict& given) {
  const auto [beta1, beta2] = given["betas"].cast<std::pair<double, double>>();
  return {.lr = given["lr"].cast<double>(),
          .beta1 = beta1,
          .beta2 = beta2,
          .eps = given["eps"].cast<double>(),
          .weight_decay = given["weight_decay"].cast<double>(),
          .amsgrad = given["amsgrad"].cast<bool>(),
          .maximize = given["maximize"].cast<bool>()};
}

AdamWOptions adamw_options(const py::dict& given) {
  auto options = adam_options<AdamWOptions>(given);
  options.scheduled_weight_decay = given["scheduled_weight_decay"].cast<bool>();
  return options;
}

template <typename Options>
std::vector<ParameterGroup<Options>> as_groups(Groups given, Options (*options)(const py::dict&)) {
  std::vector<ParameterGroup<Options>> groups;
  for (auto& [parameters, of] : given) groups.push_back({std::move(parameters), options(of)});
  return groups;
}

std::vector<std::pair<std::string, at::Tensor>> by_name(const std::vector<NamedTensor>& state) {
  std::vector<std::pair<std::string, at::Tensor>> pairs;
  for (const auto& [name, tensor] : state) pairs.emplace_back(name, tensor);
  return pairs;
}

void step(Optimizer& self, const std::optional<at::Tensor>& grad_scale, const std::optional<at::Tensor>& found_inf) {
  self.step({.scale = grad_scale.value_or(at::Tensor()), .found_inf = found_inf.value_or(at::Tensor())});
}

void set_learning_rate(Optimizer& self, double rate, std::optional<std::size_t> group) {
  if (group) {
    self.set_learning_rate(rate, *group);
  } else {
    self.set_learning_rate(rate);
  }
}

void bind_base(py::module_& module) {
  py::class_<Optimizer>(module, "Optimizer", "An optimizer all of whose state is on the device.")
      .def("step", &step, py::kw_only(), py::arg("grad_scale") = py::none(), py::arg("found_inf") = py::none(), NoGil(),
           "Changes the parameters that have gradients.")
      .def("zero_grad", &Optimizer::zero_grad, py::arg("set_to_none") = true, NoGil(),
           "Takes the gradients away, or fills them with zeros in place.")
      .def("gradients", &Optimizer::gradients, "Those that are there, in the order of the parameters.")
      .def_property_readonly("groups", &Optimizer::groups, "How many groups of parameters there are.")
      .def(
          "parameters",
          [](const Optimizer& self, std::optional<std::size_t> group) {
            if (!group) return self.parameters();
            const std::span<const at::Tensor> of = self.parameters(*group);
            return std::vector<at::Tensor>(of.begin(), of.end());
          },
          py::arg("group") = py::none(), "Of one group, or of all in order.")
      .def("learning_rate", &Optimizer::learning_rate, py::arg("group") = 0,
           "The rate itself, on the device: written in place, it takes effect with the next step or replay.")
      .def("set_learning_rate", &set_learning_rate, py::arg("rate"), py::arg("group") = py::none(),
           "Fills the rate of one group, or of all; in a captured step every replay fills it again.")
      .def(
          "state", [](const Optimizer& self) { return by_name(self.state()); },
          "What a step or a schedule writes, parameters excepted.")
      .def(
          "state_dict", [](const Optimizer& self) { return as_python(self.state_dict()); },
          "In the layout of torch.optim.")
      .def(
          "load_state_dict",
          [](Optimizer& self, const py::dict& state) { self.load_state_dict(as_plain_value(state)); },
          py::arg("state_dict"), "Copies into the tensors that are there, so that graphs go on with what is loaded.");
}

void bind_average(py::module_& module) {
  using Average = ExponentialMovingAverage;
  py::class_<Average>(module, "ExponentialMovingAverage", "Exponential moving averages of parameters.")
      .def(py::init<std::vector<at::Tensor>, double>(), py::arg("parameters"), py::arg("decay") = 0.999)
      .def("update", &Average::update, NoGil(), "Moves the averages towards the parameters.")
      .def("reset", &Average::reset, NoGil(), "Makes the averages the parameters as they are.")
      .def("copy_to_parameters", &Average::copy_to_parameters, NoGil(), "Makes the parameters the averages.")
      .def("swap", &Average::swap, NoGil(),
           "Exchanges both: once to evaluate with the averages, and once more to go on training.")
      .def_property_readonly(
          "averages",
          [](const Average& self) { return std::vector<at::Tensor>(self.averages().begin(), self.averages().end()); },
          "In the order of the parameters.")
      .def(
          "state", [](const Average& self) { return by_name(self.state()); }, "What an update writes: \"average.3\".")
      .def(
          "state_dict", [](const Average& self) { return as_python(self.state_dict()); },
          "{\"decay\": d, \"averages\": [...]}; the tensors are its own, not copies.")
      .def(
          "load_state_dict", [](Average& self, const py::dict& state) { self.load_state_dict(as_plain_value(state)); },
          py::arg("state_dict"), "Copies into the averages.");
}

}  // namespace

void bind_optimizer(py::module_& module) {
  bind_base(module);
  py::class_<SGD, Optimizer>(module, "SGD", "Stochastic gradient descent.")
      .def(py::init([](Groups groups) {
             return std::make_unique<SGD>(as_groups<SGDOptions>(std::move(groups), &sgd_options));
           }),
           py::arg("groups"));
  py::class_<Adam, Optimizer>(module, "Adam", "Adam, with the weight decay as a part of the gradient.")
      .def(py::init([](Groups groups) {
             return std::make_unique<Adam>(as_groups<AdamOptions>(std::move(groups), &adam_options<AdamOptions>));
           }),
           py::arg("groups"));
  py::class_<AdamW, Optimizer>(module, "AdamW", "Adam with decoupled weight decay.")
      .def(py::init([](Groups groups) {
             return std::make_unique<AdamW>(as_groups<AdamWOptions>(std::move(groups), &adamw_options));
           }),
           py::arg("groups"))
      .def("weight_decay", &AdamW::weight_decay, py::arg("group") = 0,
           "The weight decay itself, where it is scheduled.");
  bind_average(module);
}

}  // namespace pianola::python
