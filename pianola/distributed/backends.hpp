#pragma once
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace pianola::distributed {

/// What a backend of a process group is made of.
struct BackendPlan {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{};
  std::string group;  ///< Its name.
};

[[nodiscard]] c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendPlan& plan);
#if PIANOLA_WITH_CUDA
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendPlan& plan);
#endif

}  // namespace pianola::distributed
