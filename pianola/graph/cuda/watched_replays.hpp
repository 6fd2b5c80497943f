#pragma once
#include <pianola/graph/hang_watch.hpp>

#include <c10/core/Device.h>

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

namespace pianola::graph {

/// The replays of one graph that communicates; see Note [Replays that wait for ever].
class WatchedReplays {
 public:
  /// @param groups  c10d::ProcessGroup::getGroupName() of those that it communicates by.
  /// @param holds   Its collectives in words.
  WatchedReplays(c10::Device device, const std::vector<std::string>& groups, std::string holds);

  /// Before a launch. @throws CommunicationError  An earlier one of any graph has not ended in its time.
  static void check() { HangWatch::of_this_process().check(); }
  /// Behind a launch on this stream, whose device is current.
  void launched(cudaStream_t stream);

 private:
  class End;

  c10::Device device_;
  std::shared_ptr<const WatchedGraph> graph_;
  std::vector<std::shared_ptr<End>> ends_;  // each is used again once its replay has ended
  std::size_t next_ = 0;
};

}  // namespace pianola::graph
