#pragma once
#include <c10/core/Device.h>

#include <filesystem>
#include <string>

namespace pianola::graph {

/// Before a capture. The first on a device tries what torch has inside, unless that went well before: see check_internals().
/// @throws UnsupportedError  Something has moved.
void require_known_internals(c10::Device device);

/// Names torch's build, Pianola's and, on CUDA, driver and device: what has been tried once for it holds.
[[nodiscard]] std::string build_identity(c10::Device device);

/// The file that says that all went well for an identity; empty where there is no home to keep it in.
[[nodiscard]] std::filesystem::path note_of(const std::string& identity);

}  // namespace pianola::graph
