#include <pianola/config/environment.hpp>

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace pianola {
namespace {

void fill(std::optional<std::string>& text, const char* variable) {
  const char* value = std::getenv(variable);
  if (!text && value != nullptr) text = value;
}

void fill(std::optional<int>& number, const char* variable) {
  const char* value = std::getenv(variable);
  if (number || value == nullptr) return;
  const std::string_view text = value;
  int parsed = 0;
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (failure == std::errc{} && rest == text.data() + text.size()) number = parsed;
}

}  // namespace

CudaGraphConfig with_environment(CudaGraphConfig config) {
  fill(config.pytorch_cuda_alloc_conf, "PYTORCH_CUDA_ALLOC_CONF");
  fill(config.pytorch_cuda_alloc_conf, "PYTORCH_ALLOC_CONF");
  fill(config.nccl_graph_register, "NCCL_GRAPH_REGISTER");
  fill(config.cuda_graphs_use_node_priority, "CUDA_GRAPHS_USE_NODE_PRIORITY");
  return config;
}

}  // namespace pianola
