#include <bindings/arriving_call.hpp>

#include <bindings/gil.hpp>
#include <bindings/object_words.hpp>

#include <utility>

namespace pianola::python {

ArrivingCall::ArrivingCall(const py::object& brought, std::vector<std::size_t> places,
                           const std::vector<at::Tensor>& there)
    : brought_(py::weakref(brought)), places_(std::move(places)), delivery_(there) {}

bool ArrivingCall::takes(const std::vector<at::Tensor>& tensors) const {
  std::vector<at::Tensor> arriving;
  auto place = places_.begin();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].is_cpu() != (place != places_.end() && *place == i)) return false;
    if (!tensors[i].is_cpu()) continue;
    arriving.push_back(tensors[i]);
    ++place;
  }
  return delivery_.takes(arriving);
}

std::optional<training::Delivery::Arrived> ArrivingCall::bring(std::vector<at::Tensor>& tensors) const {
  std::vector<at::Tensor> arriving;
  for (const std::size_t place : places_) arriving.push_back(tensors[place]);
  const WithoutGil release;
  auto arrived = delivery_.bring(std::move(arriving));
  if (!arrived) return arrived;
  for (std::size_t i = 0; i < places_.size(); ++i) tensors[places_[i]] = arrived->tensors()[i];
  return arrived;
}

py::object ArrivingCall::brought() const {
  PyObject* const object = alive(brought_.ptr());
  return object == nullptr ? py::object() : borrowed(object);
}

BroughtRun::~BroughtRun() {
  if (!has_begun_) return;
  try {
    brought_.attr("end")();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("the end of a call whose inputs were brought to the device");
  }
}

py::object BroughtRun::begin(const py::object& state, const py::handle& args, const py::handle& kwargs) {
  has_begun_ = true;
  return brought_.attr("begin")(state, args, kwargs);
}

}  // namespace pianola::python
