#include <pianola/profile/record/recorded_calls.hpp>

#include <pianola/profile/call_kind.hpp>

#include <cupti_driver_cbid.h>
#include <cupti_runtime_cbid.h>

#include <algorithm>
#include <string_view>

namespace pianola::profiling {
namespace {

// Of this CUDA, with room for those of the next.
constexpr CUpti_CallbackId kEnd =
    2 * std::max<CUpti_CallbackId>(CUPTI_RUNTIME_TRACE_CBID_SIZE, CUPTI_DRIVER_TRACE_CBID_SIZE);

// Compiled <<<>>> calls go through one with underscores from CUDA 13 on.
std::string_view plain_name(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('_'), name.size()));
  return without_version(name);
}

}  // namespace

RecordedCalls::RecordedCalls(const ActivityApi& api) {
  for (const bool driver : {false, true}) {
    places_[driver ? 1 : 0].resize(kEnd);
    for (CUpti_CallbackId id = 1; id < kEnd; ++id) add(api, driver, id);
  }
}

void RecordedCalls::add(const ActivityApi& api, bool driver, CUpti_CallbackId id) {
  const CUpti_CallbackDomain domain = driver ? CUPTI_CB_DOMAIN_DRIVER_API : CUPTI_CB_DOMAIN_RUNTIME_API;
  const char* text = nullptr;
  if (api.callback_name(domain, id, &text) != CUPTI_SUCCESS || text == nullptr) return;
  const std::string_view name = plain_name(text);
  const HostCall::Kind kind = call_kind(name);
  if (kind == HostCall::Kind::other) return;
  calls_.push_back({.driver = driver, .id = id, .kind = kind, .name = std::string(name)});
  places_[driver ? 1 : 0][id] = static_cast<std::uint16_t>(calls_.size());
}

const RecordedCall* RecordedCalls::find(bool driver, CUpti_CallbackId id) const noexcept {
  const std::uint16_t place = id < kEnd ? places_[driver ? 1 : 0][id] : std::uint16_t{0};
  return place == 0 ? nullptr : &calls_[place - 1U];
}

bool is_watched(const RecordedCall& call) noexcept { return call.driver || call.kind != HostCall::Kind::launch; }

}  // namespace pianola::profiling
