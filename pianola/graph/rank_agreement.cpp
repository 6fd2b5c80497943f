#include <pianola/graph/rank_agreement.hpp>

#include <pianola/core/error.hpp>
#include <pianola/distributed/agreement.hpp>
#include <pianola/trace/op_info.hpp>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace pianola::graph {
namespace {

// Of the collective with this number in the step.
std::string place_of_collective(const OpTrace& trace, std::uint32_t number) {
  for (const OpRecord& op : trace.ops()) {
    if (op.info->collective && number-- == 0) return trace.place(op);
  }
  return "";
}

}  // namespace

void agree_with_other_ranks(const distributed::StatementRecorder& communication, const OpTrace* trace) {
  const auto place_of = [&](const distributed::Call& call) {
    return trace == nullptr ? "" : place_of_collective(*trace, call.place);
  };
  std::optional<Diagnosis> objection;
  try {
    const auto store = distributed::common_store(communication.groups());
    if (!store) return;
    objection =
        distributed::Agreement::of_this_process().find_objection(communication.statement(trace), store, place_of);
  } catch (const std::exception&) {
    return;
  }
  if (objection) throw CaptureError(*std::move(objection));
}

}  // namespace pianola::graph
