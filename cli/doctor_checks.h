#ifndef BANDONEON_CLI_DOCTOR_CHECKS_H_
#define BANDONEON_CLI_DOCTOR_CHECKS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/tcp_probe.h"

// The checks of `bandoneon doctor`. They are pure: facts come in, findings go out.

namespace bdn::cli {

// The severity of a finding.
enum class Severity { kOk, kNote, kWarning, kError };
const char* SeverityName(Severity severity);  // "ok", "note", "warning", "error"

// A finding of a check, with the remedy.
struct Finding {
  Severity severity = Severity::kOk;
  std::string subject;  // "memlock"
  std::string seen;
  std::string remedy;  // empty where there is nothing to do
};
using Findings = std::vector<Finding>;

// The facts of this machine. A fact that could not be read is empty.
struct MachineFacts {
  std::vector<std::string> cpu_features;  // those for which kernels are built
  std::string server_version;             // the output of `bandoneon-server --version`
  std::string server_failure;             // why there is none
  std::string own_version;
  std::vector<std::pair<std::string, std::string>> libraries;  // name, version
  std::optional<uint64_t> memlock_bytes;                       // UINT64_MAX: no limit
  std::optional<uint64_t> open_files;  // the hard limit, to which daemons raise theirs
  std::optional<uint64_t> huge_pages;  // reserved
  std::string transparent_huge_pages;  // "always", "madvise", "never"
  std::optional<bool> clock_synchronised;
  std::string clock_failure;
  double clock_error_seconds = 0;  // the largest error, as the kernel reckons it
  std::optional<uint64_t> shm_bytes;
  uint64_t shm_free_bytes = 0;
  int processors = 0;                       // cores that this process may run on
  std::optional<double> cgroup_processors;  // cores' worth of time, where that is limited
  uint64_t memory_bytes = 0;
  std::optional<uint64_t> cgroup_memory_bytes;
  std::string devices;  // as bdn_describe_devices has it
  std::vector<std::string> rdma_devices;
  struct Fabric {
    std::string name;     // provider, domain and address
    std::string why_not;  // why it cannot be used; empty where it can
    bool is_rdma = false;
    bool has_device_memory = false;  // whether it offers to register devices' memory (FI_HMEM)
  };
  std::vector<Fabric> fabrics;  // those that libfabric offers
  std::string fabric_failure;   // why they are not known
  struct Interface {
    std::string name;
    int mtu = 0;
  };
  std::vector<Interface> interfaces;  // those that are up, without loopback
};
// Returns the findings about a machine.
Findings CheckMachine(const MachineFacts& facts);

// The facts of the directory in which a scheduler is to keep its journal.
struct JournalFacts {
  std::string directory;
  // The directory itself or, where it is not there, its parent, in which a scheduler makes it. The
  // other facts are of this one.
  std::string looked_at;
  std::string failure;  // why it cannot be looked at
  bool is_directory = false;
  uint32_t owner = 0;
  uint32_t own_user = 0;
  uint32_t mode = 0;
  std::string why_not_writable;  // empty where this user can write
  bool is_in_memory = false;     // whether its file system is a tmpfs or the like
  uint64_t free_bytes = 0;
};
// Returns the findings about a journal's directory.
Findings CheckJournal(const JournalFacts& facts);

// The facts of a job, in the order in which they are looked for; all facts after a failure are
// empty.
struct JobFacts {
  std::string scheduler;     // HOST:PORT
  std::string name_failure;  // why the name has no address
  std::vector<std::pair<std::string, TcpAttempt>>
      attempts;  // one for each address, until one was reached
  bool asked = false;
  int ask_code = 0;  // a status code
  std::string ask_failure;
  bool with_certificates = false;
  std::string status;  // bdn_status_json
  struct Server {
    int rank = 0;  // -1 while it is not known, before all have joined
    std::string address;
    std::string failure;  // why its address or name is of no use
    TcpAttempt attempt;
    std::vector<double> round_trips_ms;  // of further connections, where --rates asks for them
  };
  std::vector<Server> servers;
};
// Returns the findings about a job.
Findings CheckJob(const JobFacts& facts);

// Returns the exit code: 0 where nothing is worse than a note, 1 for warnings, 2 for errors.
int ExitCodeOf(const Findings& findings);
// Returns the findings as text for people.
std::string DescribeFindings(const Findings& findings);
// Returns the findings as JSON: [{"level", "subject", "seen", "remedy"}].
std::string FindingsJson(const Findings& findings);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_DOCTOR_CHECKS_H_
