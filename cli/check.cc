// `bandoneon check`: a job's program that measures the job.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "cli/check_report.h"
#include "cli/commands.h"
#include "cli/job_check.h"
#include "cli/link_meter.h"
#include "cli/machine_speed.h"
#include "common/base/status.h"
#include "worker/c_api/bandoneon.h"

namespace bdn::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr Flag kFlags[] = {
    {"seconds", 0, "COUNT", "aim at so many seconds for the pairs and for all at once [10]"},
    {"json", 0, nullptr, "print the figures and verdicts as one line of JSON"},
};

constexpr char kUsageText[] =
    "usage: bandoneon check [options]\n\n"
    "Is a program of a job: every worker runs it in place of its training, under any launcher and "
    "with the\n"
    "job's settings. It measures each pair of a worker and a server, both directions apart, while "
    "nobody else\n"
    "uses their links; then all at once; and each machine with a worker: memory, codec, loopback, "
    "load. The\n"
    "worker of rank 0 prints the figures, and what is slower than the rest of its kind, with what "
    "to do. What\n"
    "looks slow is measured again before it is told. Being a job of its own, it disturbs no step "
    "of another.\n\n"
    "Rank 0 returns 1 where a verdict is an error (a link at a quarter of the others' rate or "
    "less), else 0;\n"
    "warnings return 0. `bandoneon run --check` runs it before a program, and does not start that "
    "after an error.\n";

constexpr char kExamples[] =
    "  bandoneon run -n 3 -s 2 -- bandoneon check\n"
    "  bandoneon run -n 3 -s 2 --check -- python train.py\n"
    "  bandoneon run --ssh a:1,b:1 -s 2 --set insecure=true -- bandoneon check --seconds 30\n"
    "  BANDONEON_SCHEDULER=10.0.0.1:7000 BANDONEON_RANK=0 bandoneon check --json\n";

constexpr int64_t kMostSeconds = 3600;
constexpr size_t kMostRounds = 512;
constexpr uint64_t kMostTensors = uint64_t{1} << 19;  // of all workers and servers
constexpr double kPairsShare = 0.8;                   // of the seconds; the rest is all at once
constexpr double kLeastRoundSeconds = 0.05;
constexpr int kMostRepeats = 2;  // of what looks slow
// While all exchange at once, servers hold this much at most, and so does a worker.
constexpr double kMostBytesAtOnce = 256 << 20;
constexpr char kBarrier[] = "check";

struct WorkerDeleter {
  void operator()(bdn_worker* worker) const { bdn_free(worker); }
};

absl::Status Check(int code) { return code == BDN_OK ? absl::OkStatus() : LastError(code); }

// Returns the machine of a node that calls itself "name:pid", as a terminal shows it.
std::string MachineOf(std::string name) {
  name.resize(std::min(name.find_last_of(':'), name.size()));
  for (char& c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return name;
}

std::string CountOf(size_t count, const char* what) {
  return absl::StrFormat("%d %s%s", count, what, count == 1 ? "" : "s");
}

// Reads which machines the nodes of a job are on, as the scheduler tells.
absl::StatusOr<JobPlaces> ParsePlaces(const std::string& status, size_t workers) {
  JobPlaces places;
  const auto number_of = [&](const std::string& host) {
    const auto found = std::find(places.hosts.begin(), places.hosts.end(), host);
    if (found == places.hosts.end()) {
      places.hosts.push_back(host);
      return static_cast<int>(places.hosts.size() - 1);
    }
    return static_cast<int>(found - places.hosts.begin());
  };
  try {
    const Json job = Json::parse(status);
    for (const Json& node : job.at("nodes")) {
      if (node.at("left").get<bool>() || node.at("lost").get<bool>()) continue;
      const bool is_worker = node.at("role") == "worker";
      if (!is_worker && node.at("role") != "server") continue;
      std::vector<int>& of_role = is_worker ? places.workers : places.servers;
      const auto rank = node.at("rank").get<size_t>();
      if (rank > kMostTensors) return Internal("the scheduler tells of rank %d", rank);
      if (of_role.size() <= rank) of_role.resize(rank + 1, -1);
      of_role[rank] = number_of(MachineOf(node.at("host").get<std::string>()));
    }
  } catch (const Json::exception&) {
    return Internal("the scheduler's answer about the job is not understood");
  }
  const auto is_whole = [](const std::vector<int>& of_role) {
    return !of_role.empty() && std::count(of_role.begin(), of_role.end(), -1) == 0;
  };
  if (places.workers.size() != workers || !is_whole(places.workers) || !is_whole(places.servers)) {
    return FailedPrecondition("the job has lost a worker or a server while it was checked");
  }
  return places;
}

// A check, as one worker takes part in it. Not thread-safe.
class JobCheck {
 public:
  JobCheck(bdn_worker* worker, double seconds, double load)
      : worker_(worker),
        rank_(bdn_rank(worker)),
        workers_(static_cast<size_t>(bdn_joined_size(worker))),
        seconds_(seconds),
        load_(load) {}

  // Takes the steps of a check, which are the same for all workers. Returns the figures and the
  // verdicts at rank 0, and nothing at the others.
  absl::StatusOr<std::optional<std::pair<JobFigures, std::vector<Verdict>>>> Run() {
    BDN_RETURN_IF_ERROR(FindPlaces());
    const JobPlaces& places = figures_.places;
    meter_.emplace(worker_, static_cast<int>(places.servers.size()));
    BDN_RETURN_IF_ERROR(meter_->Prepare());
    Suspects suspects = {.pairs = AllPairs(places)};
    for (size_t i = 0; i < places.hosts.size(); ++i) {
      suspects.machines.push_back(static_cast<int>(i));
    }
    Say(absl::StrFormat("measures %s of %s and %s on %s", CountOf(places.num_pairs(), "pair"),
                        CountOf(workers_, "worker"), CountOf(places.servers.size(), "server"),
                        CountOf(places.hosts.size(), "machine")));
    std::vector<Verdict> verdicts;
    for (int i = 0; i <= kMostRepeats && !suspects.IsEmpty(); ++i) {
      if (i > 0) {
        Say(absl::StrFormat("measures %s and %s again, which look slow or busy",
                            CountOf(suspects.pairs.size(), "pair"),
                            CountOf(suspects.machines.size(), "machine")));
      }
      BDN_RETURN_IF_ERROR(MeasureSome(suspects));
      if (is_first()) verdicts = JudgeJob(figures_);
      BDN_ASSIGN_OR_RETURN(suspects, TellSuspects(SuspectsOf(places, verdicts)));
    }
    BDN_RETURN_IF_ERROR(MeasureTogether());
    if (!is_first()) return std::nullopt;
    verdicts = SumUpPairs(figures_, JudgeJob(figures_));
    return std::pair(std::move(figures_), std::move(verdicts));
  }

 private:
  bool is_first() const { return rank_ == 0; }
  void Say(const std::string& line) const {
    if (is_first()) fprintf(stderr, "bandoneon check: %s\n", line.c_str());
  }
  absl::Status Meet() const { return Check(bdn_barrier(worker_, kBarrier, kCheckTimeoutSeconds)); }
  // Gives all workers what rank 0 has.
  absl::Status Tell(const std::string& name, void* data, size_t bytes) const {
    return Check(
        bdn_broadcast(worker_, ("check/" + name).c_str(), data, bytes, 0, kCheckTimeoutSeconds));
  }

  absl::Status FindPlaces();
  absl::Status MeasureSome(const Suspects& suspects);
  absl::Status MeasureTogether();
  absl::StatusOr<Suspects> TellSuspects(const Suspects& suspects);
  // Returns the values of all workers, one after the other, at every worker.
  absl::StatusOr<std::vector<double>> Gather(const std::string& name,
                                             const std::vector<double>& values);
  // Returns whether this worker is the one that measures its machine.
  bool MeasuresMachine() const {
    const std::vector<int>& machines = figures_.places.workers;
    const auto own = machines.begin() + rank_;
    return std::find(machines.begin(), own, *own) == own;
  }

  bdn_worker* const worker_;
  const int rank_;
  const size_t workers_;
  const double seconds_;
  const double load_;
  JobFigures figures_;  // complete at every worker, but for the names of machines and all at once
  std::optional<LinkMeter> meter_;
  std::map<std::string, uint32_t> gathers_;  // tensors, by name
};

absl::Status JobCheck::FindPlaces() {
  int32_t counts[2] = {};
  JobPlaces& places = figures_.places;
  if (is_first()) {
    BDN_ASSIGN_OR_RETURN(const std::string status, AskScheduler({}, kCheckTimeoutSeconds));
    BDN_ASSIGN_OR_RETURN(places, ParsePlaces(status, workers_));
    counts[0] = static_cast<int32_t>(places.servers.size());
    counts[1] = static_cast<int32_t>(places.hosts.size());
  }
  BDN_RETURN_IF_ERROR(Tell("counts", counts, sizeof(counts)));
  if (counts[0] <= 0 || counts[1] <= 0) return Internal("rank 0 tells of no servers");
  std::vector<int32_t> machines(workers_ + static_cast<size_t>(counts[0]));
  if (is_first()) {
    std::copy(places.servers.begin(), places.servers.end(),
              std::copy(places.workers.begin(), places.workers.end(), machines.begin()));
  }
  BDN_RETURN_IF_ERROR(Tell("machines", machines.data(), machines.size() * sizeof(int32_t)));
  for (const int32_t machine : machines) {
    if (machine < 0 || machine >= counts[1]) return Internal("rank 0 tells of machine %d", machine);
  }
  const auto servers = machines.begin() + static_cast<ptrdiff_t>(workers_);
  places.workers.assign(machines.begin(), servers);
  places.servers.assign(servers, machines.end());
  places.hosts.resize(static_cast<size_t>(counts[1]));
  figures_.links.resize(places.num_pairs());
  figures_.machines.resize(places.hosts.size());
  if (places.num_pairs() * LinkMeter::kTensorsPerServer > kMostTensors) {
    return InvalidArgument(
        "the check needs %d tensors for each pair, and %d workers with %d servers have too many "
        "pairs: check a part of the machines at a time",
        LinkMeter::kTensorsPerServer, workers_, places.servers.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> JobCheck::Gather(const std::string& name,
                                                     const std::vector<double>& values) {
  const size_t size = values.size() * workers_;
  if (!gathers_.contains(name)) {
    const std::string tensor = "check/" + name;
    bdn_declaration declaration = {};
    declaration.struct_size = sizeof(declaration);
    declaration.name = tensor.c_str();
    declaration.elements = size;
    declaration.dtype = BDN_FLOAT64;
    BDN_RETURN_IF_ERROR(
        Check(bdn_declare(worker_, &declaration, 1, &gathers_[name], kCheckTimeoutSeconds)));
  }
  // Each worker gives its own row, and zeros elsewhere: the sum is all of them.
  std::vector<double> all(size);
  std::copy(values.begin(), values.end(),
            all.begin() + static_cast<ptrdiff_t>(values.size()) * rank_);
  bdn_push push = {};
  push.struct_size = sizeof(push);
  push.data = all.data();
  push.tensor = gathers_[name];
  push.weight = 1;
  push.loss_scale = 1;
  bdn_ticket ticket = 0;
  bdn_result result = {};
  result.struct_size = sizeof(result);
  BDN_RETURN_IF_ERROR(Check(bdn_push_pull(worker_, &push, &ticket)));
  BDN_RETURN_IF_ERROR(Check(bdn_wait(worker_, ticket, kCheckTimeoutSeconds, &result)));
  for (double& value : all) {
    value *= static_cast<double>(workers_);
    if (!std::isfinite(value) || value < 0) return Internal("a worker tells of a figure %g", value);
  }
  if (bdn_size(worker_) != static_cast<int>(workers_)) {
    return Unavailable("a worker was lost while the job was checked: %d of %d are left",
                       bdn_size(worker_), workers_);
  }
  return all;
}

absl::Status JobCheck::MeasureSome(const Suspects& suspects) {
  const JobPlaces& places = figures_.places;
  const size_t servers = places.servers.size();
  const std::vector<PairRound> rounds = PairRounds(places, suspects.pairs, kMostRounds);
  // All pairs set the pace, also where a few are measured again.
  const size_t all = PairRounds(places, AllPairs(places), kMostRounds).size();
  const double each =
      std::max(kLeastRoundSeconds, kPairsShare * seconds_ / static_cast<double>(all));
  std::vector<double> values;
  MachineFigures machine;
  const int own = places.workers[static_cast<size_t>(rank_)];
  if (MeasuresMachine() &&
      std::count(suspects.machines.begin(), suspects.machines.end(), own) > 0) {
    const auto setting = [](const char* name) {
      const char* const exported = getenv(name);
      return std::string(exported == nullptr || *exported == '\0' ? "onebit" : exported);
    };
    const std::string push = setting("BANDONEON_PUSH");
    const std::string pull = setting("BANDONEON_PULL");
    figures_.codec = push == pull ? push : push + ", " + pull;
    machine = MeasureMachine(push, pull, load_);
  }
  std::vector<LinkFigures> links(servers);
  for (size_t i = 0; i < rounds.size(); ++i) {
    if (is_first() && isatty(STDERR_FILENO) != 0) {
      fprintf(stderr, "\rround %zu of %zu%s", i + 1, rounds.size(),
              i + 1 == rounds.size() ? "\n" : "");
    }
    BDN_RETURN_IF_ERROR(Meet());
    for (const NodePair& pair : rounds[i]) {
      if (pair.worker != rank_) continue;
      BDN_ASSIGN_OR_RETURN(links[static_cast<size_t>(pair.server)],
                           meter_->Measure(pair.server, each));
    }
  }
  for (const LinkFigures& link : links) {
    values.insert(values.end(),
                  {link.up, link.down, link.round_trip, link.up_seconds, link.down_seconds});
  }
  values.insert(values.end(), {machine.memory, machine.codec, machine.loopback, machine.processors,
                               machine.load, machine.share});
  // At a barrier nobody is late, as a worker would be whose push the others wait for.
  BDN_RETURN_IF_ERROR(Meet());
  BDN_ASSIGN_OR_RETURN(const std::vector<double> gathered, Gather("figures", values));
  for (size_t w = 0; w < workers_; ++w) {
    const double* figure = gathered.data() + w * values.size();
    for (size_t s = 0; s < servers; ++s, figure += 5) {
      figures_.links[w * servers + s].Improve(
          {figure[0], figure[1], figure[2], figure[3], figure[4]});
    }
    MachineFigures& known = figures_.machines[static_cast<size_t>(places.workers[w])];
    known.Improve({figure[0], figure[1], figure[2], 0, 0, figure[5]});
    known.processors = std::max(known.processors, figure[3]);
    known.load = std::max(known.load, figure[4]);
  }
  return absl::OkStatus();
}

absl::StatusOr<Suspects> JobCheck::TellSuspects(const Suspects& suspects) {
  const JobPlaces& places = figures_.places;
  // A byte for each pair, by worker, then one for each machine.
  std::vector<uint8_t> marks(places.num_pairs() + places.hosts.size());
  const auto place_of = [&](const NodePair& pair) {
    return static_cast<size_t>(pair.worker) * places.servers.size() +
           static_cast<size_t>(pair.server);
  };
  for (const NodePair& pair : suspects.pairs) marks[place_of(pair)] = 1;
  for (const int machine : suspects.machines) {
    marks[places.num_pairs() + static_cast<size_t>(machine)] = 1;
  }
  BDN_RETURN_IF_ERROR(Tell("suspects", marks.data(), marks.size()));
  Suspects told;
  for (const NodePair& pair : AllPairs(places)) {
    if (marks[place_of(pair)] != 0) told.pairs.push_back(pair);
  }
  for (size_t i = 0; i < places.hosts.size(); ++i) {
    if (marks[places.num_pairs() + i] != 0) told.machines.push_back(static_cast<int>(i));
  }
  return told;
}

absl::Status JobCheck::MeasureTogether() {
  // All workers have the same figures, and choose the same size.
  const JobPlaces& places = figures_.places;
  const double limit = (1 - kPairsShare) * seconds_ / 6;  // two directions, three times
  int size = -1;
  double slowest = 0;
  for (const LinkFigures& link : figures_.links) {
    for (const double rate : {link.up, link.down}) {
      if (rate > 0 && (slowest <= 0 || rate < slowest)) slowest = rate;
    }
  }
  for (int i = 0; i < LinkMeter::kNumSizes && slowest > 0; ++i) {
    const double bytes = LinkMeter::BytesOf(static_cast<LinkMeter::Size>(i));
    const double most = static_cast<double>(std::max(workers_, places.servers.size()));
    // One link may carry what all workers send to a server, or what a worker sends to all.
    const bool is_short = 8 * bytes * most / slowest <= limit;
    // The tensors of the smallest size hold as much as those of the second.
    const double held = most * std::max(bytes, LinkMeter::BytesOf(LinkMeter::kBlock));
    if (is_short && held <= kMostBytesAtOnce) size = i;
  }
  std::vector<double> rates = {0, 0};
  for (const bool is_up : {true, false}) {
    if (size < 0) break;
    BDN_ASSIGN_OR_RETURN(
        rates[is_up ? 0 : 1],
        meter_->MeasureAll(static_cast<LinkMeter::Size>(size), is_up, [this] { return Meet(); }));
  }
  BDN_RETURN_IF_ERROR(Meet());
  BDN_ASSIGN_OR_RETURN(const std::vector<double> all, Gather("together", rates));
  for (size_t w = 0; w < workers_; ++w) {
    figures_.all_up += all[2 * w];
    figures_.all_down += all[2 * w + 1];
  }
  return absl::OkStatus();
}

// Returns the exit code. Leaves the job, or ends it with the error.
absl::StatusOr<int> RunCheck(const CommandFlags& flags, double seconds, double load) {
  if (const char* const attach = getenv("BANDONEON_ATTACH"); attach != nullptr && *attach != '\0') {
    return FailedPrecondition(
        "this process takes part through its host's daemon (setting attach), and all processes of "
        "the host share the daemon's links: run the check with one worker a host and without the "
        "daemons, as `bandoneon run --check` does");
  }
  bdn_worker* created = nullptr;
  BDN_RETURN_IF_ERROR(Check(bdn_create(nullptr, &created)));
  const std::unique_ptr<bdn_worker, WorkerDeleter> worker(created);
  if (bdn_is_candidate(created) != 0) {
    return FailedPrecondition("this job runs already: the check is a job of its own");
  }
  auto checked = JobCheck(created, seconds, load).Run();
  if (!checked.ok()) {
    // The others hear why. Where the job has failed already, they hear that.
    (void)bdn_abort_job(created, ("the check: " + std::string(checked.status().message())).c_str());
    return checked.status();
  }
  int code = 0;
  if (*checked) {
    const auto& [figures, verdicts] = **checked;
    printf("%s", flags.Has("json") ? (CheckJson(figures, verdicts) + "\n").c_str()
                                   : CheckText(figures, verdicts).c_str());
    fflush(stdout);
    code = CheckExitCode(verdicts);
  }
  BDN_RETURN_IF_ERROR(Check(bdn_leave(created, kCheckTimeoutSeconds)));
  return code;
}

}  // namespace

int CheckCommand(Arguments args) {
  if (PrintedHelp(args, kUsageText, kFlags, kExamples)) return 0;
  // Before the job's own processes start to load the machine.
  const double load = LoadOfMachine();
  const auto flags = CommandFlags::Parse(kFlags, args);
  if (!flags.ok()) return UsageError("check", flags.status());
  if (!flags->command().empty()) {
    return UsageError("check", absl::InvalidArgumentError(
                                   "it runs no command: bandoneon run --check -- COMMAND does"));
  }
  const auto seconds = flags->Int("seconds", 10, 1, kMostSeconds);
  if (!seconds.ok()) return UsageError("check", seconds.status());
  const auto code = RunCheck(*flags, static_cast<double>(*seconds), load);
  if (code.ok()) return *code;
  fprintf(stderr, "bandoneon check: %s\n", std::string(code.status().message()).c_str());
  return 1;
}

}  // namespace bdn::cli
