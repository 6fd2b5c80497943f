#include <pianola/trace/collective_work.hpp>

#include <chrono>
#include <thread>

namespace pianola::trace {

std::vector<c10::intrusive_ptr<c10d::Work>> works_of(c10::ArrayRef<c10::IValue> outputs) {
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (const c10::IValue& value : outputs) {
    if (value.isObject()) works.push_back(value.toCustomClass<c10d::Work>());
  }
  return works;
}

bool waits_until_done(c10::ArrayRef<c10::IValue> outputs) {
  constexpr std::chrono::seconds kPatience(3);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  for (const auto& work : works_of(outputs)) {
    while (!work->isCompleted()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  return true;
}

}  // namespace pianola::trace
