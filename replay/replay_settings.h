#ifndef BANDONEON_REPLAY_REPLAY_SETTINGS_H_
#define BANDONEON_REPLAY_REPLAY_SETTINGS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"

namespace bdn {

// The changes that a replay makes. Members that are empty stay as they were recorded.
struct ReplaySettings {
  std::optional<double> link;  // bytes a second, each way of each node
  std::string push;            // canonical specs
  std::string pull;
  std::optional<uint64_t> partition_bytes;
  std::optional<uint64_t> max_bytes_in_flight;
  std::optional<uint64_t> fusion_bytes;
  std::optional<uint32_t> servers;
  std::optional<uint32_t> threads;  // of each worker
  std::optional<uint32_t> shards;   // of each server
  std::vector<Rank> drop;           // workers to leave out
  bool median = false;              // each operation takes its median
  std::optional<uint32_t> workers;
  // The settings as they were given, for people: "link=100mbit".
  std::vector<std::string> texts;

  bool IsEmpty() const { return texts.empty(); }
};

// Reads settings as "link=100mbit", "drop=3" or "median". InvalidArgument shows the part that is
// wrong with a caret, and lists the settings that a replay can predict; Unimplemented names one
// that the job has and a replay cannot predict, and says why.
absl::Status AddReplaySetting(const std::string& text, ReplaySettings* settings);

// Returns a line for each setting that a replay can predict, for helps.
std::string DescribeReplaySettings();

}  // namespace bdn

#endif  // BANDONEON_REPLAY_REPLAY_SETTINGS_H_
