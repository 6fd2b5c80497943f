#include <pianola/callable/undo.hpp>

#include <pianola/trace/quiet_scope.hpp>

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <fmt/format.h>

#include <cstdint>
#include <utility>

namespace pianola::callable {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20;

at::Tensor bytes_of(const c10::Storage& storage) {
  const auto options = at::TensorOptions().dtype(at::kByte).device(storage.device());
  const auto size = static_cast<std::int64_t>(storage.nbytes());
  return at::empty({0}, options).set_(storage, 0, {size}, {1});
}

}  // namespace

Undo::Undo(const CheckedReads& reads, std::vector<at::Generator> generators) {
  if (!reads.obstacle().empty()) throw UncheckedReads({.what = reads.obstacle()});
  if (reads.draws()) generators_ = std::move(generators);
  std::size_t bytes = 0;
  for (const c10::Storage& storage : reads.written()) bytes += storage.nbytes();
  if (bytes > kMostBytes) {
    throw UncheckedReads(
        {.what = fmt::format("it writes {} MiB before it reads, more than each call could copy ({} MiB)", bytes >> 20,
                             kMostBytes >> 20)});
  }
  const trace::QuietScope quiet;
  for (const c10::Storage& storage : reads.written()) {
    if (storage.nbytes() == 0) continue;
    written_.push_back(bytes_of(storage));
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
