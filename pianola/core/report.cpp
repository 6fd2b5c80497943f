#include <pianola/core/report.hpp>

#include <pianola/core/error.hpp>

#include <algorithm>
#include <utility>

namespace pianola {

Report::Report(std::string title) : title_(std::move(title)) {}

// Here, where Section is complete.
Report::Report(const Report&) = default;
Report& Report::operator=(const Report&) = default;
Report::Report(Report&&) noexcept = default;
Report& Report::operator=(Report&&) noexcept = default;
Report::~Report() = default;

Report& Report::fact(std::string key, std::string label, ReportValue value, std::string unit) {
  claim(key);
  facts_.push_back({std::move(key), std::move(label), std::move(value), std::move(unit)});
  return *this;
}

Report& Report::list(std::string key, std::string label, std::vector<std::string> items) {
  claim(key);
  lists_.push_back({std::move(key), std::move(label), std::move(items)});
  return *this;
}

Report& Report::table(ReportTable table) {
  claim(table.key());
  tables_.push_back(std::move(table));
  return *this;
}

Report& Report::section(std::string key, Report report) {
  claim(key);
  sections_.push_back({std::move(key), std::move(report)});
  return *this;
}

void Report::claim(const std::string& key) {
  const auto name = title_.empty() ? std::string("a report") : "report '" + title_ + "'";
  if (key.empty()) throw UsageError({.what = "a part of " + name + " has no key"});
  if (std::find(keys_.begin(), keys_.end(), key) != keys_.end()) {
    throw UsageError({.what = "key '" + key + "' is used twice in " + name, .fix = "give each part a key of its own"});
  }
  keys_.push_back(key);
}

}  // namespace pianola
