#include "cli/trace_dump_command.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/byte_text.h"
#include "common/base/file_descriptor.h"
#include "trace/hang_report.h"
#include "worker/c_api/bandoneon.h"

namespace bdn::cli {
namespace {

constexpr char kName[] = "trace dump";
// In a dump of more nodes only those are named whose recording is missing.
constexpr uint32_t kMostNodesNamed = 16;
// Between two nodes' answers rounds may look open that are not.
constexpr double kOpenSeconds = 1;

constexpr Flag kOwnFlags[] = {
    {"output", 'o', "DIR", "where to write: a new directory, or one without recordings"},
    {"last", 0, "TIME", "of each node only what it recorded in so long [all that fits]"},
};
constexpr Flag kDumpFlags[] = {
    {"scheduler", 0, "HOST:PORT", "where the scheduler listens [$BANDONEON_SCHEDULER]"},
    {"nodes", 0, "LIST", "of which nodes: workers, servers, worker-3 or worker-8..15 [all]"},
    {"timeout", 0, "TIME", "how long a node that sends nothing is waited for [5s]"},
};
constexpr char kUsageText[] =
    "usage: bandoneon trace dump --scheduler HOST:PORT -o DIR [options]\n\n"
    "Asks the scheduler of a job that runs or hangs for what its nodes recorded last, and writes a "
    "file for\neach of them: up to 1 MiB a node, of up to 64 nodes. Names the nodes that do not "
    "answer, and, where an\nexchange is open, whom all wait for.\n";
constexpr char kExamples[] =
    "  bandoneon trace dump --scheduler 127.0.0.1:7000 -o dump\n"
    "  bandoneon trace dump --scheduler 127.0.0.1:7000 -o dump --last 30s --nodes "
    "servers,worker-0..7\n"
    "  bandoneon trace explain dump\n";

// Returns a text as a recording has it: bytes that are no UTF-8 are replaced when it is written.
std::string AsRecorded(const std::string& text) {
  using Json = nlohmann::json;
  const std::string written = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  return PlainText(Json::parse(written).get<std::string>());
}

// Reads what a node has sent. Nothing is believed of it, so a node cannot speak for another one.
absl::StatusOr<NodeTrace> ReadChecked(const bdn_dumped_node& node, const std::string& bytes) {
  absl::StatusOr<NodeTrace> trace = ReadTrace(std::as_bytes(std::span(bytes)));
  if (!trace.ok()) return trace;
  const TraceFacts& facts = trace->facts;
  if (facts.role == node.role && facts.rank == node.rank && facts.node == node.node &&
      facts.job == AsRecorded(node.job)) {
    return trace;
  }
  return absl::DataLossError(absl::StrFormat("it is one of %s of job '%s' (node %d)", facts.Name(),
                                             facts.job, facts.node));
}

DumpedTrace Check(const bdn_dumped_node& node) {
  DumpedTrace checked{.job = PlainText(node.job),
                      .role = node.role,
                      .rank = node.rank,
                      .name = absl::StrFormat("%s %d", node.role, node.rank),
                      .file_name = absl::StrFormat("%s-%d%s", node.role, node.rank, kTraceSuffix),
                      .host = PlainText(node.host),
                      .node = node.node,
                      .nodes = node.nodes,
                      .left_out = node.nodes_left_out,
                      .problem = PlainText(node.failure)};
  if (node.recording_bytes == 0) {
    checked.is_silent = node.code == BDN_DEADLINE_EXCEEDED;
    return checked;
  }
  std::string bytes(static_cast<const char*>(node.recording), node.recording_bytes);
  absl::StatusOr<NodeTrace> trace = ReadChecked(node, bytes);
  if (trace.ok()) {
    trace->path = checked.file_name;
    checked.trace = *std::move(trace);
    checked.bytes = std::move(bytes);
  } else {
    const char* const before = checked.problem.empty() ? "" : "; ";
    absl::StrAppend(&checked.problem, before,
                    "its recording is not taken: ", std::string(trace.status().message()));
  }
  return checked;
}

// The callback of the C interface.
struct Taker {
  const std::function<absl::Status(const DumpedTrace&)>& take;
  absl::Status status = absl::OkStatus();
};
void OnNode(void* context, const bdn_dumped_node* node) {
  auto* const taker = static_cast<Taker*>(context);
  if (taker->status.ok()) taker->status = taker->take(Check(*node));
}

// ---- the directory

// A directory for a dump, which is made where it is not there, and removed where nothing was put
// into it.
class DumpDirectory {
 public:
  // NotFound, PermissionDenied or AlreadyExists says what is wrong.
  static absl::StatusOr<std::unique_ptr<DumpDirectory>> Open(const std::string& path) {
    const bool is_new = mkdir(path.c_str(), 0777) == 0;
    if (!is_new && errno != EEXIST) {
      return absl::NotFoundError(
          absl::StrFormat("directory %s cannot be made: %s", path, strerror(errno)));
    }
    FileDescriptor directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!directory.is_open() || faccessat(directory.get(), ".", W_OK | X_OK, AT_EACCESS) != 0) {
      return absl::PermissionDeniedError(
          absl::StrFormat("%s cannot be written: %s", path, strerror(errno)));
    }
    if (const std::string there = RecordingIn(path); !there.empty()) {
      return absl::AlreadyExistsError(absl::StrFormat(
          "%s has recordings already (%s), which the new ones would be mixed with: name another "
          "directory",
          path, there));
    }
    return std::unique_ptr<DumpDirectory>(new DumpDirectory(path, std::move(directory), is_new));
  }
  ~DumpDirectory() {
    if (is_new_ && written_ == 0) (void)rmdir(path_.c_str());
  }
  DumpDirectory(const DumpDirectory&) = delete;
  DumpDirectory& operator=(const DumpDirectory&) = delete;

  absl::Status Write(const std::string& name, const std::string& bytes) {
    const FileDescriptor file(openat(directory_.get(), name.c_str(),
                                     O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.is_open()) return Failure(name);
    ++written_;
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t some = write(file.get(), bytes.data() + at, bytes.size() - at);
      if (some < 0 && errno == EINTR) continue;
      if (some <= 0) return Failure(name);
      at += static_cast<size_t>(some);
    }
    return absl::OkStatus();
  }

 private:
  DumpDirectory(std::string path, FileDescriptor directory, bool is_new)
      : path_(std::move(path)), directory_(std::move(directory)), is_new_(is_new) {}

  // Returns the name of a recording in a directory; empty: there is none.
  static std::string RecordingIn(const std::string& path) {
    const std::unique_ptr<DIR, int (*)(DIR*)> listing(opendir(path.c_str()), closedir);
    while (const dirent* entry = listing == nullptr ? nullptr : readdir(listing.get())) {
      if (absl::EndsWith(entry->d_name, kTraceSuffix)) return PlainText(entry->d_name);
    }
    return "";
  }

  absl::Status Failure(const std::string& name) const {
    return absl::UnavailableError(
        absl::StrFormat("%s/%s cannot be written: %s", path_, name, strerror(errno)));
  }

  const std::string path_;
  const FileDescriptor directory_;
  const bool is_new_;
  size_t written_ = 0;
};

// ---- what is printed

std::string LineOf(const DumpedTrace& node) {
  const std::string who = absl::StrFormat("%s (%s)", node.name, node.host);
  if (!node.trace) return absl::StrFormat("%s: no recording: %s", who, node.problem);
  const std::vector<TraceRecord>& records = node.trace->records;
  const int64_t first = records.empty() ? 0 : records.front().begin_ns;
  const int64_t last = records.empty() ? 0 : node.trace->LastSign();
  const std::string what =
      absl::StrFormat("%d records of %.1f s, %s", records.size(),
                      static_cast<double>(last - first) * 1e-9, ByteText(node.bytes.size()));
  if (node.problem.empty()) return absl::StrFormat("%s: %s", who, what);
  return absl::StrFormat("%s: cut off after %s: %s", who, what, node.problem);
}

// The nodes of a dump: their number, how many more were asked for, and the last one of its order,
// servers by rank and then workers by rank.
struct Extent {
  uint32_t nodes = 0;
  uint32_t left_out = 0;
  std::pair<std::string, int32_t> last;  // role and rank

  void Take(const DumpedTrace& node) {
    nodes = node.nodes;
    left_out = node.left_out;
    last = std::max(last, std::pair(node.role, node.rank));  // "server" is less than "worker"
  }
};

// The end of the command: what came, what to do next, and whom all wait for.
void PrintEnd(const std::string& directory, Dump* dump, const Extent& extent) {
  const auto job = dump->Join();
  const std::string of_job = job.ok() ? absl::StrFormat(" of job '%s'", job->job) : "";
  printf("%zu of %u recordings%s are in %s\n", dump->recordings(), extent.nodes, of_job.c_str(),
         directory.c_str());
  if (extent.left_out > 0) {
    const auto& [role, rank] = extent.last;
    printf(
        "note: %u more nodes were not asked, because a dump has 64 at most: --nodes names others, "
        "as %s-%d..%d\n",
        extent.left_out, role.c_str(), rank + 1, rank + 64);
  }
  if (!job.ok()) return;
  printf("Next: bandoneon trace explain %s, or trace hang, or trace merge -o job.pftrace\n",
         directory.c_str());
  const HangReport report = ExplainHang(*job);
  int64_t newest = 0;
  for (const JobNode& node : job->nodes) newest = std::max(newest, node.trace.LastSign());
  const bool is_open =
      std::any_of(report.rounds.begin(), report.rounds.end(), [&](const OpenRound& round) {
        return static_cast<double>(newest - round.since_ns) * 1e-9 > kOpenSeconds;
      });
  if (is_open) printf("%s\n", report.sentence.c_str());
}

}  // namespace

std::vector<Flag> WithDumpFlags(std::span<const Flag> flags) {
  std::vector<Flag> all(flags.begin(), flags.end());
  all.insert(all.end(), std::begin(kDumpFlags), std::end(kDumpFlags));
  return WithCredentials(all);
}

bool NamesScheduler(Arguments args) {
  const auto is_flag = [](const std::string& arg) {
    return arg == "--scheduler" || arg.starts_with("--scheduler=");
  };
  return std::any_of(args.begin(), args.end(), is_flag) || getenv("BANDONEON_SCHEDULER") != nullptr;
}

absl::StatusOr<DumpQuestion> ReadDumpQuestion(const CommandFlags& flags) {
  using std::chrono::duration;
  const auto patience = flags.Duration("timeout", std::chrono::seconds(5));
  if (!patience.ok()) return patience.status();
  const auto last = flags.Duration("last", std::chrono::milliseconds(0));
  if (!last.ok()) return last.status();
  return DumpQuestion{.settings = SchedulerSettings(flags),
                      .nodes = flags.Text("nodes"),
                      .last_seconds = duration<double>(*last).count(),
                      .patience_seconds = duration<double>(*patience).count()};
}

absl::Status TakeDump(const DumpQuestion& question,
                      const std::function<absl::Status(const DumpedTrace&)>& take) {
  std::vector<const char*> texts;
  for (const std::string& setting : question.settings) texts.push_back(setting.c_str());
  const bdn_options options = {sizeof(bdn_options), texts.data(), texts.size()};
  Taker taker{.take = take};
  const int code = bdn_dump_traces(&options, question.nodes.c_str(), question.last_seconds,
                                   question.patience_seconds, OnNode, &taker);
  return code == BDN_OK ? taker.status : LastError(code);
}

void Dump::Add(const DumpedTrace& node) {
  if (node.trace) {
    traces_.push_back(*node.trace);
  } else {
    absent_[node.node] = {.name = node.name, .why = node.problem, .is_silent = node.is_silent};
  }
  if (!node.problem.empty()) {
    notes_.push_back(absl::StrFormat("%s (%s): %s", node.name, node.host, node.problem));
  }
}

absl::StatusOr<JobTrace> Dump::Join() {
  if (traces_.empty()) {
    std::string why = "no node gave a recording";
    for (const std::string& note : notes_) absl::StrAppend(&why, "; ", note);
    return absl::NotFoundError(why);
  }
  absl::StatusOr<JobTrace> job = JoinTraces(traces_);
  if (!job.ok()) return job;
  job->absent = absent_;
  job->warnings.insert(job->warnings.end(), notes_.begin(), notes_.end());
  return job;
}

int TraceDumpCommand(Arguments args) {
  const std::vector<Flag> known = WithDumpFlags(kOwnFlags);
  if (PrintedHelp(args, kUsageText, known, kExamples)) return 0;
  const auto flags = CommandFlags::Parse(known, args);
  if (!flags.ok()) return UsageError(kName, flags.status());
  if (!NamesScheduler(args)) {
    return UsageError(kName, absl::InvalidArgumentError("which scheduler? say --scheduler"));
  }
  const std::string path = flags->Text("output");
  if (path.empty()) {
    return UsageError(kName, absl::InvalidArgumentError("into which directory? say -o DIR"));
  }
  const auto question = ReadDumpQuestion(*flags);
  if (!question.ok()) return UsageError(kName, question.status());
  const auto failed = [&](const absl::Status& status) {
    fprintf(stderr, "bandoneon %s: %s%s\n", kName, std::string(status.message()).c_str(),
            TokenHint(*flags, status).c_str());
    return 1;
  };
  const auto directory = DumpDirectory::Open(path);
  if (!directory.ok()) return failed(directory.status());
  Dump dump;
  Extent extent;
  const absl::Status taken = TakeDump(*question, [&](const DumpedTrace& node) {
    extent.Take(node);
    absl::Status written;
    if (node.trace) written = (*directory)->Write(node.file_name, node.bytes);
    if (!written.ok()) return written;
    dump.Add(node);
    if (extent.nodes <= kMostNodesNamed || !node.problem.empty())
      printf("%s\n", LineOf(node).c_str());
    fflush(stdout);
    return absl::OkStatus();
  });
  if (extent.nodes > 0) PrintEnd(path, &dump, extent);
  fflush(stdout);
  if (!taken.ok()) return failed(taken);
  if (dump.recordings() > 0) return 0;
  return failed(absl::NotFoundError("no node gave a recording"));
}

}  // namespace bdn::cli
