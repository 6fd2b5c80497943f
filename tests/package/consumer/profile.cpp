#include <pianola/profile.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>

#include <cstdio>

// What libpianola_profile has to offer: a step is profiled, and errors are those of libpianola.
int main() {
  const at::Tensor x = at::ones({4});
  const pianola::Profile profile = pianola::profile([&] { x.mul(2); }, {.warmup = 0, .iterations = 3});
  const bool right = profile.to_text().find("3 runs of a step") != std::string::npos;

  bool refused = false;
  try {
    (void)pianola::load_profile("no such file");
  } catch (const pianola::UsageError&) {
    refused = true;
  }
  std::puts(right && refused ? "ok" : "wrong");
  return right && refused ? 0 : 1;
}
