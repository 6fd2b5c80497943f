#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>
#include <bindings/python_look.hpp>

#include <pianola/core/version.hpp>
#include <pianola/graph/internals.hpp>
#include <pianola/trace/call_site.hpp>
#include <pianola/trace/made_of_tensors.hpp>
#include <pianola/trace/resized_storage.hpp>

#include <torch/csrc/Storage.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

PYBIND11_MODULE(_C, module) {
  using namespace pianola::python;  // NOLINT(google-build-using-namespace): what this module is made of
  module.doc() = "Pianola's C++ library. The package `pianola` is its public face.";
  wait_for_threads_at_exit();
  set_python_look();
  bind_errors(module);
  bind_config(module);
  bind_report(module);
  bind_branches(module);
  bind_memory(module);
  bind_graph(module);
  bind_schedule(module);
  bind_callable(module);
  bind_graphed(module);
  bind_static_inputs(module);
  bind_optimizer(module);
  bind_learning_rate(module);
  bind_finite_watch(module);
  bind_fp8(module);
  bind_island(module);
  bind_grad_scaler(module);
  bind_clip_grad(module);
  bind_rng_tracker(module);
  bind_checkpoint(module);
  bind_full_iteration(module);
  bind_verify(module);
  bind_plain_tree(module);
  bind_module_watch(module);
  bind_frame_watch(module);
  bind_host_guard(module);
  bind_host_parts(module);
  bind_same_value(module);
  bind_compiled_code(module);
  bind_python_watch(module);
  bind_audit(module);
  bind_profile(module);
  module.def(
      "version", [] { return std::string(pianola::version()); }, "As in \"0.1.0\".");
  module.def(
      "check_internals",
      [](const c10::Device& device) {
        const WithoutGil release;  // threads of autograd take it
        std::vector<std::tuple<std::string, std::string, std::string, bool>> rows;
        for (pianola::Internal& one : pianola::check_internals(device)) {
          rows.emplace_back(std::move(one.name), std::move(one.used_for), std::move(one.trouble), one.tried);
        }
        return rows;
      },
      py::arg("device"),
      "What the library builds on inside torch: name, use and trouble of each, and whether it was tried.");
  module.def("runs_python_of_a_tensor", &pianola::trace::runs_python_of_a_tensor,
             "Whether an observed call runs the Python of a DTensor's operator now, on this thread.");
  module.def(
      "resize_by_operator",
      [](py::handle storage, std::size_t bytes, bool is_of_fsdp) {
        return pianola::trace::resize_by_operator(THPStorage_Unpack(storage.ptr()), bytes, is_of_fsdp);
      },
      py::arg("storage"), py::arg("nbytes"), py::arg("is_of_fsdp"),
      "Resizes an UntypedStorage in a way that an observed call sees; False: nothing observes.");
  module.def("hide_python_files", &pianola::trace::CallSite::hide_python_files, py::arg("folder"),
             "Lines of files below `folder` are not the user's when an error names one.");
}
