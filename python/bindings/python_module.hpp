#pragma once
#include <bindings/held_object.hpp>

#include <pianola/callable/known_tensor.hpp>
#include <pianola/callable/module_view.hpp>

#include <optional>
#include <string>
#include <vector>

namespace torch::autograd {
struct AutogradMeta;
}

namespace pianola::python {

/// A torch.nn.Module of Python's, seen from C++. Calls compare objects by identity, straight from the modules' own
/// dictionaries; each call takes the GIL.
///
/// The module itself is held weakly: it holds the graphs (as its forward), and Python's collector of cycles does not see
/// references that C++ holds.
class PythonModuleView final : public ModuleView {
 public:
  /// With the GIL. @throws UsageError  A buffer requires grad.
  explicit PythonModuleView(const py::object& module);

  [[nodiscard]] bool training() const override;
  void set_training(bool training) const override;
  [[nodiscard]] std::vector<bool> flags() const override;
  void set_flags(const std::vector<bool>& flags) const override;
  [[nodiscard]] bool has_flags(const std::vector<bool>& flags) const override;
  [[nodiscard]] std::vector<std::string> differing_flags(const std::vector<bool>& flags) const override;
  [[nodiscard]] bool has_its_parameters() const override;
  [[nodiscard]] std::vector<std::string> parameter_differences() const override;
  [[nodiscard]] std::vector<at::Tensor> differentiable_parameters() const override;
  [[nodiscard]] std::optional<std::string> name_of(const at::Tensor& parameter) const override;

 private:
  enum class Kind { parameter, buffer, submodule };
  struct Member {      // an entry of one of a module's three dictionaries
    std::string name;  // qualified
    Kind kind;
    HeldObject held;
    PyObject* object;
    std::optional<KnownTensor> tensor = {};         // empty for submodules, and for None
    torch::autograd::AutogradMeta* meta = nullptr;  // of parameters
  };
  struct Submodule {
    std::string name;
    std::optional<HeldObject> held;  // empty for the module itself
    PyObject* attributes;            // its __dict__
    std::vector<Member> members;     // parameters, buffers, submodules, each in the order of its dictionary
  };

  void add(const std::string& name, const py::object& module, bool is_root);
  static void add_members(Submodule& owner, const py::object& module, Kind kind);
  [[nodiscard]] static bool is_as_known(const Member& member, PyObject* now);
  [[nodiscard]] static bool is_as_known(const Submodule& module);
  [[nodiscard]] static std::string difference(const Member& member, PyObject* now);
  [[nodiscard]] static std::vector<std::string> differences(const Submodule& module);

  /// Whether the module lives; nothing else may be asked of it otherwise.
  [[nodiscard]] bool is_alive() const;

  HeldObject root_;                 // a weak reference
  std::vector<Submodule> modules_;  // the module itself first
};

}  // namespace pianola::python
