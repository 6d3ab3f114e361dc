#ifndef BANDONEON_TRACE_TRACE_FILE_H_
#define BANDONEON_TRACE_TRACE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/telemetry/trace_layout.h"

namespace bdn {

// What a recording says about the process that wrote it (docs/trace_format.md, Facts). All texts
// are free of control characters.
struct TraceFacts {
  std::string job;
  std::string role;  // "worker", "server" or "process"
  std::string host;
  std::string boot_id;  // empty where the system tells none
  std::string version;
  Rank rank = 0;
  NodeId node = 0;
  int64_t pid = 0;
  int64_t cores = 0;
  std::vector<NodeId> workers;  // by rank; 0 for a vacant rank
  std::vector<NodeId> servers;
  std::vector<std::pair<std::string, std::string>> settings;

  // Returns "worker 3", or "process 3 (pid 4711)" of one that takes part through a daemon.
  std::string Name() const;
};

// The recording of one process, checked and in order of time.
struct NodeTrace {
  std::string path;
  TraceFacts facts;
  std::vector<TraceClockPair> clocks;  // by monotonic time
  std::vector<TraceThread> threads;    // their names are plain text that ends in a zero
  std::unordered_map<uint64_t, std::string> names;
  std::vector<TraceRecord> records;  // by begin; each ends at or before kMaxTraceNs
  int64_t ended_ns = 0;              // 0 where the recording was not closed in order

  // What is missing.
  uint64_t blocks_overwritten = 0;  // while they were read
  uint64_t bytes_cut = 0;           // of the last block, at the end of the file
  uint64_t records_unknown = 0;     // of kinds that this reader does not know
  uint64_t records_bad = 0;         // with numbers that cannot be
  uint64_t records_early = 0;       // left out as TraceSelection asks
  uint64_t records_lost = 0;        // that found no room, as the writer says
  uint64_t names_lost = 0;

  // Returns the name of a key: that of its tensor, or its number where the file has none.
  std::string NameOf(uint64_t key) const;
  // Returns the latest time at which the process is known to have lived; 0 where nothing says so.
  int64_t LastSign() const;
};

// No time of a recording is later: sums of a few times do not overflow.
inline constexpr int64_t kMaxTraceNs = int64_t{1} << 60;

inline int64_t EndOf(const TraceRecord& record) {
  return record.begin_ns + static_cast<int64_t>(record.wall_ns);
}

// The records to read.
struct TraceSelection {
  // Only records that ended so many ns before the last one of the file, or later.
  int64_t last_ns = kMaxTraceNs;
  // ResourceExhausted where a file has more than so many of them.
  uint64_t max_records = std::numeric_limits<uint64_t>::max();
};

// The bytes of a recording. A writer may change them while they are read. Not thread-safe.
class TraceBytes {
 public:
  virtual ~TraceBytes() = default;
  virtual uint64_t size() const = 0;
  // Copies bytes from `offset` on. DataLoss where there are fewer.
  virtual absl::Status Read(uint64_t offset, std::span<std::byte> to) const = 0;
};

// Reads a recording, of which nothing is trusted. DataLoss where the bytes are no recording, or one
// cut off before its first block; Unimplemented where they are of another version. Messages do not
// name the file.
absl::StatusOr<NodeTrace> ReadTrace(const TraceBytes& bytes, const TraceSelection& selection = {});
// The same of bytes in memory.
absl::StatusOr<NodeTrace> ReadTrace(std::span<const std::byte> bytes,
                                    const TraceSelection& selection = {});
// The same of a file, which errors name.
absl::StatusOr<NodeTrace> ReadTraceFile(const std::string& path,
                                        const TraceSelection& selection = {});
// Reads the facts alone.
absl::StatusOr<TraceFacts> ReadTraceFacts(const std::string& path);

// Returns the name of a kind, as docs/trace_format.md has it; empty of an unknown one.
std::string_view TraceKindName(uint8_t kind);

// Returns a text without control characters and bytes that are no UTF-8, each of which becomes '?',
// and cut to 200 bytes.
std::string PlainText(std::string_view text);

}  // namespace bdn

#endif  // BANDONEON_TRACE_TRACE_FILE_H_
