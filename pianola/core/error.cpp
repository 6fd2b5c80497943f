#include <pianola/core/error.hpp>

#include <pianola/core/display_width.hpp>

namespace pianola {
namespace {

std::string render(const Diagnosis& diagnosis) {
  std::string text = diagnosis.what;
  if (!diagnosis.rule.empty()) text += " [" + diagnosis.rule + "]";
  if (!diagnosis.where.empty()) text += "\n  where: " + diagnosis.where;
  if (!diagnosis.fix.empty()) text += "\n  fix:   " + diagnosis.fix;
  return text;
}

// It quotes files and names of others, which may hold any bytes: a zero would end the text, and Python takes nothing but UTF-8.
Diagnosis all_printable(const Diagnosis& diagnosis) {
  return {.what = printable(diagnosis.what),
          .where = printable(diagnosis.where),
          .fix = printable(diagnosis.fix),
          .rule = diagnosis.rule};
}

}  // namespace

Error::Error(Diagnosis diagnosis)
    : std::runtime_error(render(all_printable(diagnosis))), diagnosis_(all_printable(diagnosis)) {}

// Out of line, so that each class has one vtable and one typeinfo, in this library: catch works across libraries.
Error::~Error() = default;
UsageError::~UsageError() = default;
CaptureError::~CaptureError() = default;
ReplayError::~ReplayError() = default;
GuardError::~GuardError() = default;
ScheduleError::~ScheduleError() = default;
ConfigError::~ConfigError() = default;
UnsupportedError::~UnsupportedError() = default;
CommunicationError::~CommunicationError() = default;
DeviceError::~DeviceError() = default;

}  // namespace pianola
