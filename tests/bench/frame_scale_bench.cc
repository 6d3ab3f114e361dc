// The cost of a frame for a server and a worker as the job grows: a whole job on one thread, its
// state machines over a loopback network (tests/support/simulated_job.h). Prints one JSON line a
// job size: CPU microseconds a frame by side and kind, and how many frames there were.
//
//   frame_scale_bench [--workers 10,100,1000] [--servers 100] [--keys 10000] [--elements 16]

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "tests/support/simulated_job.h"

namespace bdn::testing {
namespace {

using Side = SimulatedSide;

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "frame_scale_bench: %s\n", what.c_str());
  std::_Exit(1);
}

double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Cost {
  double seconds = 0;
  uint64_t frames = 0;
};
using Costs = std::map<std::pair<Side, std::string>, Cost>;

std::vector<int> Keys(int begin, int count) {
  std::vector<int> keys(static_cast<size_t>(count));
  std::iota(keys.begin(), keys.end(), begin);
  return keys;
}

// Pushes of all workers, one key of each server at a time, and their replies.
void Exchange(SimulatedJob* job, Step step) {
  const auto& shape = job->shape();
  for (int begin = 0; begin < shape.dense_keys; begin += shape.servers) {
    const auto keys = Keys(begin, std::min(shape.servers, shape.dense_keys - begin));
    for (int worker = 0; worker < shape.workers; ++worker) job->Push(worker, keys, step);
    job->Deliver();
  }
}

// Half of the workers push, a key of each server, and ask three times for what they wait for before
// the others push.
void AskForStragglers(SimulatedJob* job, Step step) {
  const auto& shape = job->shape();
  const auto keys = Keys(0, std::min(shape.servers, shape.dense_keys));
  for (int worker = 1; worker < shape.workers; worker += 2) job->Push(worker, keys, step);
  job->Deliver();
  for (int times = 1; times <= 4; times *= 2) {
    job->Advance(times * shape.probe_interval);
    job->Deliver();
  }
  for (int worker = 0; worker < shape.workers; worker += 2) job->Push(worker, keys, step);
  job->Deliver();
}

// One worker waits for all keys, which it sent one after the other, and asks for each.
void AskForAll(SimulatedJob* job) {
  const auto& shape = job->shape();
  for (int key = 0; key < shape.dense_keys; ++key) {
    job->Push(0, {key}, 1);
    job->Deliver();
    job->Advance(shape.probe_interval / (2 * shape.dense_keys));
  }
  job->Advance(shape.probe_interval);
  job->Deliver();
}

// Broadcasts, the root's next init on its way before anybody has said that it has the value.
void Broadcast(SimulatedJob* job, Step steps) {
  const auto& shape = job->shape();
  const auto keys = Keys(shape.dense_keys, shape.broadcast_keys);
  job->Init(0, keys, 1);
  for (Step step = 1; step <= steps; ++step) {
    for (int worker = 1; worker < shape.workers; ++worker) job->Fetch(worker, keys, step);
    job->Deliver();
    if (step < steps) job->Init(0, keys, step + 1);
  }
  job->Deliver();
}

const char* Name(Side side) {
  return side == Side::kWorker ? "worker" : side == Side::kServer ? "server" : "network";
}

void Print(const std::string& part, const Costs& costs) {
  for (const auto& [what, cost] : costs) {
    if (cost.frames == 0) continue;
    std::printf(
        ", \"%s_%s_%s_us\": %.3f, \"%s_%s_%s_frames\": %llu", part.c_str(), Name(what.first),
        what.second.c_str(), 1e6 * cost.seconds / static_cast<double>(cost.frames), part.c_str(),
        Name(what.first), what.second.c_str(), static_cast<unsigned long long>(cost.frames));
  }
}

SimulatedJob::Meter MeterOf(Costs* costs) {
  return [costs](Side side, const char* kind, const SimulatedJob::Work& work) {
    Cost& cost = (*costs)[{side, kind}];
    const double start = CpuSeconds();
    cost.frames += work();
    cost.seconds += CpuSeconds() - start;
  };
}

void RunJob(const SimulatedJob::Shape& shape) {
  Costs costs;
  SimulatedJob job(shape, MeterOf(&costs));
  std::printf("{\"bench\": \"frame_scale\", \"workers\": %d, \"servers\": %d, \"keys\": %d",
              shape.workers, shape.servers, shape.dense_keys);
  const std::pair<const char*, std::function<void()>> parts[] = {
      {"hello", [] {}},  // of the constructor
      {"exchange", [&] { Exchange(&job, 1); }},
      {"stragglers", [&] { AskForStragglers(&job, 2); }},
      {"broadcast", [&] { Broadcast(&job, 3); }},
  };
  for (const auto& [part, run] : parts) {
    run();
    Print(part, costs);
    std::fflush(stdout);
    costs.clear();
  }
  const auto waiting = job.sent(FrameType::kWaiting);
  std::printf(", \"waiting_frame_bytes\": %.0f}\n",
              static_cast<double>(waiting.bytes) / static_cast<double>(waiting.frames));
  std::fflush(stdout);
}

// Runs one of two workers: the other never pushes.
void RunWaitingWorker(SimulatedJob::Shape shape) {
  shape.workers = 2;
  Costs costs;
  SimulatedJob job(shape, MeterOf(&costs));
  costs.clear();
  AskForAll(&job);
  std::printf("{\"bench\": \"frame_scale\", \"keys\": %d", shape.dense_keys);
  Print("all_keys", costs);
  std::printf("}\n");
}

int ReadNumber(const std::string& text) {
  int number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < 1) Die(text + " is no number");
  return number;
}

int Main(int argc, char** argv) {
  SimulatedJob::Shape shape{.servers = 100, .dense_keys = 10000};
  std::vector<int> sizes = {10, 100, 1000};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--workers") {
      sizes.clear();
      for (const auto& size : std::vector<std::string>(absl::StrSplit(argv[i + 1], ','))) {
        sizes.push_back(ReadNumber(size));
      }
    } else if (flag == "--servers") {
      shape.servers = ReadNumber(argv[i + 1]);
    } else if (flag == "--keys") {
      shape.dense_keys = ReadNumber(argv[i + 1]);
    } else if (flag == "--elements") {
      shape.elements = static_cast<size_t>(ReadNumber(argv[i + 1]));
    } else if (flag == "--iterations") {  // once, small: does it still run
      sizes = {3};
      shape.servers = 2;
      shape.dense_keys = 10;
    } else {
      Die("unknown flag " + flag);
    }
  }
  shape.broadcast_keys = shape.servers;
  for (const int workers : sizes) {
    shape.workers = workers;
    RunJob(shape);
  }
  RunWaitingWorker(shape);
  return 0;
}

}  // namespace
}  // namespace bdn::testing

int main(int argc, char** argv) { return bdn::testing::Main(argc, argv); }
