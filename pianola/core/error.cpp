#include <pianola/core/error.hpp>

#include <utility>

namespace pianola {
namespace {

std::string render(const Diagnosis& diagnosis) {
  std::string text = diagnosis.what;
  if (!diagnosis.rule.empty()) text += " [" + diagnosis.rule + "]";
  if (!diagnosis.where.empty()) text += "\n  where: " + diagnosis.where;
  if (!diagnosis.fix.empty()) text += "\n  fix:   " + diagnosis.fix;
  return text;
}

}  // namespace

Error::Error(Diagnosis diagnosis) : std::runtime_error(render(diagnosis)), diagnosis_(std::move(diagnosis)) {}

// Out of line, so that each class has one vtable and one typeinfo, in this library: catch works across libraries.
Error::~Error() = default;
UsageError::~UsageError() = default;
CaptureError::~CaptureError() = default;
ReplayError::~ReplayError() = default;
GuardError::~GuardError() = default;
ScheduleError::~ScheduleError() = default;
ConfigError::~ConfigError() = default;
UnsupportedError::~UnsupportedError() = default;
DeviceError::~DeviceError() = default;

}  // namespace pianola
