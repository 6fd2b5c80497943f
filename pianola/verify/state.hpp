#pragma once
#include <pianola/graph/generator_states.hpp>
#include <pianola/graph/options.hpp>
#include <pianola/verify/copies.hpp>
#include <pianola/verify/graph_memory.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::verification {

enum class Side { eager, graphed };

/// The state at one moment.
struct StateCopy {
  std::vector<at::Tensor> tensors = {};     ///< Of each listed one.
  std::vector<at::Tensor> gradients = {};   ///< Of each leaf, the listed ones first; undefined where it has none.
  std::vector<at::Tensor> found = {};       ///< Bytes of memory that nobody listed, in the order in which it was found.
  std::vector<at::Tensor> generators = {};  ///< Their states.
};

/// The tensors, gradients and generators that steps change from outside, and what is needed to put them back.
class State {
 public:
  /// @param more  Generators besides the default ones.
  /// @throws UsageError  A tensor is undefined or has no memory of its own, or a generator is undefined.
  State(std::vector<NamedTensor> listed, const std::vector<at::Generator>& more, Copies& copies);

  /// Everything as the side's first step is to find it.
  void rewind(Side side);
  /// The graphed side has run: gradients that its graphs write are kept for its next run, and for finish().
  void note_static_gradients();
  /// Everything as it was at the start, except that a gradient which a graph writes stays in its place: it gets the old
  /// values, zeros where there was none.
  void finish();

  [[nodiscard]] StateCopy copy(const StateCopy& earlier) const;
  /// Everything as it was then; gradients in new tensors.
  void load(const StateCopy& then);

  // Told by WriteWatch, before the operation.

  /// Saves memory that is about to be written. True where nobody had listed it and it is new.
  bool note_write(const c10::Storage& storage);
  void note_leaf(const at::Tensor& tensor);
  /// True where nobody had listed it and it is new.
  bool note_generator(const at::Generator& generator);

  [[nodiscard]] const std::vector<NamedTensor>& listed() const noexcept { return listed_; }
  [[nodiscard]] std::vector<at::Tensor> tensors() const;
  /// Of the listed leaves.
  [[nodiscard]] std::vector<std::string> leaf_names() const;
  [[nodiscard]] std::vector<at::Tensor> gradients() const;
  /// Of the listed generators: others are put back, but were made by who knows whom.
  [[nodiscard]] const std::vector<std::string>& generator_names() const noexcept { return generator_names_; }
  /// The listed ones first.
  [[nodiscard]] std::vector<at::Tensor> generator_states() const;
  /// What a graph may not be expected to fill anew: all tensors here, and their gradients.
  [[nodiscard]] std::vector<at::Tensor> everything() const;

 private:
  struct Tracked {
    c10::Storage storage;
    at::Tensor first;
  };
  struct Leaf {
    at::Tensor tensor;
    at::Tensor first;        // gradient at the start
    at::Tensor first_eager;  // the same, as eager is to find it
    at::Tensor fixed;        // that a graph writes; undefined where none does
  };

  bool track(const c10::Storage& storage);
  void add_leaf(const at::Tensor& tensor);
  [[nodiscard]] bool is_gradient(const c10::StorageImpl* storage) const;

  std::vector<NamedTensor> listed_;
  Copies& copies_;
  GraphMemory at_start_;
  std::vector<Tracked> tracked_;
  ska::flat_hash_set<const c10::StorageImpl*> known_storages_;
  std::vector<c10::Storage> found_;
  std::vector<Leaf> leaves_;
  std::vector<std::string> leaf_names_;  // of the first of them
  ska::flat_hash_set<const c10::TensorImpl*> known_leaves_;
  std::vector<at::Generator> generators_;
  std::vector<std::string> generator_names_;  // of the first of them
  graph::GeneratorStates first_generators_;
};

}  // namespace pianola::verification
