#pragma once
#include <torch/csrc/utils/pybind.h>

#include <pianola/callable/host_shortcut.hpp>

#include <memory>

namespace pianola::python {

/// Of a step of torch.optim.Adam or AdamW with foreach, whose counts are on the CPU and whose settings are numbers: see Note
/// [Shortcuts of parts]. Every other one it never stands in for.
/// @param optimizer  Held weakly.
std::shared_ptr<callable::HostShortcut> make_adam_shortcut(const pybind11::object& optimizer);

}  // namespace pianola::python
