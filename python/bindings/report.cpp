#include <bindings/bindings.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/report.hpp>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

ReportValue value_of(const py::object& object) {
  if (object.is_none()) return {};
  if (py::isinstance<py::bool_>(object)) return object.cast<bool>();
  if (py::isinstance<py::int_>(object)) return object.cast<std::int64_t>();
  if (py::isinstance<py::float_>(object)) return object.cast<double>();
  return object.cast<std::string>();
}

using Column = std::tuple<std::string, std::string, std::string, int>;

ReportTable table_of(std::string key, std::string title, const std::vector<Column>& columns,
                     const std::vector<std::vector<py::object>>& rows) {
  std::vector<ReportColumn> made;
  for (const auto& [name, label, unit, decimals] : columns) {
    made.push_back({.key = name, .label = label, .unit = unit, .decimals = decimals});
  }
  ReportTable table(std::move(key), std::move(title), std::move(made));
  for (const auto& row : rows) {
    ReportTable::Row values;
    for (const py::object& one : row) values.push_back(value_of(one));
    table.row(std::move(values));
  }
  return table;
}

}  // namespace

void bind_report(py::module_& module) {
  constexpr auto kSelf = py::return_value_policy::reference_internal;
  py::class_<Report>(module, "Report", "What the library has to tell: text for people, JSON for programs.")
      .def(py::init<std::string>(), py::arg("title"))
      .def(
          "fact",
          [](Report& self, std::string key, std::string label, const py::object& value, std::string unit) -> Report& {
            return self.fact(std::move(key), std::move(label), value_of(value), std::move(unit));
          },
          py::arg("key"), py::arg("label"), py::arg("value"), py::arg("unit") = "", kSelf, "Adds a value with a name.")
      .def(
          "list",
          [](Report& self, std::string key, std::string label, std::vector<std::string> items) -> Report& {
            return self.list(std::move(key), std::move(label), std::move(items));
          },
          py::arg("key"), py::arg("label"), py::arg("items"), kSelf, "Adds sentences.")
      .def(
          "table",
          [](Report& self, std::string key, std::string title, const std::vector<Column>& columns,
             const std::vector<std::vector<py::object>>& rows) -> Report& {
            return self.table(table_of(std::move(key), std::move(title), columns, rows));
          },
          py::arg("key"), py::arg("title"), py::arg("columns"), py::arg("rows"), kSelf,
          "Adds a table; a column is (key, label, unit, decimals).")
      .def("to_text", &Report::to_text, py::arg("width") = 100, "Facts and tables, for people.")
      .def("to_json", &Report::to_json, py::arg("indent") = 2, "The same, for programs.")
      .def("__str__", [](const Report& self) { return self.to_text(); });
}

}  // namespace pianola::python
