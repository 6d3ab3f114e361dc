// Worker processes of the benchmarks. They speak with their parent in lines: they print "joined",
// "ready", "block" after so many timed iterations, "done" and one line of JSON, and wait for a line
// after each.

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "cli/commands.h"
#include "cli/process_group.h"
#include "worker/c_api/bandoneon.h"

namespace bdn::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kTimeout = 120;

constexpr Flag kFlags[] = {
    {"tensors", 0, "COUNT", ""}, {"bytes", 0, "COUNT", ""}, {"push", 0, "SPEC", ""},
    {"pull", 0, "SPEC", ""},     {"iters", 0, "COUNT", ""}, {"warmup", 0, "COUNT", ""},
    {"rule", 0, "SPEC", ""},     {"block", 0, "COUNT", ""}, {"fuse", 0, nullptr, ""},
};

struct WorkerDeleter {
  void operator()(bdn_worker* worker) const { bdn_free(worker); }
};
using Worker = std::unique_ptr<bdn_worker, WorkerDeleter>;

double CpuSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Counts so far, of all threads.
struct Events {
  int64_t page_faults = 0;
  int64_t context_switches = 0;
};
Events CountEvents() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return {usage.ru_minflt + usage.ru_majflt, usage.ru_nvcsw + usage.ru_nivcsw};
}

// Returns what statistics have gained of each phase; nothing where none are counted.
Json StagesGrown(const Json& before, const Json& after) {
  Json grown = Json::object();
  if (!after.contains("stages")) return grown;
  for (const auto& [stage, numbers] : after.at("stages").items()) {
    for (const auto& [name, number] : numbers.items()) {
      grown[stage][name] =
          number.get<uint64_t>() - before.at("stages").at(stage).at(name).get<uint64_t>();
    }
  }
  return grown;
}

// Waits for the parent's next line. Returns false when the parent is gone.
bool AwaitParent() {
  std::string line;
  return static_cast<bool>(std::getline(std::cin, line));
}

void Tell(const std::string& line) {
  printf("%s\n", line.c_str());
  // The parent waits for the line, and standard output is a pipe, which is buffered.
  fflush(stdout);
}

absl::Status Check(int code) { return code == BDN_OK ? absl::OkStatus() : LastError(code); }

// Returns a value like a gradient's, near normal and small; the same for the same rank and index.
float Value(int rank, size_t tensor, size_t i) {
  uint64_t x = (static_cast<uint64_t>(rank) << 56) ^ (static_cast<uint64_t>(tensor) << 40) ^ i;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  x ^= x >> 31;
  int32_t sum = -2 * 65535;
  for (int part = 0; part < 4; ++part) sum += static_cast<int32_t>((x >> (16 * part)) & 0xffff);
  return static_cast<float>(sum) * 1e-6f;
}

// A worker of a benchmark. Not thread-safe.
class BenchWorker {
 public:
  BenchWorker(bdn_worker* worker, const CommandFlags& flags)
      : worker_(worker),
        push_(flags.Text("push", "none")),
        pull_(flags.Text("pull", "none")),
        rule_(flags.Text("rule", "mean")),
        fuse_(flags.Has("fuse")) {}
  ~BenchWorker() {
    for (const std::span<float> data : data_) bdn_free_memory(data.data());
  }
  BenchWorker(const BenchWorker&) = delete;
  BenchWorker& operator=(const BenchWorker&) = delete;

  absl::Status Prepare(size_t tensors, size_t elements) {
    const int rank = bdn_rank(worker_);
    std::vector<std::string> names;
    std::vector<bdn_declaration> declarations(tensors);
    for (size_t t = 0; t < tensors; ++t) {
      names.push_back(absl::StrFormat("bench.%d", t));
      fresh_.emplace_back(elements);
      for (size_t i = 0; i < elements; ++i) fresh_[t][i] = Value(rank, t, i);
    }
    for (const std::vector<float>& fresh : fresh_) {
      void* data = nullptr;
      const absl::Status allocated = Check(bdn_alloc(worker_, elements * sizeof(float), &data));
      if (!allocated.ok()) return allocated;
      data_.emplace_back(static_cast<float*>(data), fresh.size());
      std::copy(fresh.begin(), fresh.end(), data_.back().begin());
    }
    // After the tensors are filled: their memory is the caller's, and not counted.
    resident_before_ = ResidentBytesOf("self");
    for (size_t t = 0; t < tensors; ++t) {
      bdn_declaration& declaration = declarations[t];
      declaration.struct_size = sizeof(declaration);
      declaration.name = names[t].c_str();
      declaration.elements = elements;
      declaration.dtype = BDN_FLOAT32;
      declaration.push = push_.c_str();
      declaration.pull = pull_.c_str();
      declaration.rule = rule_.c_str();
      declaration.flags = fuse_ ? BDN_FUSE : 0;
    }
    ids_.resize(tensors);
    absl::Status status =
        Check(bdn_declare(worker_, declarations.data(), tensors, ids_.data(), kTimeout));
    // Rules other than mean need first weights.
    for (size_t t = 0; status.ok() && rule_ != "mean" && rank == 0 && t < tensors; ++t) {
      status = Check(bdn_set_server_state(worker_, ids_[t], "weights", fresh_[t].data(), elements,
                                          /*step=*/0, kTimeout));
    }
    return status;
  }

  // Exchanges all tensors once. Refilling them and meeting the other workers before is not timed.
  absl::Status Exchange() {
    for (size_t t = 0; t < data_.size(); ++t) {
      memcpy(data_[t].data(), fresh_[t].data(), fresh_[t].size() * sizeof(float));
    }
    // All begin at once, so that no worker's time includes another's refilling.
    if (absl::Status met = Check(bdn_barrier(worker_, "bench", kTimeout)); !met.ok()) return met;
    const double cpu = CpuSeconds();
    const Events events = CountEvents();
    const auto begin = std::chrono::steady_clock::now();
    std::vector<bdn_ticket> tickets(data_.size());
    std::vector<bdn_push> pushes(data_.size());
    for (size_t t = 0; t < data_.size(); ++t) {
      bdn_push& push = pushes[t];
      push.struct_size = sizeof(push);
      push.data = data_[t].data();
      push.tensor = ids_[t];
      push.priority = -static_cast<int32_t>(t);
      push.weight = 1;
      push.loss_scale = 1;
      push.learning_rate = 1e-3f;
    }
    size_t done = 0;
    if (const int code =
            bdn_push_pull_all(worker_, pushes.data(), pushes.size(), tickets.data(), &done)) {
      return Check(code);
    }
    std::vector<bdn_result> results(data_.size());
    for (bdn_result& result : results) result.struct_size = sizeof(result);
    if (const int code = bdn_wait_all(worker_, tickets.data(), tickets.size(), kTimeout,
                                      results.data(), &done)) {
      return Check(code);
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    seconds_.push_back(took.count());
    cpu_seconds_ += CpuSeconds() - cpu;
    const Events after = CountEvents();
    events_.page_faults += after.page_faults - events.page_faults;
    events_.context_switches += after.context_switches - events.context_switches;
    return absl::OkStatus();
  }

  // Measures the memory now, at the end of an exchange.
  void MeasureMemory() { resident_grown_ = ResidentBytesOf("self") - resident_before_; }

  void Restart() {
    seconds_.clear();
    cpu_seconds_ = 0;
    events_ = Events();
    before_ = Stats();
  }

  std::string Result() const {
    const Json after = Stats();
    const auto grown = [&](const char* name) {
      return after.at(name).get<int64_t>() - before_.at(name).get<int64_t>();
    };
    const double error = LargestError();
    const Json result = {{"seconds", seconds_},
                         {"cpu_s", cpu_seconds_},
                         {"page_faults", events_.page_faults},
                         {"context_switches", events_.context_switches},
                         {"bytes_pushed", grown("bytes_pushed")},
                         {"bytes_pulled", grown("bytes_pulled")},
                         {"resident_grown", resident_grown_},
                         {"stages", StagesGrown(before_, after)},
                         {"hash", absl::StrFormat("%016x", Hash())},
                         {"largest_error", std::isfinite(error) ? Json(error) : Json()}};
    return result.dump();
  }

 private:
  Json Stats() const { return Json::parse(StatsOf(worker_)); }

  // Returns a hash of the bits of all results, by which workers are compared.
  uint64_t Hash() const {
    uint64_t hash = 0xcbf29ce484222325u;
    for (const std::span<float> tensor : data_) {
      for (const float value : tensor) {
        uint32_t bits;
        memcpy(&bits, &value, sizeof(bits));
        hash = (hash ^ bits) * 0x100000001b3u;
      }
    }
    return hash;
  }

  // Returns the largest error of the results against the mean of all workers' values. Meaningful
  // without lossy codecs.
  double LargestError() const {
    const int size = bdn_size(worker_);
    double largest = 0;
    for (size_t t = 0; t < data_.size(); ++t) {
      for (size_t i = 0; i < data_[t].size(); ++i) {
        double sum = 0;
        for (int rank = 0; rank < size; ++rank) sum += Value(rank, t, i);
        const double error = std::abs(data_[t][i] - sum / size);
        // Written so that NaN is the largest error.
        if (!(error <= largest)) largest = error;
      }
    }
    return largest;
  }

  bdn_worker* const worker_;
  const std::string push_;
  const std::string pull_;
  const std::string rule_;
  const bool fuse_;
  int64_t resident_before_ = 0;
  int64_t resident_grown_ = 0;
  std::vector<std::vector<float>> fresh_;
  std::vector<std::span<float>> data_;  // made by bdn_alloc
  std::vector<uint32_t> ids_;
  std::vector<double> seconds_;
  double cpu_seconds_ = 0;
  Events events_;
  Json before_;
};

absl::Status RunBenchWorker(const CommandFlags& flags) {
  const auto tensors = flags.Int("tensors", 1, 1, INT32_MAX);
  const auto bytes = flags.Int("bytes", 4, 4, INT64_MAX);
  const auto iters = flags.Int("iters", 1, 1, INT32_MAX);
  const auto warmup = flags.Int("warmup", 0, 0, INT32_MAX);
  const auto block = flags.Int("block", 1, 1, INT32_MAX);
  for (const auto* number : {&tensors, &bytes, &iters, &warmup, &block}) {
    if (!number->ok()) return number->status();
  }
  bdn_worker* created = nullptr;
  if (const int code = bdn_create(nullptr, &created)) return Check(code);
  const Worker worker(created);
  BenchWorker bench(created, flags);
  Tell("joined");
  if (!AwaitParent()) return absl::CancelledError("the benchmark is over");
  const auto count = static_cast<size_t>(*tensors);
  absl::Status status = bench.Prepare(count, static_cast<size_t>(*bytes) / sizeof(float));
  for (int64_t i = 0; status.ok() && i < *warmup; ++i) status = bench.Exchange();
  if (!status.ok()) return status;
  Tell("ready");
  if (!AwaitParent()) return absl::CancelledError("the benchmark is over");
  bench.Restart();
  for (int64_t i = 0; status.ok() && i < *iters; ++i) {
    status = bench.Exchange();
    if ((i + 1) % *block != 0) continue;
    Tell("block");
    if (!AwaitParent()) return absl::CancelledError("the benchmark is over");
  }
  if (!status.ok()) return status;
  bench.MeasureMemory();
  Tell("done");
  if (!AwaitParent()) return absl::CancelledError("the benchmark is over");
  Tell(bench.Result());
  if (!AwaitParent()) return absl::CancelledError("the benchmark is over");
  return Check(bdn_leave(created, kTimeout));
}

// Joins, exchanges once so that every connection is made, and does nothing more.
absl::Status RunIdleWorker() {
  bdn_worker* created = nullptr;
  if (const int code = bdn_create(nullptr, &created)) return Check(code);
  const Worker worker(created);
  const auto none = CommandFlags::Parse({}, {});
  BenchWorker bench(created, *none);
  absl::Status status = bench.Prepare(1, 1024);
  if (status.ok()) status = bench.Exchange();
  if (!status.ok()) return status;
  Tell("ready");
  if (!AwaitParent()) return absl::CancelledError("the benchmark is over");
  return Check(bdn_leave(created, kTimeout));
}

int Report(const absl::Status& status) {
  if (status.ok()) return 0;
  fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace

int BenchWorkerCommand(Arguments args) {
  const auto flags = CommandFlags::Parse(kFlags, args);
  return Report(flags.ok() ? RunBenchWorker(*flags) : flags.status());
}

int IdleWorkerCommand(Arguments) { return Report(RunIdleWorker()); }

}  // namespace bdn::cli
