#pragma once
#include <pianola/graph/cuda/allocation_watch.hpp>
#include <pianola/trace/op_stream.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace pianola::graph {

// Note [Reuse orders what is independent]
// When the allocator gives freed bytes to the next operation, that operation has to wait for everybody who used them,
// although no value passes between them. So what an operation used is kept for a few operations more: its results and
// inputs by holding their storage, and the scratch that it allocated and freed by allocating it again at once, which
// mostly yields the same block.

/// Keeps memory that a capture frees from reuse for some operations. Destroy it before the graph is replayed.
class ReuseDelay final : public trace::OpObserver {
 public:
  /// What is held at most; the oldest goes first.
  struct Limits {
    std::size_t operations;       ///< Of so many, four times as many once the step has run backward; 0: none.
    std::size_t bytes;            ///< In all.
    std::size_t workspaces;       ///< Blocks of scratch that are workspaces: Note [Workspaces that products allocate].
    std::size_t workspace_bytes;  ///< From how many bytes on a block is one.
  };

  /// @param watch   Of the capture's pool; outlives this.
  /// @param stream  Of the capture.
  ReuseDelay(const AllocationWatch& watch, c10::cuda::CUDAStream stream, const Limits& limits)
      : watch_(watch), stream_(stream), limits_(limits) {}
  ReuseDelay(const ReuseDelay&) = delete;
  ReuseDelay& operator=(const ReuseDelay&) = delete;
  ~ReuseDelay() override;

  void on_op_begin(const trace::OpSpan& op) override;
  void on_op_end(const trace::OpSpan& op) override;

  /// Most bytes that were held at any time.
  [[nodiscard]] std::size_t most_bytes() const noexcept { return most_bytes_; }

 private:
  struct Scratch {
    void* memory;
    std::size_t bytes;
  };
  // What one operation used.
  struct Held {
    std::uint64_t operation;
    std::vector<const c10::StorageImpl*> storages;
    std::vector<Scratch> scratch;
  };
  struct Owned {
    c10::Storage storage;
    int holds = 0;  // of operations
  };

  void hold(Held& held, const at::Tensor& tensor);
  void hold_scratch(Held& held);
  void let_go_of_oldest();
  void let_go_of_oldest_workspace();
  void let_go(const Scratch& scratch);
  [[nodiscard]] bool is_workspace(std::size_t bytes) const { return bytes >= limits_.workspace_bytes; }
  // What would be free if it were not for this: scratch, and storages that nobody else owns any more.
  [[nodiscard]] std::size_t bytes() const;

  const AllocationWatch& watch_;
  c10::cuda::CUDAStream stream_;
  Limits limits_;
  std::deque<Held> held_;  // the newest last
  ska::flat_hash_map<const c10::StorageImpl*, Owned> owned_;
  bool ran_backward_ = false;
  std::size_t allocated_at_begin_ = 0;
  std::size_t freed_at_begin_ = 0;
  std::size_t scratch_bytes_ = 0;
  std::size_t workspaces_ = 0;  // among the scratch
  std::size_t most_bytes_ = 0;
};

}  // namespace pianola::graph
