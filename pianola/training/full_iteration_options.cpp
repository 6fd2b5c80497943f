#include <pianola/training/full_iteration_options.hpp>

#include <pianola/config/check.hpp>
#include <pianola/config/environment.hpp>
#include <pianola/core/error.hpp>

#include <algorithm>

namespace pianola {

std::string_view in_words(Stage stage) noexcept { return stage == Stage::training ? "training" : "validation"; }

FullIterationOptions options_from(const CudaGraphConfig& config) {
  require_valid(with_environment(config));
  if (config.cuda_graph_impl != CudaGraphImpl::full_iteration) {
    throw ConfigError({.what = "the configuration is not one of full iterations",
                       .fix = "set cuda_graph_impl to full_iteration, or use make_graphed_callables() for its layers"});
  }
  return {.warmup = std::max(config.cuda_graph_warmup_steps, 1)};
}

}  // namespace pianola
