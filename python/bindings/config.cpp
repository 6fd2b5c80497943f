#include <bindings/bindings.hpp>

#include <pianola/config/check.hpp>
#include <pianola/config/environment.hpp>
#include <pianola/config/field.hpp>
#include <pianola/config/file.hpp>
#include <pianola/config/rule.hpp>

#include <pybind11/stl/filesystem.h>

#include <cctype>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
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

// A member's type as Python annotates it: names are text.
template <typename T>
std::string type_name(const T* /*none*/) {
  if constexpr (std::is_same_v<T, bool>) return "bool";
  if constexpr (std::is_same_v<T, int>) return "int";
  if constexpr (std::is_same_v<T, double>) return "float";
  return "str";
}

template <typename T>
std::string type_name(const std::optional<T>* /*none*/) {
  return type_name(static_cast<const T*>(nullptr)) + " | None";
}

template <typename T>
std::string type_name(const std::vector<T>* /*none*/) {
  return "list[" + type_name(static_cast<const T*>(nullptr)) + "]";
}

template <typename T>
std::string type_name_of(T CudaGraphConfig::* /*member*/) {
  return type_name(static_cast<const T*>(nullptr));
}

// Of a list also its only element, or any sequence.
std::string settable_type(const std::string& type) {
  if (!type.starts_with("list[")) return type;
  const std::string element = type.substr(5, type.size() - 6);
  return element + " | collections.abc.Sequence[" + element + "]";
}

// "eager steps before the capture" -> "Eager steps before the capture."
std::string sentence(std::string_view phrase) {
  std::string result(phrase);
  result[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(result[0])));
  return result + ".";
}

// pybind11 knows of a value only that it is an object: the signatures are ours.
void bind_fields(py::class_<CudaGraphConfig>& config) {
  py::options options;
  options.disable_function_signatures();
  const std::string self = "(self: pianola._C.CudaGraphConfig";
  for (const ConfigField& field : config_fields()) {
    const std::string type = std::visit([](auto member) { return type_name_of(member); }, field.member);
    const py::cpp_function get([&field](const CudaGraphConfig& of) { return object_of(field.get(of)); },
                               (self + ") -> " + type).c_str(), py::is_method(config));
    const py::cpp_function set(
        [&field](CudaGraphConfig& of, const py::object& value) { field.set(of, value_of(value)); },
        (self + ", value: " + settable_type(type) + ") -> None").c_str(), py::is_method(config));
    config.def_property(std::string(field.name).c_str(), get, set, sentence(field.meaning).c_str());
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
      .def_readonly("key", &ConfigChange::key, "\"model.cuda_graph_impl\"")
      .def_property_readonly(
          "before", [](const ConfigChange& self) { return self.from; }, "The value as in a file.")
      .def_property_readonly(
          "after", [](const ConfigChange& self) { return self.to; }, "The value as in a file.");
  py::class_<ConfigFinding>(module, "ConfigFinding", "A rule that a configuration violates.")
      .def_property_readonly(
          "rule", [](const ConfigFinding& self) { return self.rule->id; }, "\"CF302\"; config_rules() has them all.")
      .def_property_readonly(
          "outcome", [](const ConfigFinding& self) { return in_words(self.rule->outcome); },
          "\"error\", \"fixed\" or \"warning\".")
      .def_readonly("message", &ConfigFinding::message, "What is wrong.")
      .def_property_readonly(
          "advice", [](const ConfigFinding& self) { return self.rule->advice; }, "What to do.")
      .def_property_readonly(
          "reason", [](const ConfigFinding& self) { return self.rule->reason; }, "Why it does not work.")
      .def_readonly("changes", &ConfigFinding::changes, "Settings that were changed to fix it.");
  py::class_<ConfigReport>(module, "ConfigReport", "What check_config() found.")
      .def_readonly("config", &ConfigReport::config, "With all that could be fixed.")
      .def_readonly("findings", &ConfigReport::findings, "Errors, fixes and warnings, in the order of the rules.")
      .def_property_readonly("ok", &ConfigReport::ok, "There is no error.")
      .def_property_readonly("exit_code", &ConfigReport::exit_code, "0, or 3 where there are errors.")
      .def("to_text", &ConfigReport::to_text, "For people.")
      .def("to_json", &ConfigReport::to_json, py::arg("indent") = 2, "One JSON object.")
      .def("__str__", &ConfigReport::to_text);
}

}  // namespace

void bind_config(py::module_& module) {
  py::class_<CudaGraphConfig> config(
      module, "CudaGraphConfig",
      "Everything of a training configuration that bears on CUDA graphs, under the names that Megatron-LM gives "
      "it.\n\nValues that cannot be used raise ConfigError.");
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
  module.def("check_config", &check_config, py::arg("config"),
             "Applies the rules: everything that is wrong at once, and what could be fixed.");
  module.def("require_valid", &require_valid, py::arg("config"),
             "Raises a ConfigError that names every error of check_config().");
  module.def("with_environment", &with_environment, py::arg("config"),
             "What the configuration does not say filled in from the environment: NCCL_GRAPH_REGISTER, ...");
  module.def(
      "load_config", &config_of_file, py::arg("path"), py::kw_only(), py::arg("allow_other_keys") = false,
      "Reads a JSON or YAML file. Raises ConfigError, all at once, of unknown keys, wrong types and contradictions.");
  module.def("config_rules", &rules_as_dicts, "All rules: id, outcome, title, message, advice, reason, targets.");
}

}  // namespace pianola::python
