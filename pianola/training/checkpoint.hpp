#pragma once
#include <pianola/core/export.hpp>
#include <pianola/graph/options.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>

#include <concepts>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace pianola {

/// What keeps its state in a value: optimizers, schedules, GradScaler, RngTracker, ExponentialMovingAverage.
template <typename T>
concept HasStateDict = requires(T& part, const c10::IValue& state) {
  { part.state_dict() } -> std::convertible_to<c10::IValue>;
  part.load_state_dict(state);
};

/// The parts of a training run in one file. Loading fills the existing tensors, so graphs that were captured before
/// continue with what was loaded.
///
///     pianola::Checkpoint checkpoint;
///     checkpoint.add("model", named_parameters).add("optimizer", optimizer).add("scaler", scaler)
///         .add("random", tracker).add_generator("generator", at::globalContext().defaultGenerator(device));
///     checkpoint.save("step-1000.pt");   // between two iterations
///     checkpoint.load("step-1000.pt");
///
/// The file is a zip archive that torch.load() reads as well: a dict from the names of the parts to their states. It ends
/// with a checksum of all its bytes; one without, which an earlier version wrote, is loaded with a warning.
///
/// Parts are held by reference and must outlive the checkpoint.
/// Streams:  Waits for the devices' work, since it reads it.
/// Threads:  One call at a time.
class PIANOLA_API Checkpoint {
 public:
  /// @throws UsageError  (all add functions) There is a part of this name.
  template <HasStateDict Part>
  Checkpoint& add(std::string name, Part& part) {
    return add(
        std::move(name), [&part] { return c10::IValue(part.state_dict()); },
        [&part](const c10::IValue& state) { part.load_state_dict(state); });
  }
  /// Parameters, buffers, whatever has names.
  Checkpoint& add(std::string name, std::vector<NamedTensor> tensors);
  /// A generator's place in its numbers: the device's default one, say.
  Checkpoint& add_generator(std::string name, at::Generator generator);
  /// Any other part. `load` must throw, and change nothing, if it cannot take a state.
  Checkpoint& add(std::string name, std::function<c10::IValue()> save, std::function<void(const c10::IValue&)> load);

  /// Writes a new file in the same folder and then replaces the old one in one move, so that a crash leaves one of the two
  /// whole.
  /// @throws UsageError  The file cannot be written; an earlier one is as it was.
  void save(const std::filesystem::path& file) const;
  /// @throws UsageError  The file cannot be read, is damaged, is no checkpoint, lacks a part or has an unknown one, or a part
  ///                     does not fit (another model, another optimizer). All parts are then as before.
  /// Needs room for a copy of all parts, where their tensors are, and for one on the host while it loads.
  void load(const std::filesystem::path& file);

 private:
  struct Part {
    std::string name;
    std::function<c10::IValue()> save;
    std::function<void(const c10::IValue&)> load;
  };
  [[nodiscard]] c10::IValue state() const;
  [[noreturn]] static void reword(const Part& part, const std::filesystem::path& file);
  void check_parts(const c10::IValue& state, const std::filesystem::path& file) const;

  std::vector<Part> parts_;
};

}  // namespace pianola
