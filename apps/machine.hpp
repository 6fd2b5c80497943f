#pragma once
#include <pianola/core/report.hpp>

#include <c10/core/Device.h>

#include <string>

namespace pianola::program {

/// Versions, backends and devices: what `pianola info` prints. Works without a driver and without a GPU.
[[nodiscard]] Report machine_report();

/// Adds what check_internals() finds on each device. @return  Whether all is as Pianola needs it.
[[nodiscard]] bool add_internals(Report& report);

/// "NVIDIA H200", or the processor's name.
[[nodiscard]] std::string device_name(c10::Device device);

/// @param name  "auto" (CUDA if there is a device, else the CPU), "cpu" or "cuda".
/// @throws DeviceError  CUDA is asked for, and there is none.
[[nodiscard]] c10::Device chosen_device(const std::string& name);

}  // namespace pianola::program
