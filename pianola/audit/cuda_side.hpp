#pragma once
#include <pianola/audit/observed_runs.hpp>
#include <pianola/audit/options.hpp>
#include <pianola/audit/report.hpp>
#include <pianola/trace/op_stream.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pianola::auditing {

/// What an audit sees of CUDA besides operations; nothing where CUDA is not in use, or not in this build.
class CudaSide {
 public:
  /// @param device  Where the graph is going to be, where that is known.
  CudaSide(std::optional<c10::Device> device, bool sources);
  CudaSide(const CudaSide&) = delete;
  CudaSide& operator=(const CudaSide&) = delete;
  ~CudaSide();

  /// To be put into the stream of a run; nullptr: there is nothing to watch.
  [[nodiscard]] trace::OpObserver* observer();
  void start();
  void stop() noexcept;
  /// Keeps what the run that was stopped last did wrong.
  void note(const ObservedRun& run, std::size_t index);

  /// Of all runs, with module and iteration.
  [[nodiscard]] std::vector<Finding> findings(const ObservedRuns& runs) const;
  [[nodiscard]] std::vector<std::string> notes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Arguments of kernels over captures; empty on the CPU. See cuda/kernel_arguments.hpp.
[[nodiscard]] std::vector<Finding> compare_kernel_arguments(c10::Device device, const std::function<void()>& step,
                                                            const std::function<void()>& between,
                                                            const AuditOptions& options);

}  // namespace pianola::auditing
