#pragma once
#include "result.hpp"

#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

namespace pianola::bench {

/// Which benchmarks to run, and how.
struct Options {
  std::string filter = {};            ///< The one of this name, or those whose name contains it; empty: all.
  std::string device = "auto";        ///< "cpu", "cuda", or "auto": the CPU, and CUDA where there is a device.
  std::filesystem::path json = {};    ///< File for the results with all samples; empty: none is written.
  std::filesystem::path traces = {};  ///< Folder, made if need be, for Chrome traces of those that have some.
  int blocks = 20;                    ///< Samples per contender.
  bool quick = false;                 ///< Little work: shows that the benchmarks run; the figures mean nothing.
  std::string command = {};           ///< What the user typed; the JSON repeats it.
};

/// Names of the benchmarks that this machine can run under `options`.
/// @throws UsageError   The device is none of the three words, or blocks is below 1.
/// @throws DeviceError  "cuda", and there is no device.
std::vector<std::string> names(const Options& options);

/// Runs them and prints each result when it is done. A benchmark that throws has Result::error set; the others still
/// run. Missing a requirement is no error.
///
/// @throws UsageError  As names(); no benchmark matches the filter; the JSON file, or anything in the folder for traces,
///                     cannot be written; traces are asked for, and none of the benchmarks has any.
std::vector<Result> run(const Options& options, std::ostream& out);

}  // namespace pianola::bench
