#include <pianola/core/report.hpp>

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <type_traits>
#include <variant>

namespace pianola {
namespace {

using Json = nlohmann::ordered_json;  // Keys stand in the order of adding.

Json json_of(const ReportValue& value) {
  return std::visit(
      [](const auto& v) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::monostate>) {
          return nullptr;
        } else {
          return v;
        }
      },
      value.variant());
}

Json json_of(const ReportTable& table) {
  Json rows = Json::array();
  for (const ReportTable::Row& row : table.rows()) {
    Json object = Json::object();
    for (std::size_t i = 0; i < row.size(); ++i) object[table.columns()[i].key] = json_of(row[i]);
    rows.push_back(std::move(object));
  }
  return rows;
}

Json json_of(const Report& report) {
  std::map<std::string, Json> parts;
  for (const Report::Fact& fact : report.facts()) parts[fact.key] = json_of(fact.value);
  for (const Report::List& list : report.lists()) parts[list.key] = list.items;
  for (const ReportTable& table : report.tables()) parts[table.key()] = json_of(table);
  for (const Report::Section& section : report.sections()) parts[section.key] = json_of(section.report);
  Json object = Json::object();
  for (const std::string& key : report.keys()) object[key] = std::move(parts.at(key));
  return object;
}

}  // namespace

std::string Report::to_json(int indent) const {
  return json_of(*this).dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace pianola
