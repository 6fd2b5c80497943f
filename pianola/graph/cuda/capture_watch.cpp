#include <pianola/graph/cuda/capture_watch.hpp>

#include <pianola/core/hazard_rule.hpp>
#include <pianola/cuda/error_codes.hpp>
#include <pianola/graph/offence.hpp>
#include <pianola/trace/op_info.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace pianola::graph {

void CaptureWatch::on_op_begin(const trace::OpSpan& op) {
  ++operations_;
  if (offender_) return;
  if (broken()) {
    offender_ = OffendingOp::note(op, operations_);
    between_ = true;
    return;
  }
  last_op_ = op.info;
}

void CaptureWatch::on_op_end(const trace::OpSpan& op) {
  if (offender_) return;
  if (broken()) {
    offender_ = OffendingOp::note(op, operations_);
  } else if (op.outputs.empty() && !op.info->schema().returns().empty()) {
    last_throw_ = OffendingOp::note(op, operations_);
  }
}

void CaptureWatch::on_inner_end(const trace::OpSpan& around, const char* inner) {
  if (!offender_ && broken()) offender_ = OffendingOp::note(around, operations_, inner);
}

namespace {

// The operators that bring a tensor to the host, or block until the device is done, when they meet two devices.
bool copies(std::string_view op) {
  constexpr std::array<std::string_view, 4> kCopies = {"aten::copy_", "aten::_to_copy", "aten::to", "aten::_copy_from"};
  return std::any_of(kCopies.begin(), kCopies.end(), [&](std::string_view name) { return op.starts_with(name); });
}

std::string rule_of(CUresult code) {
  switch (code) {
    case CUDA_ERROR_STREAM_CAPTURE_UNJOINED:
      return "PG702";
    case CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
      return "PG704";
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
      return "PG701";
    default:
      return "PG110";
  }
}

std::string operation_count(const CaptureWatch& watch) {
  return watch.last_op() == nullptr
             ? "before the first operation of the step"
             : fmt::format("after operation {} of the step, {}", watch.operations(), watch.last_op()->name);
}

std::string name_of_last_throw(const CaptureWatch& watch) {
  return watch.last_throw() ? watch.last_throw()->name : "an operation";
}

std::string place_of_last_throw(const CaptureWatch& watch, const OpTrace* trace) {
  return watch.last_throw() ? watch.last_throw()->where(trace) : operation_count(watch);
}

}  // namespace

Diagnosis explain_broken(const CaptureWatch& watch, const OpTrace* trace) {
  const CaptureCode unsupported = describe(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  const auto& offender = watch.offender();
  if (!offender && trace == nullptr) {
    return {.what = "an operation broke the capture; with `trace` off it is not known which",
            .fix = "capture with CaptureOptions::trace on to have it named"};
  }
  if (!offender) {
    return {.what =
                "a CUDA call outside ATen broke the capture: an error that a capturing stream answers with "
                "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900) or a synchronization",
            .where = operation_count(watch),
            .fix = std::string(unsupported.fix),
            .rule = "PG110"};
  }
  if (watch.broke_before_offender()) {
    return {.what = "a CUDA call outside ATen broke the capture, before " + offender->name,
            .where = "the code before " + offender->where(trace),
            .fix = std::string(unsupported.fix),
            .rule = "PG110"};
  }
  if (offender->info != nullptr && offender->info->host_read != trace::HostRead::never) {
    return explain_host_read(*offender, trace);
  }
  if (copies(offender->name) || copies(offender->detail)) return explain_host_copy(*offender, trace);
  return {
      .what = fmt::format("{} waits for the device or reads a value on the host, which is not allowed during capture",
                          offender->name),
      .where = offender->where(trace),
      .fix = std::string(hazard_rule("PG101").fix),
      .rule = offender->backward.empty() ? "PG110" : "PG111"};
}

Diagnosis explain_end(CUresult code, const CaptureWatch& watch) {
  const CaptureCode words = describe(code);
  return {.what = fmt::format("the capture could not be ended: {}", in_words(code)),
          .where = operation_count(watch),
          .fix = std::string(words.fix),
          .rule = rule_of(code)};
}

std::optional<Diagnosis> explain_default_stream(const c10::Error& error, const CaptureWatch& watch) {
  const std::string_view text = error.what_without_backtrace();
  const auto says = [&](std::string_view words) { return text.find(words) != std::string_view::npos; };
  const bool is_named = says("legacy stream") || says("reference to the default stream");  // by CUDA, by torch 2.15
  if (!is_named) return std::nullopt;
  return Diagnosis{.what = fmt::format("part of the step runs on the default stream, which cannot be captured; torch "
                                       "said: {}",
                                       text.substr(0, text.find('\n'))),
                   .where = operation_count(watch),
                   .fix =
                       "a backward pass runs on the streams of its forward: capture its forward too, or run it on "
                       "another stream; nothing in the step may name the default stream",
                   .rule = "PG701"};
}

// The call that makes a handle breaks the capture as well: this is why, and the broken capture only what came of it.
std::optional<Diagnosis> explain_cold_library(const c10::Error& error, const CaptureWatch& watch,
                                              const OpTrace* trace) {
  const std::string_view text = error.what_without_backtrace();
  const auto says = [&](std::string_view words) { return text.find(words) != std::string_view::npos; };
  if (!says("cublasCreate") && !says("cublasLtCreate") && !says("cudnnCreate") && !says("NOT_INITIALIZED")) {
    return std::nullopt;
  }
  const auto& culprit = watch.offender() ? watch.offender() : watch.last_throw();
  return Diagnosis{.what = fmt::format("{} is the first use of a library on this thread, and making its handle cannot "
                                       "be captured; torch said: {}",
                                       culprit ? culprit->name : "an operation", text.substr(0, text.find('\n'))),
                   .where = culprit ? culprit->where(trace) : operation_count(watch),
                   .fix = "warm up: CaptureOptions::warmup of 1 or more, or run the step once on this thread before",
                   .rule = "PG1006"};
}

std::optional<Diagnosis> explain_out_of_memory(const c10::Error& error, const CaptureWatch& watch,
                                               const OpTrace* trace) {
  const std::string_view text = error.what_without_backtrace();
  if (!text.starts_with("CUDA out of memory")) return std::nullopt;  // the type is lost where it came through Python
  return Diagnosis{.what = fmt::format("the device ran out of memory at {} while recording; torch said: {}",
                                       name_of_last_throw(watch), text.substr(0, text.find('\n'))),
                   .where = place_of_last_throw(watch, trace),
                   .fix =
                       "share one pool between graphs, use smaller batches, or drop eager tensors first: while a "
                       "capture is open torch cannot give cached memory back. Where memory is in fragments, set "
                       "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                   .rule = "PG908"};
}

std::optional<Diagnosis> explain_error(const c10::Error& error, const CaptureWatch& watch, const OpTrace* trace) {
  const std::string_view text = error.what_without_backtrace();
  const std::string where = place_of_last_throw(watch, trace);
  const std::string name = name_of_last_throw(watch);
  if (text.find("generator not in capture mode") != std::string_view::npos ||
      text.find("CUDA generator") != std::string_view::npos) {
    return explain_unknown_generator(name, where);
  }
  if (text.find("capturable is False") != std::string_view::npos) {
    return Diagnosis{
        .what = fmt::format("an optimizer refuses to be captured; torch said: {}", text.substr(0, text.find('\n'))),
        .where = where,
        .fix = std::string(hazard_rule("PG1001").fix),
        .rule = "PG1001"};
  }
  if (text.find("CUDA graph capture") != std::string_view::npos) {  // torch's own refusals, before CUDA is asked
    return Diagnosis{
        .what = fmt::format("{} cannot run in a capture; torch said: {}", name, text.substr(0, text.find('\n'))),
        .where = where,
        .fix = "do it before or after the capture; a copy from the host needs pinned memory",
        .rule = name.starts_with("aten::") && copies(name) ? "PG202" : "PG1203"};
  }
  return std::nullopt;
}

Diagnosis explain_empty(const OpTrace* trace, const std::string& device) {
  if (trace == nullptr || trace->ops().empty()) {
    return {.what = "the step is empty: no operation was recorded",
            .fix = "check that the step runs its work on this thread",
            .rule = "PG1201"};
  }
  return {.what = fmt::format("the step ran {} operations, but none of them on {}: the graph would be empty",
                              trace->ops().size(), device),
          .where = fmt::format("first operation: {}, {}", trace->name(trace->ops().front()),
                               trace->place(trace->ops().front())),
          .fix = "move the model and its inputs to the graph's device",
          .rule = "PG1201"};
}

}  // namespace pianola::graph
