#ifndef BANDONEON_COMMON_TELEMETRY_RECORDER_H_
#define BANDONEON_COMMON_TELEMETRY_RECORDER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/config.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/telemetry/link_samples.h"
#include "common/telemetry/recording.h"
#include "common/telemetry/system_samples.h"

namespace bdn {

// The steps that are recorded (setting trace-steps): those from one to another, and of these one of
// so many.
struct TraceSteps {
  Step first = 0;
  Step last = kMaxStep;
  Step every = 1;

  bool Has(Step step) const { return step >= first && step <= last && step % every == 0; }
};
// Parses "" (all), "100-120" or "every 50". InvalidArgument says what is expected.
absl::StatusOr<TraceSteps> ParseTraceSteps(std::string_view text);

struct RecorderOptions {
  uint64_t bytes = 0;             // of memory for the latest records; 0: none are kept there
  std::string directory;          // of a file with all records; empty: none is made
  uint64_t max_file_bytes = 0;    // then later records take the place of the oldest ones
  TraceSteps steps;               // what belongs to no step is recorded always
  std::string trouble_directory;  // of files that are written when an exchange is late or fails
  // The settings that were given for this process, by name. Readers of a recording see them.
  std::vector<std::pair<std::string, std::string>> settings;
};
// Reads recorder-bytes, trace, trace-bytes, trace-steps and recorder-dir.
absl::StatusOr<RecorderOptions> ReadRecorderOptions(const Config& config);

// The place of a process in its job, for a recording's facts (docs/trace_format.md).
struct RecorderFacts {
  std::string job;
  std::string role;  // "worker", "server" or "process"
  std::string host;
  Rank rank = 0;
  NodeId node = 0;
  std::vector<NodeId> workers;  // by rank, as `servers`
  std::vector<NodeId> servers;
};

// The latest spans of a process: in memory or, with a directory, in a file that has all that was
// recorded when the process is killed. Recording takes no lock and makes no system call, but for
// one in some hundred records. A forked child records nothing. Thread-safe.
class Recorder {
 public:
  // Returns null where neither memory nor a directory is asked for. A directory that cannot be
  // written is no error, nor is a lack of memory: a warning says so, and records go to memory, or
  // nowhere.
  static std::unique_ptr<Recorder> Open(const RecorderOptions& options, const RecorderFacts& facts);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Adds a record; its member `thread` is filled in here.
  void Add(const TraceRecord& record) {
    if (record.step != 0 && !steps_.Has(record.step)) return;
    if (Recording::Writer* const writer = WriterOfThread()) recording_->Add(writer, record);
  }
  // Names a key; all names but a key's first are ignored.
  void Name(uint64_t key, std::string_view name) { recording_->Name(key, name); }
  // Returns the number that stands for a text in records of kind kUser.
  uint64_t NumberOf(std::string_view text);
  // Samples clocks, threads, the machine and links. The recorder's own thread does that each
  // second.
  void Sample();
  // Asks `links` for what the links to other nodes have carried, now and with each sample from now
  // on. Null: takes a last sample of them; the former function does not run any more afterwards.
  using LinkSource = std::function<std::vector<LinkTotals>()>;
  void SetLinks(LinkSource links);
  // Writes what is recorded to a new file of `directory`, and returns its path.
  absl::StatusOr<std::string> WriteTo(const std::string& directory) const {
    return recording_->WriteTo(directory);
  }
  // Reads the clocks, and returns the newest records as a recording of at most so many bytes: those
  // that ended so long before the newest one, or later. It may take some ms. Errors are those of
  // Recording::Latest.
  absl::StatusOr<std::string> Latest(uint64_t most_bytes, absl::Duration last);
  // Does WriteTo with setting recorder-dir, at most once a minute; does nothing without one, or
  // where all is in a file already. Logs the path, and `why`.
  void WriteOnTrouble(std::string_view why);
  const std::string& path() const { return recording_->path(); }  // empty: in memory

 private:
  Recorder(const RecorderOptions& options, std::unique_ptr<Recording> recording);

  // Returns null in a forked child.
  Recording::Writer* WriterOfThread();
  // Stores a pair of clocks, and returns the monotonic one.
  int64_t SampleClocks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(sampling_);
  void SampleLinks(int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(sampling_);
  void AddSamples(const std::vector<TraceRecord>& records);
  void Run();

  // Shared with the threads that have recorded, which give their blocks back when they end.
  const std::shared_ptr<Recording> recording_;
  const TraceSteps steps_;
  const std::string trouble_directory_;
  const int forks_;  // before which it was made
  Mutex sampling_;
  SystemSamples samples_ ABSL_GUARDED_BY(sampling_);
  LinkSamples link_samples_ ABSL_GUARDED_BY(sampling_);
  LinkSource links_ ABSL_GUARDED_BY(sampling_);
  Mutex mu_;
  CondVar wake_;
  bool is_ending_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time next_trouble_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  std::map<std::string, uint64_t, std::less<>> texts_ ABSL_GUARDED_BY(mu_);
  std::thread sampler_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_RECORDER_H_
