#include <bindings/bindings.hpp>

#include <pianola/core/config/check.hpp>
#include <pianola/core/config/environment.hpp>
#include <pianola/core/config/field.hpp>
#include <pianola/core/config/file.hpp>
#include <pianola/core/config/rule.hpp>

#include <pybind11/stl/filesystem.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

using Texts = std::vector<std::string>;
using Integers = std::vector<std::int64_t>;

// By the type that the object has: pybind11's own conversion would take True for 1 and text for a list.
ConfigValue value_of(const py::handle& object) {
  if (object.is_none()) return {};
  if (py::isinstance<py::bool_>(object)) return object.cast<bool>();
  if (py::isinstance<py::int_>(object)) return object.cast<std::int64_t>();
  if (py::isinstance<py::float_>(object)) return object.cast<double>();
  if (py::isinstance<py::str>(object)) return object.cast<std::string>();
  if (!py::isinstance<py::sequence>(object)) throw py::type_error("expected None, a bool, a number, a str or a list");
  const auto items = py::reinterpret_borrow<py::sequence>(object);
  if (items.size() > 0 && py::isinstance<py::int_>(items[0])) return items.cast<Integers>();
  return items.cast<Texts>();
}

py::object object_of(const ConfigValue& value) {
  if (std::holds_alternative<std::monostate>(value)) return py::none();
  return py::cast(value);
}

CudaGraphConfig made_of(const py::kwargs& values) {
  CudaGraphConfig config;
  for (const auto& [name, value] : values) config_field(name.cast<std::string>()).set(config, value_of(value));
  return config;
}

std::string representation(const CudaGraphConfig& config) {
  const CudaGraphConfig defaults;
  std::string arguments;
  for (const ConfigField& field : config_fields()) {
    const ConfigValue value = field.get(config);
    if (value == field.get(defaults)) continue;
    arguments += (arguments.empty() ? "" : ", ") + std::string(field.name) + "=" +
                 py::repr(object_of(value)).cast<std::string>();
  }
  return "pianola.CudaGraphConfig(" + arguments + ")";
}

void bind_fields(py::class_<CudaGraphConfig>& config) {
  for (const ConfigField& field : config_fields()) {
    config.def_property(
        std::string(field.name).c_str(), [&field](const CudaGraphConfig& self) { return object_of(field.get(self)); },
        [&field](CudaGraphConfig& self, const py::object& value) { field.set(self, value_of(value)); },
        std::string(field.meaning).c_str());
  }
}

py::dict rule_as_dict(const ConfigRule& rule) {
  Texts targets;
  for (const auto target : {ConfigTarget::pianola, ConfigTarget::megatron, ConfigTarget::bridge}) {
    if (rule.targets.contains(target)) targets.emplace_back(in_words(target));
  }
  py::dict dict;
  dict["id"] = rule.id;
  dict["outcome"] = in_words(rule.outcome);
  dict["title"] = rule.title;
  dict["message"] = rule.message;
  dict["advice"] = rule.advice;
  dict["reason"] = rule.reason;
  dict["targets"] = targets;
  return dict;
}

py::list rules_as_dicts() {
  py::list rules;
  for (const ConfigRule& rule : config_rules()) rules.append(rule_as_dict(rule));
  return rules;
}

CudaGraphConfig config_of_file(const std::filesystem::path& file, bool allow_other_keys) {
  return load_config(file, {.allow_other_keys = allow_other_keys}).config;
}

void bind_findings(py::module_& module) {
  py::class_<ConfigChange>(module, "ConfigChange", "A setting that a rule has changed, its values as in a file.")
      .def_readonly("key", &ConfigChange::key)
      .def_property_readonly("before", [](const ConfigChange& self) { return self.from; })
      .def_property_readonly("after", [](const ConfigChange& self) { return self.to; });
  py::class_<ConfigFinding>(module, "ConfigFinding", "A rule that a configuration violates.")
      .def_property_readonly("rule", [](const ConfigFinding& self) { return self.rule->id; })
      .def_property_readonly("outcome", [](const ConfigFinding& self) { return in_words(self.rule->outcome); })
      .def_readonly("message", &ConfigFinding::message)
      .def_property_readonly("advice", [](const ConfigFinding& self) { return self.rule->advice; })
      .def_property_readonly("reason", [](const ConfigFinding& self) { return self.rule->reason; })
      .def_readonly("changes", &ConfigFinding::changes);
  py::class_<ConfigReport>(module, "ConfigReport", "What check_config() found.")
      .def_readonly("config", &ConfigReport::config)
      .def_readonly("findings", &ConfigReport::findings)
      .def_property_readonly("ok", &ConfigReport::ok)
      .def_property_readonly("exit_code", &ConfigReport::exit_code)
      .def("to_text", &ConfigReport::to_text)
      .def("to_json", &ConfigReport::to_json, py::arg("indent") = 2)
      .def("__str__", &ConfigReport::to_text);
}

}  // namespace

void bind_config(py::module_& module) {
  py::class_<CudaGraphConfig> config(module, "CudaGraphConfig",
                                     "Everything of a training configuration that bears on CUDA graphs.");
  config.def(py::init(&made_of))
      .def("__repr__", &representation)
      .def(
          "__eq__", [](const CudaGraphConfig& self, const CudaGraphConfig& other) { return self == other; },
          py::is_operator())
      .def("__copy__", [](const CudaGraphConfig& self) { return CudaGraphConfig(self); })
      .def(
          "__deepcopy__", [](const CudaGraphConfig& self, const py::dict&) { return CudaGraphConfig(self); },
          py::arg("memo"));
  bind_fields(config);
  bind_findings(module);
  module.def("check_config", &check_config, py::arg("config"));
  module.def("require_valid", &require_valid, py::arg("config"));
  module.def("with_environment", &with_environment, py::arg("config"));
  module.def("load_config", &config_of_file, py::arg("path"), py::kw_only(), py::arg("allow_other_keys") = false);
  module.def("config_rules", &rules_as_dicts);
}

}  // namespace pianola::python
