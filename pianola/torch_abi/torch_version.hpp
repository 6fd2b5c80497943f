#pragma once
#include <torch/headeronly/version.h>

// Note [One place for what torch changes]
// This room alone knows which version of torch is which. Each file follows one thing that torch has changed, says since when, and
// offers one way to it: what includes it reads the same for all versions. A check of the version anywhere else belongs here.

/// Whether the torch that is compiled against is at least this one.
#define PIANOLA_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

static_assert(PIANOLA_TORCH_AT_LEAST(2, 11), "pianola needs torch 2.11 or newer");
