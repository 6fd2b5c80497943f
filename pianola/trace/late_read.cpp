#include <pianola/trace/late_read.hpp>

namespace pianola::trace {
namespace {

thread_local int open = 0;

}  // namespace

LateRead::LateRead() noexcept { ++open; }
LateRead::~LateRead() { --open; }

bool LateRead::is_open() noexcept { return open != 0; }

}  // namespace pianola::trace
