#pragma once
#include <pianola/training/delivery.hpp>

#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace pianola::python {

/// Calls whose inputs at some places are on the host, from where the function brings them to the device: the cache of another function
/// knows them, once they are there. That function is `graphed` of a Python object, `brought` (_arriving.py).
///
/// Threads:  With the GIL.
class ArrivingCall {
 public:
  /// @param brought  Held weakly.
  /// @param places   Among the tensors of a call, ascending; all others are on the device.
  /// @param there    What arrives lies like these.
  ArrivingCall(const py::object& brought, std::vector<std::size_t> places, const std::vector<at::Tensor>& there);

  [[nodiscard]] bool takes(const std::vector<at::Tensor>& tensors) const;
  /// In the place of those of `tensors`; nothing where that is not the moment. Without the GIL.
  [[nodiscard]] std::optional<training::Delivery::Arrived> bring(std::vector<at::Tensor>& tensors) const;
  /// Null where it is gone.
  [[nodiscard]] py::object brought() const;

 private:
  py::object brought_;
  std::vector<std::size_t> places_;
  mutable training::Delivery delivery_;
};

/// Such a call that is no replay after all: it gets tensors of its own.
class BroughtRun {
 public:
  explicit BroughtRun(py::object brought) : brought_(std::move(brought)) {}
  BroughtRun(const BroughtRun&) = delete;
  BroughtRun& operator=(const BroughtRun&) = delete;
  ~BroughtRun();

  /// The call as the cache asks for it.
  py::object begin(const py::object& state, const py::handle& args, const py::handle& kwargs);

 private:
  py::object brought_;
  bool has_begun_ = false;
};

}  // namespace pianola::python
