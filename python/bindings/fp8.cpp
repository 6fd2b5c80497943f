#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>
#include <bindings/held_object.hpp>
#include <bindings/python_function.hpp>

#include <pianola/core/error.hpp>
#include <pianola/fp8/linear.hpp>
#include <pianola/fp8/quantize.hpp>
#include <pianola/fp8/region.hpp>
#include <pianola/fp8/scales.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace pianola::python {
namespace {

template <typename Enum, std::size_t N>
using Names = std::array<std::pair<const char*, Enum>, N>;

constexpr Names<fp8::Scaling, 4> kScalings = {{{"delayed", fp8::Scaling::delayed},
                                               {"tensor", fp8::Scaling::tensor},
                                               {"row", fp8::Scaling::row},
                                               {"block", fp8::Scaling::block}}};
constexpr Names<fp8::Format, 2> kFormats = {{{"hybrid", fp8::Format::hybrid}, {"e4m3", fp8::Format::e4m3}}};
constexpr Names<fp8::AmaxCompute, 2> kComputes = {
    {{"max", fp8::AmaxCompute::max}, {"most_recent", fp8::AmaxCompute::most_recent}}};

template <typename Enum, std::size_t N>
Enum named(const char* option, const std::string& name, const Names<Enum, N>& known) {
  std::string all;
  for (const auto& [word, value] : known) {
    if (name == word) return value;
    all += (all.empty() ? "'" : ", '") + std::string(word) + "'";
  }
  throw UsageError({.what = "a recipe's " + std::string(option) + " must be one of " + all + ", got '" + name + "'"});
}

fp8::Recipe recipe_of(const std::string& scaling, const std::string& format, int margin, std::int64_t length,
                      const std::string& compute, std::int64_t interval, bool powers_of_two) {
  const fp8::Recipe recipe{.scaling = named("scaling", scaling, kScalings),
                           .format = named("format", format, kFormats),
                           .margin = margin,
                           .amax_history_length = length,
                           .amax_compute = named("amax_compute", compute, kComputes),
                           .interval = interval,
                           .powers_of_two = powers_of_two};
  recipe.check();
  return recipe;
}

// A region between __enter__ and __exit__.
class Region {
 public:
  explicit Region(fp8::RegionOptions options) : options_(std::move(options)) {}
  void enter() {
    if (open_ != nullptr)
      throw UsageError({.what = "a region is entered that is open", .fix = "make one for each with statement"});
    open_ = std::make_unique<fp8::Autocast>(options_);
    thread_ = std::this_thread::get_id();
  }
  void exit() {
    if (open_ != nullptr && thread_ != std::this_thread::get_id())
      throw UsageError({.what = "a region is left on another thread than it was entered on",
                        .fix = "leave it where it was entered"});
    const auto open = std::exchange(open_, nullptr);
    if (open != nullptr) open->end();
  }

 private:
  fp8::RegionOptions options_;
  std::unique_ptr<fp8::Autocast> open_;
  std::thread::id thread_;
};

Region region_of(bool enabled, std::optional<fp8::Recipe> recipe, bool calibrating, std::optional<bool> is_first,
                 const py::object& reduce) {
  fp8::RegionOptions options{
      .enabled = enabled, .recipe = std::move(recipe), .calibrating = calibrating, .is_first_microbatch = is_first};
  if (!reduce.is_none()) {
    options.reduce = [held = std::make_shared<HeldObject>(reduce)](const at::Tensor& amaxes) {
      const WithGil gil;
      call_python(held->get(), py::make_tuple(amaxes));
    };
  }
  return Region(std::move(options));
}

void bind_recipe(py::module_& module) {
  py::class_<fp8::Recipe>(module, "Fp8Recipe", "What layers compute with in 8 bits, and how.")
      .def(py::init(&recipe_of), py::arg("scaling") = "delayed", py::kw_only(), py::arg("format") = "hybrid",
           py::arg("margin") = 0, py::arg("amax_history_length") = 1024, py::arg("amax_compute") = "max",
           py::arg("interval") = 1, py::arg("powers_of_two") = false)
      .def("to_text", &fp8::Recipe::to_text, "In words.");
}

}  // namespace

void bind_fp8(py::module_& module) {
  bind_recipe(module);
  py::class_<fp8::ScaleTable, std::shared_ptr<fp8::ScaleTable>>(module, "Fp8ScaleTable",
                                                                "The scales of a model's layers, on its tensors.")
      .def(py::init<const at::Tensor&, const at::Tensor&, const at::Tensor&, const fp8::Recipe&>(), py::arg("scale"),
           py::arg("history"), py::arg("updates"), py::arg("recipe"));
  py::class_<fp8::LinearState>(module, "Fp8LinearState", "What a layer has besides its parameters.")
      .def(py::init([](const fp8::Recipe& recipe, const std::optional<std::shared_ptr<fp8::ScaleTable>>& scales,
                       std::int64_t layer) {
             return std::make_unique<fp8::LinearState>(recipe, scales.value_or(nullptr), layer);
           }),
           py::arg("recipe"), py::arg("scales"), py::arg("layer"))
      .def(
          "forward",
          [](fp8::LinearState& self, const at::Tensor& x, const at::Tensor& weight,
             const std::optional<at::Tensor>& bias,
             bool trains) { return self.forward(x, weight, bias.value_or(at::Tensor()), trains); },
          py::arg("x"), py::arg("weight"), py::arg("bias"), py::arg("trains"),
          "x @ weight.T + bias, as the innermost region says.");
  py::class_<Region>(module, "Fp8Region", "A region of this thread in which layers compute with 8 bits.")
      .def(py::init(&region_of), py::arg("enabled"), py::arg("recipe"), py::arg("calibrating"),
           py::arg("is_first_microbatch"), py::arg("reduce"))
      .def("enter", &Region::enter, "Begins the region.")
      .def("exit", &Region::exit, "Ends it, on the same thread; the outermost one computes scales.");
}

}  // namespace pianola::python
