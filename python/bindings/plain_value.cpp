#include <bindings/plain_value.hpp>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

c10::IValue convert(const py::handle& object, const std::string& path);

c10::IValue convert_dict(const py::dict& dict, const std::string& path) {
  c10::impl::GenericDict converted(c10::AnyType::get(), c10::AnyType::get());
  for (const auto& [key, value] : dict) {
    const std::string here = path + "[" + py::repr(key).cast<std::string>() + "]";
    if (!py::isinstance<py::str>(key) && !py::isinstance<py::int_>(key)) {
      throw py::type_error(here + ": keys have to be str or int");
    }
    converted.insert(convert(key, here), convert(value, here));
  }
  return converted;
}

std::vector<c10::IValue> convert_all(const py::sequence& sequence, const std::string& path) {
  std::vector<c10::IValue> converted;
  for (const py::handle& element : sequence) {
    converted.push_back(convert(element, path + "[" + std::to_string(converted.size()) + "]"));
  }
  return converted;
}

// bool ahead of int, which it is as well.
c10::IValue convert(const py::handle& object, const std::string& path) {
  if (object.is_none()) return {};
  if (THPVariable_Check(object.ptr())) return THPVariable_Unpack(object.ptr());
  if (py::isinstance<py::bool_>(object)) return object.cast<bool>();
  if (py::isinstance<py::int_>(object)) return object.cast<std::int64_t>();
  if (py::isinstance<py::float_>(object)) return object.cast<double>();
  if (py::isinstance<py::str>(object)) return object.cast<std::string>();
  if (py::isinstance<py::dict>(object)) return convert_dict(py::reinterpret_borrow<py::dict>(object), path);
  if (py::isinstance<py::tuple>(object)) {
    return c10::ivalue::Tuple::create(convert_all(py::reinterpret_borrow<py::sequence>(object), path));
  }
  if (py::isinstance<py::list>(object)) {
    c10::impl::GenericList list(c10::AnyType::get());
    for (c10::IValue& element : convert_all(py::reinterpret_borrow<py::sequence>(object), path)) {
      list.push_back(std::move(element));
    }
    return list;
  }
  throw py::type_error(path +
                       " must be None, a bool, a number, a str, a tensor, or a dict, list or tuple of these, got " +
                       py::repr(py::type::of(object)).cast<std::string>());
}

}  // namespace

c10::IValue as_plain_value(const py::handle& object) { return convert(object, "state"); }

py::object as_python(const c10::IValue& value) {
  if (value.isNone()) return py::none();
  if (value.isTensor()) return py::reinterpret_steal<py::object>(THPVariable_Wrap(value.toTensor()));
  if (value.isBool()) return py::bool_(value.toBool());
  if (value.isInt()) return py::int_(value.toInt());
  if (value.isDouble()) return py::float_(value.toDouble());
  if (value.isString()) return py::str(value.toStringRef());
  if (value.isGenericDict()) {
    py::dict dict;
    for (const auto& entry : value.toGenericDict()) dict[as_python(entry.key())] = as_python(entry.value());
    return dict;
  }
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    py::tuple tuple(elements.size());
    for (std::size_t i = 0; i < elements.size(); ++i) tuple[i] = as_python(elements[i]);
    return tuple;
  }
  if (value.isList()) {
    py::list list;
    for (const c10::IValue& element : value.toListRef()) list.append(as_python(element));
    return list;
  }
  throw py::type_error("no Python value for a " + value.tagKind());
}

}  // namespace pianola::python
