#include <pianola/memory/capture_room.hpp>

#include <pianola/core/report_format.hpp>

#include <fmt/format.h>

namespace pianola::memory {
namespace {

std::string room_in_words(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

bool is_room_enough(const CaptureMemory& capture, const FreeMemory& left, std::uint64_t of_driver) {
  return capture.of_driver <= of_driver && capture.of_driver + capture.copies <= left.of_driver + left.cached;
}

}  // namespace

bool fits(const CaptureMemory& capture, const FreeMemory& left) {
  return is_room_enough(capture, left, left.of_driver);
}

bool would_fit(const CaptureMemory& capture, const FreeMemory& left) {
  return is_room_enough(capture, left, left.of_driver + left.returnable);
}

std::string room_numbers(const CaptureMemory& capture, const std::optional<FreeMemory>& left) {
  const std::string taken = fmt::format("a capture takes {} of the driver and {} for copies",
                                        room_in_words(capture.of_driver), room_in_words(capture.copies));
  return left ? fmt::format("{}, and the driver has {} left", taken, room_in_words(left->of_driver)) : taken;
}

std::string room_verdict(const CaptureMemory& capture, const FreeMemory& left) {
  const std::string numbers = room_numbers(capture, left);
  if (fits(capture, left)) return fmt::format("It fits: {}.", numbers);
  if (!would_fit(capture, left)) return fmt::format("It does not fit: {}.", numbers);
  return fmt::format("It does not fit yet: {}. torch.cuda.empty_cache() gives {} back.", numbers,
                     room_in_words(left.returnable));
}

}  // namespace pianola::memory
