#include <pianola/callable/undo.hpp>

#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/storage_bytes.hpp>

#include <ATen/Context.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>

#include <fmt/format.h>

#include <cstdint>
#include <utility>

namespace pianola::callable {
namespace {

// Copied at each replay; memory of the CPU is slower than a GPU's.
constexpr std::size_t kMostBytes = std::size_t{64} << 20;
constexpr std::size_t kMostBytesOfCpu = std::size_t{1} << 20;

}  // namespace

Undo::Undo(const CheckedReads& reads, c10::Device device, std::vector<at::Generator> generators) {
  if (!reads.obstacle().empty()) throw UncheckedReads({.what = reads.obstacle()});
  if (reads.draws()) {
    generators_ = std::move(generators);
    generators_.push_back(at::globalContext().defaultGenerator(device));
  }
  std::size_t bytes = 0;
  for (const CheckedReads::Bytes& one : reads.written()) bytes += one.end - one.begin;
  const std::size_t most = device.is_cpu() ? kMostBytesOfCpu : kMostBytes;
  if (bytes > most) {
    throw UncheckedReads(
        {.what = fmt::format("it writes {} KiB before it reads, more than each call could copy: {} KiB", bytes >> 10,
                             most >> 10)});
  }
  const trace::QuietScope quiet;
  for (const CheckedReads::Bytes& one : reads.written()) {
    const auto begin = static_cast<std::int64_t>(one.begin), end = static_cast<std::int64_t>(one.end);
    written_.push_back(trace::bytes_of(one.of).slice(0, begin, end));
    copies_.push_back(at::empty_like(written_.back()));
  }
}

void Undo::save() {
  if (!generators_.empty()) states_.emplace().remember(generators_);
  if (written_.empty()) return;
  const trace::QuietScope quiet;
  at::_foreach_copy_(copies_, written_);
}

void Undo::put_back() const {
  if (states_) states_->restore();
  if (written_.empty()) return;
  const trace::QuietScope quiet;
  at::_foreach_copy_(written_, copies_);
}

}  // namespace pianola::callable
