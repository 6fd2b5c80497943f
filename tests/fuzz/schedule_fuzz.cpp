// The text of a pipeline schedule.
#include <tests/fuzz/fuzz_target.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/report.hpp>
#include <pianola/schedule/schedule.hpp>
#include <pianola/schedule/schedule_drawing.hpp>

using namespace pianola;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const Schedule schedule = Schedule::parse(fuzz::text_of(data, size));
    fuzz::expect(!describe(schedule).empty(), "a schedule can be drawn");
    fuzz::expect(!schedule_report(schedule).to_json().empty(), "a schedule can be reported");
  } catch (const ScheduleError&) {
  } catch (const UnsupportedError&) {  // Delayed weight gradients.
  }
  return 0;
}
