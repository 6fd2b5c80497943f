#include <pianola/config/migration.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pianola {
namespace {

using Texts = std::vector<std::string>;

constexpr std::string_view kImpl = "cuda_graph_impl";
constexpr std::string_view kModules = "cuda_graph_modules";
constexpr std::string_view kWarmup = "cuda_graph_warmup_steps";
constexpr std::string_view kInference = "inference_cuda_graph_scope";

// Of the model, whose keys stand at the top of the file or in its section.
class Migration {
 public:
  Migration(ConfigJson& document, Texts& problems) : document_(document), problems_(problems) {}

  Texts run() {
    flags();
    warmup_steps();
    share_buffers();
    scope();
    modules();
    return std::move(notes_);
  }

 private:
  struct Place {
    ConfigJson* object = nullptr;
    std::string prefix = {};
    explicit operator bool() const { return object != nullptr; }
  };

  Place place_of(std::string_view name) {
    const auto model = document_.find("model");
    if (model != document_.end() && model->is_object() && model->contains(name)) return {&*model, "model."};
    if (document_.contains(name)) return {&document_, ""};
    return {};
  }

  const ConfigJson* value_of(std::string_view name) {
    const Place place = place_of(name);
    return place ? &*place.object->find(name) : nullptr;
  }

  std::string named(std::string_view name) { return place_of(name).prefix + std::string(name); }
  // "model.cuda_graph_impl = \"local\""
  std::string written(std::string_view name) {
    return fmt::format("{} = {}", named(name), pianola::written(*value_of(name)));
  }

  // Nothing: it is absent or of no meaning, which the reader will say.
  template <class Member>
  std::optional<Member> known(std::string_view name, Member CudaGraphConfig::*member) {
    const ConfigJson* value = value_of(name);
    CudaGraphConfig config;
    if (value == nullptr) return config.*member;
    try {
      config_field(name).set(config, value_from_json(*value));
    } catch (const ConfigError&) {
      return {};
    }
    return config.*member;
  }

  void erase(std::string_view name) { place_of(name).object->erase(std::string(name)); }

  // Where the new name is there already its value is replaced, else it takes the place of the old one.
  void replace(std::string_view old_name, std::string_view new_name, const ConfigJson& value) {
    if (const Place place = place_of(new_name)) {
      *place.object->find(new_name) = value;
      if (old_name != new_name) erase(old_name);
      return;
    }
    ConfigJson& object = *place_of(old_name).object;
    ConfigJson renamed = ConfigJson::object();
    for (const auto& [key, held] : object.items()) {
      if (key == old_name) {
        renamed[std::string(new_name)] = value;
      } else {
        renamed[key] = held;
      }
    }
    object = std::move(renamed);
  }

  void note(const std::string& was, std::string_view is) { notes_.push_back(fmt::format("{} is now {}", was, is)); }

  void flags() {
    const auto enabled = [&](std::string_view name) {
      const ConfigJson* value = value_of(name);
      return value != nullptr && value->is_boolean() && value->get<bool>();
    };
    if (enabled("enable_cuda_graph") && enabled("external_cuda_graph")) {
      problems_.push_back(
          fmt::format("{} and {} contradict each other: the first is cuda_graph_impl = local, the "
                      "second transformer_engine",
                      named("enable_cuda_graph"), named("external_cuda_graph")));
      return;
    }
    flag("enable_cuda_graph", CudaGraphImpl::local, "local");
    flag("external_cuda_graph", CudaGraphImpl::transformer_engine, "transformer_engine");
  }

  void flag(std::string_view old_name, CudaGraphImpl impl, std::string_view impl_name) {
    const ConfigJson* value = value_of(old_name);
    if (value == nullptr) return;
    if (!value->is_boolean()) {
      problems_.push_back(fmt::format("{}: expected true or false, got {}", named(old_name), pianola::written(*value)));
      return;
    }
    const std::string was = written(old_name);
    if (!value->get<bool>()) {
      erase(old_name);
      notes_.push_back(was + " was left out: cuda_graph_impl says it");
      return;
    }
    const auto now = known(kImpl, &CudaGraphConfig::cuda_graph_impl);
    if (now != CudaGraphImpl::none && now != impl) {
      problems_.push_back(
          fmt::format("{} and {} contradict each other: the old name means {}", was, written(kImpl), impl_name));
      return;
    }
    replace(old_name, kImpl, impl_name);
    note(was, fmt::format("cuda_graph_impl = {}", impl_name));
  }

  void warmup_steps() {
    const std::string_view old_name = "cuda_graph_num_warmup_steps";
    const ConfigJson* value = value_of(old_name);
    if (value == nullptr) return;
    const std::string was = written(old_name);
    const ConfigJson* const now = value_of(kWarmup);
    if (now != nullptr && *now != *value) {
      problems_.push_back(fmt::format("{} and {} contradict each other: the first is the old name of the second", was,
                                      written(kWarmup)));
      return;
    }
    const ConfigJson moved = *value;
    replace(old_name, kWarmup, moved);
    note(was, fmt::format("cuda_graph_warmup_steps = {}", pianola::written(moved)));
  }

  void share_buffers() {
    const std::string_view old_name = "cuda_graph_share_io_buffers";
    if (value_of(old_name) == nullptr) return;
    notes_.push_back(written(old_name) + " was left out: buffers are shared wherever their lifetimes allow it");
    erase(old_name);
  }

  // The modules as texts; nothing: they are something else, which the reader will say.
  static std::optional<Texts> texts(const ConfigJson& value) {
    CudaGraphConfig config;
    try {
      config_field("recompute_modules").set(config, value_from_json(value));  // takes any texts
    } catch (const ConfigError&) {
      return {};
    }
    return config.recompute_modules;
  }

  void scope() {
    const ConfigJson* value = value_of("cuda_graph_scope");
    if (value == nullptr) return;
    const std::string was = written("cuda_graph_scope");
    if (value->is_null()) {
      erase("cuda_graph_scope");
      notes_.push_back(was + " was left out");
      return;
    }
    if (const ConfigJson* modules = value_of(kModules)) {
      const auto named_now = texts(*modules), named_before = texts(*value);
      const bool says_nothing = named_now && (named_now->empty() || *named_now == Texts{"full"});
      if (!says_nothing && named_now != named_before) {
        problems_.push_back(fmt::format("{} and {} contradict each other: the first is the old name of the second", was,
                                        written(kModules)));
        return;
      }
    }
    const ConfigJson moved = *value;
    replace("cuda_graph_scope", kModules, moved);
    note(was, fmt::format("cuda_graph_modules = {}", pianola::written(moved)));
  }

  // Modules that are none any more: full, full_iteration, full_iteration_inference.
  void modules() {
    const ConfigJson* value = value_of(kModules);
    const auto names = value ? texts(*value) : std::nullopt;
    if (!names) return;
    const auto has = [&](std::string_view name) {
      return std::find(names->begin(), names->end(), name) != names->end();
    };
    const std::string was = written(kModules);
    if (has("full") + has("full_iteration") + has("full_iteration_inference") > 1) {
      problems_.push_back(was + ": full, full_iteration and full_iteration_inference exclude each other");
    } else if (has("full")) {
      full(was, names->size());
    } else if (has("full_iteration")) {
      full_iteration(was, names->size());
    } else if (has("full_iteration_inference")) {
      full_iteration_inference(was, *names);
    }
  }

  void full(const std::string& was, std::size_t size) {
    if (size > 1) {
      problems_.push_back(was + ": full means whole layers, and cannot be combined with other modules");
      return;
    }
    replace(kModules, kModules, ConfigJson::array());
    note(was, "cuda_graph_modules = []");
  }

  void full_iteration(const std::string& was, std::size_t size) {
    const auto impl = known(kImpl, &CudaGraphConfig::cuda_graph_impl);
    const auto inference = known(kInference, &CudaGraphConfig::inference_cuda_graph_scope);
    if (size > 1) {
      problems_.push_back(was + ": full_iteration cannot be combined with other modules");
    } else if (impl == CudaGraphImpl::transformer_engine) {
      problems_.push_back(fmt::format("{} and {} contradict each other: full_iteration is an implementation of its own",
                                      was, written(kImpl)));
    } else if (inference && inference->value_or(InferenceGraphScope::none) != InferenceGraphScope::none) {
      problems_.push_back(fmt::format("{} and {} contradict each other: full_iteration does not serve inference", was,
                                      written(kInference)));
    } else {
      if (value_of(kImpl) != nullptr) erase(kModules);
      replace(value_of(kImpl) != nullptr ? kImpl : kModules, kImpl, "full_iteration");
      note(was, "cuda_graph_impl = full_iteration");
    }
  }

  void full_iteration_inference(const std::string& was, Texts names) {
    const auto impl = known(kImpl, &CudaGraphConfig::cuda_graph_impl);
    const auto inference = known(kInference, &CudaGraphConfig::inference_cuda_graph_scope);
    if (impl && impl != CudaGraphImpl::none && impl != CudaGraphImpl::local) {
      problems_.push_back(
          fmt::format("{} and {} contradict each other: only local graphs serve inference", was, written(kImpl)));
      return;
    }
    if (inference && inference->value_or(InferenceGraphScope::block) != InferenceGraphScope::block) {
      problems_.push_back(
          fmt::format("{} and {} contradict each other: the old name means block", was, written(kInference)));
      return;
    }
    std::erase(names, "full_iteration_inference");
    if (impl == CudaGraphImpl::none) {
      replace(kModules, kModules, names);
      notes_.push_back(was +
                       ": full_iteration_inference was left out: it has no effect without cuda_graph_impl = local");
      return;
    }
    if (names.empty()) {
      replace(kModules, kInference, "block");
    } else {
      replace(kModules, kModules, names);
      if (!place_of(kInference)) (*place_of(kModules).object)[std::string(kInference)] = "block";
    }
    note(was, "inference_cuda_graph_scope = block");
  }

  ConfigJson& document_;
  Texts& problems_;
  Texts notes_ = {};
};

}  // namespace

std::vector<std::string> migrate_names(ConfigJson& document, std::vector<std::string>& problems) {
  return Migration(document, problems).run();
}

}  // namespace pianola
