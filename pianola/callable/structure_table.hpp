#pragma once
#include <pianola/callable/structure.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace pianola::callable {

/// The numbers of the arguments' structures that are in use. One that is forgotten comes back under another number.
///
/// Threads:  Any.
class StructureTable {
 public:
  struct Match {
    std::int64_t key;  ///< From 1 up.
    std::shared_ptr<const Structure> structure;
  };

  /// @param name  What messages call the arguments: "input".
  explicit StructureTable(std::string name) : name_(std::move(name)) {}

  /// Its tensors go into `tensors`.
  Match find(const c10::IValue& arguments, std::vector<at::Tensor>& tensors);

 private:
  std::string name_;
  std::vector<Match> known_;  // most recently used first
  std::int64_t next_key_ = 1;
  std::mutex mutex_;
};

}  // namespace pianola::callable
