#include "cli/recording_flags.h"

#include <cstdio>
#include <utility>

#include "cli/plan_file.h"

namespace bdn::cli {
namespace {

// A replay of more takes more than 8 GB of memory.
constexpr uint64_t kMostRecords = 50'000'000;

}  // namespace

absl::StatusOr<RecordingArguments> ParseRecordingArguments(std::span<const Flag> known,
                                                           Arguments args) {
  if (args.empty() || args[0].starts_with('-')) {
    return absl::InvalidArgumentError(
        "which recordings? The directory that setting trace names comes first");
  }
  constexpr std::string_view kRepeated[] = {"set", "codec"};
  auto flags = CommandFlags::Parse(known, args.subspan(1), kRepeated);
  if (!flags.ok()) return flags.status();
  RecordingArguments parsed{.directory = args[0], .flags = *std::move(flags)};
  parsed.selection.job = parsed.flags.Text("job");
  parsed.selection.records.max_records = kMostRecords;
  if (parsed.flags.Has("last")) {
    const auto last = parsed.flags.Duration("last", std::chrono::milliseconds(0));
    if (!last.ok()) return last.status();
    parsed.selection.records.last_ns = std::chrono::nanoseconds(*last).count();
  }
  if (parsed.flags.Has("costs")) {
    auto costs = ReadWholeFile(parsed.flags.Text("costs"));
    if (!costs.ok()) return costs.status();
    parsed.costs = *std::move(costs);
  }
  return parsed;
}

int FailedWith(const char* command, const absl::Status& status) {
  fprintf(stderr, "bandoneon %s: %s\n", command, std::string(status.message()).c_str());
  return 1;
}

int FailedBy(const char* command, const absl::Status& status) {
  const bool is_usage = absl::IsInvalidArgument(status) || absl::IsUnimplemented(status);
  return is_usage ? UsageError(command, status) : FailedWith(command, status);
}

}  // namespace bdn::cli
