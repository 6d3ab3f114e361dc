#include "scheduler/job_metrics.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"

namespace bdn {
namespace {

constexpr auto kCounter = Metric::Kind::kCounter;
constexpr auto kGauge = Metric::Kind::kGauge;

constexpr Family kState = {"job_state", kGauge, "1 for the state that the job is in", "state"};
constexpr Family kJobs = {"jobs", kCounter, "that have ended", "result"};
constexpr Family kExpected = {"nodes_expected", kGauge, "that make the job full", "role"};
constexpr Family kNodes = {"nodes", kGauge, "that have joined and not left", "role"};
constexpr Family kLeases = {"lease_age_seconds", kGauge,
                            "since a node was heard, of those that were not for longest", "node"};
constexpr Family kLeaseTimeout = {"lease_timeout_seconds", kGauge,
                                  "after which a node that is not heard is lost"};
constexpr Family kStep = {"job_step", kGauge, "the highest step that a node has told of"};
constexpr Family kTensors = {"tensors", kGauge, "declared, broadcasts included"};
constexpr Family kKeys = {"keys", kGauge, "that they were cut and fused into"};
constexpr Family kRefusals = {
    "refusals", kCounter,
    "calls that were not served, and connections that came to nothing or had to wait", "reason"};
constexpr Family kRequests = {"requests", kCounter, "read, of callers with the job's secret"};

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
    if (!member.left) (member.info.role == Role::kServer ? servers : workers) += 1;
  }
  return {{"server", servers}, {"worker", workers}};
}

// Of a job that runs: who waits for others to join has no rank yet.
std::vector<Series> LeasesOf(const Job& job, absl::Time now) {
  std::vector<Series> all;
  if (job.state() != Job::State::kRunning) return all;
  for (const auto& [id, member] : job.table().members()) {
    if (member.left) continue;
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
                               {"worker", static_cast<double>(job.config().num_workers)}};
  });
  of_job(kNodes, [](const Job& job, absl::Time) { return NodesOf(job); });
  of_job(kLeases, LeasesOf);
  of_job(kLeaseTimeout, [one](const Job& job, absl::Time) {
    return one(absl::ToDoubleSeconds(job.config().lease_timeout));
  });
  of_job(kStep, [one](const Job& job, absl::Time) { return one(StepOf(job)); });
  of_job(kTensors, [one](const Job& job, absl::Time) {
    return one(static_cast<double>(job.declarations().totals().tensors));
  });
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
