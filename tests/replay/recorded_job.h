#ifndef BANDONEON_TESTS_REPLAY_RECORDED_JOB_H_
#define BANDONEON_TESTS_REPLAY_RECORDED_JOB_H_

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "replay/replay_report.h"
#include "replay/replay_settings.h"
#include "tests/trace/trace_maker.h"
#include "trace/job_trace.h"

namespace bdn {

inline constexpr int64_t kUs = 1000;

// A job of two workers and a server. A step computes for 400 us, exchanges its keys in 100 us each,
// of which one begins `apart_us` after the one before it, and takes 5 us for the end of the wait
// and 105 us for the optimizer: with one key 610 us.
class RecordedJob {
 public:
  explicit RecordedJob(uint32_t bytes, bool with_marks = true)
      : bytes_(bytes), with_marks_(with_marks) {}

  // Adds a step, for which worker 1 computes so much longer.
  void Step(uint64_t step, int64_t longer_us = 0) {
    const int64_t pushed0 = at_ + 400;
    const int64_t pushed1 = pushed0 + longer_us;
    int64_t done = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      const int64_t later = static_cast<int64_t>(i) * apart_us;
      AddExchange(&workers_[0], &server_, pushed0 + later, keys[i], step, longer_us);
      done = AddExchange(&workers_[1], &server_, pushed1 + later, keys[i], step, 0);
      AddRound(&server_, pushed1 + later + 50, keys[i], step);
      for (size_t j = 1; j <= 2; ++j) server_.records[server_.records.size() - j].peer = 2;
    }
    const int64_t end = done + 110;
    for (TraceMaker& worker : workers_) {
      if (!with_marks_) continue;
      const int64_t pushed = &worker == &workers_[0] ? pushed0 : pushed1;
      worker.Mark(TraceKind::kForward, at_, at_ + 100, step)
          .Mark(TraceKind::kBackward, at_ + 100, pushed, step)
          .Mark(TraceKind::kWaiting, pushed, done + 5, step)
          .Mark(TraceKind::kOptimizer, done + 5, end, step)
          .Mark(TraceKind::kStep, at_, end, step, 1);
    }
    at_ = end;
  }
  void Steps(uint64_t count, int64_t longer_us = 0) {
    for (uint64_t step = 1; step <= count; ++step) Step(step, longer_us);
  }
  TraceMaker& worker(size_t i) { return workers_[i]; }
  TraceMaker& server() { return server_; }

  JobTrace Join(bool with_worker1 = true, bool with_server = true) {
    std::vector<NodeTrace> traces = {Read(workers_[0])};
    if (with_worker1) traces.push_back(Read(workers_[1]));
    if (with_server) traces.push_back(Read(server_));
    return JoinAll(std::move(traces));
  }
  NodeTrace Read(TraceMaker maker) const {
    for (TraceRecord& record : maker.records) {
      if (record.kind >= kFirstMark) continue;
      const auto own = bytes_of.find(record.key);
      record.bytes = own == bytes_of.end() ? bytes_ : own->second;
    }
    return maker.Read();
  }
  static JobTrace JoinAll(std::vector<NodeTrace> traces) {
    auto job = JoinTraces(std::move(traces));
    if (!job.ok()) throw std::runtime_error(std::string(job.status().message()));
    return *std::move(job);
  }

  std::vector<uint64_t> keys = {7};
  std::map<uint64_t, uint32_t> bytes_of;  // of keys that have others than the constructor says
  int64_t apart_us = 100;

 private:
  const uint32_t bytes_;
  const bool with_marks_;
  TraceMaker workers_[2] = {{"worker", 0}, {"worker", 1}};
  TraceMaker server_{"server", 0};
  int64_t at_ = 10'000;
};

// Long enough for the pool, and too short for an estimate of the link's rate.
inline constexpr uint32_t kBytes = 40'000;
// Long enough to be compressed.
inline constexpr uint32_t kLongBytes = 400'000;

inline absl::StatusOr<ReplayReport> TryReplay(const JobTrace& job,
                                              const std::vector<std::string>& texts,
                                              const std::string& costs = "",
                                              std::optional<uint32_t> workers = {}) {
  ReplaySettings settings;
  for (const std::string& text : texts) {
    if (absl::Status added = AddReplaySetting(text, &settings); !added.ok()) return added;
  }
  if (workers) {
    settings.workers = workers;
    settings.texts.push_back(std::to_string(*workers) + " workers");
  }
  const auto replayer = Replayer::Make(job, costs);
  if (!replayer.ok()) return replayer.status();
  return replayer->Report(settings);
}
inline ReplayReport Replay(const JobTrace& job, const std::vector<std::string>& texts = {},
                           const std::string& costs = "", std::optional<uint32_t> workers = {}) {
  auto report = TryReplay(job, texts, costs, workers);
  if (!report.ok()) throw std::runtime_error(std::string(report.status().message()));
  return *std::move(report);
}

}  // namespace bdn

#endif  // BANDONEON_TESTS_REPLAY_RECORDED_JOB_H_
