#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>
#include <bindings/held_object.hpp>

#include <pianola/training/static_inputs.hpp>

#include <c10/util/complex.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace pianola::python {
namespace {

// Python takes batches apart: a microbatch is the list of its tensors here.
using TensorLists = std::vector<std::vector<at::Tensor>>;

std::vector<c10::IValue> as_batch(const TensorLists& microbatches) {
  std::vector<c10::IValue> batch;
  for (const std::vector<at::Tensor>& tensors : microbatches) batch.emplace_back(tensors);
  return batch;
}

std::function<std::string(std::size_t, std::size_t)> as_path_of(const py::function& function) {
  return [held = HeldObject(function)](std::size_t microbatch, std::size_t tensor) {
    const WithGil gil;
    return held.get()(microbatch, tensor).cast<std::string>();
  };
}

using Number = std::variant<bool, std::int64_t, double, c10::complex<double>>;
using Padding = std::tuple<std::string, std::optional<std::int64_t>, Number>;  // tensor, dimension, value

c10::Scalar as_scalar(const Number& number) {
  return std::visit([](auto value) { return c10::Scalar(value); }, number);
}

Buckets make_buckets(std::vector<std::int64_t> sizes, std::int64_t dim, const std::vector<Padding>& padding,
                     const Number& value) {
  Buckets buckets{.sizes = std::move(sizes), .dim = dim, .value = as_scalar(value)};
  for (const auto& [tensor, along, with] : padding) {
    buckets.padding.push_back({.tensor = tensor, .value = as_scalar(with), .dim = along});
  }
  return buckets;
}

std::unique_ptr<StaticInputs> make_inputs(c10::Device device, bool pin, bool double_buffer,
                                          const std::optional<Buckets>& buckets, const py::function& path_of) {
  return std::make_unique<StaticInputs>(device, StaticInputsOptions{.pin = pin,
                                                                    .double_buffer = double_buffer,
                                                                    .buckets = buckets.value_or(Buckets()),
                                                                    .path_of = as_path_of(path_of)});
}

void for_each_bucket(StaticInputs& inputs, const py::function& visit) {
  inputs.for_each_bucket([&](std::int64_t length) { (void)visit(length); });
}

void bind_buckets(py::module_& module) {
  py::class_<Buckets>(module, "Buckets", "Lengths to which batches are padded.")
      .def(py::init(&make_buckets), py::arg("sizes"), py::arg("dim"), py::arg("padding"), py::arg("value"))
      .def_readonly("sizes", &Buckets::sizes, "Ascending.")
      .def_readonly("dim", &Buckets::dim, "Where a padding names none.")
      .def("bucket_of", &Buckets::bucket_of, py::arg("length"), "The smallest of the sizes that is at least `length`.");
  py::class_<BucketUse>(module, "BucketUse", "What one bucket has been used for.")
      .def_readonly("length", &BucketUse::length, "The bucket's; 0 without buckets.")
      .def_readonly("batches", &BucketUse::batches, "Batches that were padded to it.")
      .def_readonly("elements", &BucketUse::elements, "The caller's, in tensors that are padded.")
      .def_readonly("padding", &BucketUse::padding, "Elements that padding added to them.")
      .def_property_readonly("waste_percent", &BucketUse::waste_percent,
                             "Share of the padded tensors that is padding.");
}

}  // namespace

void bind_static_inputs(py::module_& module) {
  bind_buckets(module);
  py::class_<StaticInputs>(module, "StaticInputs", "The batch that a captured step reads.")
      .def(py::init(&make_inputs), py::arg("device"), py::arg("pin"), py::arg("double_buffer"), py::arg("buckets"),
           py::arg("path_of"))
      .def(
          "prefetch", [](StaticInputs& self, const TensorLists& batch) { self.prefetch(as_batch(batch)); },
          py::arg("batch"), NoGil(), "Starts the next batch on its way.")
      .def("advance", &StaticInputs::advance, NoGil(), "Makes the prefetched batch the current one.")
      .def_property_readonly("key", &StaticInputs::key,
                             "Names the static tensors of the current bucket: no others of this process have it.")
      .def("tensors", &StaticInputs::tensors, "The static tensors of all microbatches, in order.")
      .def("for_each_bucket", &for_each_bucket, py::arg("visit"),
           "Calls `visit(length)` for each bucket, from the largest on, with the current batch in it.")
      .def_property_readonly("bucket", &StaticInputs::bucket,
                             "The length of the current batch's bucket; 0 without buckets.")
      .def_property_readonly("device", &StaticInputs::device, "Where they are.")
      .def_property_readonly("bytes", &StaticInputs::bytes, "Bytes on the device.")
      .def("bucket_uses", &StaticInputs::bucket_uses, "What each bucket was used for, ascending.")
      .def("report", &StaticInputs::report, "Memory, and what padding wastes.")
      .def("__str__", [](const StaticInputs& self) { return self.report().to_text(); });
}

}  // namespace pianola::python
