#pragma once
#include <c10/core/Device.h>

#include <vector>

namespace pianola::verification {

/// The CUDA devices that this process has begun to use; none where there is no CUDA.
std::vector<c10::Device> cuda_devices_in_use();

/// Waits for all work on them. What an operation did wrong there is thrown here.
void wait_for(const std::vector<c10::Device>& devices);

/// Whether the current stream of the device is being captured. Never, on the CPU.
bool is_stream_captured(c10::Device device);

}  // namespace pianola::verification
