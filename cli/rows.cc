#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/commands.h"
#include "cli/row_checkpoint.h"
#include "common/base/byte_text.h"

namespace bdn::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr Flag kExportFlags[] = {
    {"out", 0, "DIR", "where ids.npy, rows.npy and removed.npy go"},
    {"since", 0, "COUNT", "only what changed after so many updates of the table [all rows]"},
};
constexpr Flag kStatFlags[] = {
    {"top", 0, "COUNT", "name so many of the rows that were updated most often [5]"},
    {"json", 0, nullptr, "print it as JSON"},
    {"scheduler", 0, "HOST:PORT", "ask a running job; without CHECKPOINT [$BANDONEON_SCHEDULER]"},
    {"timeout", 0, "TIME", "how long to wait for its answer [5s]"},
};

constexpr char kExportUsage[] =
    "usage: bandoneon rows export CHECKPOINT TABLE --out DIR [options]\n\n"
    "Writes the rows of a table in a checkpoint of bandoneon.torch.save as arrays of NumPy: "
    "DIR/ids.npy,\n"
    "rising, and DIR/rows.npy, a row for each, which may be mapped into memory. With --since also\n"
    "DIR/removed.npy, the ids whose rows were removed: apply all three to an earlier export.\n";
constexpr char kExportExamples[] =
    "  bandoneon rows export run1/latest item --out served\n"
    "  bandoneon rows export run1/latest item --out changes --since 12000\n";

constexpr char kStatUsage[] =
    "usage: bandoneon rows stat CHECKPOINT [TABLE] [options]\n"
    "       bandoneon rows stat --scheduler HOST:PORT [options]\n\n"
    "Shows the tables in a checkpoint of bandoneon.torch.save: their rows, bytes and updates, and "
    "the rows\n"
    "that were updated most often. Reads all files, and so checks them. Or shows those of a\n"
    "running job, as of the servers' latest heartbeats: the rows that they hold, the memory, and\n"
    "the rows that came and went.\n";
constexpr char kStatExamples[] =
    "  bandoneon rows stat run1/latest\n"
    "  bandoneon rows stat run1/latest item --top 20 --json\n"
    "  bandoneon rows stat --scheduler 127.0.0.1:7000\n";

// Takes the words in front of the flags.
std::vector<std::string> TakeWords(Arguments* args) {
  std::vector<std::string> words;
  while (!args->empty() && !args->front().starts_with("-")) {
    words.push_back(args->front());
    *args = args->subspan(1);
  }
  return words;
}

int Failed(const char* command, const absl::Status& status) {
  fprintf(stderr, "bandoneon %s: %s\n", command, std::string(status.message()).c_str());
  return 1;
}

absl::StatusOr<std::vector<SavedTable>> TablesOf(const std::string& checkpoint,
                                                 const std::optional<std::string>& name) {
  auto tables = ReadSavedTables(checkpoint);
  if (!tables.ok() || !name.has_value()) return tables;
  for (const SavedTable& table : *tables) {
    if (table.name == *name) return std::vector<SavedTable>{table};
  }
  const auto quoted = [](std::string* out, const SavedTable& table) {
    *out += "'" + table.name + "'";
  };
  return absl::NotFoundError(
      absl::StrFormat("%s has no table '%s': it has %s", checkpoint, *name,
                      tables->empty() ? "none" : absl::StrJoin(*tables, ", ", quoted)));
}

// The rows that were updated most often, of equal ones those of lower ids.
std::vector<RecordPlace> Hottest(std::vector<RecordPlace> places, size_t most) {
  const auto end = places.begin() + static_cast<ptrdiff_t>(std::min(most, places.size()));
  std::partial_sort(places.begin(), end, places.end(), [](const auto& a, const auto& b) {
    return a.updates != b.updates ? a.updates > b.updates : a.id < b.id;
  });
  places.erase(end, places.end());
  return places;
}

// Returns a line about a table of a running job.
std::string DescribeCounts(const Json& table) {
  const auto number = [&](const char* name) { return table.at(name).dump(); };
  return absl::StrFormat(
      "%s: %s rows, %s, %s updates of the table; %s rows came, %s were removed, and %s gradients "
      "were of rows not admitted yet\n",
      table.at("table").get<std::string>(), number("rows"),
      ByteText(table.at("bytes").get<double>()), number("updates"), number("added"),
      number("removed"), number("not_admitted"));
}

// Shows the tables of a running job.
int StatOfJob(const CommandFlags& flags) {
  constexpr char kName[] = "rows stat";
  const auto timeout = flags.Duration("timeout", std::chrono::seconds(5));
  if (!timeout.ok()) return UsageError(kName, timeout.status());
  const auto answer =
      AskScheduler(SchedulerSettings(flags), std::chrono::duration<double>(*timeout).count());
  if (!answer.ok()) {
    fprintf(stderr, "bandoneon %s: %s%s\n", kName, std::string(answer.status().message()).c_str(),
            TokenHint(flags, answer.status()).c_str());
    return 1;
  }
  Json all = Json::array();
  std::string text;
  try {
    const Json job = Json::parse(*answer);
    for (const Json& of : job.at("tables")) {
      all.push_back({{"table", of.at("table")},
                     {"rows", of.at("held")},
                     {"bytes", of.at("bytes")},
                     {"updates", of.at("updates")},
                     {"added", of.at("added")},
                     {"removed", of.at("removed")},
                     {"not_admitted", of.at("not_admitted")}});
      text += DescribeCounts(all.back());
    }
  } catch (const Json::exception& error) {
    fprintf(stderr, "bandoneon %s: the scheduler's answer is not understood: %s\n", kName,
            error.what());
    return 1;
  }
  if (flags.Has("json")) {
    printf("%s\n", all.dump().c_str());
  } else if (all.empty()) {
    printf("the servers hold no tables, or have not told of any yet\n");
  } else {
    fputs(text.c_str(), stdout);
  }
  return 0;
}

}  // namespace

int RowsExportCommand(Arguments args) {
  constexpr char kName[] = "rows export";
  if (PrintedHelp(args, kExportUsage, kExportFlags, kExportExamples)) return 0;
  const std::vector<std::string> words = TakeWords(&args);
  const auto flags = CommandFlags::Parse(kExportFlags, args);
  if (!flags.ok()) return UsageError(kName, flags.status());
  if (words.size() != 2 || !flags->Has("out")) {
    return UsageError(kName, absl::InvalidArgumentError("say CHECKPOINT, TABLE and --out DIR"));
  }
  const auto since = flags->Int("since", 0, 0, int64_t{1} << 62);
  if (!since.ok()) return UsageError(kName, since.status());
  const auto tables = TablesOf(words[0], words[1]);
  if (!tables.ok()) return Failed(kName, tables.status());
  const SavedTable& table = tables->front();
  const auto found = FindRecords(table, static_cast<uint64_t>(*since));
  if (!found.ok()) return Failed(kName, found.status());
  const bool are_changes = *since > 0;
  if (are_changes && static_cast<uint64_t>(*since) < found->removed_since) {
    return Failed(kName, absl::OutOfRangeError(absl::StrFormat(
                             "%s knows only what was removed from table '%s' after %d updates, not "
                             "after %d: export all rows, without --since",
                             words[0], table.name, found->removed_since, *since)));
  }
  const std::string out = flags->Text("out");
  if (const absl::Status done = ExportRows(table, *found, are_changes, out); !done.ok()) {
    return Failed(kName, done);
  }
  std::string said = absl::StrFormat("%s: %d rows of %d elements, of %d updates of table '%s'", out,
                                     found->rows.size(), table.width, table.updates, table.name);
  if (are_changes) absl::StrAppendFormat(&said, "; %d were removed", found->removed.size());
  said += '\n';
  fputs(said.c_str(), stdout);
  return 0;
}

int RowsStatCommand(Arguments args) {
  constexpr char kName[] = "rows stat";
  const std::vector<Flag> known = WithCredentials(kStatFlags);
  if (PrintedHelp(args, kStatUsage, known, kStatExamples)) return 0;
  const std::vector<std::string> words = TakeWords(&args);
  const auto flags = CommandFlags::Parse(known, args);
  if (!flags.ok()) return UsageError(kName, flags.status());
  const bool names_scheduler =
      flags->Has("scheduler") || (words.empty() && getenv("BANDONEON_SCHEDULER") != nullptr);
  if (names_scheduler && words.empty()) return StatOfJob(*flags);
  if (names_scheduler || words.empty() || words.size() > 2) {
    return UsageError(kName, absl::InvalidArgumentError(
                                 "say CHECKPOINT, and at most one TABLE; or --scheduler alone"));
  }
  const auto top = flags->Int("top", 5, 0, 1000000);
  if (!top.ok()) return UsageError(kName, top.status());
  const auto tables =
      TablesOf(words[0], words.size() == 2 ? std::optional(words[1]) : std::nullopt);
  if (!tables.ok()) return Failed(kName, tables.status());
  Json all = Json::array();
  for (const SavedTable& table : *tables) {
    auto found = FindRecords(table, /*since=*/0);
    if (!found.ok()) return Failed(kName, found.status());
    Json json = {{"table", table.name},
                 {"rule", table.rule},
                 {"width", table.width},
                 {"rows", found->rows.size()},
                 {"bytes", found->rows.size() * table.record_bytes()},
                 {"updates", table.updates},
                 {"hottest", Json::array()}};
    for (const RecordPlace& place : Hottest(std::move(found->rows), static_cast<size_t>(*top))) {
      json["hottest"].push_back(
          {{"id", static_cast<int64_t>(place.id)}, {"updates", place.updates}});
    }
    all.push_back(std::move(json));
  }
  if (flags->Has("json")) {
    printf("%s\n", all.dump().c_str());
    return 0;
  }
  if (all.empty()) printf("%s has no tables\n", words[0].c_str());
  for (const Json& json : all) {
    std::string hottest;
    for (const Json& row : json["hottest"]) {
      hottest += absl::StrFormat("%s%d (%d)", hottest.empty() ? "" : ", ", row["id"].get<int64_t>(),
                                 row["updates"].get<uint64_t>());
    }
    printf("%s: %s rows of %s elements, %s bytes with moments, %s updates of the table, rule %s\n",
           json["table"].get<std::string>().c_str(), json["rows"].dump().c_str(),
           json["width"].dump().c_str(), json["bytes"].dump().c_str(),
           json["updates"].dump().c_str(), json["rule"].get<std::string>().c_str());
    if (!hottest.empty()) printf("  most often updated: %s\n", hottest.c_str());
  }
  return 0;
}

}  // namespace bdn::cli
