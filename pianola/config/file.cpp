#include <pianola/config/file.hpp>

#include <pianola/config/field.hpp>
#include <pianola/config/json.hpp>
#include <pianola/config/migration.hpp>
#include <pianola/config/yaml.hpp>
#include <pianola/core/display_width.hpp>
#include <pianola/core/error.hpp>
#include <pianola/core/nearest_name.hpp>
#include <pianola/core/plural.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

namespace pianola {
namespace {

using Texts = std::vector<std::string>;

// What is written elsewhere, or under another name, in a framework's files.
struct OtherPlace {
  std::string_view path;
  std::string_view field;
};

constexpr auto kOtherPlaces = std::to_array<OtherPlace>({
    {"check_for_nan_in_loss_and_grad", "check_for_nan_in_loss"},
    {"check_for_nan_in_loss_and_grad", "check_for_nan_in_grad"},
    {"comm_overlap.delay_wgrad_compute", "delay_wgrad_compute"},
    {"comm_overlap.overlap_moe_expert_parallel_comm", "overlap_moe_expert_parallel_comm"},
    {"comm_overlap.overlap_grad_reduce", "overlap_grad_reduce"},
    {"dist.use_megatron_fsdp", "use_megatron_fsdp"},
    {"dataset.dataset_kwargs.pad_to_max_length", "pad_to_max_length"},
    {"model.moe_hybridep_pad_variable_tokens", "moe_hybridep_pad_uneven_dispatch_inputs"},
    {"env.PYTORCH_CUDA_ALLOC_CONF", "pytorch_cuda_alloc_conf"},
    {"env.PYTORCH_ALLOC_CONF", "pytorch_cuda_alloc_conf"},
    {"env.NCCL_GRAPH_REGISTER", "nccl_graph_register"},
    {"env.CUDA_GRAPHS_USE_NODE_PRIORITY", "cuda_graphs_use_node_priority"},
});

// --- The document ---

[[noreturn]] void refuse(const std::string& name, const Texts& problems) {
  throw ConfigError(
      {.what = fmt::format("'{}' has {} problem{}{}", name, problems.size(), plural(problems.size()), listed(problems)),
       .fix = "'pianola config keys' lists the keys and what they accept"});
}

// "[json.exception.parse_error.101] parse error at line 2, column 5: ..." without what is in brackets.
std::string trouble(const ConfigJson::exception& error) {
  const std::string_view text = error.what();
  return std::string(text.substr(std::min(text.find("] ") + 2, text.size())));
}

[[noreturn]] void refuse_deep(const std::string& name) {
  throw ConfigError({.what = fmt::format("'{}' is nested more than {} deep", name, kDeepestConfig),
                     .fix = "name a training configuration: its sections lie a few deep"});
}

// The parser keeps one of two equal keys, which would hide a contradiction.
ConfigJson document_of_json(const std::string& text, const std::string& name) {
  std::vector<std::set<std::string>> keys;
  Texts twice;
  const auto watch = [&](int depth, ConfigJson::parse_event_t event, const ConfigJson& parsed) {
    if (depth > kDeepestConfig) refuse_deep(name);
    if (event == ConfigJson::parse_event_t::object_start) keys.emplace_back();
    if (event == ConfigJson::parse_event_t::object_end) keys.pop_back();
    if (event == ConfigJson::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      twice.push_back(fmt::format("duplicate key '{}'", parsed.get<std::string>()));
    }
    return true;
  };
  try {
    ConfigJson document = ConfigJson::parse(text, watch);
    if (!twice.empty()) refuse(name, twice);
    return document;
  } catch (const ConfigJson::exception& error) {
    throw ConfigError({.what = fmt::format("'{}' is no JSON: {}", name, trouble(error))});
  }
}

void put(ConfigJson& document, std::string_view path, const ConfigJson& value, Texts& problems) {
  ConfigJson* place = &document;
  std::string_view rest = path;
  if (std::count(path.begin(), path.end(), '.') > kDeepestConfig) {
    problems.push_back(fmt::format("'{}' is nested more than {} deep", shorten(path, 40), kDeepestConfig));
    return;
  }
  for (std::size_t dot = 0; place->is_object() && (dot = rest.find('.')) != std::string_view::npos;) {
    place = &(*place)[std::string(rest.substr(0, dot))];
    if (place->is_null()) *place = ConfigJson::object();
    rest.remove_prefix(dot + 1);
  }
  if (place->is_object() && !place->contains(rest)) {
    (*place)[std::string(rest)] = value;
  } else {
    problems.push_back(fmt::format("duplicate key '{}'", path));
  }
}

// {"model.cuda_graph_impl": ...} as {"model": {"cuda_graph_impl": ...}}.
void nest_dotted_keys(ConfigJson& document, Texts& problems) {
  ConfigJson nested = ConfigJson::object(), dotted = ConfigJson::object();
  for (const auto& [key, value] : document.items()) {
    (key.find('.') == std::string::npos ? nested : dotted)[key] = value;
  }
  for (const auto& [path, value] : dotted.items()) put(nested, path, value, problems);
  document = std::move(nested);
}

ConfigJson document_of(const std::string& text, ConfigFormat format, const std::string& name, Texts& problems) {
  ConfigJson document = format == ConfigFormat::yaml ? json_of_yaml(text, name) : document_of_json(text, name);
  if (!document.is_object()) {
    throw ConfigError({.what = fmt::format("'{}' is no configuration: expected keys with values", name)});
  }
  nest_dotted_keys(document, problems);
  return document;
}

[[noreturn]] void refuse_file(const std::filesystem::path& file, const std::string& reason) {
  throw UsageError({.what = fmt::format("cannot read the configuration '{}': {}", file.string(), reason),
                    .fix = "name a file of keys and values, in JSON or YAML"});
}

// Whatever it is, a device for example, no more of it is read than a configuration can have.
std::string contents_of(const std::filesystem::path& file) {
  constexpr std::size_t kMostBytes = std::size_t{16} << 20U;
  const std::unique_ptr<std::FILE, decltype([](std::FILE* opened) { (void)std::fclose(opened); })> in(
      std::fopen(file.c_str(), "rb"));
  if (!in) refuse_file(file, std::generic_category().message(errno));
  std::string text;
  std::array<char, 1 << 16> piece;
  while (const std::size_t bytes = std::fread(piece.data(), 1, piece.size(), in.get())) {
    text.append(piece.data(), bytes);
    if (text.size() > kMostBytes) refuse_file(file, fmt::format("it has more than {} MiB", kMostBytes >> 20U));
  }
  if (std::ferror(in.get()) != 0) refuse_file(file, std::generic_category().message(errno));
  if (text.empty()) refuse_file(file, "it is empty");
  return text;
}

ConfigFormat format_of(const std::filesystem::path& file) {
  const auto extension = file.extension();
  return extension == ".yaml" || extension == ".yml" ? ConfigFormat::yaml : ConfigFormat::json;
}

// --- Its keys ---

std::vector<const ConfigField*> fields_at(const std::string& path) {
  std::vector<const ConfigField*> found;
  for (const OtherPlace& other : kOtherPlaces) {
    if (other.path == path) found.push_back(find_config_field(other.field));
  }
  const bool flat_or_whole = find_config_field(path) != nullptr;
  if (found.empty() && flat_or_whole) found.push_back(find_config_field(path));
  return found;
}

bool is_section(std::string_view path) {
  return std::any_of(config_fields().begin(), config_fields().end(), [&](const ConfigField& field) {
    return field.section == path || (field.section.starts_with(path) && field.section[path.size()] == '.');
  });
}

// Where the same name stands, else the nearest path.
std::string suggestion(const std::string& path) {
  const std::string_view name = std::string_view(path).substr(path.rfind('.') + 1);
  if (const ConfigField* same = find_config_field(name)) return fmt::format("; did you mean '{}'?", same->path());
  Texts paths;
  for (const ConfigField& field : config_fields()) {
    paths.push_back(path.find('.') == std::string::npos ? std::string(field.name) : field.path());
  }
  return did_you_mean(path, std::vector<std::string_view>(paths.begin(), paths.end()));
}

class Reader {
 public:
  Reader(const ConfigFileOptions& options, Texts& problems) : options_(options), problems_(problems) {}

  void read(const ConfigJson& object, const std::string& section) {
    for (const auto& [key, value] : object.items()) {
      const std::string path = section.empty() ? key : section + "." + key;
      const auto fields = fields_at(path);
      if (!fields.empty()) {
        for (const ConfigField* field : fields) set(*field, path, value);
      } else if (value.is_object()) {
        read(value, path);
      } else if (is_section(path)) {
        if (!value.is_null()) problems_.push_back(fmt::format("{}: expected a section, got {}", path, written(value)));
      } else {
        unknown(path);
      }
    }
  }

  LoadedConfig loaded;

 private:
  void set(const ConfigField& field, const std::string& path, const ConfigJson& json) {
    CudaGraphConfig other;
    try {
      field.set(other, value_from_json(json));
    } catch (const ConfigError& error) {
      const bool names_the_key = error.diagnosis().what.starts_with(field.path());
      problems_.push_back(names_the_key ? error.diagnosis().what : fmt::format("{}: {}", path, error.diagnosis().what));
      return;
    }
    const auto [before, is_first] = said_.emplace(field.name, path);
    if (is_first) {
      field.set(loaded.config, field.get(other));
    } else if (field.get(other) != field.get(loaded.config)) {
      problems_.push_back(fmt::format("{} = {} and {} = {} contradict each other: they are the same setting",
                                      before->second, written_out(field.get(loaded.config)), path,
                                      written_out(field.get(other))));
    }
  }

  void unknown(const std::string& path) {
    const std::string nearest = suggestion(path);
    if (options_.allow_other_keys && nearest.empty()) {
      loaded.other_keys.push_back(path);
    } else {
      problems_.push_back(fmt::format("{}: there is no such key{}", path, nearest));
    }
  }

  const ConfigFileOptions& options_;
  Texts& problems_;
  std::map<std::string_view, std::string> said_ = {};
};

}  // namespace

LoadedConfig parse_config(const std::string& text, ConfigFormat format, const ConfigFileOptions& options,
                          const std::string& name) {
  Texts problems;
  ConfigJson document = document_of(text, format, name, problems);
  Texts migrated = migrate_names(document, problems);
  if (!problems.empty()) refuse(name, problems);
  Reader reader(options, problems);
  reader.read(document, "");
  if (!problems.empty()) refuse(name, problems);
  reader.loaded.migrated = std::move(migrated);
  return std::move(reader.loaded);
}

LoadedConfig load_config(const std::filesystem::path& file, const ConfigFileOptions& options) {
  return parse_config(contents_of(file), format_of(file), options, file.string());
}

MigratedConfig migrate_config(const std::filesystem::path& file) {
  Texts problems;
  ConfigJson document = document_of(contents_of(file), format_of(file), file.string(), problems);
  Texts migrated = migrate_names(document, problems);
  if (!problems.empty()) refuse(file.string(), problems);
  return {.text = document.dump(2, ' ', false, ConfigJson::error_handler_t::replace), .migrated = std::move(migrated)};
}

}  // namespace pianola
