// Configurations: the first byte says whether what follows is YAML ('y') or JSON.
#include <tests/fuzz/fuzz_target.hpp>

#include <pianola/config/check.hpp>
#include <pianola/config/file.hpp>
#include <pianola/core/error.hpp>

using namespace pianola;

namespace {

void check_report(const ConfigReport& report) {
  const std::string text = report.to_text();
  const bool says_errors = text.find(" error: ") != std::string::npos;
  fuzz::expect(says_errors || report.exit_code() == 0, "what is not valid is told with its errors");
  fuzz::expect(text.starts_with("Configuration for "), "a report says what it is about");
}

/// What a report has as "configuration" is read as what it was made of.
void read_again(const ConfigReport& report) {
  const std::string json = report.to_json();
  const std::string key = "\"configuration\": ";
  const std::size_t begin = json.find(key) + key.size();
  const LoadedConfig again = parse_config(json.substr(begin, json.rfind('}') - begin), ConfigFormat::json);
  fuzz::expect(check_config(again.config).ok() == report.ok(), "a report's configuration is judged as before");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto format = data[0] == 'y' ? ConfigFormat::yaml : ConfigFormat::json;
  LoadedConfig loaded;
  try {
    loaded = parse_config(fuzz::text_of(data + 1, size - 1), format, {.allow_other_keys = size % 2 == 0}, "fuzz");
  } catch (const ConfigError& error) {
    fuzz::expect(!error.diagnosis().what.empty(), "a refusal has a message");
    return 0;
  } catch (const UnsupportedError&) {
    return 0;  // Built without YAML.
  }
  const ConfigReport report = check_config(loaded.config);
  check_report(report);
  read_again(report);
  return 0;
}
