#pragma once
#include <pianola/torch_abi/torch_version.hpp>

#include <c10/util/ThreadLocalDebugInfo.h>

#include <string_view>

// Slots of c10::ThreadLocalDebugInfo, which autograd copies to the threads that run a backward pass. Up to 2.12 they are numbered, and
// the two for tests are those that torch's library code does not use; since 2.13 anyone can make one of his own.

namespace pianola::torch_abi {

#if PIANOLA_TORCH_AT_LEAST(2, 13)

inline constexpr std::string_view kNameOfOperations = "pianola: operations", kNameOfDraws = "pianola: draws";
/// Of the operations that are watched.
inline const c10::DebugInfoKind kSlotOfOperations(&kNameOfOperations);
/// Of the generators that are watched.
inline const c10::DebugInfoKind kSlotOfDraws(&kNameOfDraws);

#else

/// Of the operations that are watched.
inline constexpr auto kSlotOfOperations = c10::DebugInfoKind::TEST_INFO_2;
/// Of the generators that are watched.
inline constexpr auto kSlotOfDraws = c10::DebugInfoKind::TEST_INFO;

#endif

}  // namespace pianola::torch_abi
