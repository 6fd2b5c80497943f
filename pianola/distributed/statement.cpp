#include <pianola/distributed/statement.hpp>

#include <pianola/core/version.hpp>

#include <nlohmann/json.hpp>

#include <array>
#include <exception>
#include <stdexcept>

namespace pianola::distributed {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 11> kNames = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce",
    "gather",     "scatter",    "barrier",        "send",       "recv"};

Json row_of(const Call& call) {
  return Json::array({static_cast<int>(call.kind), call.group, call.agreed, call.gives, call.takes, call.bytes,
                      call.peer, call.with_next, call.place});
}

Call call_of(const Json& row) {
  const auto kind = row.at(0).get<std::size_t>();
  if (kind >= kNames.size()) throw std::out_of_range("kind");
  return {.kind = static_cast<Call::Kind>(kind),
          .group = row.at(1).get<std::uint32_t>(),
          .agreed = row.at(2).get<std::string>(),
          .gives = row.at(3).get<std::vector<std::int64_t>>(),
          .takes = row.at(4).get<std::vector<std::int64_t>>(),
          .bytes = row.at(5).get<std::int64_t>(),
          .peer = row.at(6).get<std::int64_t>(),
          .with_next = row.at(7).get<bool>(),
          .place = row.at(8).get<std::uint32_t>()};
}

}  // namespace

std::string_view name_of(Call::Kind kind) { return kNames.at(static_cast<std::size_t>(kind)); }

std::string Statement::to_text() const {
  Json members = Json::array();
  for (const Membership& one : groups) members.push_back({one.group, one.member, one.size, one.moment});
  Json rows = Json::array();
  for (const Call& call : calls) rows.push_back(row_of(call));
  return Json{{"version", version()}, {"process", process}, {"name", name}, {"groups", members}, {"calls", rows}}
      .dump();
}

std::optional<Statement> Statement::from_text(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    if (json.at("version") != version()) return std::nullopt;
    Statement statement{.process = json.at("process"), .name = json.at("name")};
    for (const Json& row : json.at("groups"))
      statement.groups.push_back({.group = row.at(0), .member = row.at(1), .size = row.at(2), .moment = row.at(3)});
    for (const Json& row : json.at("calls")) {
      statement.calls.push_back(call_of(row));
      if (statement.calls.back().group >= statement.groups.size()) return std::nullopt;
    }
    return statement;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace pianola::distributed
