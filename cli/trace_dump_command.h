#ifndef BANDONEON_CLI_TRACE_DUMP_COMMAND_H_
#define BANDONEON_CLI_TRACE_DUMP_COMMAND_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/commands.h"
#include "trace/job_trace.h"

namespace bdn::cli {

// Returns the flags of a command, and those by which a scheduler is asked for the records of its
// job's nodes.
std::vector<Flag> WithDumpFlags(std::span<const Flag> flags);

// A question for a dump.
struct DumpQuestion {
  std::vector<std::string> settings;  // of the scheduler
  std::string nodes;
  double last_seconds = 0;  // 0: all
  double patience_seconds = 0;
};
// Returns whether arguments, or the environment, name a scheduler.
bool NamesScheduler(Arguments args);
// Reads a question from those flags and --last. InvalidArgument says what is wrong.
absl::StatusOr<DumpQuestion> ReadDumpQuestion(const CommandFlags& flags);

// A node of a dump, once its recording was checked.
struct DumpedTrace {
  std::string job;
  std::string role;  // "worker"
  int32_t rank = 0;
  std::string name;       // "worker 3"
  std::string file_name;  // "worker-3.bdntrace"
  std::string host;
  NodeId node = 0;
  uint32_t nodes = 0;              // of the dump
  uint32_t left_out = 0;           // so many more were asked for
  std::string bytes;               // the recording; empty: it has none that can be read
  std::optional<NodeTrace> trace;  // what it says
  std::string problem;             // empty: it is whole; else a sentence about the node
  bool is_silent = false;          // it did not answer
};

// Asks a scheduler, and calls `take` with each node. An error of `take` is returned once all nodes
// have come; `take` is not called after it.
absl::Status TakeDump(const DumpQuestion& question,
                      const std::function<absl::Status(const DumpedTrace&)>& take);

// The nodes of a dump, joined to one job.
class Dump {
 public:
  void Add(const DumpedTrace& node);
  size_t recordings() const { return traces_.size(); }
  // Returns the job, with the nodes that gave no recording as its absent ones. NotFound where no
  // node gave one.
  absl::StatusOr<JobTrace> Join();

 private:
  std::vector<NodeTrace> traces_;
  std::map<NodeId, AbsentNode> absent_;
  std::vector<std::string> notes_;
};

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_TRACE_DUMP_COMMAND_H_
