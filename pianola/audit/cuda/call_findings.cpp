#include <pianola/audit/cuda/call_findings.hpp>

#include <pianola/audit/cuda/stream_hazards.hpp>
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/op_trace.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace pianola::auditing {
namespace {

// What the call waits for or asks about, by its name: cudaDeviceSynchronize, cuCtxSynchronize, cudaEventQuery.
std::string_view object_of(std::string_view name) {
  if (name.find("Event") != std::string_view::npos) return "an event";
  if (name.find("Stream") != std::string_view::npos) return "a stream";
  return "the device";
}

bool is_work(const CudaCall& call) {
  const ApiKind kind = call.api.kind;
  return kind == ApiKind::launch || ((kind == ApiKind::copy || kind == ApiKind::fill) && call.api.on_stream);
}

// A copy inside the device does not block, whatever its name.
bool waits_for_copy(const CudaCall& call) {
  const bool inside_device = std::string_view(call.api.name).find("DtoD") != std::string_view::npos;
  return call.api.kind == ApiKind::copy && call.api.blocking && !inside_device;
}

// Functions of torch that stand in its headers run in the caller's library.
bool is_inlined_torch(const CudaCall& call) { return call.site.begins_in({"at::", "c10::", "torch::"}); }

// Not where the program itself is the caller: its place says so.
std::string by_library(const CudaCall& call) {
  return call.library.find(".so") == std::string::npos ? "" : "called by " + call.library;
}

class CallReport {
 public:
  explicit CallReport(const LoggedRun& run) : run_(run) {}

  std::vector<CudaFinding> take() {
    for (const CudaCall& call : run_.calls) {
      if (call.of_step) look_at(call);
    }
    if (run_.watched) {
      add_stream_hazards();
    } else {
      add_default_stream_operations();
    }
    return std::move(findings_);
  }

 private:
  void look_at(const CudaCall& call) {
    switch (call.api.kind) {
      case ApiKind::wait:
        add_wait(call);
        break;
      case ApiKind::query:
        add(call, "PG109",
            fmt::format("the host asks whether {} is done ({})", object_of(call.api.name), call.api.name));
        break;
      case ApiKind::launch:
      case ApiKind::fill:
        add_default_stream(call);
        break;
      case ApiKind::copy:
        add_copy(call);
        break;
      case ApiKind::pinned_allocation:
        add(call, "PG205", fmt::format("{} is called in the step", call.api.name),
            call.api.bytes == 0 ? "" : fmt::format("{} bytes", call.api.bytes));
        break;
      case ApiKind::free:
        if (call.caller == Caller::other) {
          add(call, "PG110", fmt::format("{} waits until the device is done, and frees at once", call.api.name));
        }
        break;
      case ApiKind::record:
      case ApiKind::stream_wait:
        break;  // see add_stream_hazards()
    }
  }

  void add_wait(const CudaCall& call) {
    if (call.aten || (call.inside && call.after_copy && call.caller != Caller::other)) return add_host_read(call);
    const bool torchs = call.caller != Caller::other || is_inlined_torch(call);
    add(call, torchs ? "PG108" : "PG110",
        fmt::format("the host waits for {} ({})", object_of(call.api.name), call.api.name), by_library(call));
  }

  // An operation that is not known to read on the host, and did: copied something there and waited for it.
  void add_host_read(const CudaCall& call) {
    const OpRecord* op = operation_of(call);
    add(call, op != nullptr && op->backward ? "PG111" : "PG101",
        "the operation copies a value to the host and waits for it", call.api.name);
  }

  void add_copy(const CudaCall& call) {
    if (call.aten) {
      if (call.after_copy) return add_host_read(call);
      return add_default_stream(call);
    }
    // torch's own copies wait in a call of their own.
    if (call.caller == Caller::torch || call.caller == Caller::internal) return add_default_stream(call);
    if (waits_for_copy(call)) {
      return add(call, "PG110", fmt::format("{} blocks the host until the copy is done", call.api.name),
                 by_library(call));
    }
    if (call.pageable && call.api.to_host) {
      return add(call, "PG110", fmt::format("{} to memory that is not pinned blocks the host", call.api.name));
    }
    if (call.pageable) {
      return add(call, "PG202", fmt::format("{} copies from memory of the host that is not pinned", call.api.name));
    }
    add_default_stream(call);
  }

  // Of ATen's operations only the kernels of those count that run on the default stream: libraries set themselves up
  // there. In backward it is a consequence: of the forward's stream, or of a gradient that was first accumulated on the
  // default stream (PG705).
  void add_default_stream(const CudaCall& call) {
    if (!is_work(call) || call.api.stream != nullptr || run_.own == nullptr) return;
    if (call.aten) {
      const OpRecord* op = operation_of(call);
      if (call.api.kind != ApiKind::launch || op == nullptr || op->backward || op->stream != 0) return;
      if (!first_of_operation(call)) return;
    }
    add(call, "PG701", fmt::format("{} puts work on the default stream", call.api.name));
  }

  bool first_of_operation(const CudaCall& call) {
    return std::exchange(last_default_stream_operation_, call.operation) != call.operation;
  }

  // Without CUPTI: the current stream of each operation is in the trace.
  void add_default_stream_operations() {
    if (run_.own == nullptr) return;
    for (std::size_t i = 0; i < run_.trace.ops().size(); ++i) {
      const OpRecord& op = run_.trace.ops()[i];
      if (op.stream != 0 || op.backward || op.info->is_view || op.info->is_empty || !on_device(op)) continue;
      CudaCall call;
      call.operation = i + 1;
      call.inside = true;
      add(call, "PG701", "the default stream is the current one");
    }
  }

  [[nodiscard]] bool on_device(const OpRecord& op) const {
    const auto inputs = run_.trace.inputs(op);
    return std::any_of(inputs.begin(), inputs.end(), [&](const TensorRecord& tensor) {
      return tensor.device.is_cuda() && tensor.device.index() == run_.device;
    });
  }

  void add_stream_hazards() {
    std::vector<StreamUse> uses;
    std::vector<const CudaCall*> of_use;
    const auto use = [&](const CudaCall& call, StreamUse::Kind kind) {
      uses.push_back({.kind = kind, .stream = call.api.stream, .event = call.api.event});
      of_use.push_back(&call);
    };
    for (const CudaCall& call : run_.calls) {
      if (call.api.kind == ApiKind::record) use(call, StreamUse::Kind::record);
      if (call.api.kind == ApiKind::stream_wait) use(call, StreamUse::Kind::wait);
      if (call.of_step && is_work(call)) use(call, StreamUse::Kind::work);
    }
    for (const StreamHazard& hazard : stream_hazards(uses, run_.own)) {
      const CudaCall& call = *of_use[hazard.use];
      if (call.of_step) add_stream_hazard(hazard, call);
    }
  }

  void add_stream_hazard(const StreamHazard& hazard, const CudaCall& call) {
    const std::string where = hazard.stream == nullptr
                                  ? "the default stream"
                                  : fmt::format("stream {}", static_cast<const void*>(hazard.stream));
    switch (hazard.kind) {
      case StreamHazard::Kind::unjoined:
        return add(call, "PG702", "the step ends before its stream has waited for work on a side stream",
                   fmt::format("{} on {} is the last that nothing waits for", call.api.name, where));
      case StreamHazard::Kind::unforked:
        return add(call, "PG703", "work begins on a side stream that has not waited for the step's stream",
                   fmt::format("{} on {}", call.api.name, where));
      case StreamHazard::Kind::outside:
        return add(call, "PG704", fmt::format("{} waits for an event that was not recorded by the step", call.api.name),
                   hazard.stream == run_.own ? "" : "on " + where);
    }
  }

  [[nodiscard]] const OpRecord* operation_of(const CudaCall& call) const {
    const auto ops = run_.trace.ops();
    return call.operation == 0 || call.operation > ops.size() ? nullptr : &ops[call.operation - 1];
  }

  // Between operations the call's own place; where that is unknown, the place of the operation before is near.
  [[nodiscard]] SourcePlace place_of(const CudaCall& call) const {
    if (!call.inside) {
      SourcePlace place = call.site.place();
      if (place.known()) return place;
    }
    const OpRecord* op = operation_of(call);
    return op == nullptr ? SourcePlace() : run_.trace.source(*op);
  }

  void add(const CudaCall& call, std::string_view rule, std::string what, std::string evidence = "") {
    Finding finding = Finding::of(rule);
    const OpRecord* op = operation_of(call);
    if (call.inside && op != nullptr) finding.op = run_.trace.name(*op);
    finding.place = place_of(call);
    finding.what = std::move(what);
    finding.evidence = std::move(evidence);
    findings_.push_back({.finding = std::move(finding), .operation = call.operation, .inside = call.inside});
  }

  const LoggedRun& run_;
  std::vector<CudaFinding> findings_;
  std::size_t last_default_stream_operation_ = 0;
};

}  // namespace

std::vector<CudaFinding> call_findings(const LoggedRun& run) { return CallReport(run).take(); }

}  // namespace pianola::auditing
