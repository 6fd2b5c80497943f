#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/torch_abi/cuda/workspace_table.hpp>
#include <pianola/trace/op_stream.hpp>

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

namespace pianola::graph {

// Note [A workspace per pool]
// torch keeps cuBLAS's workspaces per (handle, stream), and a captured GEMM holds the address of the one it found. Two
// graphs captured on one stream would share it, and corrupt each other when replayed at once on two streams; and a
// workspace freed with one graph would be gone for the other. So each pool brings its own: while its captures warm up
// and record, torch finds these for the capture stream; afterwards they are taken out again and live with the pool.
// Graphs of one pool share them, since they must not run at once anyhow.

/// The cuBLAS and cuBLASLt workspaces of one pool.
class BlasWorkspaces {
 public:
  using Map = torch_abi::WorkspaceMap;

  /// While it lives, GEMMs on `stream` use, and make, the pool's workspaces.
  class Scope {
   public:
    Scope(BlasWorkspaces& own, cudaStream_t stream);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    BlasWorkspaces& own_;
    cudaStream_t stream_;
    Map outer_gemm_, outer_lt_;
  };

  /// Memory of the workspaces that torch finds for `stream` now.
  [[nodiscard]] static std::vector<ByteSpan> spans_on(cudaStream_t stream);
  /// Those that torch finds for `stream` and that lie in these bytes are freed; products make new ones.
  static void forget(cudaStream_t stream, const ByteSpan& bytes) noexcept;
  /// Memory of the pool's own; none while a scope is open.
  [[nodiscard]] std::vector<ByteSpan> spans() const;
  void clear();

  /// Keeps the memory from reuse, once it is freed, until this stream has done its present work.
  void record_stream(c10::cuda::CUDAStream stream) const;

 private:
  mutable std::mutex mutex_;
  Map gemm_, lt_;
};

// Note [Workspaces by colour]
// All matrix products of a capture would use one cuBLAS workspace, and so wait for each other. With `branches` each takes
// the next of a few workspaces, its colour: products of different colours are independent. The algorithms, and so the bits,
// are those of eager, since the sizes are. Few colours suffice; many cost cache. They belong to the pool, whose graphs
// never run at once.

// Note [Workspaces that products allocate]
// Where torch keeps no workspaces (torch_abi::keeps_workspaces()), each product allocates its own and frees it when it is launched. In
// a capture that is scratch of the pool like other scratch, and no table has it. ReuseDelay holds the last few, so that the next
// product gets another one, which is what colours are for; how many is limited like the number of colours.

/// The smallest of the workspaces that products are given; the greatest number where they are given none.
[[nodiscard]] std::size_t least_workspace_bytes();

/// The workspaces of pools whose graphs run one after the other, for captures with branches: memory for cuBLAS and for cuBLASLt in
/// each. Any thread may call.
class WorkspaceColours {
 public:
  /// Has at least `count` of them from now on, made on `stream`. @throws c10::OutOfMemoryError  Nothing has changed.
  void reserve(std::size_t count, c10::cuda::CUDAStream stream);

  [[nodiscard]] std::size_t count() const;
  /// Bytes of one.
  [[nodiscard]] static std::size_t bytes_each();
  [[nodiscard]] std::size_t bytes() const { return count() * bytes_each(); }
  [[nodiscard]] std::byte* gemm(std::size_t colour) const;
  [[nodiscard]] std::byte* lt(std::size_t colour) const;
  /// Keeps memory of `bytes` that captured products use besides, for as long as the pool lives.
  void keep(at::DataPtr memory, std::size_t bytes);
  /// The memory of each, two spans a colour, and what is kept besides.
  [[nodiscard]] std::vector<ByteSpan> spans() const;

  /// Keeps the memory from reuse, once it is freed, until this stream has done its present work.
  void record_stream(c10::cuda::CUDAStream stream) const;

 private:
  mutable std::mutex mutex_;
  std::vector<at::DataPtr> colours_;
  std::vector<std::pair<at::DataPtr, std::size_t>> kept_;
};

/// While it lives, the matrix products on `stream` use the colours in turn. Destroy it after the last of them and before
/// the scope of the pool's own workspaces ends, on the thread of the capture.
class WorkspaceTurns final : public trace::OpObserver {
 public:
  /// @param colours  How many of the pool's to use, at most as many as there are; below 2: torch's own stay.
  WorkspaceTurns(WorkspaceColours& pool, std::size_t colours, cudaStream_t stream);
  WorkspaceTurns(const WorkspaceTurns&) = delete;
  WorkspaceTurns& operator=(const WorkspaceTurns&) = delete;
  ~WorkspaceTurns() override;

  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = false}; }
  void on_op_begin(const trace::OpSpan& op) override;

 private:
  WorkspaceColours& pool_;
  std::size_t colours_;
  cudaStream_t stream_;
  std::size_t next_ = 0;
  BlasWorkspaces::Map gemm_, lt_;  // what was there before
};

}  // namespace pianola::graph
