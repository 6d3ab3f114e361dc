#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "cli/commands.h"
#include "cli/guardian.h"
#include "cli/job_memory.h"
#include "cli/job_stages.h"
#include "cli/kernel_roof.h"
#include "cli/local_job.h"
#include "worker/c_api/bandoneon.h"

namespace bdn::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr Flag kFlags[] = {
    {"workers", 0, "COUNT", "worker processes [2]"},
    {"hosts", 0, "COUNT",
     "so many of the workers' hosts each have a bandoneon-worker; 0 for none [0]"},
    {"servers", 0, "COUNT", "server processes [1]"},
    {"tensors", 0, "COUNT", "tensors a worker and iteration [16]"},
    {"bytes", 0, "COUNT", "size of a tensor, float32 [4194304]"},
    {"push", 0, "SPEC", "codec of the push [none]"},
    {"pull", 0, "SPEC", "codec of the pull [none]"},
    {"rule", 0, "SPEC", "update rule of the servers [mean]"},
    {"fuse", 0, nullptr, "small tensors share frames, as those of optimizers do"},
    {"iters", 0, "COUNT", "iterations that are timed [20]"},
    {"warmup", 0, "COUNT", "iterations before those [3]"},
    {"threads", 0, "COUNT", "threads of each worker that encode and decode"},
    {"transport", 0, "NAME", "auto (shared memory where it can), shm, rdma, tcp or ipc [auto]"},
    {"provider", 0, "NAME",
     "libfabric's, for --transport rdma: tcp;ofi_rxm, shm, verbs;ofi_rxm, efa"},
    {"link", 0, "RATE", "pretend that the network is this fast, e.g. 1gbit"},
    {"set", 0, "NAME=VALUE", "any other setting of scheduler, servers and workers; repeatable"},
    {"json", 0, nullptr, "print one line of JSON"},
};

constexpr char kUsageText[] =
    "usage: bandoneon bench pushpull [options]\n\n"
    "Runs real daemons and worker processes on this machine, exchanges tensors, checks the "
    "results, and\n"
    "says how fast it was beside what the codecs alone allow, and what is held a parameter.\n"
    "docs/journal/exchanges.md explains each figure.\n";

constexpr char kExamples[] =
    "  bandoneon bench pushpull --workers 2 --servers 1 --tensors 16 --bytes 4194304 --iters 20 "
    "--json\n"
    "  bandoneon bench pushpull --push 'ef(onebit)' --pull 'ef(onebit)'\n"
    "  bandoneon bench pushpull --transport tcp\n"
    "  bandoneon bench pushpull --transport rdma --provider 'tcp;ofi_rxm'\n"
    "  bandoneon bench pushpull --workers 4 --hosts 1 --push 'ef(onebit)' --pull 'ef(onebit)'\n"
    "  bandoneon bench pushpull --push 'topk(ratio=0.01)' --pull 'topk(ratio=0.01)' --link 1gbit\n";

// Measurements of memcpy, whose rate varies from run to run.
constexpr int kRepeats = 5;
// A long run of short iterations has enough with these.
constexpr size_t kMostRoofSteps = 200;
// The scheduler learns of the servers' phases by heartbeats, each second by default.
constexpr std::chrono::milliseconds kStagesInterval{50};
constexpr std::chrono::seconds kStagesTimeout{10};
// The rounding of a mean of values under 0.14 in float32.
constexpr double kLargestDenseError = 1e-6;

struct BenchOptions {
  JobOptions job;
  std::string push = "none";
  std::string pull = "none";
  std::string rule = "mean";
  size_t tensors = 0;
  size_t bytes = 0;
  bool fuse = false;
  int64_t iters = 0;
  int64_t warmup = 0;
  std::string threads;
  std::string link;
  std::string transport;
  std::string provider;  // of a fabric

  // Returns the number of nodes that send and receive for workers: the workers themselves, or the
  // host daemons.
  int nodes() const { return job.hosts > 0 ? job.hosts : job.workers; }
  double parameters() const {
    return static_cast<double>(tensors) * static_cast<double>(bytes) / sizeof(float);
  }
  double dense_bytes() const {  // of one worker, in one direction, in the timed part
    return static_cast<double>(tensors) * static_cast<double>(bytes) * static_cast<double>(iters);
  }
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

double Seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

absl::StatusOr<BenchOptions> ReadOptions(const CommandFlags& flags) {
  BenchOptions options;
  const auto workers = flags.Int("workers", 2, 1, 256);
  const auto hosts = flags.Int("hosts", 0, 0, 256);
  const auto servers = flags.Int("servers", 1, 1, 256);
  const auto tensors = flags.Int("tensors", 16, 1, 1 << 20);
  const auto bytes = flags.Int("bytes", 4 << 20, 4, int64_t{1} << 34);
  const auto iters = flags.Int("iters", 20, 1, 1 << 20);
  const auto warmup = flags.Int("warmup", 3, 0, 1 << 20);
  const auto threads = flags.Int("threads", 1, 1, 256);
  for (const auto* number :
       {&workers, &hosts, &servers, &tensors, &bytes, &iters, &warmup, &threads}) {
    if (!number->ok()) return number->status();
  }
  if (*bytes % 4 != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("option --bytes is %d: expected a multiple of 4", *bytes));
  }
  auto settings = JobSettings(flags);
  if (!settings.ok()) return settings.status();
  options.job.command = "bench";
  options.job.workers = static_cast<int>(*workers);
  options.job.hosts = static_cast<int>(*hosts);
  if (*hosts > 0 && *workers % *hosts != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "option --hosts is %d: %d workers are not so many times anything", *hosts, *workers));
  }
  options.job.servers = static_cast<int>(*servers);
  options.job.settings = QuietUnlessAsked(*std::move(settings));
  options.push = flags.Text("push", "none");
  options.pull = flags.Text("pull", "none");
  options.rule = flags.Text("rule", "mean");
  options.job.counts = true;
  options.tensors = static_cast<size_t>(*tensors);
  options.bytes = static_cast<size_t>(*bytes);
  options.fuse = flags.Has("fuse");
  options.iters = *iters;
  options.warmup = *warmup;
  options.threads = flags.Text("threads");
  options.link = flags.Text("link");
  options.transport = flags.Text("transport", "auto");
  const bool is_network = options.transport == "tcp" || options.transport == "ipc";
  if (!is_network && options.transport != "auto" && options.transport != "shm" &&
      options.transport != "rdma") {
    return absl::InvalidArgumentError(absl::StrFormat(
        "option --transport is '%s': expected auto, shm, rdma, tcp or ipc", options.transport));
  }
  options.provider = flags.Text("provider");
  if (flags.Has("provider")) {
    if (options.transport != "rdma") {
      return absl::InvalidArgumentError("option --provider is for --transport rdma");
    }
    AddFabricProvider(flags, /*local=*/true, &options.job.settings);
  }
  if (options.transport != "auto") {
    options.job.settings.emplace_back("BANDONEON_TRANSPORT",
                                      is_network ? "network" : options.transport);
  }
  options.job.over_ipc = options.transport == "ipc";
  if (flags.Has("threads")) options.job.settings.emplace_back("BANDONEON_THREADS", options.threads);
  return options;
}

// A worker's report of its run.
struct WorkerResult {
  int rank = 0;
  std::vector<double> seconds;  // of each iteration
  double cpu_seconds = 0;
  double page_faults = 0;
  double context_switches = 0;
  double bytes_pushed = 0;
  double bytes_pulled = 0;
  std::string hash;
  double largest_error = 0;
  double resident_grown = 0;
  StageRows stages;
};

absl::StatusOr<WorkerResult> ParseResult(int rank, std::string_view line) {
  try {
    const Json json = Json::parse(line);
    const Json& error = json.at("largest_error");  // null where it is not finite
    auto stages = ParseStages(json.at("stages").dump());
    if (!stages.ok()) return stages.status();
    return WorkerResult{.rank = rank,
                        .seconds = json.at("seconds").get<std::vector<double>>(),
                        .cpu_seconds = json.at("cpu_s").get<double>(),
                        .page_faults = json.at("page_faults").get<double>(),
                        .context_switches = json.at("context_switches").get<double>(),
                        .bytes_pushed = json.at("bytes_pushed").get<double>(),
                        .bytes_pulled = json.at("bytes_pulled").get<double>(),
                        .hash = json.at("hash").get<std::string>(),
                        .largest_error = error.is_null() ? std::numeric_limits<double>::infinity()
                                                         : error.get<double>(),
                        .resident_grown = json.at("resident_grown").get<double>(),
                        .stages = *std::move(stages)};
  } catch (const Json::exception&) {
    return absl::InvalidArgumentError("a worker said: " + std::string(line));
  }
}

// The result of a run.
struct Outcome {
  std::vector<double> iteration_seconds;  // of the slowest worker
  double scheduler_cpu = 0;
  double servers_cpu = 0;
  double workers_cpu = 0;
  double hosts_cpu = 0;  // of the host daemons
  // In a step, of one server and of one worker, on average.
  double server_faults = 0;
  double server_switches = 0;
  double worker_faults = 0;
  double worker_switches = 0;
  double bytes_pushed = 0;  // of one worker on average, headers included
  double bytes_pulled = 0;
  double memcpy_rate = 0;
  // The times of steps of the codecs alone, between the iterations; none where there is no roof.
  std::vector<double> roof_seconds;
  double roof_cpu = 0;  // of all these steps
  JobMemory memory;
  JobStages stages;
};

// Returns a size that settings have as 65536 or 64KiB; `otherwise` where it is not set, or the
// servers would refuse it.
size_t SizeSetting(const BenchOptions& options, const char* variable, size_t otherwise) {
  for (const auto& [name, value] : options.job.settings) {
    if (name != variable) continue;
    absl::string_view text = value;
    size_t unit = 1;
    for (const auto& [suffix, bytes] :
         {std::pair{"KiB", size_t{1} << 10}, {"MiB", size_t{1} << 20}, {"GiB", size_t{1} << 30}}) {
      if (absl::ConsumeSuffix(&text, suffix)) unit = bytes;
    }
    size_t count = 0;
    return absl::SimpleAtoi(text, &count) ? count * unit : otherwise;
  }
  return otherwise;
}

// Returns the number of iterations between two pauses. In a pause processes fall asleep and their
// caches cool, so short iterations go in blocks.
int64_t IterationsInABlock(const BenchOptions& options) {
  constexpr size_t kBytes = size_t{16} << 20;
  constexpr size_t kMost = 100;
  const size_t block = std::clamp<size_t>(kBytes / (options.tensors * options.bytes), 1, kMost);
  return std::min(static_cast<int64_t>(block), options.iters);
}

// Starts the roof. Null for update rules, as the work of their servers is the rule's.
std::unique_ptr<KernelRoof> StartRoof(const BenchOptions& options) {
  if (options.rule != "mean") return nullptr;
  const size_t least = SizeSetting(options, "BANDONEON_MIN_COMPRESS_BYTES", size_t{64} << 10);
  // A tensor below min-compress-bytes goes uncompressed, unless it is fused.
  const bool compressed = options.fuse || options.bytes >= least;
  return KernelRoof::Start(
      {.workers = options.job.workers,
       .tensors = options.tensors,
       .bytes = options.bytes,
       .partition_bytes = SizeSetting(options, "BANDONEON_PARTITION_BYTES", size_t{4} << 20),
       .push = compressed ? options.push : "none",
       .pull = compressed ? options.pull : "none"});
}

// Leads the workers through the run: all are ready, go, all are done, report, leave. Not
// thread-safe.
class Controller {
 public:
  explicit Controller(const BenchOptions& options) : options_(options) {}

  int Run(const std::string& directory) {
    LocalJob job(options_.job, directory,
                 [this](int rank, std::string_view line) { HandleLine(rank, line); });
    job_ = &job;
    absl::Status status = job.StartDaemons();
    for (int i = 0; status.ok() && i < options_.job.workers; ++i) {
      std::vector<std::string> words = {ProgramBeside("bandoneon"),
                                        "bench-worker",
                                        absl::StrFormat("--tensors=%d", options_.tensors),
                                        absl::StrFormat("--bytes=%d", options_.bytes),
                                        absl::StrFormat("--iters=%d", options_.iters),
                                        absl::StrFormat("--warmup=%d", options_.warmup),
                                        "--push=" + options_.push,
                                        "--pull=" + options_.pull,
                                        "--rule=" + options_.rule};
      words.push_back(absl::StrFormat("--block=%d", IterationsInABlock(options_)));
      if (options_.fuse) words.emplace_back("--fuse");
      status = job.StartWorker(words, /*wants_input=*/true);
    }
    if (status.ok()) roof_ = StartRoof(options_);
    const int code = status.ok() ? job.Wait() : job.GiveUp(status);
    roof_ = nullptr;
    for (int i = 0; i < options_.job.servers; ++i) metrics_files_.push_back(job.MetricsFile(i));
    return code;
  }

  const std::vector<std::string>& metrics_files() const { return metrics_files_; }
  const std::vector<WorkerResult>& results() const { return results_; }
  Outcome outcome() const { return outcome_; }
  const StageRows& stages_before() const { return stages_before_; }

 private:
  void HandleLine(int rank, std::string_view line) {
    if (line != "joined" && line != "ready" && line != "block" && line != "done") {
      auto result = ParseResult(rank, line);
      if (!result.ok()) return job_->Fail(1, std::string(result.status().message()));
      results_.push_back(*std::move(result));
    }
    // Every worker says the same lines in the same order, and waits after each: so the last of them
    // ends a phase of the run.
    if (++lines_ % options_.job.workers != 0) return;
    if (line == "block") {
      MeasureRoof();
      return TellWorkers();
    }
    if (line == "ready" && options_.warmup > 0 && CountStages(options_.job.settings)) {
      return AwaitStages(Clock::now() + kStagesTimeout);
    }
    Advance(line);
  }

  // Asks for the servers' counts before the timed part, until they have the whole warm-up, and then
  // lets the timed part begin.
  void AwaitStages(Clock::time_point deadline) {
    auto stages = AskServerStages(*job_, options_.job, options_.warmup);
    if (absl::IsUnavailable(stages.status()) && Clock::now() < deadline) {
      return job_->SetTimer(Clock::now() + kStagesInterval, [=, this] { AwaitStages(deadline); });
    }
    if (!stages.ok()) {
      const std::string why(stages.status().message());
      fprintf(stderr, "bandoneon bench pushpull: the servers' stages include the warm-up: %s\n",
              why.c_str());
    } else {
      stages_before_ = *std::move(stages);
    }
    Advance("ready");
  }

  void Advance(std::string_view line) {
    const auto resident = static_cast<double>(job_->ServersResidentBytes());
    if (line == "joined") outcome_.memory.server_resident = -resident;
    if (line == "done") outcome_.memory.server_resident += resident;
    const double sign = line == "ready" ? -1 : line == "done" ? 1 : 0;
    outcome_.scheduler_cpu += sign * Seconds(job_->SchedulerCpu());
    outcome_.servers_cpu += sign * Seconds(job_->ServersCpu());
    outcome_.hosts_cpu += sign * Seconds(job_->HostsCpu());
    const ProcessGroup::Events events = job_->CountServersEvents();
    const double steps = static_cast<double>(options_.iters) * options_.job.servers;
    outcome_.server_faults += sign * static_cast<double>(events.page_faults) / steps;
    outcome_.server_switches += sign * static_cast<double>(events.context_switches) / steps;
    TellWorkers();
  }

  void TellWorkers() {
    for (int rank = 0; rank < options_.job.workers; ++rank) job_->WriteToWorker(rank, "go on\n");
  }

  // Measured between two blocks, while the job waits: the machine's speed changes within seconds,
  // so only neighbours compare.
  void MeasureRoof() {
    if (roof_ == nullptr || outcome_.roof_seconds.size() >= kMostRoofSteps) return;
    const std::optional<KernelRoof::Cost> cost = roof_->Step();
    if (cost.has_value()) {
      outcome_.roof_seconds.push_back(cost->seconds);
      outcome_.roof_cpu += cost->cpu_seconds;
    } else {
      roof_ = nullptr;
    }
  }

  const BenchOptions& options_;
  LocalJob* job_ = nullptr;
  int lines_ = 0;
  std::unique_ptr<KernelRoof> roof_;  // null where there is none
  StageRows stages_before_;
  std::vector<std::string> metrics_files_;
  Outcome outcome_;
  std::vector<WorkerResult> results_;
};

// Returns the mistake in the results; empty when they are right.
std::string FindMistake(const BenchOptions& options, const std::vector<WorkerResult>& results) {
  const bool dense = options.push == "none" && options.pull == "none" && options.rule == "mean";
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].hash != results[0].hash) {
      return absl::StrFormat("workers disagree: hash %s and %s", results[0].hash, results[i].hash);
    }
    const double error = results[i].largest_error;
    // Written so that NaN is a mistake.
    if (dense && !(error <= kLargestDenseError)) {
      return absl::StrFormat("a result is off the mean of the inputs by %g", error);
    }
  }
  return "";
}

Outcome AddUp(const BenchOptions& options, const std::vector<WorkerResult>& results,
              Outcome outcome) {
  const auto workers = static_cast<double>(results.size());
  outcome.iteration_seconds.assign(static_cast<size_t>(options.iters), 0);
  for (const WorkerResult& result : results) {
    const size_t count = std::min(result.seconds.size(), outcome.iteration_seconds.size());
    for (size_t i = 0; i < count; ++i) {
      // An iteration has ended when the slowest worker has its results.
      outcome.iteration_seconds[i] = std::max(outcome.iteration_seconds[i], result.seconds[i]);
    }
    outcome.workers_cpu += result.cpu_seconds;
    const double steps = workers * static_cast<double>(options.iters);
    outcome.worker_faults += result.page_faults / steps;
    outcome.worker_switches += result.context_switches / steps;
    outcome.bytes_pushed += result.bytes_pushed / workers;
    outcome.bytes_pulled += result.bytes_pulled / workers;
    outcome.memory.worker_resident += result.resident_grown / workers / options.parameters();
    // A host's daemon counts the phases for all its workers, so they are added once.
    const bool counts =
        options.job.hosts == 0 || result.rank % (options.job.workers / options.job.hosts) == 0;
    if (counts) AddStages(result.stages, &outcome.stages.workers);
  }
  outcome.memory.server_resident /= options.parameters();
  std::vector<double> copies;
  for (int i = 0; i < kRepeats; ++i) {
    copies.push_back(MeasureMemcpy(options.tensors, options.bytes));
  }
  outcome.memcpy_rate = Median(copies);
  return outcome;
}

// Returns the GB/s of a worker, slowest first.
std::vector<double> RatesOf(const BenchOptions& options, std::vector<double> seconds) {
  const double bytes = static_cast<double>(options.tensors) * static_cast<double>(options.bytes);
  for (double& each : seconds) each = bytes / each / 1e9;
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

// Returns the value that a `share` of the values does not exceed. REQUIRES: there are some.
double Quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::max<size_t>(rank, 1) - 1];
}

// The figures of a run that both forms of the output show.
struct Figures {
  std::vector<double> rates;  // GB/s of a worker, of each iteration, slowest first
  std::vector<double> roofs;  // GB/s of the codecs alone; empty where they were not measured
  double share = 0;           // of the codecs' rate that was reached
  double roof_work = 0;       // GB of fp32 that the codecs alone worked on
  double work = 0;            // GB of fp32 of all workers
  double median_us = 0;       // of a step
  double p99_us = 0;
};

Figures FiguresOf(const BenchOptions& options, const Outcome& outcome) {
  Figures figures;
  figures.rates = RatesOf(options, outcome.iteration_seconds);
  figures.roofs = RatesOf(options, outcome.roof_seconds);
  if (!figures.roofs.empty()) figures.share = Median(figures.rates) / Median(figures.roofs);
  figures.roof_work = options.parameters() * sizeof(float) * options.job.workers / 1e9 *
                      static_cast<double>(figures.roofs.size());
  figures.work = options.job.workers * options.dense_bytes() / 1e9;
  figures.median_us = 1e6 * Median(outcome.iteration_seconds);
  figures.p99_us = 1e6 * Quantile(outcome.iteration_seconds, 0.99);
  return figures;
}

void PrintText(const BenchOptions& options, const Outcome& outcome, const std::string& hash) {
  const Figures figures = FiguresOf(options, outcome);
  printf(
      "%d workers%s, %d servers, %d tensors of %d bytes, push %s, pull %s, %d iterations, "
      "transport %s\n\n",
      options.job.workers,
      options.job.hosts > 0 ? absl::StrFormat(" on %d hosts", options.job.hosts).c_str() : "",
      options.job.servers, static_cast<int>(options.tensors), static_cast<int>(options.bytes),
      options.push.c_str(), options.pull.c_str(), static_cast<int>(options.iters),
      options.transport.c_str());
  printf("fp32 GB/s a worker     %8.3f   (slowest %.3f, fastest %.3f)\n", Median(figures.rates),
         figures.rates.front(), figures.rates.back());
  if (!figures.roofs.empty()) {
    printf("the codecs alone       %8.3f   (slowest %.3f, fastest %.3f): %.0f %% of it reached\n",
           Median(figures.roofs), figures.roofs.front(), figures.roofs.back(), 100 * figures.share);
  }
  printf("memcpy, one thread     %8.3f\n", outcome.memcpy_rate);
  printf("a step                 %8.0f us, 99 %% within %.0f us\n", figures.median_us,
         figures.p99_us);
  printf("CPU s/GB of fp32       %8.3f workers, %.3f servers, %.3f scheduler",
         outcome.workers_cpu / figures.work, outcome.servers_cpu / figures.work,
         outcome.scheduler_cpu / figures.work);
  if (options.job.hosts > 0) printf(", %.3f hosts' daemons", outcome.hosts_cpu / figures.work);
  printf("\n");
  if (!figures.roofs.empty()) {
    printf("of the codecs alone    %8.3f\n", outcome.roof_cpu / figures.roof_work);
  }
  printf("page faults a step     %8.1f worker, %.1f server; context switches %.0f, %.0f\n",
         outcome.worker_faults, outcome.server_faults, outcome.worker_switches,
         outcome.server_switches);
  printf("bytes a %s         %8.0f pushed, %.0f pulled, of %.0f fp32 each way (%.1fx)\n",
         options.job.hosts > 0 ? "host  " : "worker", outcome.bytes_pushed, outcome.bytes_pulled,
         options.dense_bytes(),
         2 * options.dense_bytes() / (outcome.bytes_pushed + outcome.bytes_pulled));
  printf("%s", MemoryText(outcome.memory).c_str());
  printf("results                %s at every worker\n", hash.c_str());
  printf("%s", JobStagesText(outcome.stages).c_str());
}

void PrintJson(const BenchOptions& options, const Outcome& outcome, const std::string& hash) {
  const Figures figures = FiguresOf(options, outcome);
  const auto count = [](double bytes) { return static_cast<int64_t>(std::llround(bytes)); };
  const Json line = {
      {"bench", "pushpull"},
      {"workers", options.job.workers},
      {"hosts", options.job.hosts},
      {"servers", options.job.servers},
      {"tensors", options.tensors},
      {"bytes", options.bytes},
      {"push", options.push},
      {"pull", options.pull},
      {"rule", options.rule},
      {"fuse", options.fuse},
      {"iters", options.iters},
      {"warmup", options.warmup},
      {"threads", options.threads.empty() ? Json() : Json::parse(options.threads)},
      {"link", options.link.empty() ? Json() : Json(options.link)},
      {"transport", options.transport},
      {"provider", options.provider},
      {"gb_per_s_per_worker", Median(figures.rates)},
      {"gb_per_s_slowest", figures.rates.front()},
      {"gb_per_s_fastest", figures.rates.back()},
      {"kernel_roof_gb_per_s", figures.roofs.empty() ? Json() : Json(Median(figures.roofs))},
      {"kernel_roof_slowest", figures.roofs.empty() ? Json() : Json(figures.roofs.front())},
      {"kernel_roof_fastest", figures.roofs.empty() ? Json() : Json(figures.roofs.back())},
      {"kernel_roof_cpu_s_per_gb",
       figures.roofs.empty() ? Json() : Json(outcome.roof_cpu / figures.roof_work)},
      {"share_of_roof", figures.roofs.empty() ? Json() : Json(figures.share)},
      {"step_us", {{"median", figures.median_us}, {"p99", figures.p99_us}}},
      {"cpu_s_per_gb",
       {{"scheduler", outcome.scheduler_cpu / figures.work},
        {"server", outcome.servers_cpu / figures.work},
        {"worker", outcome.workers_cpu / figures.work},
        {"host", outcome.hosts_cpu / figures.work}}},
      {"page_faults_per_step",
       {{"server", outcome.server_faults}, {"worker", outcome.worker_faults}}},
      {"context_switches_per_step",
       {{"server", outcome.server_switches}, {"worker", outcome.worker_switches}}},
      {"wire_bytes", count(outcome.bytes_pushed + outcome.bytes_pulled)},
      {"bytes_of_all_nodes",
       count(options.nodes() * (outcome.bytes_pushed + outcome.bytes_pulled))},
      {"bytes_pushed", count(outcome.bytes_pushed)},
      {"bytes_pulled", count(outcome.bytes_pulled)},
      {"dense_bytes", count(options.dense_bytes())},
      {"memcpy_gb_per_s", outcome.memcpy_rate},
      {"bytes_per_parameter", Json::parse(MemoryJson(outcome.memory))},
      {"stages", Json::parse(JobStagesJson(outcome.stages))},
      {"result_hash", hash}};
  printf("%s\n", line.dump().c_str());
}

int RunBench(const BenchOptions& options, bool json, const std::string& directory) {
  Controller controller(options);
  if (const int code = controller.Run(directory); code != 0) return code;
  const std::vector<WorkerResult>& results = controller.results();
  if (results.size() != static_cast<size_t>(options.job.workers)) {
    fprintf(stderr, "bandoneon bench pushpull: not every worker reported\n");
    return 1;
  }
  if (const std::string mistake = FindMistake(options, results); !mistake.empty()) {
    fprintf(stderr, "bandoneon bench pushpull: %s\n", mistake.c_str());
    return 1;
  }
  Outcome outcome = AddUp(options, results, controller.outcome());
  auto purposes = ReadPurposes(controller.metrics_files(), options.parameters());
  if (!purposes.ok()) {
    fprintf(stderr, "bandoneon bench pushpull: %s\n",
            std::string(purposes.status().message()).c_str());
    return 1;
  }
  outcome.memory.server_purposes = *std::move(purposes);
  auto stages = ReadServerStages(controller.metrics_files());
  if (!stages.ok()) {
    fprintf(stderr, "bandoneon bench pushpull: %s\n",
            std::string(stages.status().message()).c_str());
    return 1;
  }
  outcome.stages.servers = StagesSince(controller.stages_before(), *std::move(stages));
  json ? PrintJson(options, outcome, results[0].hash)
       : PrintText(options, outcome, results[0].hash);
  return 0;
}

}  // namespace

int BenchPushPullCommand(Arguments args) {
  if (PrintedHelp(args, kUsageText, kFlags, kExamples)) return 0;
  constexpr std::string_view kRepeated[] = {"set"};
  const auto flags = CommandFlags::Parse(kFlags, args, kRepeated);
  if (!flags.ok()) return UsageError("bench pushpull", flags.status());
  const auto options = ReadOptions(*flags);
  if (!options.ok()) return UsageError("bench pushpull", options.status());
  return RunGuarded([&](const std::string& directory) {
    return RunBench(*options, flags->Has("json"), directory);
  });
}

}  // namespace bdn::cli
