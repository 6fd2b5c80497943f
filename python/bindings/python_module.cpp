#include <bindings/python_module.hpp>

#include <bindings/gil.hpp>
#include <bindings/object_words.hpp>

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <utility>

namespace pianola::python {
namespace {

constexpr std::array<const char*, 3> kDictionaries = {"_parameters", "_buffers", "_modules"};
constexpr std::array<const char*, 3> kWords = {"parameter", "buffer", "submodule"};

PyObject* entry(PyObject* dictionary, PyObject* key) { return PyDict_GetItemWithError(dictionary, key); }

PyObject* dictionary_of(PyObject* attributes, std::size_t kind) {
  static const std::array<PyObject*, 3> keys = {interned(kDictionaries[0]), interned(kDictionaries[1]),
                                                interned(kDictionaries[2])};
  return entry(attributes, keys[kind]);
}

bool flag_of(PyObject* attributes) {
  static PyObject* const key = interned("training");
  PyObject* const flag = entry(attributes, key);
  return flag == Py_True || (flag != nullptr && PyObject_IsTrue(flag) == 1);
}

bool is_tensor(PyObject* object) { return object != nullptr && THPVariable_Check(object); }

std::string qualified(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

}  // namespace

PythonModuleView::PythonModuleView(const py::object& module) : root_(py::weakref(module)) {
  for (const py::handle item : module.attr("named_modules")()) {
    const auto [name, submodule] = item.cast<std::pair<std::string, py::object>>();
    add(name, submodule, submodule.is(module));
  }
}

void PythonModuleView::add(const std::string& name, const py::object& module, bool is_root) {
  Submodule submodule{.name = name, .held = {}, .attributes = module.attr("__dict__").ptr(), .members = {}};
  if (!is_root) submodule.held = HeldObject(module);
  for (const Kind kind : {Kind::parameter, Kind::buffer, Kind::submodule}) add_members(submodule, module, kind);
  modules_.push_back(std::move(submodule));
}

void PythonModuleView::add_members(Submodule& owner, const py::object& module, Kind kind) {
  const auto entries = module.attr(kDictionaries[static_cast<std::size_t>(kind)]).cast<py::dict>();
  for (const auto& [key, value] : entries) {
    Member member{.name = qualified(owner.name, key.cast<std::string>()),
                  .kind = kind,
                  .held = HeldObject(py::reinterpret_borrow<py::object>(value)),
                  .object = value.ptr()};
    if (is_tensor(value.ptr())) {
      const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
      member.tensor =
          kind == Kind::buffer ? KnownTensor::buffer(member.name, tensor) : KnownTensor::parameter(member.name, tensor);
      if (kind == Kind::parameter) member.meta = torch::autograd::impl::materialize_autograd_meta(tensor);
    }
    owner.members.push_back(std::move(member));
  }
}

bool PythonModuleView::is_alive() const { return alive(root_.get().ptr()) != nullptr; }

bool PythonModuleView::training() const {
  const WithGil gil;
  return is_alive() && flag_of(modules_.front().attributes);
}

void PythonModuleView::set_training(bool training) const {
  const WithGil gil;
  if (is_alive()) root_.get()().attr("train")(training);
}

std::vector<bool> PythonModuleView::flags() const {
  const WithGil gil;
  std::vector<bool> result(modules_.size());
  for (std::size_t i = 0; i < modules_.size() && is_alive(); ++i) result[i] = flag_of(modules_[i].attributes);
  return result;
}

void PythonModuleView::set_flags(const std::vector<bool>& flags) const {
  const WithGil gil;
  if (!is_alive()) return;
  root_.get()().attr("training") = static_cast<bool>(flags[0]);
  for (std::size_t i = 1; i < flags.size(); ++i) modules_[i].held->get().attr("training") = static_cast<bool>(flags[i]);
}

bool PythonModuleView::has_flags(const std::vector<bool>& flags) const {
  const WithGil gil;
  if (!is_alive()) return false;
  for (std::size_t i = 0; i < flags.size(); ++i) {
    if (flag_of(modules_[i].attributes) != flags[i]) return false;
  }
  return true;
}

std::vector<std::string> PythonModuleView::differing_flags(const std::vector<bool>& flags) const {
  const std::vector<bool> now = this->flags();
  std::vector<std::string> result;
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (now[i] != flags[i]) result.push_back(modules_[i].name);
  }
  return result;
}

bool PythonModuleView::is_as_known(const Member& member, PyObject* now) {
  if (now != member.object) return false;
  if (member.kind == Kind::buffer) return !member.tensor || member.tensor->is(THPVariable_Unpack(now));
  return member.meta == nullptr || member.meta->requires_grad_ == member.tensor->is_differentiable();
}

bool PythonModuleView::is_as_known(const Submodule& module) {
  auto member = module.members.begin();
  for (std::size_t kind = 0; kind < kDictionaries.size(); ++kind) {
    PyObject* const dictionary = dictionary_of(module.attributes, kind);
    if (dictionary == nullptr) return false;
    Py_ssize_t position = 0;
    PyObject *key = nullptr, *value = nullptr;
    while (PyDict_Next(dictionary, &position, &key, &value) != 0) {
      if (member == module.members.end() || static_cast<std::size_t>(member->kind) != kind) return false;
      if (!is_as_known(*member++, value)) return false;
    }
    if (member != module.members.end() && static_cast<std::size_t>(member->kind) == kind) return false;
  }
  return true;
}

bool PythonModuleView::has_its_parameters() const {
  const WithGil gil;
  return is_alive() &&
         std::all_of(modules_.begin(), modules_.end(), [](const Submodule& module) { return is_as_known(module); });
}

std::string PythonModuleView::difference(const Member& member, PyObject* now) {
  const std::string subject = std::string(kWords[static_cast<std::size_t>(member.kind)]) + " '" + member.name + "': ";
  if (now == nullptr) return subject + "the module has it no more";
  if (!member.tensor || !is_tensor(now)) return subject + "the module has another object now";
  return member.tensor->difference(THPVariable_Unpack(now)).value_or(subject + "the module has it under another name");
}

std::vector<std::string> PythonModuleView::differences(const Submodule& module) {
  std::vector<std::string> result;
  for (const Member& member : module.members) {
    PyObject* const dictionary = dictionary_of(module.attributes, static_cast<std::size_t>(member.kind));
    const std::string own_name = member.name.substr(member.name.rfind('.') + 1);
    PyObject* const now = dictionary == nullptr ? nullptr : PyDict_GetItemString(dictionary, own_name.c_str());
    if (!is_as_known(member, now)) result.push_back(difference(member, now));
  }
  if (!result.empty()) return result;
  const std::string subject = module.name.empty() ? "the module" : "'" + module.name + "'";
  return {subject + " has another parameter, buffer or submodule than when it was captured"};
}

std::vector<std::string> PythonModuleView::parameter_differences() const {
  const WithGil gil;
  if (!is_alive()) return {"the module is gone"};
  std::vector<std::string> result;
  for (const Submodule& module : modules_) {
    if (is_as_known(module)) continue;
    for (std::string& difference : differences(module)) result.push_back(std::move(difference));
  }
  return result;
}

std::vector<at::Tensor> PythonModuleView::differentiable_parameters() const {
  const WithGil gil;
  std::vector<at::Tensor> result;
  for (const Submodule& module : modules_) {
    for (const Member& member : module.members) {
      if (member.tensor && member.tensor->is_differentiable()) result.push_back(member.tensor->tensor());
    }
  }
  return result;
}

std::optional<std::string> PythonModuleView::name_of(const at::Tensor& parameter) const {
  for (const Submodule& module : modules_) {
    for (const Member& member : module.members) {
      if (member.meta != nullptr && member.tensor->tensor().is_same(parameter)) return member.name;
    }
  }
  return std::nullopt;
}

}  // namespace pianola::python
