#pragma once
#include <pianola/callable/signature_cache.hpp>
#include <pianola/core/export.hpp>
#include <pianola/training/full_iteration_info.hpp>
#include <pianola/training/full_iteration_options.hpp>

#include <cstddef>
#include <cstdint>

namespace pianola::training {

/// A signature cache of whole iterations, each stage of which is a function; what FullIteration is made of, in C++ and in Python.
[[nodiscard]] PIANOLA_API callable::CacheOptions cache_options(const FullIterationOptions& options);

[[nodiscard]] inline callable::SignatureCache::Key key_of(Stage stage, std::int64_t number) {
  return {.number = number, .function = static_cast<std::size_t>(stage)};
}

/// What such a cache knows and keeps.
[[nodiscard]] PIANOLA_API FullIterationInfo info_of(const callable::SignatureCache& cache);

}  // namespace pianola::training
