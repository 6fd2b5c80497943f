#pragma once
#include <c10/core/Device.h>

namespace pianola::graph {

/// The device with its index filled in: "cuda" becomes the current one.
/// @throws DeviceError       There is no such device, no driver, or this build has no CUDA.
/// @throws UnsupportedError  There is no backend for this kind of device.
c10::Device usable_device(c10::Device device);

}  // namespace pianola::graph
