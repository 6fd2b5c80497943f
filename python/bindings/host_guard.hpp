#pragma once
#include <bindings/object_events.hpp>

#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_set>
#include <vector>

namespace torch::autograd {
struct AutogradMeta;
}

namespace pianola::python {

/// What a call read on the host, as it was: entries of dictionaries, attributes of objects and classes, cells, containers.
///
/// check() compares words and pointers. The entries of a dictionary are compared only where the interpreter told of a change
/// (ObjectEvents), or, where it does not tell, where it moved the dictionary's version. Values that are not the same object
/// are compared by same_value(); containers that were replaced by others of the same content are as before.
///
/// References:  containers, cells, classes and simple values are kept; tensors, modules and other objects are held weakly.
///              Python's collector of cycles sees what is kept.
/// Threads:     Any, with the GIL.
class HostGuard {
 public:
  enum class Kind : std::uint8_t { entry, attribute, in_class, slot, cell, contents, function, bytes, value };

  HostGuard() = default;
  HostGuard(const HostGuard&) = delete;
  HostGuard& operator=(const HostGuard&) = delete;

  /// A place and what has to be there. Places are numbered as they are added.
  ///
  /// @param kind   "entry" (of a dict), "attribute" (of an object's __dict__), "class", "slot", "cell", "contents", "function",
  ///               "bytes", "value" (`key` is called).
  /// @param value  The value, or `missing`; of "contents" and "function" a tuple of values, of (key, value) for dicts.
  void add(const std::string& kind, const py::object& owner, const py::object& key, const py::object& value,
           const py::object& missing);
  /// After the last add().
  void seal();

  /// The number of the first place that is not as it was; -1 if all are. May run code of the user's (what an array or a
  /// slot makes of a look, __del__ of what is let go of), where other threads come in between: looks wait for each other.
  [[nodiscard]] std::ptrdiff_t check();

  int traverse(visitproc visit, void* argument) const;
  void clear() noexcept;

 private:
  struct Expected {
    PyObject* pointer = nullptr;  // borrowed: compared, never looked into; null where nothing is to be there
    py::object kept = {};         // a weak reference to it, or itself; null where its node keeps it
    bool is_weak = false;
    std::ptrdiff_t node = -1;  // of what it holds, if that is watched
  };
  struct Entry {
    py::object key;
    Expected expected;
    std::ptrdiff_t place;
  };
  enum class NodeKind : std::uint8_t { dict, object, type, cell, list, tuple, iterable, function, bytes, value };
  struct Node {
    NodeKind kind;
    bool is_whole = false;            // of dicts: there is nothing else in it, in another order
    std::uint64_t version = 0;        // of the dict, or of the class; 0: unknown
    PyObject* pointer = nullptr;      // what is watched; borrowed where it is held weakly
    py::object type = {};             // of an object
    py::object kept = {};             // itself, or a weak reference to it
    std::vector<Entry> entries = {};  // of an object: of its dictionary
    std::vector<Entry> slots = {};
    std::ptrdiff_t place = -1;    // of the whole
    bool is_replaceable = false;  // by another object of the same content
  };
  struct Leaf {
    PyObject* tensor;
    py::object reference;  // a weak one: an object that has died with its tensors is as it was
    const void* impl;      // its own, which torch.utils.swap_tensors() exchanges; and what it has for autograd
    const torch::autograd::AutogradMeta* meta;
    bool requires_grad;
    std::ptrdiff_t place;
  };

  // What a call looks at: words in rows. The node of a word that is another one is compared.
  // Note [Words of living objects]
  // A look at a word of an object that has died reads memory of something else. So each word is read only after what shows
  // that its object lives: the guard keeps it; or a dictionary, a class or a cell holds it that is as it was, which was looked
  // at before; or the word before is that of the weak reference to it.
  struct Versioned {
    PyObject* object;  // a dict, or a class
    std::uint64_t version;
    std::size_t node;
  };
  struct Word {
    const void* at;
    const void* expected;
  };
  struct Sequence {
    PyObject* list;
    std::size_t first;  // of its entries, in items_
    std::size_t node;
  };
  struct LivingLeaf {
    const void* impl_at;
    const void* impl;
    const bool* requires_grad_at;
  };

  using Living = std::unordered_set<PyObject*>;

  [[nodiscard]] Node& node_for(NodeKind kind, const py::object& owner);
  void add_leaf(PyObject* object, const py::object& reference, std::ptrdiff_t place);
  [[nodiscard]] Expected expect(const py::object& value, std::ptrdiff_t place);
  void add_contents(const py::object& owner, const py::tuple& entries, std::ptrdiff_t place);

  [[nodiscard]] std::ptrdiff_t check_rows();
  [[nodiscard]] std::ptrdiff_t check_all();
  [[nodiscard]] std::ptrdiff_t check_changed();
  template <std::uint64_t (*version_of)(PyObject*)>
  [[nodiscard]] std::ptrdiff_t check_versions(std::vector<Versioned>& rows);
  [[nodiscard]] std::ptrdiff_t check_words();
  [[nodiscard]] std::ptrdiff_t check_lists();
  [[nodiscard]] std::ptrdiff_t check_living_leaves() const;
  [[nodiscard]] std::ptrdiff_t place_of_leaf() const;
  [[nodiscard]] std::ptrdiff_t check_leaf(const Leaf& leaf) const;
  void add_word(const void* at, const void* expected, std::size_t row);
  void line_up();
  void line_up_kept(Living& living);
  void line_up_object(std::size_t row, Living& living);
  void line_up_function(std::size_t row, Living& living);
  void line_up_list(std::size_t row, Living& living);
  void line_up_leaves(const Living& living);
  void prove_alive(PyObject* object, const py::object& reference, std::size_t row, Living& living);

  [[nodiscard]] std::size_t row_of(const Node& node) const { return static_cast<std::size_t>(&node - nodes_.data()); }
  [[nodiscard]] static PyObject* held(const Node& node);
  [[nodiscard]] bool is_as_it_was(std::size_t row) const;
  [[nodiscard]] std::ptrdiff_t look(std::size_t row);
  [[nodiscard]] std::ptrdiff_t difference(Node& node);
  [[nodiscard]] std::ptrdiff_t difference_in_dict(Node& node, PyObject* dict);
  [[nodiscard]] std::ptrdiff_t difference_in_object(Node& node);
  [[nodiscard]] std::ptrdiff_t difference_in_list(Node& node);
  [[nodiscard]] std::ptrdiff_t difference_in_iterable(Node& node);
  [[nodiscard]] std::ptrdiff_t difference_in_function(Node& node);
  [[nodiscard]] bool matches(Expected& expected, PyObject* now);
  [[nodiscard]] bool takes_its_place(Node& node, PyObject* now);

  std::vector<Node> nodes_;
  std::map<std::pair<NodeKind, PyObject*>, std::size_t> node_of_;  // while it is built
  std::vector<Leaf> leaves_;
  std::ptrdiff_t places_ = 0;
  unsigned long looking_ = 0;  // the thread that is in check(); 0: none
  ObjectEvents events_;        // of dicts, of objects' dicts and of functions: a row a node
  bool is_lined_up_ = false;   // the rows below are those of the nodes
  std::vector<Versioned> dicts_;
  std::vector<Versioned> types_;
  std::vector<Word> words_;
  std::vector<std::size_t> nodes_of_words_;
  std::vector<Versioned> dicts_of_objects_;
  std::vector<Sequence> lists_;
  std::vector<PyObject*> items_;
  std::vector<LivingLeaf> living_leaves_[2];  // without and with gradients
  std::vector<std::size_t> other_leaves_;
  std::vector<std::size_t> others_;  // nodes
};

}  // namespace pianola::python
