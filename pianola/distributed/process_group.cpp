#include <pianola/distributed/process_group.hpp>

#include <pianola/core/error.hpp>
#include <pianola/distributed/backends.hpp>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace pianola::distributed {
namespace {

constexpr std::string_view kLauncherFix =
    "start the program by torchrun (torchrun --no-python --nproc-per-node 2 PROGRAM), or set RANK, WORLD_SIZE, "
    "MASTER_ADDR and "
    "MASTER_PORT for each process";

std::string_view variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

std::string_view required(const char* name) {
  const std::string_view value = variable(name);
  if (!value.empty()) return value;
  throw UsageError({.what = fmt::format("the environment variable {} of this process is not set", name),
                    .where = "process_group_from_environment()",
                    .fix = std::string(kLauncherFix)});
}

int number(const char* name, int least, int most) {
  const std::string_view text = required(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most) return value;
  throw UsageError({.what = fmt::format("the environment variable {} must be a number from {} to {}, it is '{}'", name,
                                        least, most, text),
                    .where = "process_group_from_environment()",
                    .fix = std::string(kLauncherFix)});
}

// torchrun's own process serves the store, or else rank 0 does.
c10::intrusive_ptr<c10d::Store> meeting_place(int rank, int size, const ProcessGroupOptions& options) {
  c10d::TCPStoreOptions wanted;
  wanted.port = static_cast<std::uint16_t>(number("MASTER_PORT", 0, 65535));
  wanted.isServer = rank == 0 && variable("TORCHELASTIC_USE_AGENT_STORE") != "True";
  wanted.numWorkers = static_cast<std::size_t>(size);
  wanted.timeout = options.timeout;
  wanted.multiTenant = wanted.isServer;
  return c10::make_intrusive<c10d::TCPStore>(std::string(required("MASTER_ADDR")), wanted);
}

c10::intrusive_ptr<c10d::Backend> make_backend(c10::DeviceType device, const BackendPlan& plan) {
  if (device == c10::DeviceType::CPU) return make_gloo(plan);
#if PIANOLA_WITH_CUDA
  if (device == c10::DeviceType::CUDA) return make_nccl(plan);
#endif
  throw UnsupportedError(
      {.what = fmt::format("no process group can be made for tensors on {}", c10::DeviceTypeName(device, true)),
       .where = "make_process_group()",
       .fix = PIANOLA_WITH_CUDA ? "it is made for cpu or cuda" : "this build of Pianola has no CUDA: cpu alone"});
}

bool lives(const std::string& name) {
  try {
    return c10d::resolve_process_group(name) != nullptr;
  } catch (const c10::Error&) {  // unknown, or gone
    return false;
  }
}

void check(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const std::string& name) {
  const char* const where = "make_process_group()";
  if (lives(name)) {
    throw UsageError({.what = fmt::format("a process group '{}' lives already", name),
                      .where = where,
                      .fix = "use that one, or give this one another name: ProcessGroupOptions::name"});
  }
  if (!store) {
    throw UsageError({.what = "there is no store that the ranks meet in",
                      .where = where,
                      .fix = "pass a c10d::TCPStore or c10d::FileStore that all ranks have"});
  }
  if (rank >= 0 && rank < size) return;
  throw UsageError({.what = fmt::format("rank {} of {} was asked for", rank, size),
                    .where = where,
                    .fix = "ranks are numbered from 0 and stay below their number"});
}

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(c10::DeviceType device, c10::intrusive_ptr<c10d::Store> store,
                                                          int rank, int size, const ProcessGroupOptions& options) {
  check(store, rank, size, options.name);
  const auto own = c10::make_intrusive<c10d::PrefixStore>(options.name + "/", std::move(store));
  const auto backend = make_backend(
      device, {.store = c10::make_intrusive<c10d::PrefixStore>(c10::DeviceTypeName(device, true) + "/", own),
               .rank = rank,
               .size = size,
               .timeout = options.timeout,
               .group = options.name});
  backend->setSequenceNumberForGroup();
  using Type = c10d::ProcessGroup::BackendType;
  const Type type = device == c10::DeviceType::CPU ? Type::GLOO : Type::NCCL;
  auto group = c10::make_intrusive<c10d::ProcessGroup>(own, rank, size);
  group->setDefaultBackend(type);
  group->setBackend(device, type, backend);
  group->setGroupName(options.name);
  c10d::unregister_process_group(options.name);  // one that has ended
  c10d::register_process_group(options.name, group);
  return group;
}

c10::intrusive_ptr<c10d::ProcessGroup> process_group_from_environment(c10::DeviceType device,
                                                                      const ProcessGroupOptions& options) {
  if (variable("RANK").empty() && variable("WORLD_SIZE").empty())
    return make_process_group(device, c10::make_intrusive<c10d::HashStore>(), 0, 1, options);
  const int size = number("WORLD_SIZE", 1, 1 << 24);
  const int rank = number("RANK", 0, size - 1);
  return make_process_group(device, meeting_place(rank, size, options), rank, size, options);
}

}  // namespace pianola::distributed
