#include <pianola/audit/cuda/kernel_arguments.hpp>

#include <pianola/audit/cuda/argument_changes.hpp>
#include <pianola/audit/cuda/cuda_calls.hpp>
#include <pianola/core/error.hpp>
#include <pianola/cuda/device_address.hpp>
#include <pianola/cuda/topology.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/trace/op_trace.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/trace/write_set.hpp>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace pianola::auditing {
namespace {

bool is_atens(std::string_view operation) { return operation.starts_with("aten::"); }

// One capture, and what it left behind is taken back: a gradient that the step defines would make the next one another.
class Capture {
 public:
  Capture(c10::Device device, const GraphPool& pool, const AuditOptions& options) : graph_(device) {
    options_.warmup = 0;
    options_.pool = pool;
    options_.generators = options.generators;
    options_.names = options.names;
    options_.instantiate = false;
    options_.allow_empty = true;
  }

  /// @param watching  Sees the operations too; may be nullptr.
  void record(const std::function<void()>& step, trace::OpObserver* watching) {
    trace::WriteSet gradients;
    gradients.save_writes(false);
    std::vector<trace::OpObserver*> observers = {&gradients};
    if (watching != nullptr) observers.push_back(watching);
    const trace::OpStream stream(std::move(observers));
    graph_.capture(step, options_);
    stream.check();
    gradients.restore();
  }

  [[nodiscard]] const OpTrace& trace() const { return *graph_.trace(); }
  [[nodiscard]] CapturedStep read() const;

 private:
  Graph graph_;
  CaptureOptions options_;
};

CapturedStep Capture::read() const {
  CapturedStep step;
  std::unordered_map<const void*, std::size_t> operation_of;  // index + 1
  for (const OpRecord& op : trace().ops()) {
    step.operations.push_back(trace().name(op));
    for (const void* node : trace().nodes(op)) operation_of[node] = step.operations.size();
  }
  std::size_t last = 0;
  const GraphTopology topology = GraphTopology::read(static_cast<CUgraph>(graph_.raw_graph()));
  for (const GraphNode& node : topology.nodes()) {
    const auto owner = operation_of.find(node.handle);
    const bool inside = owner != operation_of.end();
    if (inside) last = owner->second;
    const KernelNode* kernel = node.kernel();
    if (kernel == nullptr) continue;
    // Between operations a kernel of ATen's is one of Pianola's own, at the end of a capture.
    const bool atens =
        inside ? is_atens(step.operations[last - 1]) : kernel->function->name.find("at::native::") != std::string::npos;
    step.kernels.push_back({.node = *kernel, .operation = last, .inside = inside, .atens = atens});
  }
  return step;
}

std::vector<ByteSpan> memory_of(const GraphPool& pool) {
  std::vector<ByteSpan> spans;
  const PoolId name = GraphPoolRef(pool).state()->id();
  for (const auto& segment : c10::cuda::CUDACachingAllocator::snapshot(name, /*include_traces=*/false).segments) {
    const auto begin = static_cast<std::uintptr_t>(segment.address);
    spans.push_back({.begin = begin, .end = begin + static_cast<std::uintptr_t>(segment.total_size)});
  }
  return merged(std::move(spans));
}

bool is_address(std::uintptr_t number) { return number != 0 && is_device_address(number); }

// The sites of the launches that are no ATen operation's, in the order of their kernels; empty where they do not match.
std::vector<const trace::CallSite*> launch_sites(const CudaCallLog& log, const CapturedStep& step) {
  std::vector<const trace::CallSite*> sites;
  for (const CudaCall& call : log.calls()) {
    const bool kernel =
        call.api.kind == ApiKind::launch && std::string_view(call.api.name).find("Kernel") != std::string::npos;
    if (kernel && call.of_step && !call.aten) sites.push_back(&call.site);
  }
  const auto wanted =
      std::count_if(step.kernels.begin(), step.kernels.end(), [](const auto& kernel) { return !kernel.atens; });
  if (sites.size() != static_cast<std::size_t>(wanted)) sites.clear();
  return sites;
}

bool is_number(std::uint64_t bytes, std::size_t size, const ScalarRecord& scalar) {
  if (const auto* floating = std::get_if<double>(&scalar.value)) {
    return (size == 8 && bytes == std::bit_cast<std::uint64_t>(*floating)) ||
           (size == 4 && bytes == std::bit_cast<std::uint32_t>(static_cast<float>(*floating)));
  }
  const auto* integer = std::get_if<std::int64_t>(&scalar.value);
  const auto value = static_cast<std::uint64_t>(integer != nullptr ? *integer : std::get<bool>(scalar.value));
  return size > 0 && ((bytes ^ value) << (64 - 8 * size)) == 0;
}

bool holds(std::span<const TensorRecord> tensors, std::uintptr_t address) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const TensorRecord& tensor) {
    const auto begin = reinterpret_cast<std::uintptr_t>(tensor.address);
    return begin <= address && address < begin + std::max<std::size_t>(tensor.span_bytes, 1);
  });
}

class ArgumentReport {
 public:
  ArgumentReport(const OpTrace& first, const OpTrace& third, const CapturedStep& step, const CudaCallLog& log,
                 const AuditOptions& options)
      : first_(first), third_(third), step_(step), sites_(launch_sites(log, step)), options_(options) {}

  void add(const ArgumentChange& change) {
    const CapturedKernel& kernel = step_.kernels[change.kernel];
    if (kernel.inside && is_traced(change, kernel.operation - 1)) return;
    Finding finding = Finding::of(change.address ? "PG405" : "PG302");
    if (kernel.inside) finding.op = step_.operations[kernel.operation - 1];
    finding.place = place_of(change.kernel);
    finding.what = fmt::format("argument {} of kernel {} {}", change.parameter + 1, kernel.node.function->short_name,
                               change.address         ? "is another address in the next iteration"
                               : change.by_the_step() ? "is a number that each run of the step moves on"
                                                      : "changes between iterations");
    finding.evidence = in_words(change);
    if (const std::string name = change.address ? name_at(change.third) : ""; !name.empty()) {
      finding.evidence += fmt::format(", which is '{}'", name);
    }
    findings.push_back(std::move(finding));
  }

  std::vector<Finding> findings;

 private:
  // What the operation's own arguments show is told by other rules.
  [[nodiscard]] bool is_traced(const ArgumentChange& change, std::size_t operation) const {
    const OpRecord& before = first_.ops()[operation];
    const OpRecord& after = third_.ops()[operation];
    if (change.address) {
      return holds(first_.inputs(before), change.first) && holds(third_.inputs(after), change.third);
    }
    const auto old_numbers = first_.scalars(before), new_numbers = third_.scalars(after);
    for (std::size_t i = 0; i < std::min(old_numbers.size(), new_numbers.size()); ++i) {
      if (is_number(change.first, change.size, old_numbers[i]) &&
          is_number(change.third, change.size, new_numbers[i])) {
        return true;
      }
    }
    return false;
  }

  // The operation's place; between operations the launch's, and the place of the operation before where that is
  // unknown.
  [[nodiscard]] SourcePlace place_of(std::size_t position) const {
    const CapturedKernel& kernel = step_.kernels[position];
    if (!kernel.inside && !sites_.empty()) {
      const auto before = step_.kernels.begin() + static_cast<std::ptrdiff_t>(position);
      const auto index = std::count_if(step_.kernels.begin(), before, [](const auto& other) { return !other.atens; });
      SourcePlace place = sites_[static_cast<std::size_t>(index)]->place();
      if (place.known()) return place;
    }
    return kernel.operation == 0 ? SourcePlace() : third_.source(third_.ops()[kernel.operation - 1]);
  }

  [[nodiscard]] std::string name_at(std::uintptr_t address) const {
    for (const NamedTensor& named : options_.names) {
      if (!named.tensor.defined() || !named.tensor.has_storage()) continue;
      const auto begin = reinterpret_cast<std::uintptr_t>(trace::address_of(named.tensor));
      if (begin <= address && address < begin + trace::span_bytes_of(named.tensor)) return named.name;
    }
    return "";
  }

  const OpTrace& first_;
  const OpTrace& third_;
  const CapturedStep& step_;
  std::vector<const trace::CallSite*> sites_;
  const AuditOptions& options_;
};

std::vector<Finding> compare(c10::Device device, const std::function<void()>& step,
                             const std::function<void()>& between, const AuditOptions& options) {
  const GraphPool pool(device);  // one for all, so that they take the memory of one
  Capture first(device, pool, options), second(device, pool, options), third(device, pool, options);
  first.record(step, nullptr);
  second.record(step, nullptr);
  if (between) between();
  CudaCallLog log(c10::cuda::getCurrentCUDAStream(device.index()), options.sources);
  log.log_all_launches();
  log.start();
  third.record(step, &log);
  log.stop();

  CapturedStep captured[] = {first.read(), second.read(), third.read()};
  for (CapturedStep& capture : captured) capture.pool = memory_of(pool);
  ArgumentReport report(first.trace(), third.trace(), captured[2], log, options);
  for (const ArgumentChange& change : argument_changes(captured[0], captured[1], captured[2], is_address)) {
    report.add(change);
  }
  return std::move(report.findings);
}

}  // namespace

std::vector<Finding> compare_captures(c10::Device device, const std::function<void()>& step,
                                      const std::function<void()>& between, const AuditOptions& options) {
  try {
    return compare(device, step, between, options);
  } catch (const CaptureError&) {
    return {};
  } catch (const c10::OutOfMemoryError&) {
    return {};  // the step alone may fit
  }
}

}  // namespace pianola::auditing
