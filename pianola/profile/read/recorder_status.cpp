#include <pianola/profile/read/recorder_status.hpp>

#include <fmt/format.h>

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <memory>
#include <string_view>

namespace pianola::profiling {
namespace {

constexpr std::string_view kSuffix = ".status";

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

void write_status(const std::string& folder, const RecorderStatus& status) {
  const std::string path = fmt::format("{}/{}{}", folder, status.process_id, kSuffix);
  const std::string text = one_line(status.problem.what) + "\n" + one_line(status.problem.fix) + "\n";
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t written = write(file, text.data(), text.size());
  close(file);
}

std::vector<RecorderStatus> read_statuses(const std::string& folder) {
  std::vector<RecorderStatus> statuses;
  for (const ProcessFile& file : process_files(folder, std::string(kSuffix))) {
    RecorderStatus status{.process_id = file.process_id, .problem = {}};
    std::ifstream stream(file.path);
    std::getline(stream, status.problem.what);
    std::getline(stream, status.problem.fix);
    statuses.push_back(std::move(status));
  }
  return statuses;
}

std::vector<ProcessFile> process_files(const std::string& folder, const std::string& suffix) {
  std::vector<ProcessFile> files;
  const auto close_folder = [](DIR* open_folder) { closedir(open_folder); };
  const std::unique_ptr<DIR, decltype(close_folder)> open_folder(opendir(folder.c_str()), close_folder);
  if (open_folder == nullptr) return files;
  while (const dirent* entry = readdir(open_folder.get())) {
    const std::string_view name = entry->d_name;
    if (!name.ends_with(suffix)) continue;
    const std::string_view number = name.substr(0, name.size() - suffix.size());
    ProcessFile file{.process_id = 0, .path = folder + "/" + std::string(name)};
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), file.process_id);
    if (error == std::errc() && end == number.data() + number.size()) files.push_back(std::move(file));
  }
  std::sort(files.begin(), files.end(),
            [](const ProcessFile& a, const ProcessFile& b) { return a.process_id < b.process_id; });
  return files;
}

}  // namespace pianola::profiling
