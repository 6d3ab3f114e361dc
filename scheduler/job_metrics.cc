#include "scheduler/job_metrics.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"

namespace bdn {
namespace {

constexpr auto kCounter = Metric::Kind::kCounter;
constexpr auto kGauge = Metric::Kind::kGauge;

constexpr Family kState = {"job_state", kGauge, "The job is in the state whose value is 1.",
                           "state"};
constexpr Family kJobs = {"jobs", kCounter, "So many jobs have ended, by result.", "result"};
constexpr Family kExpected = {
    "nodes_expected", kGauge,
    "The job has all nodes with which it begins once so many have joined, by role.", "role"};
constexpr Family kNodes = {"nodes", kGauge, "So many nodes have joined and not left, by role.",
                           "role"};
constexpr Family kLeases = {
    "lease_age_seconds", kGauge,
    "The node was heard so long ago; only the nodes not heard for longest are shown.", "node"};
constexpr Family kLeaseTimeout = {"lease_timeout_seconds", kGauge,
                                  "A node is lost when it was not heard for so long."};
constexpr Family kLost = {"workers_lost", kGauge,
                          "The job has so many workers fewer than it began with, and goes on."};
constexpr Family kServersLost = {
    "servers_lost", kGauge,
    "So many servers were lost and none has come in their place, and the job goes on."};
constexpr Family kEpoch = {"epoch", kGauge,
                           "The membership has this number; it rises with each change."};
constexpr Family kJournalBytes = {"journal_bytes", kGauge, "The journal has so many bytes."};
constexpr Family kJournalFailing = {
    "journal_failing", kGauge,
    "This is 1 while the journal cannot be written, and nothing about the job can change."};
constexpr Family kStep = {"job_step", kGauge, "This step is the highest that a node has reported."};
constexpr Family kTensors = {"tensors", kGauge,
                             "So many tensors are declared, broadcasts included."};
constexpr Family kKeys = {"keys", kGauge,
                          "The declared tensors are cut and fused into so many keys."};
constexpr Family kRefusals = {
    "refusals", kCounter,
    "So many calls were not served, and connections came to nothing or had to wait, by reason.",
    "reason"};
constexpr Family kSuspects = {
    "suspect", kGauge, "So many nodes, or hosts, are found to slow the job, by kind.", "kind"};
constexpr Family kRequests = {"requests", kCounter,
                              "So many requests were read, of callers with the job's secret."};

std::string NameOf(const NodeInfo& node) {
  return absl::StrFormat("%s %d", node.role == Role::kServer ? "server" : "worker", node.rank);
}

std::vector<Series> StatesOf(Job::State now) {
  constexpr std::pair<Job::State, const char*> kStates[] = {{Job::State::kWaiting, "waiting"},
                                                            {Job::State::kRunning, "running"},
                                                            {Job::State::kFailed, "failed"},
                                                            {Job::State::kDone, "done"}};
  std::vector<Series> all;
  for (const auto& [state, name] : kStates) all.push_back({name, state == now ? 1.0 : 0.0});
  return all;
}

std::vector<Series> NodesOf(const Job& job) {
  double workers = 0;
  double servers = 0;
  for (const auto& [id, member] : job.table().members()) {
    if (member.is_here() && !member.is_candidate)
      (member.info.role == Role::kServer ? servers : workers) += 1;
  }
  return {{"server", servers}, {"worker", workers}};
}

// Returns the ages of leases of a job that runs: a node that waits for others to join has no rank
// yet.
std::vector<Series> LeasesOf(const Job& job, absl::Time now) {
  std::vector<Series> all;
  if (job.state() != Job::State::kRunning) return all;
  for (const auto& [id, member] : job.table().members()) {
    if (!member.is_here() || member.is_candidate) continue;
    all.push_back({NameOf(member.info), absl::ToDoubleSeconds(now - member.last_heard)});
  }
  KeepLargest(&all);
  return all;
}

double StepOf(const Job& job) {
  Step highest = 0;
  for (const auto& [id, member] : job.table().members()) {
    highest = std::max(highest, member.progress.step);
  }
  return static_cast<double>(highest);
}

std::vector<Series> SuspectsOf(const Job& job) {
  std::vector<Series> all;
  for (size_t i = 0; i < kNumSuspectKinds; ++i) {
    const auto kind = static_cast<SuspectKind>(i);
    const auto& suspects = job.watch().suspects();
    all.push_back({std::string(SuspectKindName(kind)),
                   static_cast<double>(std::count_if(
                       suspects.begin(), suspects.end(),
                       [kind](const auto& entry) { return entry.first.second == kind; }))});
  }
  return all;
}

}  // namespace

JobsEnded::JobsEnded(Registry* registry)
    : source_(registry->AddFamily(&kJobs, [this] {
        return std::vector<Series>{
            {"done", static_cast<double>(done_.load(std::memory_order_relaxed))},
            {"failed", static_cast<double>(failed_.load(std::memory_order_relaxed))}};
      })) {}

std::vector<std::unique_ptr<Registry::Source>> AddJobMetrics(SchedulerService* service,
                                                             Registry* registry) {
  std::vector<std::unique_ptr<Registry::Source>> sources;
  const auto of_job = [&](const Family& family, auto read) {
    sources.push_back(registry->AddFamily(&family, [service, read] {
      std::vector<Series> all;
      service->host()->Read([&](const Job& job, absl::Time now) { all = read(job, now); });
      return all;
    }));
  };
  const auto one = [](double value) { return std::vector<Series>{{"", value}}; };
  of_job(kState, [](const Job& job, absl::Time) { return StatesOf(job.state()); });
  of_job(kExpected, [](const Job& job, absl::Time) {
    return std::vector<Series>{{"server", static_cast<double>(job.config().num_servers)},
                               {"worker", static_cast<double>(job.config().NumFirstWorkers())}};
  });
  of_job(kNodes, [](const Job& job, absl::Time) { return NodesOf(job); });
  of_job(kLeases, LeasesOf);
  of_job(kLeaseTimeout, [one](const Job& job, absl::Time) {
    return one(absl::ToDoubleSeconds(job.config().lease_timeout));
  });
  of_job(kLost, [one](const Job& job, absl::Time) {
    const auto& now = job.table().membership();
    if (now == nullptr) return one(0.0);
    const double fewer = job.config().NumFirstWorkers() - static_cast<double>(now->workers.size());
    return one(std::max(0.0, fewer));
  });
  of_job(kServersLost, [one](const Job& job, absl::Time) {
    const auto& now = job.table().membership();
    if (now == nullptr) return one(0.0);
    return one(job.config().num_servers - static_cast<double>(now->servers.size()));
  });
  of_job(kEpoch, [one](const Job& job, absl::Time) {
    const auto& now = job.table().membership();
    return one(now == nullptr ? 0.0 : static_cast<double>(now->epoch));
  });
  of_job(kJournalBytes, [one](const Job& job, absl::Time) {
    return job.log() == nullptr ? std::vector<Series>()
                                : one(static_cast<double>(job.log()->state().bytes));
  });
  of_job(kJournalFailing, [one](const Job& job, absl::Time) {
    return job.log() == nullptr ? std::vector<Series>()
                                : one(job.log()->state().is_failing ? 1.0 : 0.0);
  });
  of_job(kStep, [one](const Job& job, absl::Time) { return one(StepOf(job)); });
  of_job(kTensors, [one](const Job& job, absl::Time) {
    return one(static_cast<double>(job.declarations().totals().tensors));
  });
  of_job(kSuspects, [](const Job& job, absl::Time) { return SuspectsOf(job); });
  of_job(kKeys, [one](const Job& job, absl::Time) {
    return one(static_cast<double>(job.declarations().totals().keys));
  });
  sources.push_back(registry->AddFamily(&kRefusals, [service] {
    const SchedulerService::Counts counts = service->counts();
    return std::vector<Series>{{"secret", static_cast<double>(counts.calls_refused)},
                               {"descriptors", static_cast<double>(service->accept_failures())},
                               {"handshake", static_cast<double>(counts.connections_without_call)},
                               {"cut", static_cast<double>(counts.connections_cut)}};
  }));
  sources.push_back(registry->AddFamily(&kRequests, [service, one] {
    return one(static_cast<double>(service->counts().requests_read));
  }));
  return sources;
}

}  // namespace bdn
