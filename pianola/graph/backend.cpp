#include <pianola/graph/backend.hpp>

#include <pianola/graph/pool_state.hpp>

namespace pianola::graph {

std::shared_ptr<PoolState> pool_for(const CaptureOptions& options, c10::Device device) {
  return options.pool.empty() ? make_pool_state(device) : options.pool.state();
}

std::unique_ptr<Backend> make_backend(c10::Device device) {
#if PIANOLA_WITH_CUDA
  if (device.is_cuda()) return make_cuda_backend(device);
#endif
  (void)device;  // without CUDA, usable_device() has let only the CPU through
  return make_tape_backend();
}

}  // namespace pianola::graph
