#include <pianola/audit/cuda_side.hpp>

#include <pianola/audit/generator_position.hpp>

#if PIANOLA_WITH_CUDA
#include <pianola/audit/cuda/busy_time.hpp>
#include <pianola/audit/cuda/cuda_calls.hpp>
#include <pianola/audit/cuda/kernel_arguments.hpp>
#endif

#include <chrono>
#include <exception>
#include <utility>

namespace pianola::auditing {

#if PIANOLA_WITH_CUDA

struct CudaSide::Impl {
  Impl(c10::cuda::CUDAStream stream, bool sources) : log(stream, sources) {}

  CudaCallLog log;
  BusyTimer timer;                                         // of the last run
  std::vector<std::pair<std::size_t, CudaFinding>> found;  // with the run
};

CudaSide::CudaSide(std::optional<c10::Device> device, bool sources) {
  const bool wanted = device ? device->is_cuda() : cuda_is_in_use();
  if (!wanted) return;
  const bool has_index = device && device->has_index();
  impl_ = std::make_unique<Impl>(c10::cuda::getCurrentCUDAStream(has_index ? device->index() : -1), sources);
}

trace::OpObserver* CudaSide::observer() { return impl_ == nullptr ? nullptr : &impl_->log; }

void CudaSide::start() {
  if (impl_ == nullptr) return;
  impl_->log.start();
  impl_->timer.start(c10::cuda::getCurrentCUDAStream());
}

void CudaSide::stop() noexcept {
  if (impl_ == nullptr) return;
  impl_->log.stop();
  try {
    impl_->timer.stop(c10::cuda::getCurrentCUDAStream());
  } catch (const std::exception&) {  // the step broke the device; what it threw is told
  }
}

void CudaSide::note(const ObservedRun& run, std::size_t index) {
  if (impl_ == nullptr) return;
  for (CudaFinding& finding : impl_->log.findings(run.trace)) impl_->found.emplace_back(index, std::move(finding));
}

std::vector<Finding> CudaSide::findings(const ObservedRuns& runs) const {
  std::vector<Finding> findings;
  if (impl_ == nullptr || !runs.on_cuda()) return findings;
  for (const auto& [run, found] : impl_->found) {
    Finding finding = found.finding;
    finding.iteration = static_cast<int>(run) + 1;
    if (found.operation > 0 && found.operation <= runs.run(run).notes.size()) {
      finding.module = runs.module({run, found.operation - 1});
    }
    findings.push_back(std::move(finding));
  }
  // Watching slows the host, so that a run which is bound by the device even so is bound by it. Shorter ones say little
  // where others use the device too.
  constexpr std::chrono::milliseconds kLongEnough{1};
  const BusyTime time = impl_->timer.time();
  if (time.device < kLongEnough) return findings;
  if (auto busy = gpu_bound(time)) findings.push_back(*std::move(busy));
  return findings;
}

std::vector<std::string> CudaSide::notes() const {
  return impl_ == nullptr ? std::vector<std::string>() : impl_->log.notes();
}

std::vector<Finding> compare_kernel_arguments(c10::Device device, const std::function<void()>& step,
                                              const std::function<void()>& between, const AuditOptions& options) {
  if (!device.is_cuda()) return {};
  return compare_captures(device, step, between, options);
}

#else

struct CudaSide::Impl {};

CudaSide::CudaSide(std::optional<c10::Device> /*device*/, bool /*sources*/) {}

trace::OpObserver* CudaSide::observer() { return nullptr; }

void CudaSide::start() {}

void CudaSide::stop() noexcept {}

void CudaSide::note(const ObservedRun& /*run*/, std::size_t /*index*/) {}

std::vector<Finding> CudaSide::findings(const ObservedRuns& /*runs*/) const { return {}; }

std::vector<std::string> CudaSide::notes() const { return {}; }

std::vector<Finding> compare_kernel_arguments(c10::Device /*device*/, const std::function<void()>& /*step*/,
                                              const std::function<void()>& /*between*/,
                                              const AuditOptions& /*options*/) {
  return {};
}

#endif

CudaSide::~CudaSide() = default;

}  // namespace pianola::auditing
