#pragma once
#include <pianola/core/error.hpp>

#include <ATen/core/ivalue.h>

#include <string>

namespace pianola::training {

/// What differs first between two values whose structures are not the same, for the user: names the place, the key that
/// is missing or new, or what was expected and what came.
///
/// @param path  What the values are called: "microbatch 2".
[[nodiscard]] Diagnosis batch_difference(const c10::IValue& first, const c10::IValue& now, const std::string& path);

}  // namespace pianola::training
