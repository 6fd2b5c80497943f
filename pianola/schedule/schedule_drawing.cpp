#include <pianola/schedule/schedule_drawing.hpp>

#include <pianola/core/display_width.hpp>
#include <pianola/schedule/buffer_plan.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>

namespace pianola {
namespace {

constexpr std::size_t kColumnGap = 2;  // blanks between columns

std::string cell(const ScheduleStep& step, int chunk) {
  if (step.chunk != chunk) return ".";
  return fmt::format("{}{}", "FBW"[static_cast<std::size_t>(step.direction)], step.microbatch);
}

// All columns are as wide as the widest, so that a step stands under the same step of the block before.
struct Columns {
  std::size_t label = 0;
  std::size_t step = 0;
  std::size_t per_block = 0;
};

std::size_t divide_up(std::size_t number, std::size_t by) { return (number + by - 1) / by; }

Columns columns_of(const Schedule& schedule, std::size_t width) {
  Columns columns;
  columns.label = fmt::format("chunk {}", schedule.chunks()).size();
  columns.step = std::max(fmt::formatted_size("F{}", schedule.microbatches()),
                          fmt::formatted_size("{}", schedule.steps().size())) +
                 kColumnGap;
  const std::size_t left = width - std::min(width, columns.label);
  const std::size_t fitting = std::max<std::size_t>(left / columns.step, 1);
  const std::size_t blocks = divide_up(schedule.steps().size(), fitting);
  columns.per_block = divide_up(schedule.steps().size(), blocks);  // no block is much shorter than the others
  return columns;
}

std::string block(const Schedule& schedule, const Columns& columns, std::size_t first) {
  const auto steps = schedule.steps().subspan(first, std::min(columns.per_block, schedule.steps().size() - first));
  std::string text = pad("step", columns.label, Align::left);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    text += pad(std::to_string(first + i + 1), columns.step, Align::right);
  }
  for (int chunk = 1; chunk <= schedule.chunks(); ++chunk) {
    text += '\n' + pad(fmt::format("chunk {}", chunk), columns.label, Align::left);
    for (const ScheduleStep& step : steps) text += pad(cell(step, chunk), columns.step, Align::right);
  }
  return text + '\n';
}

std::string_view name(BufferKind kind) {
  switch (kind) {
    case BufferKind::input:
      return "input";
    case BufferKind::output:
      return "output";
    case BufferKind::output_gradient:
      return "output gradient";
    case BufferKind::input_gradient:
      return "input gradient";
  }
  return "";
}

void add_facts(Report& report, const Schedule& schedule, const BufferPlan& plan) {
  report.fact("valid", "valid", !schedule.empty());
  report.fact("order", "order", schedule.to_string());
  report.fact("steps", "steps", schedule.steps().size());
  report.fact("chunks", "chunks", schedule.chunks());
  report.fact("microbatches", "microbatches", schedule.microbatches());
  report.fact("layers", "layers", schedule.total_layers());
  report.fact("buffers", "buffers", plan.unique_buffers());
  report.fact("buffers_without_reuse", "buffers without reuse", plan.buffers_without_reuse());
}

ReportTable chunk_table(const Schedule& schedule) {
  ReportTable table("chunk_sizes", "Chunks (as many slots as microbatches in flight)",
                    {{"chunk"}, {"layers"}, {"first_layer", "first layer"}, {"slots"}});
  for (int chunk = 1; chunk <= schedule.chunks(); ++chunk) {
    table.row({chunk, schedule.layers(chunk), schedule.first_layer(chunk), schedule.depth(chunk)});
  }
  return table;
}

// For programs: a row per buffer.
ReportTable lifetime_table(const BufferPlan& plan) {
  ReportTable table("lifetimes", "", {{"chunk"}, {"microbatch"}, {"kind"}, {"buffer"}, {"first_step"}, {"last_step"}});
  for (const BufferLifetime& life : plan.lifetimes()) {
    table.row({life.chunk, life.microbatch, name(life.kind), life.buffer, life.first_step, life.last_step});
  }
  return table;
}

std::string steps_of(const BufferLifetime& life) {
  if (life.first_step == life.last_step) return std::to_string(life.first_step);
  return fmt::format("{} to {}", life.first_step, life.last_step);
}

// For readers: a row per microbatch. Input and output are as long in use and share a column.
ReportTable compact_lifetime_table(const BufferPlan& plan) {
  ReportTable table("lifetimes", "Steps in which the buffers are in use",
                    {{"chunk"}, {"microbatch"}, {"slot"}, {"input, output"}, {"output gradient"}, {"input gradient"}});
  const auto lifetimes = plan.lifetimes();
  constexpr std::size_t kKinds = std::size(kBufferKinds);
  for (std::size_t first = 0; first < lifetimes.size(); first += kKinds) {
    const auto visit = lifetimes.subspan(first, kKinds);
    table.row({visit[0].chunk, visit[0].microbatch, visit[0].buffer, steps_of(visit[0]), steps_of(visit[2]),
               steps_of(visit[3])});
  }
  return table;
}

ReportTable buffer_table(const BufferPlan& plan) {
  ReportTable table("buffer_kinds", "Buffers",
                    {{"kind", "buffer"}, {"buffers", "needed"}, {"buffers_without_reuse", "without reuse"}});
  for (const BufferKind kind : kBufferKinds) {
    table.row({name(kind), plan.unique_buffers(kind), plan.buffers_without_reuse(kind)});
  }
  return table;
}

}  // namespace

std::string draw_timeline(const Schedule& schedule, std::size_t width) {
  if (schedule.empty()) return "";
  const Columns columns = columns_of(schedule, width);
  std::string text;
  for (std::size_t first = 0; first < schedule.steps().size(); first += columns.per_block) {
    if (first > 0) text += '\n';
    text += block(schedule, columns, first);
  }
  return text;
}

Report schedule_report(const Schedule& schedule) {
  const BufferPlan plan(schedule);
  Report report("Schedule");
  add_facts(report, schedule, plan);
  report.table(chunk_table(schedule)).table(lifetime_table(plan)).table(buffer_table(plan));
  return report;
}

std::string describe(const Schedule& schedule, std::size_t width) {
  const BufferPlan plan(schedule);
  Report facts;
  Report tables;
  add_facts(facts, schedule, plan);
  tables.table(chunk_table(schedule)).table(compact_lifetime_table(plan)).table(buffer_table(plan));
  const bool delays = std::any_of(schedule.steps().begin(), schedule.steps().end(), [](const ScheduleStep& step) {
    return step.direction == Direction::weight_gradients;
  });
  const std::string_view of_weights = delays ? "; W1: its gradients of weights" : "";
  return facts.to_text(width) +
         fmt::format("\nTimeline (F1, B1: forward and backward of microbatch 1{})\n", of_weights) +
         draw_timeline(schedule, width) + '\n' + tables.to_text(width);
}

}  // namespace pianola
