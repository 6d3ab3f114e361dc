#ifndef BANDONEON_CLI_DOCTOR_CHECKS_H_
#define BANDONEON_CLI_DOCTOR_CHECKS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/tcp_probe.h"

// What `bandoneon doctor` makes of what it has seen. Pure: facts come in, findings go out.

namespace bdn::cli {

enum class Severity { kOk, kNote, kWarning, kError };
const char* SeverityName(Severity severity);  // "ok", "note", "warning", "error"

struct Finding {
  Severity severity = Severity::kOk;
  std::string subject;  // "memlock"
  std::string seen;
  std::string remedy;  // empty where there is nothing to do
};
using Findings = std::vector<Finding>;

// What a machine says of itself. What could not be read is empty.
struct MachineFacts {
  std::vector<std::string> cpu_features;  // of those that kernels are built for
  std::string server_version;             // what `bandoneon-server --version` printed
  std::string server_failure;             // why it printed nothing
  std::string own_version;
  std::vector<std::pair<std::string, std::string>> libraries;  // name, version
  std::optional<uint64_t> memlock_bytes;                       // UINT64_MAX: no limit
  std::optional<uint64_t> open_files;  // the hard limit, to which daemons raise theirs
  std::optional<uint64_t> huge_pages;  // reserved ones
  std::string transparent_huge_pages;  // "always", "madvise", "never"
  std::optional<bool> clock_synchronised;
  std::string clock_failure;
  double clock_error_seconds = 0;  // at most, as the kernel has it
  std::optional<uint64_t> shm_bytes;
  uint64_t shm_free_bytes = 0;
  int processors = 0;                       // that this process may run on
  std::optional<double> cgroup_processors;  // of its time, where that is limited
  uint64_t memory_bytes = 0;
  std::optional<uint64_t> cgroup_memory_bytes;
  std::string devices;  // as bdn_describe_devices
  std::vector<std::string> rdma_devices;
  struct Fabric {
    std::string name;     // provider, domain and address
    std::string why_not;  // it cannot be used; empty where it can
    bool is_rdma = false;
    bool has_device_memory = false;  // it offers to register it (FI_HMEM)
  };
  std::vector<Fabric> fabrics;  // what libfabric offers
  std::string fabric_failure;   // why that is not known
  struct Interface {
    std::string name;
    int mtu = 0;
  };
  std::vector<Interface> interfaces;  // that are up, but for loopback
};
Findings CheckMachine(const MachineFacts& facts);

// What was seen of a job, in the order in which it was looked for; what comes after a failure is empty.
struct JobFacts {
  std::string scheduler;     // HOST:PORT
  std::string name_failure;  // why the name has no address
  std::vector<std::pair<std::string, TcpAttempt>>
      attempts;  // at each address, until one was reached
  bool asked = false;
  int ask_code = 0;  // a status code
  std::string ask_failure;
  bool with_certificates = false;
  std::string status;  // bdn_status_json
  struct Server {
    int rank = 0;  // -1: not known before all have joined
    std::string address;
    std::string failure;  // of its address or its name
    TcpAttempt attempt;
    std::vector<double> round_trips_ms;  // of more connections, where rates were asked for
  };
  std::vector<Server> servers;
};
Findings CheckJob(const JobFacts& facts);

// 0: nothing worse than a note; 1: warnings; 2: errors.
int ExitCodeOf(const Findings& findings);
std::string DescribeFindings(const Findings& findings);
// [{"level", "subject", "seen", "remedy"}]
std::string FindingsJson(const Findings& findings);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_DOCTOR_CHECKS_H_
