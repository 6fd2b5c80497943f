#include <bindings/adam_shortcut.hpp>
#include <bindings/gil.hpp>
#include <bindings/held_object.hpp>
#include <bindings/same_objects.hpp>

#include <pianola/callable/host_part.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/wrapped_number.hpp>

#include <ATen/ops/scalar_tensor.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
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

// A parameter group: its settings, and the count of its next step.
struct Group {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  double count = 0;

  // Python has no real root of a correction that is not positive, and no quotient by one that is zero.
  [[nodiscard]] bool is_sound() const { return count >= 1 && correction(beta1) > 0 && correction(beta2) > 0; }
  [[nodiscard]] double correction(double beta) const { return 1 - std::pow(beta, count); }
};

// What Adam gives to its operations, as torch.optim.adam writes it.
using Formula = double (*)(const Group&);
constexpr std::array<Formula, 8> kFormulas = {
    [](const Group& group) { return 1 - group.lr * group.weight_decay; },
    [](const Group& group) { return group.lr / group.correction(group.beta1) * -1; },
    [](const Group& group) { return std::pow(group.correction(group.beta2), 0.5); },
    [](const Group& group) { return 1 - group.beta1; },
    [](const Group& group) { return group.beta2; },
    [](const Group& group) { return 1 - group.beta2; },
    [](const Group& group) { return group.eps; },
    [](const Group& group) { return group.weight_decay; },
};

bool are_same(double one, double other) {
  return std::bit_cast<std::uint64_t>(one) == std::bit_cast<std::uint64_t>(other);
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
    return found && are_same(*found, number);
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
  if (object == nullptr) return false;
  if (PyLong_CheckExact(object)) {
    number = PyLong_AsDouble(object);
    const bool fits = PyErr_Occurred() == nullptr;
    PyErr_Clear();
    return fits;
  }
  if (!PyFloat_CheckExact(object)) return false;
  number = PyFloat_AS_DOUBLE(object);
  return true;
}

PyObject* item(PyObject* dict, const char* key) { return PyDict_GetItemString(dict, key); }

bool read_settings(PyObject* group, Group& found) {
  PyObject* const betas = item(group, "betas");
  return betas != nullptr && PyTuple_CheckExact(betas) && PyTuple_GET_SIZE(betas) == 2 &&
         read_number(PyTuple_GET_ITEM(betas, 0), found.beta1) && read_number(PyTuple_GET_ITEM(betas, 1), found.beta2) &&
         read_number(item(group, "lr"), found.lr) && read_number(item(group, "eps"), found.eps) &&
         read_number(item(group, "weight_decay"), found.weight_decay);
}

// A count that finish() can move on; asked each time, as `.data` may be set to anything.
const at::Tensor* as_count(PyObject* object) {
  const at::Tensor* const count = object == nullptr ? nullptr : as_tensor(object);
  const bool is_one = count != nullptr && count->defined() && count->is_cpu() && count->layout() == at::kStrided &&
                      count->numel() == 1 && !count->is_inference() && !count->requires_grad() &&
                      (count->scalar_type() == at::kFloat || count->scalar_type() == at::kDouble);
  return is_one ? count : nullptr;
}

template <typename T>
T& number_of(const at::Tensor& count) {
  return *count.data_ptr<T>();
}

double next_of(const at::Tensor& count) {
  if (count.scalar_type() == at::kDouble) return number_of<double>(count) + 1;
  return static_cast<float>(number_of<float>(count) + 1);
}

double now_of(const at::Tensor& count) {
  return count.scalar_type() == at::kDouble ? number_of<double>(count) : number_of<float>(count);
}

// A number of a call, and all that it may be: one of the formulas of one of the groups, or always the same.
struct Slot {
  struct Candidate {
    std::size_t formula;
    std::size_t group;
  };
  std::size_t call;
  std::size_t argument;
  c10::IValue sample;
  bool may_be_fixed = true;
  std::vector<Candidate> candidates = {};
};

class AdamShortcut final : public callable::HostShortcut {
 public:
  explicit AdamShortcut(const py::object& optimizer)
      : optimizer_(py::weakref(optimizer)), type_(py::reinterpret_borrow<py::object>(py::type::handle_of(optimizer))) {
    const auto& module = py::module_::import("sys").attr("modules")["torch.optim.adam"];
    for (const char* name : {"adam", "_multi_tensor_adam", "_single_tensor_adam"}) code_.emplace_back(module, name);
    for (const char* name : {"step", "_init_group"}) code_.emplace_back(type_.get(), name);
    hooks_.emplace(py::module_::import("torch.optim.optimizer"));
  }

  void learn(std::span<const HostPartCall> calls) override {
    const WithGil gil;
    const py::object optimizer = optimizer_.get()();
    if (gave_up() || optimizer.is_none()) return;
    if (!known_ || !check(optimizer, now_of)) start_again(optimizer);
    if (known_) find_slots(calls);
    counts_.clear();
  }

  std::optional<std::vector<HostPartNumber>> numbers() override {
    if (learned_ < 2 || !known_) return std::nullopt;
    const WithGil gil;
    const py::object optimizer = optimizer_.get()();
    if (optimizer.is_none() || !check(optimizer, next_of)) return std::nullopt;
    std::vector<HostPartNumber> numbers;
    for (const Slot& slot : slots_) {
      if (slot.candidates.empty()) continue;
      const double number = value_of(slot.candidates.front());
      const auto agrees = [&](const Slot::Candidate& other) { return are_same(value_of(other), number); };
      const bool are_one = std::all_of(slot.candidates.begin(), slot.candidates.end(), agrees);
      if (!are_one || (slot.may_be_fixed && !is_all(slot.sample, number))) {
        counts_.clear();
        return std::nullopt;  // a run of the part tells which it is
      }
      if (!slot.may_be_fixed) numbers.push_back({slot.call, slot.argument, like(slot.sample, number)});
    }
    failures_ = 0;
    return numbers;
  }

  void finish() override {
    for (const at::Tensor& count : std::exchange(counts_, {})) {
      if (count.scalar_type() == at::kDouble) {
        number_of<double>(count) += 1;
      } else {
        number_of<float>(count) += 1;
      }
      count.unsafeGetTensorImpl()->bump_version();
    }
  }

 private:
  static constexpr int kMostFailures = 8;  // to learn, in a row

  struct Known {
    SameObjects objects;  // that decide what a step does
    std::vector<bool> decays;
  };

  [[nodiscard]] bool gave_up() const { return failures_ > kMostFailures; }

  void start_again(const py::object& optimizer) {
    ++failures_;
    learned_ = 0;
    slots_.clear();
    known_.emplace();
    stepped_.clear();
    const auto add = [&](PyObject* object) { return known_->objects.add(object), true; };
    if (!walk(optimizer, add, now_of, /*meets=*/true)) return known_.reset();
    for (const Group& group : groups_) known_->decays.push_back(group.weight_decay != 0);
  }

  // Whether all is as it was; then groups_ and counts_ are those of the step.
  bool check(const py::object& optimizer, double (*count_of)(const at::Tensor&)) {
    SameObjects::Check same(known_->objects);
    const auto is_next = [&](PyObject* object) { return same.is_next(object); };
    bool is_same = walk(optimizer, is_next, count_of, /*meets=*/false) && same.is_end();
    for (std::size_t i = 0; i < groups_.size() && is_same; ++i) {
      is_same = (groups_[i].weight_decay != 0) == known_->decays[i] && groups_[i].is_sound();
    }
    if (!is_same) counts_.clear();
    return is_same;
  }

  // Goes through all that decides what a step does: `visit(object)` is false where one is another than it was.
  template <typename Visit>
  bool walk(const py::object& optimizer, const Visit& visit, double (*count_of)(const at::Tensor&), bool meets) {
    groups_.clear();
    counts_.clear();
    const py::object state = optimizer.attr("state"), all = optimizer.attr("param_groups");
    if (!PyDict_Check(state.ptr()) || !PyList_CheckExact(all.ptr()) || !is_torchs(optimizer)) return false;
    if (!visit(state.ptr()) || !visit(all.ptr())) return false;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(all.ptr()); ++i) {
      PyObject* const group = PyList_GET_ITEM(all.ptr(), i);
      Group& found = groups_.emplace_back();
      if (!PyDict_CheckExact(group) || !visit(group) || !read_settings(group, found) || !walk_flags(group, visit))
        return false;
      if (!walk_parameters(group, state.ptr(), visit, count_of, meets)) return false;
    }
    return are_different_counts();
  }

  template <typename Visit>
  static bool walk_flags(PyObject* group, const Visit& visit) {
    for (const char* key : {"amsgrad", "maximize", "foreach", "decoupled_weight_decay"}) {
      PyObject* const flag = item(group, key);
      if (flag == nullptr || !visit(flag)) return false;
    }
    for (const char* key : {"capturable", "differentiable", "fused"}) {
      PyObject* const flag = item(group, key);
      if (flag != Py_False && flag != Py_None) return false;
    }
    return true;
  }

  template <typename Visit>
  bool walk_parameters(PyObject* group, PyObject* state, const Visit& visit, double (*count_of)(const at::Tensor&),
                       bool meets) {
    PyObject* const parameters = item(group, "params");
    if (parameters == nullptr || !PyList_CheckExact(parameters) || !visit(parameters)) return false;
    double& count = groups_.back().count;
    bool is_first = true;
    count = 1;  // where nothing of the group is stepped
    for (Py_ssize_t j = 0; j < PyList_GET_SIZE(parameters); ++j) {
      PyObject* const parameter = PyList_GET_ITEM(parameters, j);
      const at::Tensor* const tensor = as_tensor(parameter);
      if (tensor == nullptr || !visit(parameter)) return false;
      PyObject* const entries = PyDict_GetItem(state, parameter);
      if (entries == nullptr) continue;  // it has had no gradient
      if (!PyDict_CheckExact(entries) || !visit(entries) || !walk_entries(entries, visit)) return false;
      // One without a gradient is not stepped. (While the part runs again, gradients are those of the capture.)
      if (meets && tensor->grad().defined()) stepped_.insert(tensor->unsafeGetTensorImpl());
      if (stepped_.count(tensor->unsafeGetTensorImpl()) == 0) continue;
      const at::Tensor* const its = as_count(item(entries, "step"));
      if (its == nullptr) return false;
      counts_.push_back(*its);
      if (std::exchange(is_first, false)) count = count_of(*its);
      if (!are_same(count, count_of(*its))) return false;
    }
    return true;
  }

  template <typename Visit>
  static bool walk_entries(PyObject* entries, const Visit& visit) {
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t position = 0; PyDict_Next(entries, &position, &key, &value) != 0;) {
      if (!visit(key) || !visit(value)) return false;
    }
    return true;
  }

  // One that two parameters share moves on twice in a step.
  [[nodiscard]] bool are_different_counts() const {
    std::vector<const void*> places;
    places.reserve(counts_.size());
    for (const at::Tensor& count : counts_) places.push_back(count.const_data_ptr());
    std::sort(places.begin(), places.end());
    return std::adjacent_find(places.begin(), places.end()) == places.end();
  }

  // Nobody has put something in the place of torch's code, or hooks about it. Those of all optimizers are Pianola's own two.
  bool is_torchs(const py::object& optimizer) {
    const auto count = [](const py::object& dict) { return py::len(dict); };
    const auto is_as_it_was = [](const Code& code) { return code.is_as_it_was(); };
    const py::object own = optimizer.attr("__dict__");
    return py::type::handle_of(optimizer).is(type_.get()) && !own.contains("_init_group") &&
           count(own["_optimizer_step_pre_hooks"]) + count(own["_optimizer_step_post_hooks"]) == 0 &&
           count(hooks_->get().attr("_global_optimizer_pre_hooks")) == 1 &&
           count(hooks_->get().attr("_global_optimizer_post_hooks")) == 1 &&
           std::all_of(code_.begin(), code_.end(), is_as_it_was);
  }

  // What a number may be shows in run after run.
  void find_slots(std::span<const HostPartCall> calls) {
    std::vector<Slot> slots;
    for (std::size_t call = 0; call < calls.size(); ++call) {
      for (std::size_t i = 0; i < calls[call].inputs.size(); ++i) {
        if (holds_numbers(calls[call].inputs[i]))
          slots.push_back({.call = call, .argument = i, .sample = calls[call].inputs[i]});
      }
    }
    if (learned_ == 0) {
      for (Slot& slot : slots) add_candidates(slot);
      slots_ = std::move(slots);
    } else if (slots.size() != slots_.size() || !narrow_down(slots)) {
      ++failures_;
      return known_.reset();
    }
    ++learned_;
  }

  void add_candidates(Slot& slot) const {
    for (std::size_t formula = 0; formula < kFormulas.size(); ++formula) {
      for (std::size_t group = 0; group < groups_.size(); ++group) {
        if (is_all(slot.sample, value_of({formula, group}))) slot.candidates.push_back({formula, group});
      }
    }
  }

  // False where a number is nothing that is known.
  bool narrow_down(const std::vector<Slot>& now) {
    for (std::size_t i = 0; i < now.size(); ++i) {
      Slot& slot = slots_[i];
      slot.may_be_fixed = slot.may_be_fixed && are_same_numbers(slot.sample, now[i].sample);
      std::erase_if(slot.candidates, [&](const Slot::Candidate& one) { return !is_all(now[i].sample, value_of(one)); });
      if (!slot.may_be_fixed && slot.candidates.empty()) return false;
    }
    return true;
  }

  [[nodiscard]] double value_of(const Slot::Candidate& one) const { return kFormulas[one.formula](groups_[one.group]); }

  // A function where it was found.
  class Code {
   public:
    Code(const py::object& owner, const char* name) : owner_(owner), function_(owner.attr(name)), name_(name) {}
    [[nodiscard]] bool is_as_it_was() const { return py::getattr(owner_.get(), name_, py::none()).is(function_.get()); }

   private:
    HeldObject owner_, function_;
    const char* name_;
  };

  HeldObject optimizer_, type_;
  std::vector<Code> code_;
  std::optional<HeldObject> hooks_;  // the module that has those of all optimizers
  std::optional<Known> known_;
  std::set<const c10::TensorImpl*> stepped_;  // parameters, of those known
  std::vector<Slot> slots_;
  std::vector<Group> groups_;       // as they are now
  std::vector<at::Tensor> counts_;  // of the step that comes next
  int learned_ = 0;                 // runs
  int failures_ = 0;
};

}  // namespace

std::shared_ptr<callable::HostShortcut> make_adam_shortcut(const py::object& optimizer) {
  return std::make_shared<AdamShortcut>(optimizer);
}

}  // namespace pianola::python
