#pragma once
#include <c10/core/TensorImpl.h>

#include <unordered_set>

namespace pianola::callable {

/// Leaves, known by their address alone.
using LeafSet = std::unordered_set<const c10::TensorImpl*>;

}  // namespace pianola::callable
