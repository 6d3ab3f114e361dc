#include "cli/stage_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bdn::cli {
namespace {

using Json = nlohmann::ordered_json;

// A count of a row, by its name in JSON.
struct Number {
  const char* name;
  uint64_t StageRow::*value;
};
constexpr Number kNumbers[] = {{"items", &StageRow::items},
                               {"bytes", &StageRow::bytes},
                               {"wall_ns", &StageRow::wall_ns},
                               {"cpu_ns", &StageRow::cpu_ns}};

StageRow* Find(const std::string& name, StageRows* rows) {
  const auto found = std::find_if(rows->begin(), rows->end(),
                                  [&](const StageRow& row) { return row.name == name; });
  return found == rows->end() ? nullptr : &*found;
}

std::string Milliseconds(uint64_t nanoseconds, uint64_t items) {
  return absl::StrFormat("%.3f",
                         static_cast<double>(nanoseconds) * 1e-6 / static_cast<double>(items));
}

std::string Line(const std::string& node, const StageRow& row, double all_ns) {
  const double share = all_ns > 0 ? 100 * static_cast<double>(row.wall_ns) / all_ns : 0;
  return absl::StrFormat("%-10s %-12s %9d %11.1f %13s %13s %6.1f%%\n", node, row.name, row.items,
                         static_cast<double>(row.bytes) * 1e-6,
                         Milliseconds(row.wall_ns, row.items),
                         row.cpu_ns == 0 ? "-" : Milliseconds(row.cpu_ns, row.items), share);
}

}  // namespace

absl::StatusOr<StageRows> ParseStages(std::string_view json) {
  try {
    StageRows rows;
    const Json object = Json::parse(json);
    for (const auto& [name, numbers] : object.items()) {
      StageRow row{.name = name};
      for (const Number& number : kNumbers) {
        const Json& value = numbers.at(number.name);
        if (!value.is_number_unsigned()) {
          return absl::InvalidArgumentError(absl::StrCat("stages are not understood: ", number.name,
                                                         " of ", name, " is ", value.dump(),
                                                         ", expected a count"));
        }
        row.*number.value = value.get<uint64_t>();
      }
      rows.push_back(std::move(row));
    }
    return rows;
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("stages are not understood: ", error.what()));
  }
}

std::string StagesJson(const StageRows& rows) {
  Json json = Json::object();
  for (const StageRow& row : rows) {
    for (const Number& number : kNumbers) json[row.name][number.name] = row.*number.value;
  }
  return json.dump();
}

void AddStages(const StageRows& more, StageRows* sum) {
  for (const StageRow& row : more) {
    StageRow* found = Find(row.name, sum);
    if (found == nullptr) found = &sum->emplace_back(StageRow{.name = row.name});
    for (const Number& number : kNumbers) found->*number.value += row.*number.value;
  }
}

StageRows StagesSince(const StageRows& before, StageRows after) {
  for (const StageRow& row : before) {
    StageRow* found = Find(row.name, &after);
    if (found == nullptr) continue;
    for (const Number& number : kNumbers) {
      found->*number.value -= std::min(found->*number.value, row.*number.value);
    }
  }
  return after;
}

std::string StageTable(const std::vector<std::pair<std::string, StageRows>>& nodes) {
  std::string lines;
  for (const auto& [node, rows] : nodes) {
    double all_ns = 0;
    for (const StageRow& row : rows) all_ns += static_cast<double>(row.wall_ns);
    for (const StageRow& row : rows) {
      if (row.items > 0) lines += Line(node, row, all_ns);
    }
  }
  if (lines.empty()) return lines;
  return absl::StrFormat("%-10s %-12s %9s %11s %13s %13s %7s\n", "NODE", "STAGE", "ITEMS", "MB",
                         "WALL MS/ITEM", "CPU MS/ITEM", "SHARE") +
         lines;
}

}  // namespace bdn::cli
