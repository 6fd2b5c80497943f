#pragma once
#include <pianola/core/export.hpp>

#include <c10/core/Storage.h>

#include <cstddef>
#include <string_view>

namespace pianola::trace {

// Note [Storages that are resized]
// FSDP2 keeps the storages of its gathered parameters and gives their memory back between uses: it resizes them, to nothing and back.
// That is no operator's call, so that nobody would see it, and a tape that replays would write into memory that is gone. In a step that
// is watched it is called as the operator that torch.compile has for it (inductor::resize_storage_bytes_). What anybody else resizes may
// be memory that an operation of the step made, or that the step asks for its size: such a step is not plain.

/// The operator.
inline constexpr std::string_view kResizesStorage = "inductor::resize_storage_bytes_";

/// Resizes by an operator where a stream watches this thread. @return  False: none does, or torch has no such operator; nothing was done.
/// @param is_of_fsdp  The caller is FSDP2.
PIANOLA_API bool resize_by_operator(const c10::Storage& storage, std::size_t bytes, bool is_of_fsdp);
/// Whether an operator that is called now resizes for somebody else.
[[nodiscard]] bool resizes_for_users() noexcept;

}  // namespace pianola::trace
