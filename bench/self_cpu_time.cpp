#include "self_cpu_time.hpp"

#include <ATen/Context.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace pianola::bench {
namespace {

using torch::autograd::profiler::KinetoEvent;
using torch::autograd::profiler::ProfilerResult;
using torch::profiler::impl::ActivityType;

std::unique_ptr<ProfilerResult> record(const std::function<void()>& work) {
  using namespace torch::autograd::profiler;
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (at::globalContext().hasCUDA()) activities.insert(ActivityType::CUDA);
  prepareProfiler(config, activities);
  enableProfiler(config, activities);
  try {
    work();
  } catch (...) {
    (void)disableProfiler();
    throw;
  }
  return disableProfiler();
}

// Events that begin on one thread and end on another have no self time.
bool is_of_one_host_thread(const KinetoEvent& event) {
  return event.deviceType() == c10::DeviceType::CPU && !event.isHiddenEvent() && !event.isAsync() &&
         event.startThreadId() == event.endThreadId();
}

bool is_wait(const std::string& name) { return name.starts_with("cuda") && name.ends_with("Synchronize"); }

// As torch/autograd/profiler.py reads them (_parse_kineto_results, torch 2.11): CUPTI counts threads in another way than
// torch, so that a call belongs to the thread of the operator that it is linked to.
std::vector<HostEvent> host_events(const ProfilerResult& result, Waits waits) {
  std::unordered_map<std::uint64_t, std::uint64_t> thread_of_operator;
  for (const KinetoEvent& event : result.events()) {
    if (event.linkedCorrelationId() == 0 && is_of_one_host_thread(event)) {
      thread_of_operator[event.correlationId()] = event.startThreadId();
    }
  }
  std::vector<HostEvent> events;
  for (const KinetoEvent& event : result.events()) {
    if (!is_of_one_host_thread(event)) continue;
    if (waits == Waits::left_out && is_wait(event.name())) continue;
    const auto linked = thread_of_operator.find(event.linkedCorrelationId());
    const bool is_linked = event.linkedCorrelationId() != 0 && linked != thread_of_operator.end();
    events.push_back({is_linked ? linked->second : event.startThreadId(), event.startNs(), event.endNs()});
  }
  return events;
}

}  // namespace

// What an event's parent loses the event has: only those without a parent are left of the sum.
std::uint64_t self_time(std::vector<HostEvent> events) {
  std::sort(events.begin(), events.end(), [](const HostEvent& one, const HostEvent& other) {
    return std::tie(one.thread, one.begin, other.end) < std::tie(other.thread, other.begin, one.end);
  });
  std::uint64_t total = 0;
  const HostEvent* outermost = nullptr;
  for (const HostEvent& event : events) {
    const bool is_inside = outermost != nullptr && event.thread == outermost->thread && event.begin < outermost->end &&
                           event.end <= outermost->end;
    if (is_inside) continue;
    total += event.end - event.begin;
    outermost = &event;
  }
  return total;
}

Timer self_cpu_timer(std::function<void()> synchronize, Waits waits) {
  return [synchronize = std::move(synchronize), waits](const std::function<void()>& iteration, int count) {
    synchronize();
    const auto result = record([&] {
      for (int i = 0; i < count; ++i) iteration();
      synchronize();
    });
    return static_cast<double>(self_time(host_events(*result, waits))) / 1e3 / count;
  };
}

}  // namespace pianola::bench
