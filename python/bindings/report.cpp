#include <bindings/bindings.hpp>

#include <pianola/core/report.hpp>

namespace pianola::python {

void bind_report(py::module_& module) {
  py::class_<Report>(module, "Report", "What the library has to tell: text for people, JSON for programs.")
      .def("to_text", &Report::to_text, py::arg("width") = 100, "Facts and tables, for people.")
      .def("to_json", &Report::to_json, py::arg("indent") = 2, "The same, for programs.")
      .def("__str__", [](const Report& self) { return self.to_text(); });
}

}  // namespace pianola::python
