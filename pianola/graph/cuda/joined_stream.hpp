#pragma once
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <exception>

namespace pianola::graph {

/// While it lives, `side` is the current stream of its device, behind the work of the one that was current; the next work of
/// that one waits for it. By events, so that the host never waits.
class JoinedStream {
 public:
  /// @param when  For the warning where the streams could not be joined: "after a capture".
  JoinedStream(c10::cuda::CUDAStream side, const char* when)
      : outer_(c10::cuda::getCurrentCUDAStream(side.device_index())), side_(side), when_(when), guard_(side) {
    order(outer_, side_);
  }
  JoinedStream(const JoinedStream&) = delete;
  JoinedStream& operator=(const JoinedStream&) = delete;
  ~JoinedStream() {
    try {
      order(side_, outer_);
    } catch (const std::exception& error) {
      TORCH_WARN("pianola: streams could not be joined ", when_, ": ", error.what());
    }
  }

 private:
  static void order(const c10::cuda::CUDAStream& first, const c10::cuda::CUDAStream& then) {
    at::cuda::CUDAEvent done;
    done.record(first);
    done.block(then);
  }

  c10::cuda::CUDAStream outer_, side_;
  const char* when_;
  c10::cuda::CUDAStreamGuard guard_;
};

}  // namespace pianola::graph
