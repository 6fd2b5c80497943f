#include <bindings/bindings.hpp>

#include <pianola/core/version.hpp>
#include <pianola/trace/call_site.hpp>

PYBIND11_MODULE(_C, module) {
  using namespace pianola::python;  // NOLINT(google-build-using-namespace): what this module is made of
  module.doc() = "Pianola's C++ library. The package `pianola` is its public face.";
  bind_errors(module);
  bind_report(module);
  bind_branches(module);
  bind_graph(module);
  bind_schedule(module);
  bind_callable(module);
  bind_graphed(module);
  bind_verify(module);
  bind_module_watch(module);
  bind_python_watch(module);
  bind_audit(module);
  module.def("version", [] { return std::string(pianola::version()); });
  module.def("hide_python_files", &pianola::trace::CallSite::hide_python_files, py::arg("folder"));
}
