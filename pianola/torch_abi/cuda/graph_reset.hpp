#pragma once
#include <pianola/torch_abi/torch_version.hpp>

namespace pianola::torch_abi {

/// Whether at::cuda::CUDAGraph::reset() gives back what a capture that broke has taken: its pool, and the allocator's route to it.
/// Since 2.14; before, capture_end() alone did, and not after a failure.
inline constexpr bool kResetEndsBrokenCaptures = PIANOLA_TORCH_AT_LEAST(2, 14);

/// Whether a tensor that two streams have used may be freed while the capture of one is broken. In 2.15 torch's allocator throws then, in
/// a destructor, which ends the process: nobody who captures can prevent that.
inline constexpr bool kMayFreeInBrokenCaptures = !PIANOLA_TORCH_AT_LEAST(2, 15);

}  // namespace pianola::torch_abi
