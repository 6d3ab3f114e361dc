#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "cli/commands.h"
#include "cli/guardian.h"
#include "cli/local_job.h"

namespace bdn::cli {
namespace {

constexpr Flag kFlags[] = {
    {"seconds", 0, "COUNT", "how long to watch [10]"},
    {"workers", 0, "COUNT", "idle worker processes [2]"},
    {"servers", 0, "COUNT", "server processes [1]"},
    {"set", 0, "NAME=VALUE", "any other setting of scheduler, servers and workers; repeatable"},
    {"json", 0, nullptr, "print one line of JSON"},
};

constexpr char kUsageText[] =
    "usage: bandoneon bench idle [options]\n"
    "\n"
    "Starts a job whose workers have exchanged once and then do nothing, and says how much of a "
    "core\n"
    "each role uses meanwhile.\n";

constexpr char kExamples[] =
    "  bandoneon bench idle --seconds 10 --json\n"
    "  bandoneon bench idle --workers 4 --servers 2\n";

// The time for work left over from joining and from the exchange to end before the watch begins.
constexpr std::chrono::milliseconds kSettle{500};

// The CPU time so far of each role.
struct Cpu {
  std::chrono::nanoseconds scheduler;
  std::chrono::nanoseconds servers;
  std::chrono::nanoseconds workers;

  static Cpu Of(const LocalJob& job) {
    return {job.SchedulerCpu(), job.ServersCpu(), job.WorkersCpu()};
  }
};

// A job that idles, and the watch over it. Not thread-safe.
class IdleBench {
 public:
  IdleBench(JobOptions options, int64_t seconds)
      : options_(std::move(options)), seconds_(seconds) {}

  int Run(const std::string& directory) {
    LocalJob job(options_, directory, [this](int, std::string_view) { HandleReady(); });
    job_ = &job;
    absl::Status status = job.StartDaemons();
    for (int i = 0; status.ok() && i < options_.workers; ++i) {
      status = job.StartWorker({ProgramBeside("bandoneon"), "idle-worker"}, /*wants_input=*/true);
    }
    return status.ok() ? job.Wait() : job.GiveUp(status);
  }

  void Print(bool json) const {
    const double took = std::chrono::duration<double>(end_ - begin_).count();
    const auto cores = [&](std::chrono::nanoseconds before, std::chrono::nanoseconds after) {
      return std::chrono::duration<double>(after - before).count() / took;
    };
    const double scheduler = cores(before_.scheduler, after_.scheduler);
    const double servers = cores(before_.servers, after_.servers);
    const double workers = cores(before_.workers, after_.workers);
    const double all = scheduler + servers + workers;
    if (json) {
      const nlohmann::ordered_json line = {
          {"bench", "idle"},
          {"workers", options_.workers},
          {"servers", options_.servers},
          {"seconds", took},
          {"cores", {{"scheduler", scheduler}, {"server", servers}, {"worker", workers}}},
          {"cores_total", all}};
      printf("%s\n", line.dump().c_str());
    } else {
      printf(
          "%d idle workers, %d servers, %.1f s; share of one core:\n"
          "  scheduler %.4f\n  servers   %.4f\n  workers   %.4f\n  all       %.4f\n",
          options_.workers, options_.servers, took, scheduler, servers, workers, all);
    }
  }

 private:
  void HandleReady() {
    if (++ready_ == options_.workers) job_->SetTimer(Clock::now() + kSettle, [this] { Begin(); });
  }
  void Begin() {
    before_ = Cpu::Of(*job_);
    begin_ = Clock::now();
    job_->SetTimer(begin_ + std::chrono::seconds(seconds_), [this] { End(); });
  }
  void End() {
    after_ = Cpu::Of(*job_);
    end_ = Clock::now();
    for (int rank = 0; rank < options_.workers; ++rank) job_->WriteToWorker(rank, "leave\n");
  }

  const JobOptions options_;
  const int64_t seconds_;
  LocalJob* job_ = nullptr;
  int ready_ = 0;
  Cpu before_ = {};
  Cpu after_ = {};
  Clock::time_point begin_;
  Clock::time_point end_;
};

}  // namespace

int BenchIdleCommand(Arguments args) {
  if (PrintedHelp(args, kUsageText, kFlags, kExamples)) return 0;
  constexpr std::string_view kRepeated[] = {"set"};
  const auto flags = CommandFlags::Parse(kFlags, args, kRepeated);
  if (!flags.ok()) return UsageError("bench idle", flags.status());
  const auto seconds = flags->Int("seconds", 10, 1, 86400);
  const auto workers = flags->Int("workers", 2, 1, 256);
  const auto servers = flags->Int("servers", 1, 1, 256);
  for (const auto* number : {&seconds, &workers, &servers}) {
    if (!number->ok()) return UsageError("bench idle", number->status());
  }
  auto settings = JobSettings(*flags);
  if (!settings.ok()) return UsageError("bench idle", settings.status());
  JobOptions options;
  options.command = "bench";
  options.workers = static_cast<int>(*workers);
  options.servers = static_cast<int>(*servers);
  options.settings = QuietUnlessAsked(*std::move(settings));
  return RunGuarded([&](const std::string& directory) {
    IdleBench bench(options, *seconds);
    const int code = bench.Run(directory);
    if (code == 0) bench.Print(flags->Has("json"));
    return code;
  });
}

}  // namespace bdn::cli
