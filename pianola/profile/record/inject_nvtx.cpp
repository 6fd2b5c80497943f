// Lets CUPTI see the NVTX ranges of a program that is recorded, as NVTX_INJECTION64_PATH=libcupti.so does, but for one
// function, in which CUPTI of CUDA 13 is known to crash.
#include <pianola/core/export.hpp>
#include <pianola/cuda/cupti_library.hpp>
#include <pianola/profile/record/recorder_environment.hpp>

#define NVTX_NO_IMPL  // types only: this library makes no ranges
#include <nvtx3/nvToolsExt.h>

#include <cstdlib>
#include <exception>
#include <string>

namespace pianola::profiling {
namespace {

using Initialize = int (*)(NvtxGetExportTableFunc_t);

Initialize find_cupti() {
  const char* fallback = std::getenv(kCuptiVariable);
  void* library = cupti_library(fallback == nullptr ? "" : fallback);
  Initialize initialize = nullptr;
  if (library != nullptr) bind_symbol(initialize, library, "InitializeInjectionNvtx2");
  return initialize;
}

// Names of threads are of no use to a recording; without a function NVTX does nothing.
void leave_out_names_of_threads(NvtxGetExportTableFunc_t get_export_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable == nullptr) return;
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0 || table == nullptr) return;
  for (const unsigned int function : {NVTX_CBID_CORE_NameOsThreadA, NVTX_CBID_CORE_NameOsThreadW}) {
    if (function < size && table[function] != nullptr) *table[function] = nullptr;
  }
}

}  // namespace
}  // namespace pianola::profiling

/// Called by NVTX, once for each library of the program that uses it, before its first range.
extern "C" PIANOLA_API int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  try {
    const pianola::profiling::Initialize initialize = pianola::profiling::find_cupti();
    if (initialize == nullptr || initialize(get_export_table) == 0) return 0;
    pianola::profiling::leave_out_names_of_threads(get_export_table);
    return 1;
  } catch (const std::exception&) {  // out of memory: no ranges
    return 0;
  }
}
