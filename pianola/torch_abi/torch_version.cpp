#include <pianola/torch_abi/torch_version.hpp>  // refuses an older torch; builds without CUDA compile nothing else of this room
