#include "cli/doctor_checks.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace bdn::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kContainersShm = 64 * kMiB;  // the default of container engines
constexpr uint64_t kEnoughShm = 512 * kMiB;
// Connections take a few for each worker and server.
constexpr uint64_t kFewestOpenFiles = 4096;
// In seconds. Logs of several machines are compared by their clocks.
constexpr double kMostClockError = 0.1;
constexpr int kJumboMtu = 9000;
// A generation of a journal is no longer than that, and most are far shorter.
constexpr uint64_t kEnoughForJournal = uint64_t{1} << 30;

std::string Size(uint64_t bytes) {
  if (bytes >= (kMiB << 10)) {
    return absl::StrFormat("%.1f GiB",
                           static_cast<double>(bytes) / static_cast<double>(kMiB << 10));
  }
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / static_cast<double>(kMiB));
}

// A list of findings that is being made. Not thread-safe.
class Report {
 public:
  void Ok(std::string subject, std::string seen) { Add(Severity::kOk, subject, seen, ""); }
  void Note(std::string subject, std::string seen, std::string remedy = "") {
    Add(Severity::kNote, subject, seen, remedy);
  }
  void Warn(std::string subject, std::string seen, std::string remedy) {
    Add(Severity::kWarning, subject, seen, remedy);
  }
  void Error(std::string subject, std::string seen, std::string remedy) {
    Add(Severity::kError, subject, seen, remedy);
  }
  // Returns what was found, and begins anew.
  Findings Take() { return std::exchange(findings_, {}); }

 private:
  void Add(Severity severity, const std::string& subject, const std::string& seen,
           const std::string& remedy) {
    findings_.push_back({severity, subject, seen, remedy});
  }
  Findings findings_;
};

void CheckPrograms(const MachineFacts& facts, Report* report) {
  if (facts.server_version.empty()) {
    report->Error("programs", "bandoneon-server does not run: " + facts.server_failure,
                  "install the daemons beside the command, and the libraries that they need");
  } else if (facts.server_version.find(" " + facts.own_version + ",") == std::string::npos) {
    report->Error("programs",
                  absl::StrFormat("the command is %s, and beside it is %s", facts.own_version,
                                  facts.server_version),
                  "one build of all programs, everywhere");
  } else {
    report->Ok("programs", facts.server_version);
  }
  std::vector<std::string> libraries;
  for (const auto& [name, version] : facts.libraries) libraries.push_back(name + " " + version);
  if (!libraries.empty()) report->Ok("libraries", absl::StrJoin(libraries, ", "));
}

void CheckProcessor(const MachineFacts& facts, Report* report) {
  const auto has = [&](const char* feature) {
    return std::find(facts.cpu_features.begin(), facts.cpu_features.end(), feature) !=
           facts.cpu_features.end();
  };
  const size_t at = facts.server_version.find("kernels ");
  const std::string kernels = at == std::string::npos ? "" : facts.server_version.substr(at + 8);
  const std::string seen =
      absl::StrFormat("has %s; kernels run as %s",
                      facts.cpu_features.empty() ? "none of AVX2 and its like"
                                                 : absl::StrJoin(facts.cpu_features, " "),
                      kernels.empty() ? "?" : kernels);
  const bool is_slow = kernels.rfind("SSE", 0) == 0 || kernels == "EMU128" || kernels == "SCALAR";
  if (is_slow && has("avx2")) {
    report->Warn("cpu", seen, "the build leaves out what this processor has: build it here");
  } else if (is_slow) {
    report->Note("cpu", seen, "codecs run at half the width or less of a processor with AVX2");
  } else {
    report->Ok("cpu", seen);
  }
  if (facts.cgroup_processors && *facts.cgroup_processors < facts.processors) {
    const std::string limited =
        absl::StrFormat("%d processors, and the cgroup allows the time of %.2f", facts.processors,
                        *facts.cgroup_processors);
    if (*facts.cgroup_processors < 1) {
      report->Warn("processors", limited, "a process stands still when its time is used: allow 1");
    } else {
      report->Note("processors", limited, "settings threads, shards and io-threads by that number");
    }
  } else {
    report->Ok("processors", absl::StrFormat("%d", facts.processors));
  }
}

void CheckMemory(const MachineFacts& facts, Report* report) {
  if (facts.cgroup_memory_bytes && *facts.cgroup_memory_bytes < facts.memory_bytes) {
    report->Note("memory",
                 absl::StrFormat("%s, of which the cgroup allows %s", Size(facts.memory_bytes),
                                 Size(*facts.cgroup_memory_bytes)),
                 "setting max-bytes of servers below it: over it the kernel kills them");
  } else {
    report->Ok("memory", Size(facts.memory_bytes));
  }
  if (!facts.shm_bytes) {
    report->Warn("/dev/shm", "is not there", "transport=network, or mount a tmpfs there");
  } else {
    const std::string seen =
        absl::StrFormat("%s, %s free", Size(*facts.shm_bytes), Size(facts.shm_free_bytes));
    const std::string more = "more of it (--shm-size of container engines, an emptyDir in memory)";
    if (*facts.shm_bytes == kContainersShm) {
      report->Warn("/dev/shm", seen + ": what containers have unless told otherwise", more);
    } else if (facts.shm_free_bytes < kEnoughShm) {
      report->Warn("/dev/shm", seen, more + ", or remove what fills it");
    } else {
      report->Ok("/dev/shm", seen);
    }
  }
  if (facts.memlock_bytes) {
    const bool no_limit = *facts.memlock_bytes == UINT64_MAX;
    const std::string seen = no_limit ? "no limit" : Size(*facts.memlock_bytes);
    if (no_limit || facts.devices.rfind("GPUs: none", 0) == 0) {
      report->Ok("memlock", seen);
    } else {
      report->Note(
          "memlock", seen,
          "ulimit -l unlimited, or LimitMEMLOCK=infinity, if memory for GPUs is not pinned");
    }
  }
  if (!facts.transparent_huge_pages.empty() || facts.huge_pages) {
    report->Ok(
        "huge pages",
        absl::StrFormat("transparent: %s; reserved: %d",
                        facts.transparent_huge_pages.empty() ? "?" : facts.transparent_huge_pages,
                        facts.huge_pages.value_or(0)));
  }
}

void CheckClock(const MachineFacts& facts, Report* report) {
  const std::string remedy =
      "chrony or systemd-timesyncd, on each host: certificates are valid by it, and logs compared";
  if (!facts.clock_synchronised) {
    report->Note("clock", "cannot be asked: " + facts.clock_failure);
  } else if (!*facts.clock_synchronised) {
    report->Note("clock", "the kernel does not know it as synchronised", remedy);
  } else if (facts.clock_error_seconds > kMostClockError) {
    report->Warn("clock", absl::StrFormat("may be wrong by %.3f s", facts.clock_error_seconds),
                 remedy);
  } else {
    report->Ok("clock", absl::StrFormat("synchronised, to %.3f s", facts.clock_error_seconds));
  }
}

void CheckFabrics(const MachineFacts& facts, Report* report) {
  std::vector<std::string> usable;
  std::vector<std::string> others;
  bool has_rdma = false;
  for (const MachineFacts::Fabric& fabric : facts.fabrics) {
    if (fabric.why_not.empty()) {
      usable.push_back(fabric.name + (fabric.has_device_memory ? " (FI_HMEM)" : ""));
      has_rdma = has_rdma || fabric.is_rdma;
    } else {
      others.push_back(absl::StrFormat("%s (%s)", fabric.name, fabric.why_not));
    }
  }
  const std::string devices = facts.rdma_devices.empty()
                                  ? "no device"
                                  : "devices " + absl::StrJoin(facts.rdma_devices, ", ");
  const std::string seen =
      absl::StrFormat("%s; transport=rdma can take: %s%s%s", devices,
                      usable.empty() ? "nothing" : absl::StrJoin(usable, ", "),
                      others.empty() ? "" : "; not: ", absl::StrJoin(others, ", "));
  if (!facts.fabric_failure.empty()) {
    const std::string failed = absl::StrFormat("%s; %s", devices, facts.fabric_failure);
    if (facts.rdma_devices.empty()) {
      report->Ok("rdma", failed);
    } else {
      report->Note("rdma", failed, "apt-get install libfabric1, or the vendor's own");
    }
  } else if (!facts.rdma_devices.empty() && !has_rdma) {
    report->Note("rdma", seen, "docs/transports.md has what a container and its limits need");
  } else {
    report->Ok("rdma", seen);
  }
}

void CheckNetwork(const MachineFacts& facts, Report* report) {
  std::vector<std::string> seen;
  for (const auto& interface : facts.interfaces) {
    seen.push_back(absl::StrFormat("%s %d", interface.name, interface.mtu));
  }
  const bool small = std::any_of(facts.interfaces.begin(), facts.interfaces.end(),
                                 [](const auto& interface) { return interface.mtu < 1280; });
  if (seen.empty()) {
    report->Note("network", "no interface is up but loopback", "jobs of this machine alone work");
  } else if (small) {
    report->Warn("network", "MTU: " + absl::StrJoin(seen, ", "), "a tunnel? Below 1280 is slow");
  } else {
    report->Ok("network",
               absl::StrFormat(
                   "MTU: %s%s", absl::StrJoin(seen, ", "),
                   std::any_of(facts.interfaces.begin(), facts.interfaces.end(),
                               [](const auto& interface) { return interface.mtu >= kJumboMtu; })
                       ? " (jumbo frames)"
                       : ""));
  }
  CheckFabrics(facts, report);
}

// Returns what to do about a TCP connection that was not made.
std::string WayRemedy(Reached reached, const std::string& what) {
  switch (reached) {
    case Reached::kYes:
      return "";
    case Reached::kRefused:
      return "the host answers, and nothing listens at that port: is " + what +
             " running, and there?";
    case Reached::kNoAnswer:
      return "a firewall drops it, or the host is off: open the port, compare the address";
    case Reached::kUnreachable:
      return "there is no way from here: routes, interface, address";
  }
  return "";
}

std::string WayName(const TcpAttempt& attempt) {
  switch (attempt.reached) {
    case Reached::kYes:
      return absl::StrFormat("answers in %.2f ms", attempt.milliseconds);
    case Reached::kRefused:
      return "refuses the connection";
    case Reached::kNoAnswer:
      return absl::StrFormat("does not answer within %.1f s", attempt.milliseconds / 1e3);
    case Reached::kUnreachable:
      return "cannot be reached: " + attempt.why;
  }
  return "";
}

// Reports each attempt to reach the scheduler. Returns whether one succeeded.
bool CheckWay(const JobFacts& facts, Report* report) {
  if (!facts.name_failure.empty()) {
    report->Error("name", facts.name_failure, "DNS, /etc/hosts, or the address as numbers");
    return false;
  }
  for (const auto& [address, attempt] : facts.attempts) {
    const std::string seen =
        absl::StrFormat("%s (%s) %s", facts.scheduler, address, WayName(attempt));
    if (attempt.reached == Reached::kYes) {
      report->Ok("scheduler", seen);
      return true;
    }
    // A name may have an IPv6 and an IPv4 address of which one works, so only the last failure is
    // an error.
    const bool is_last = &attempt == &facts.attempts.back().second;
    if (is_last) {
      report->Error("scheduler", seen, WayRemedy(attempt.reached, "bandoneon-scheduler"));
    } else {
      report->Note("scheduler", seen);
    }
  }
  return false;
}

bool CheckAnswer(const JobFacts& facts, Report* report) {
  constexpr int kInvalidArgument = 3;
  constexpr int kDeadlineExceeded = 4;
  constexpr int kPermissionDenied = 7;
  constexpr int kUnavailable = 14;
  if (!facts.asked) return false;
  if (facts.ask_code == 0) return true;
  switch (facts.ask_code) {
    case kInvalidArgument:
      report->Error("settings", facts.ask_failure, "as it says");
      break;
    case kPermissionDenied:
      report->Error("trust", facts.ask_failure,
                    "the job's token (--token-file), and a certificate of its authority");
      break;
    case kUnavailable:
    case kDeadlineExceeded:
      report->Error(
          "handshake",
          absl::StrFormat("a connection is made, and no call %s certificates: %s",
                          facts.with_certificates ? "with" : "without", facts.ask_failure),
          facts.with_certificates
              ? "bandoneon certs show for both sides: one job, one authority, valid now; or the "
                "scheduler has none"
              : "the scheduler may ask for certificates (--tls-ca, --tls-cert, --tls-key); or "
                "something else has that port");
      break;
    default:
      report->Error("answer", facts.ask_failure, "is it bandoneon-scheduler, of this build?");
  }
  return false;
}

void CheckServer(const JobFacts::Server& server, Report* report) {
  // A server that was started without a rank gets one when all have joined.
  const std::string subject =
      server.rank < 0 ? "server ?" : absl::StrFormat("server %d", server.rank);
  if (server.address.rfind("tcp://", 0) != 0) {
    report->Note(subject,
                 server.address + " is of its host alone: workers of others do not reach it");
    return;
  }
  if (!server.failure.empty()) {
    report->Error(subject, server.failure, "--advertise of that server: an address workers know");
    return;
  }
  std::string seen = server.address + " " + WayName(server.attempt);
  if (server.attempt.reached != Reached::kYes) {
    report->Error(subject, seen,
                  WayRemedy(server.attempt.reached, "bandoneon-server") +
                      "; --advertise and the port of --listen must lead to it");
    return;
  }
  if (!server.round_trips_ms.empty()) {
    std::vector<double> sorted = server.round_trips_ms;
    std::sort(sorted.begin(), sorted.end());
    seen += absl::StrFormat("; %d connections: median %.3f ms, longest %.3f ms", sorted.size(),
                            sorted[sorted.size() / 2], sorted.back());
  }
  report->Ok(subject, seen);
}

void CheckState(const JobFacts& facts, Report* report) {
  const Json job = Json::parse(facts.status);
  const auto version = job.at("control_version").get<uint32_t>();
  const auto own = job.at("own_control_version").get<uint32_t>();
  if (version != 0 && version != own) {
    report->Error(
        "version",
        absl::StrFormat("the scheduler speaks control version %d, this build %d", version, own),
        "one build of all programs, everywhere");
  } else if (version == own) {
    report->Ok("version", absl::StrFormat("both speak control version %d", own));
  }
  const auto name = job.at("job_id").get<std::string>();
  const auto state = job.at("state").get<std::string>();
  const auto missing = job.at("missing").get<std::string>();
  const auto failure = job.at("failure").get<std::string>();
  if (!failure.empty()) {
    report->Error("job", absl::StrFormat("%s has failed: %s", name, failure),
                  "the log of who is named; docs/troubleshooting.md has the text");
  } else if (!missing.empty()) {
    report->Warn("job", absl::StrFormat("%s waits for %s", name, missing),
                 "start them, or look at their logs: they have not joined");
  } else {
    report->Ok("job", absl::StrFormat("%s is %s", name, state));
  }
}

}  // namespace

const char* SeverityName(Severity severity) {
  constexpr const char* kNames[] = {"ok", "note", "warning", "error"};
  return kNames[static_cast<size_t>(severity)];
}

Findings CheckMachine(const MachineFacts& facts) {
  Report report;
  CheckPrograms(facts, &report);
  CheckProcessor(facts, &report);
  CheckMemory(facts, &report);
  if (facts.open_files) {
    const std::string seen = absl::StrFormat("%d", *facts.open_files);
    if (*facts.open_files < kFewestOpenFiles) {
      report.Warn("open files", seen,
                  "ulimit -Hn, or LimitNOFILE: a few for each worker and server");
    } else {
      report.Ok("open files", seen);
    }
  }
  CheckClock(facts, &report);
  CheckNetwork(facts, &report);
  std::string devices = facts.devices;
  while (!devices.empty() && devices.back() == '\n') devices.pop_back();
  std::replace(devices.begin(), devices.end(), '\n', ';');
  if (!devices.empty()) report.Ok("gpu", devices);
  return report.Take();
}

Findings CheckJournal(const JournalFacts& facts) {
  Report report;
  const std::string another = "name another directory in setting journal";
  const std::string& place = facts.looked_at;
  const bool is_there = place == facts.directory;
  if (!facts.failure.empty()) {
    report.Error("journal", absl::StrFormat("%s cannot be looked at: %s", place, facts.failure),
                 "make it: the scheduler makes its journal's directory, and none above that");
    return report.Take();
  }
  if (!facts.is_directory) {
    report.Error("journal", place + " is no directory", another);
    return report.Take();
  }
  if (is_there && facts.owner != facts.own_user) {
    report.Error("journal",
                 absl::StrFormat("%s belongs to user %d, and this is user %d", place, facts.owner,
                                 facts.own_user),
                 "start this command and the scheduler as one user, or " + another);
    return report.Take();
  }
  if (!facts.why_not_writable.empty()) {
    report.Error("journal",
                 absl::StrFormat("user %d cannot write into %s: %s", facts.own_user, place,
                                 facts.why_not_writable),
                 "give the scheduler's user that right, or " + another);
    return report.Take();
  }
  // The scheduler refuses a directory into which others write, as they could replace the journal.
  const uint32_t of_others = is_there ? facts.mode & 077 : 0;
  const std::string open_to =
      absl::StrFormat("%s has mode %04o: other users may %s", place, facts.mode & 07777,
                      (of_others & 022) != 0 ? "write into it" : "look in");
  if ((of_others & 022) != 0) {
    report.Error("journal", open_to, "chmod 700 " + place);
  } else if (of_others != 0) {
    report.Warn("journal", open_to, "chmod 700 " + place);
  }
  if (facts.is_in_memory) {
    report.Warn("journal", place + " is in memory, and does not outlive a restart of the machine",
                "a directory on a disk, in setting journal");
  }
  const std::string room = absl::StrFormat("%s free", Size(facts.free_bytes));
  if (facts.free_bytes < kEnoughForJournal) {
    report.Warn("journal", absl::StrFormat("%s has %s", place, room),
                "free 1 GiB there, or a directory on a larger disk");
  }
  Findings findings = report.Take();
  if (!findings.empty()) return findings;
  report.Ok("journal", absl::StrFormat("%s %s; %s", facts.directory,
                                       is_there ? "is there" : "can be made", room));
  return report.Take();
}

Findings CheckJob(const JobFacts& facts) {
  Report report;
  if (!CheckWay(facts, &report) || !CheckAnswer(facts, &report)) return report.Take();
  try {
    CheckState(facts, &report);
  } catch (const Json::exception& error) {
    report.Error("answer", absl::StrFormat("is not understood: %s", error.what()),
                 "one build of all programs, everywhere");
  }
  for (const JobFacts::Server& server : facts.servers) CheckServer(server, &report);
  return report.Take();
}

int ExitCodeOf(const Findings& findings) {
  Severity worst = Severity::kOk;
  for (const Finding& finding : findings) worst = std::max(worst, finding.severity);
  return worst == Severity::kError ? 2 : worst == Severity::kWarning ? 1 : 0;
}

std::string DescribeFindings(const Findings& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    absl::StrAppendFormat(&text, "%-8s %-12s %s\n", SeverityName(finding.severity), finding.subject,
                          finding.seen);
    if (!finding.remedy.empty()) {
      absl::StrAppendFormat(&text, "%-8s %-12s -> %s\n", "", "", finding.remedy);
    }
  }
  return text;
}

std::string FindingsJson(const Findings& findings) {
  Json list = Json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"level", SeverityName(finding.severity)},
                    {"subject", finding.subject},
                    {"seen", finding.seen},
                    {"remedy", finding.remedy}});
  }
  return list.dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace bdn::cli
