#include <pianola/torch_abi/torch_version.hpp>

namespace pianola::torch_abi {

std::string_view compiled_for() noexcept { return TORCH_VERSION; }

}  // namespace pianola::torch_abi
