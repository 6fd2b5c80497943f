#pragma once
#include <torch/csrc/utils/pybind.h>

// One function per concept, each in the file of its name. They forward; what a call means is said in the library.
namespace pianola::python {

void bind_errors(py::module_& module);
void bind_config(py::module_& module);
void bind_report(py::module_& module);
void bind_graph(py::module_& module);
void bind_module_watch(py::module_& module);
void bind_frame_watch(py::module_& module);
void bind_host_guard(py::module_& module);
void bind_host_parts(py::module_& module);
void bind_same_value(py::module_& module);
void bind_plain_tree(py::module_& module);
void bind_schedule(py::module_& module);
void bind_branches(py::module_& module);
void bind_callable(py::module_& module);
void bind_graphed(py::module_& module);
void bind_static_inputs(py::module_& module);
void bind_optimizer(py::module_& module);
void bind_learning_rate(py::module_& module);
void bind_grad_scaler(py::module_& module);
void bind_finite_watch(py::module_& module);
void bind_fp8(py::module_& module);
void bind_island(py::module_& module);
void bind_clip_grad(py::module_& module);
void bind_rng_tracker(py::module_& module);
void bind_checkpoint(py::module_& module);
void bind_full_iteration(py::module_& module);
void bind_verify(py::module_& module);
void bind_compiled_code(py::module_& module);
void bind_python_watch(py::module_& module);
void bind_audit(py::module_& module);
void bind_profile(py::module_& module);
void bind_memory(py::module_& module);

}  // namespace pianola::python
