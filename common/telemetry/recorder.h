#ifndef BANDONEON_COMMON_TELEMETRY_RECORDER_H_
#define BANDONEON_COMMON_TELEMETRY_RECORDER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/telemetry/trace_layout.h"

namespace bdn {

// The steps that are recorded (setting trace-steps): all, those from one to another, or one of so
// many.
struct TraceSteps {
  Step first = 0;
  Step last = ~Step{0};
  Step every = 1;

  bool Has(Step step) const { return step >= first && step <= last && step % every == 0; }
};
// Parses "", "100-120" or "every 50". InvalidArgument says what is expected.
absl::StatusOr<TraceSteps> ParseTraceSteps(std::string_view text);

struct RecorderOptions {
  uint64_t bytes = 0;      // of memory for the latest records; 0: nothing is recorded there
  std::string directory;   // where a file with all records is made; empty: none is
  uint64_t max_bytes = 0;  // of that file; later records take the place of the oldest ones
  TraceSteps steps;        // what has no step is recorded always
};

// What a recording says about its process (docs/trace_format.md, Facts).
struct RecorderFacts {
  std::string job;
  std::string role;
  std::string host;
  std::string version;
  Rank rank = 0;
  NodeId node = 0;
  std::vector<NodeId> workers;  // by rank, as `servers`
  std::vector<NodeId> servers;
  std::vector<std::pair<std::string, std::string>> settings;
};

// The latest spans of a process, in memory or, with a directory, in a file that loses nothing when
// the process is killed. Recording takes no lock and makes no system call, but for one in some
// thousand records. Each thread fills a block of its own and then takes the oldest block that no
// thread holds, so a busy thread keeps more records than an idle one. docs/trace_format.md defines
// the bytes. A forked child records nothing. Thread-safe.
class Recorder {
 public:
  // Returns null where neither memory nor a directory is asked for. A directory that cannot be
  // written is no error: a warning says so, and records go to memory.
  static std::unique_ptr<Recorder> Open(const RecorderOptions& options, const RecorderFacts& facts);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Adds a record; `record.thread` is filled in here. Costs about 20 ns.
  void Add(TraceRecord record);
  // Says what a key is called. Only the first name of a key is kept.
  void Name(uint64_t key, std::string_view name);
  // Returns the number of a mark's text, which Name has told.
  uint64_t NumberOf(std::string_view text);
  // Samples clocks, threads and the machine, which the recorder's own thread does each second.
  void Sample();
  // Writes the recording as it is now to a new file of `directory`, and returns its path. Records
  // that are overwritten meanwhile are left out.
  absl::StatusOr<std::string> WriteTo(const std::string& directory) const;
  // The path of its file; empty where it is in memory.
  const std::string& path() const;

 private:
  class State;  // it outlives the recorder while a thread that has recorded lives
  explicit Recorder(std::shared_ptr<State> state);

  const std::shared_ptr<State> state_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_RECORDER_H_
