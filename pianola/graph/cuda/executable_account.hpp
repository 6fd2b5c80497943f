#pragma once
#include <pianola/core/resident_memory.hpp>
#include <pianola/cuda/memory_account.hpp>
#include <pianola/graph/account/pool_memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pianola::graph {

/// What an executable takes that is made while it lives: differences, so that what other threads take meanwhile is in them.
class ExecutableAccount {
 public:
  [[nodiscard]] ExecutableMemory taken() const {
    const std::size_t host = resident_memory();
    return {.device = static_cast<std::size_t>(std::max<std::int64_t>(device_.taken_bytes(), 0)),
            .host = host - std::min(host, host_before_)};
  }

 private:
  MemoryAccount device_;
  std::size_t host_before_ = resident_memory();
};

}  // namespace pianola::graph
