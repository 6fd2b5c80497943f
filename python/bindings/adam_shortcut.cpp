#include <bindings/adam_shortcut.hpp>
#include <bindings/gil.hpp>
#include <bindings/held_object.hpp>

#include <pianola/callable/host_part.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/trace/weak_tensor.hpp>
#include <pianola/trace/wrapped_number.hpp>

#include <ATen/ops/scalar_tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace pianola::python {
namespace {

using callable::HostPartCall;
using callable::HostPartNumber;

const at::Tensor* as_tensor(PyObject* object) {
  return THPVariable_Check(object) ? &THPVariable_Unpack(object) : nullptr;
}

// Objects that have to be the very ones that they were. None is kept alive. Of tensors no other one has the address while this
// is known; of containers what is in them is asked as well.
class SameObjects {
 public:
  void add(PyObject* object) {
    const at::Tensor* const tensor = as_tensor(object);
    all_.push_back(identity_of(object));
    if (tensor != nullptr) tensors_.emplace_back(tensor->getIntrusivePtr());
  }

  // In the order of add().
  class Check {
   public:
    explicit Check(const SameObjects& known) : known_(known) {}
    bool is_next(PyObject* object) { return !is_end() && known_.all_[next_++] == identity_of(object); }
    [[nodiscard]] bool is_end() const { return next_ == known_.all_.size(); }

   private:
    const SameObjects& known_;
    std::size_t next_ = 0;
  };

 private:
  static const void* identity_of(PyObject* object) {
    const at::Tensor* const tensor = as_tensor(object);
    return tensor == nullptr ? static_cast<const void*>(object) : tensor->unsafeGetTensorImpl();
  }

  std::vector<const void*> all_;
  std::vector<trace::WeakTensor> tensors_;
};

// What Adam computes on the host from a count, as torch.optim.adam writes it.
struct Settings {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;

  // Without the rate, which schedulers set.
  [[nodiscard]] bool are_alike(const Settings& other) const {
    const auto bits = [](double number) { return std::bit_cast<std::uint64_t>(number); };
    return bits(beta1) == bits(other.beta1) && bits(beta2) == bits(other.beta2) && bits(eps) == bits(other.eps) &&
           bits(weight_decay) == bits(other.weight_decay);
  }
  [[nodiscard]] double decay() const { return 1 - lr * weight_decay; }
  [[nodiscard]] double step_size(double count) const { return lr / (1 - std::pow(beta1, count)) * -1; }
  [[nodiscard]] double root_of_correction(double count) const { return std::pow(1 - std::pow(beta2, count), 0.5); }
};

// A number of a call is one of these.
enum class Kind : std::uint8_t { fixed, decay, step_size, root_of_correction };
constexpr std::array kKinds = {Kind::decay, Kind::step_size, Kind::root_of_correction};

struct Group {
  Settings settings;
  double count = 0;  // before the step
};

double value_of(Kind kind, const Group& group, double count) {
  switch (kind) {
    case Kind::decay:
      return group.settings.decay();
    case Kind::step_size:
      return group.settings.step_size(count);
    case Kind::root_of_correction:
      return group.settings.root_of_correction(count);
    case Kind::fixed:
      break;
  }
  return 0;
}

// A number, or a tensor that torch has made of one.
std::optional<double> double_of(const c10::IValue& value) {
  if (value.isDouble()) return value.toDouble();
  const auto wrapped = trace::wrapped_number(value);
  if (!wrapped || !std::holds_alternative<double>(*wrapped)) return std::nullopt;
  return std::get<double>(*wrapped);
}

// A number, or a list of the same one.
bool is_all(const c10::IValue& value, double number) {
  const auto is_it = [&](const c10::IValue& one) {
    const auto found = double_of(one);
    return found && std::bit_cast<std::uint64_t>(*found) == std::bit_cast<std::uint64_t>(number);
  };
  if (!value.isList()) return is_it(value);
  const auto all = value.toListRef();
  return !all.empty() && std::all_of(all.begin(), all.end(), is_it);
}

bool holds_numbers(const c10::IValue& value) {
  if (value.isScalar() || trace::wrapped_number(value)) return true;
  if (!value.isList()) return false;
  const auto all = value.toListRef();
  return !all.empty() && std::all_of(all.begin(), all.end(), [](const c10::IValue& one) { return one.isScalar(); });
}

bool are_same_numbers(const c10::IValue& one, const c10::IValue& other) {
  if (one.isTensor()) return trace::wrapped_number(one) == trace::wrapped_number(other);
  return one.tagKind() == other.tagKind() && c10::_fastEqualsForContainer(one, other);
}

c10::IValue like(const c10::IValue& value, double number) {
  if (value.isTensor()) {
    const trace::QuietScope quiet;
    at::Tensor tensor = at::scalar_tensor(number, value.toTensor().options());
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    return tensor;
  }
  if (!value.isList()) return number;
  c10::impl::GenericList list(value.toList().elementType());
  list.reserve(value.toListRef().size());
  for (std::size_t i = 0; i < value.toListRef().size(); ++i) list.push_back(number);
  return list;
}

bool read_number(PyObject* object, double& number) {
  if (object == nullptr || !PyFloat_CheckExact(object)) return false;
  number = PyFloat_AS_DOUBLE(object);
  return true;
}

PyObject* item(PyObject* dict, const char* key) { return PyDict_GetItemString(dict, key); }

class AdamShortcut final : public callable::HostShortcut {
 public:
  explicit AdamShortcut(const py::object& optimizer)
      : optimizer_(py::weakref(optimizer)),
        type_(py::reinterpret_borrow<py::object>(py::type::handle_of(optimizer))),
        step_(type_.get().attr("step")),
        hooks_(py::module_::import("torch.optim.optimizer")) {}

  void learn(std::span<const HostPartCall> calls) override {
    const WithGil gil;
    if (gave_up_) return;
    const py::object optimizer = optimizer_.get()();
    if (optimizer.is_none()) return;
    if (!known_ || !check(optimizer)) {  // for the first time, or something is another than it was
      learned_ = 0;
      slots_.clear();
      known_.emplace();
      stepped_.clear();
      gave_up_ = ++times_ > kMostTimes || !meet(optimizer);
    }
    if (!gave_up_) find_slots(calls);
    ++learned_;
  }

  std::optional<std::vector<HostPartNumber>> numbers() override {
    if (gave_up_ || learned_ < 2) return std::nullopt;
    const WithGil gil;
    const py::object optimizer = optimizer_.get()();
    if (optimizer.is_none() || !check(optimizer)) return std::nullopt;
    std::vector<HostPartNumber> numbers;
    for (const Slot& slot : slots_) {
      if (slot.kind == Kind::fixed) continue;
      const Group& group = known_->groups[slot.group];
      numbers.push_back({slot.call, slot.argument, like(slot.sample, value_of(slot.kind, group, group.count + 1))});
    }
    return numbers;
  }

  void finish() override {
    for (const at::Tensor& count : std::exchange(counts_, {})) {
      if (count.scalar_type() == at::kFloat) {
        *count.data_ptr<float>() += 1;
      } else {
        *count.data_ptr<double>() += 1;
      }
      count.unsafeGetTensorImpl()->bump_version();
    }
  }

 private:
  static constexpr int kMostTimes = 8;  // that it learns anew

  struct Slot {
    std::size_t call;
    std::size_t argument;
    Kind kind;
    std::size_t group;
    c10::IValue sample;
  };
  struct Known {
    SameObjects objects;  // that decide what a step does
    std::vector<Group> groups;
    std::map<const void*, std::size_t> group_of;  // by a parameter's storage
  };

  // Goes through all that decides what a step does: `visit(object)` is false where one is another than it was.
  template <typename Visit>
  bool walk(const py::object& optimizer, const Visit& visit, std::vector<Group>& groups, bool meets) {
    const py::object state = optimizer.attr("state"), all = optimizer.attr("param_groups");
    if (!PyDict_Check(state.ptr()) || !PyList_CheckExact(all.ptr()) || has_hooks(optimizer)) return false;
    if (!visit(state.ptr()) || !visit(all.ptr())) return false;
    counts_.clear();
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(all.ptr()); ++i) {
      PyObject* const group = PyList_GET_ITEM(all.ptr(), i);
      Group found;
      if (!PyDict_CheckExact(group) || !visit(group) || !read_settings(group, found.settings)) return false;
      for (const char* key :
           {"amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"}) {
        PyObject* const setting = item(group, key);
        if (setting == nullptr || !visit(setting)) return false;
      }
      if (meets && is_of_no_use(group)) return false;
      PyObject* const parameters = item(group, "params");
      if (parameters == nullptr || !PyList_CheckExact(parameters) || !visit(parameters)) return false;
      bool is_first = true;
      for (Py_ssize_t j = 0; j < PyList_GET_SIZE(parameters); ++j) {
        PyObject* const parameter = PyList_GET_ITEM(parameters, j);
        if (!visit(parameter)) return false;
        PyObject* const entries = PyDict_GetItem(state.ptr(), parameter);
        if (entries == nullptr) continue;  // it has had no gradient
        if (!PyDict_CheckExact(entries) || !visit(entries) || !visit_entries(entries, visit)) return false;
        if (meets && !meet_parameter(parameter, entries, groups.size())) return false;
        if (stepped_.count(as_tensor(parameter)->unsafeGetTensorImpl()) == 0) continue;
        counts_.push_back(THPVariable_Unpack(item(entries, "step")));
        const double count = count_of(counts_.back());
        if (std::exchange(is_first, false)) found.count = count;
        if (count != found.count) return false;
      }
      groups.push_back(found);
    }
    return true;
  }

  template <typename Visit>
  static bool visit_entries(PyObject* entries, const Visit& visit) {
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t position = 0; PyDict_Next(entries, &position, &key, &value) != 0;) {
      if (!visit(value)) return false;
    }
    return true;
  }

  bool check(const py::object& optimizer) {
    SameObjects::Check same(known_->objects);
    std::vector<Group> groups;
    if (!walk(
            optimizer, [&](PyObject* object) { return same.is_next(object); }, groups, false) ||
        !same.is_end())
      return false;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (!groups[i].settings.are_alike(known_->groups[i].settings)) return false;
    }
    known_->groups = std::move(groups);
    return true;
  }

  bool meet(const py::object& optimizer) {
    std::vector<Group> groups;
    const auto add = [&](PyObject* object) { return known_->objects.add(object), true; };
    if (!walk(optimizer, add, groups, true) || groups.empty()) return false;
    known_->groups = std::move(groups);
    return true;
  }

  // One without a gradient is not stepped. (While the part runs again, gradients are those of the capture.)
  bool meet_parameter(PyObject* parameter, PyObject* entries, std::size_t group) {
    PyObject* const step = item(entries, "step");
    const at::Tensor* const tensor = as_tensor(parameter);
    if (tensor == nullptr || step == nullptr || as_tensor(step) == nullptr) return false;
    known_->group_of[trace::storage_of(*tensor)] = group;
    if (!tensor->grad().defined()) return true;
    stepped_.insert(tensor->unsafeGetTensorImpl());
    const at::Tensor& count = *as_tensor(step);
    const bool is_float = count.scalar_type() == at::kFloat || count.scalar_type() == at::kDouble;
    return count.is_cpu() && count.numel() == 1 && is_float && !count.is_inference() && !count.requires_grad();
  }

  static double count_of(const at::Tensor& count) {
    return count.scalar_type() == at::kFloat ? *count.const_data_ptr<float>() : *count.const_data_ptr<double>();
  }

  static bool read_settings(PyObject* group, Settings& settings) {
    PyObject* const betas = item(group, "betas");
    return betas != nullptr && PyTuple_CheckExact(betas) && PyTuple_GET_SIZE(betas) == 2 &&
           read_number(PyTuple_GET_ITEM(betas, 0), settings.beta1) &&
           read_number(PyTuple_GET_ITEM(betas, 1), settings.beta2) && read_number(item(group, "lr"), settings.lr) &&
           read_number(item(group, "eps"), settings.eps) &&
           read_any_number(item(group, "weight_decay"), settings.weight_decay);
  }

  // weight_decay=0 is an int.
  static bool read_any_number(PyObject* object, double& number) {
    if (object != nullptr && PyLong_CheckExact(object)) {
      number = PyLong_AsDouble(object);
      return PyErr_Occurred() == nullptr;
    }
    return read_number(object, number);
  }

  static bool is_of_no_use(PyObject* group) {
    for (const char* key : {"capturable", "differentiable", "fused"}) {
      if (PyObject_IsTrue(item(group, key)) == 1) return true;
    }
    return false;
  }

  // Of the user's; those of all optimizers are Pianola's own two.
  bool has_hooks(const py::object& optimizer) {
    const auto count = [](const py::object& dict) { return py::len(dict); };
    return count(optimizer.attr("_optimizer_step_pre_hooks")) + count(optimizer.attr("_optimizer_step_post_hooks")) !=
               0 ||
           count(hooks_.get().attr("_global_optimizer_pre_hooks")) != 1 ||
           count(hooks_.get().attr("_global_optimizer_post_hooks")) != 1 ||
           !py::object(type_.get().attr("step")).is(step_.get());
  }

  // Which number is what: on parameters the decay and the step size, elsewhere the correction, and all else does not change.
  void find_slots(std::span<const HostPartCall> calls) {
    std::vector<Slot> slots;
    for (std::size_t call = 0; call < calls.size(); ++call) {
      const auto group = group_of(calls[call]);
      for (std::size_t i = 0; i < calls[call].inputs.size(); ++i) {
        const c10::IValue& value = calls[call].inputs[i];
        if (!holds_numbers(value)) continue;
        slots.push_back({call, i, Kind::fixed, group.value_or(0), value});
        find_kind(slots.back(), group.has_value());
      }
    }
    if (learned_ == 0) {
      slots_ = std::move(slots);
      return;
    }
    // Once more: the same kinds, and what is fixed is the same number.
    gave_up_ = slots.size() != slots_.size();
    for (std::size_t i = 0; i < slots.size() && !gave_up_; ++i) {
      const Slot &was = slots_[i], &is = slots[i];
      const bool is_same_value = are_same_numbers(was.sample, is.sample);
      gave_up_ = was.kind != is.kind || was.group != is.group || (is.kind == Kind::fixed && !is_same_value);
    }
  }

  void find_kind(Slot& slot, bool is_of_parameters) const {
    for (const Kind kind : kKinds) {
      if ((kind == Kind::root_of_correction) == is_of_parameters) continue;
      for (std::size_t group = 0; group < known_->groups.size(); ++group) {
        if (is_of_parameters && group != slot.group) continue;
        const Group& known = known_->groups[group];
        if (!is_all(slot.sample, value_of(kind, known, known.count))) continue;  // the step has counted
        slot.kind = kind;
        slot.group = group;
        return;
      }
    }
  }

  // Of the parameters that a call writes.
  [[nodiscard]] std::optional<std::size_t> group_of(const HostPartCall& call) const {
    std::optional<std::size_t> group;
    if (call.inputs.empty()) return group;
    trace::for_each_tensor(call.inputs[0], [&](const at::Tensor& tensor) {
      if (const auto found = known_->group_of.find(trace::storage_of(tensor)); found != known_->group_of.end())
        group = found->second;
    });
    return group;
  }

  HeldObject optimizer_, type_, step_, hooks_;
  std::optional<Known> known_;
  std::set<const c10::TensorImpl*> stepped_;  // parameters, of those known
  std::vector<at::Tensor> counts_;            // of the step that comes next
  std::vector<Slot> slots_;
  int learned_ = 0;  // runs
  int times_ = 0;
  bool gave_up_ = false;
};

}  // namespace

std::shared_ptr<callable::HostShortcut> make_adam_shortcut(const py::object& optimizer) {
  return std::make_shared<AdamShortcut>(optimizer);
}

}  // namespace pianola::python
