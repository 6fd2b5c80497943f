#include <pianola/training/checkpoint.hpp>

#include <pianola/core/error.hpp>
#include <pianola/trace/describe.hpp>
#include <pianola/training/checkpoint_file.hpp>

#include <ATen/core/Dict.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/import_read.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <mutex>
#include <utility>

namespace pianola {
namespace {

c10::impl::GenericDict any_map() { return c10::impl::GenericDict(c10::StringType::get(), c10::AnyType::get()); }

UsageError of_something_else(const std::string& what) {
  return UsageError(
      {.what = what, .fix = "load the checkpoint of the same model, or make the parts as they were when it was saved"});
}

void check_tensor(const NamedTensor& own, const c10::IValue& saved) {
  if (!saved.isTensor()) throw of_something_else(fmt::format("'{}' is no tensor in the checkpoint", own.name));
  const at::Tensor& tensor = saved.toTensor();
  if (tensor.sizes() == own.tensor.sizes() && tensor.scalar_type() == own.tensor.scalar_type()) return;
  throw of_something_else(fmt::format("'{}' is {}, and {} in the checkpoint", own.name, trace::type_of(own.tensor),
                                      trace::type_of(tensor)));
}

void load_tensors(const std::vector<NamedTensor>& tensors, const c10::IValue& state) {
  if (!state.isGenericDict()) throw of_something_else("a map from names to tensors was expected");
  const auto saved = state.toGenericDict();
  for (const NamedTensor& own : tensors) {
    const auto found = saved.find(own.name);
    if (found == saved.end()) throw of_something_else(fmt::format("'{}' is not in the checkpoint", own.name));
    check_tensor(own, found->value());
  }
  for (const auto& entry : saved) {
    const std::string name = entry.key().isString() ? entry.key().toStringRef() : "?";
    const bool known = std::any_of(tensors.begin(), tensors.end(), [&](const auto& own) { return own.name == name; });
    if (!known) throw of_something_else(fmt::format("'{}' is in the checkpoint, and not here", name));
  }
  const c10::NoGradGuard no_grad;
  for (const NamedTensor& own : tensors) at::Tensor(own.tensor).copy_(saved.at(own.name).toTensor());
}

void load_generator(at::Generator generator, const c10::IValue& state) {
  const std::lock_guard lock(generator.mutex());
  const std::int64_t bytes = generator.get_state().numel();
  const bool fits = state.isTensor() && state.toTensor().is_cpu() && state.toTensor().scalar_type() == at::kByte &&
                    state.toTensor().numel() == bytes;
  if (!fits) {
    throw of_something_else(fmt::format("it is no state of a generator of {}", generator.device().str()));
  }
  generator.set_state(state.toTensor());
}

// As torch.save() writes, one tensor after the other. torch::jit::pickle_save() would hold the whole file in memory, and tag
// lists and maps with their C++ types: torch.load() reads such a file only where it is told to trust it.
void write(const c10::IValue& state, training::ReplacementFile& file) {
  std::string pickled;
  torch::jit::Pickler pickler([&](const char* bytes, std::size_t size) { pickled.append(bytes, size); }, nullptr,
                              nullptr, nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(state);
  pickler.stop();

  caffe2::serialize::PyTorchStreamWriter writer([&](const void* bytes, std::size_t size) {
    file.write(bytes, size);
    return size;
  });
  std::size_t number = 0;
  for (const at::Tensor& tensor : pickler.tensorData()) {
    const torch::jit::WriteableTensorData data = torch::jit::getWriteableTensorData(tensor);
    writer.writeRecord("data/" + std::to_string(number++), data.data(), data.sizeInBytes());
  }
  writer.writeRecord("data.pkl", pickled.data(), pickled.size());
  writer.writeEndOfFile();
  file.seal();
}

// Tensors come to the host first: the device that they were saved from may not be there, or be another rank's.
c10::IValue read(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw UsageError({.what = fmt::format("{} cannot be read", file.string()), .fix = "check its path"});
  if (!training::check_whole(stream, file)) {
    TORCH_WARN(
        "pianola: ", file.string(),
        " has no checksum, as an earlier version wrote it: whether it is damaged cannot be told. Save it again.");
  }
  try {
    caffe2::serialize::PyTorchStreamReader reader(&stream);
    return torch::jit::readArchiveAndTensors("data", "", "", {}, {}, c10::Device(c10::kCPU), reader);
  } catch (const c10::Error& error) {
    throw of_something_else(
        fmt::format("{} is no checkpoint, or only a part of one ({})", file.string(), error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw of_something_else(fmt::format("{} is no checkpoint, or a damaged one ({})", file.string(), error.what()));
  }
}

}  // namespace

Checkpoint& Checkpoint::add(std::string name, std::function<c10::IValue()> save,
                            std::function<void(const c10::IValue&)> load) {
  for (const Part& part : parts_) {
    if (part.name == name) {
      throw UsageError({.what = fmt::format("the checkpoint has a part '{}' already", name),
                        .fix = "give each part a name of its own"});
    }
  }
  parts_.push_back({.name = std::move(name), .save = std::move(save), .load = std::move(load)});
  return *this;
}

Checkpoint& Checkpoint::add(std::string name, std::vector<NamedTensor> tensors) {
  const auto shared = std::make_shared<const std::vector<NamedTensor>>(std::move(tensors));
  const auto save = [shared] {
    c10::Dict<std::string, at::Tensor> state;
    for (const NamedTensor& one : *shared) state.insert(one.name, one.tensor.detach());
    return c10::IValue(state);
  };
  return add(std::move(name), save, [shared](const c10::IValue& state) { load_tensors(*shared, state); });
}

Checkpoint& Checkpoint::add_generator(std::string name, at::Generator generator) {
  const auto save = [generator]() mutable {
    const std::lock_guard lock(generator.mutex());
    return c10::IValue(generator.get_state());
  };
  return add(std::move(name), save, [generator](const c10::IValue& state) { load_generator(generator, state); });
}

c10::IValue Checkpoint::state() const {
  c10::impl::GenericDict all = any_map();
  for (const Part& part : parts_) all.insert(part.name, part.save());
  return all;
}

void Checkpoint::save(const std::filesystem::path& file) const {
  const c10::IValue now = state();
  training::ReplacementFile replacement(file);
  write(now, replacement);
  replacement.commit();
}

void Checkpoint::check_parts(const c10::IValue& state, const std::filesystem::path& file) const {
  if (!state.isGenericDict()) throw of_something_else(fmt::format("{} holds no checkpoint", file.string()));
  const auto saved = state.toGenericDict();
  std::vector<std::string> differences;
  for (const Part& part : parts_) {
    if (!saved.contains(part.name)) differences.push_back(fmt::format("part '{}' is missing in it", part.name));
  }
  for (const auto& entry : saved) {
    const std::string name = entry.key().isString() ? entry.key().toStringRef() : "?";
    const bool known = std::any_of(parts_.begin(), parts_.end(), [&](const Part& part) { return part.name == name; });
    if (!known) differences.push_back(fmt::format("its part '{}' is not here", name));
  }
  if (differences.empty()) return;
  throw of_something_else(fmt::format("{} is another checkpoint: {}", file.string(), fmt::join(differences, "; ")));
}

// A part that refuses its state has changed nothing; those that took theirs are given back what they had.
void Checkpoint::load(const std::filesystem::path& file) {
  const c10::IValue state = read(file);
  check_parts(state, file);
  const auto saved = state.toGenericDict();
  std::vector<std::pair<const Part*, c10::IValue>> before;
  for (const Part& part : parts_) {
    c10::IValue had = part.save().deepcopy();
    try {
      part.load(saved.at(part.name));
    } catch (...) {
      for (const auto& [loaded, value] : before) loaded->load(value);
      reword(part, file);
    }
    before.emplace_back(&part, std::move(had));
  }
}

// Of the error that is being handled.
void Checkpoint::reword(const Part& part, const std::filesystem::path& file) {
  try {
    throw;
  } catch (const Error& error) {
    throw UsageError({.what = fmt::format("part '{}' of {}: {}", part.name, file.string(), error.diagnosis().what),
                      .fix = error.diagnosis().fix});
  } catch (const c10::Error& error) {
    throw of_something_else(
        fmt::format("part '{}' of {}: {}", part.name, file.string(), error.what_without_backtrace()));
  }
}

}  // namespace pianola
