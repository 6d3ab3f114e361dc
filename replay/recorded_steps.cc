#include "replay/recorded_steps.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace bdn {
namespace {

// A median of fewer steps is told to say little.
constexpr size_t kFewSteps = 4;

// Returns whether the replay knows all of an exchange's costs.
bool IsWhole(const Exchange& exchange) {
  for (const ExchangePoint point :
       {ExchangePoint::kQueued, ExchangePoint::kEncoding, ExchangePoint::kSending,
        ExchangePoint::kReplyHere, ExchangePoint::kDecoding, ExchangePoint::kDecoded}) {
    if (exchange.At(point) == kNoTime) return false;
  }
  if (exchange.server < 0) return true;
  for (const ExchangePoint point : {ExchangePoint::kArrived, ExchangePoint::kTaken,
                                    ExchangePoint::kAccepted, ExchangePoint::kReplied}) {
    if (exchange.At(point) == kNoTime) return false;
  }
  return true;
}

// Windows of a program without marks: each step of its keys, from its first exchange on.
std::vector<StepWindow> WindowsOfKeys(const JobTrace& job, const std::vector<uint32_t>& exchanges) {
  std::map<uint64_t, int64_t> begins;
  int64_t last = 0;
  for (const uint32_t index : exchanges) {
    const Exchange& exchange = job.exchanges[index];
    const auto [found, is_new] = begins.emplace(exchange.step, exchange.Begin());
    found->second = std::min(found->second, exchange.Begin());
    last = std::max(last, exchange.End());
  }
  std::vector<StepWindow> windows;
  for (const auto& [number, begin] : begins) {
    if (!windows.empty()) windows.back().end_ns = std::max(begin, windows.back().begin_ns);
    windows.push_back({number, begin, last + 1, 0});
  }
  return windows;
}

class StepChooser {
 public:
  explicit StepChooser(const JobTrace& job) : job_(job) {}

  absl::StatusOr<RecordedSteps> Choose() {
    BDN_RETURN_IF_ERROR(FindSources());
    ChooseIncarnations();
    BDN_RETURN_IF_ERROR(ChooseSteps());
    return std::move(steps_);
  }

 private:
  absl::Status FindSources() {
    for (const JobNode& node : job_.nodes) {
      if (node.trace.facts.role != "process") continue;
      return Unimplemented(
          "%s takes part through its host's daemon, whose gathering of gradients the replay does "
          "not know: record the job without --hosts",
          node.trace.facts.Name());
    }
    bool any_marks = false;
    for (uint32_t i = 0; i < job_.nodes.size(); ++i) {
      const JobNode& node = job_.nodes[i];
      if (node.trace.facts.role != "worker") continue;
      const ProgramTime time(node.trace.records);
      WorkerSteps source{.node = i, .spans = time.spans()};
      for (const ProgramTime::Step& step : time.steps()) {
        source.windows.push_back({step.number, step.begin_ns, step.end_ns, step.queued_ns});
      }
      if (source.windows.empty() && node.exchanges.empty()) {
        steps_.warnings.push_back(absl::StrFormat(
            "%s has recorded no exchange: the replay is without it", job_.NodeName(i)));
        continue;
      }
      any_marks = any_marks || !source.windows.empty();
      steps_.workers.push_back(std::move(source));
    }
    if (steps_.workers.empty()) return NotFound("no worker has recorded an exchange");
    steps_.has_marks = any_marks;
    if (!any_marks) {
      for (WorkerSteps& source : steps_.workers) {
        source.spans.clear();
        source.windows = WindowsOfKeys(job_, job_.nodes[source.node].exchanges);
      }
      return absl::OkStatus();
    }
    std::erase_if(steps_.workers, [&](const WorkerSteps& source) {
      if (!source.windows.empty()) return false;
      steps_.warnings.push_back(absl::StrFormat(
          "the program of %s has marked no steps: others wait for it as long as they did",
          job_.NodeName(source.node)));
      return true;
    });
    return absl::OkStatus();
  }

  // Keeps one recording of each rank. A worker that was started again has several, which have no
  // step in common.
  void ChooseIncarnations() {
    std::map<Rank, size_t> longest;  // by rank: the place of its recording with the most steps
    for (size_t i = 0; i < steps_.workers.size(); ++i) {
      const auto [found, is_new] = longest.emplace(RankOf(steps_.workers[i]), i);
      if (is_new) continue;
      steps_.warnings.push_back(absl::StrFormat(
          "%s was started again: its recording with the most steps is replayed, and others wait "
          "for it as long as they did",
          job_.NodeName(steps_.workers[i].node)));
      if (steps_.workers[i].windows.size() > steps_.workers[found->second].windows.size())
        found->second = i;
    }
    std::vector<WorkerSteps> kept;
    for (size_t i = 0; i < steps_.workers.size(); ++i) {
      if (longest.at(RankOf(steps_.workers[i])) == i) kept.push_back(std::move(steps_.workers[i]));
    }
    steps_.workers = std::move(kept);
  }
  Rank RankOf(const WorkerSteps& source) const { return job_.nodes[source.node].trace.facts.rank; }

  // Returns the numbers of the steps that all programs have recorded, each once, and counts those
  // that any has.
  std::set<uint64_t> CommonSteps(size_t* any) const {
    std::map<uint64_t, size_t> seen;
    for (const WorkerSteps& source : steps_.workers) {
      std::set<uint64_t> of_source;
      for (const StepWindow& window : source.windows) of_source.insert(window.number);
      for (const uint64_t number : of_source) ++seen[number];
    }
    std::set<uint64_t> common;
    for (const auto& [number, count] : seen) {
      if (count == steps_.workers.size()) common.insert(number);
    }
    *any = seen.size();
    return common;
  }

  // Returns the longest run of numbers of `common` without a gap and without one of `broken`.
  static std::vector<uint64_t> LongestRun(const std::set<uint64_t>& common,
                                          const std::set<uint64_t>& broken) {
    uint64_t best_first = 0;
    size_t best = 0;
    size_t length = 0;
    uint64_t before = 0;
    for (const uint64_t number : common) {
      if (broken.contains(number)) {
        length = 0;
        continue;
      }
      length = length > 0 && before + 1 == number ? length + 1 : 1;
      before = number;
      if (length <= best) continue;
      best = length;
      best_first = number + 1 - length;
    }
    std::vector<uint64_t> run(best);
    std::iota(run.begin(), run.end(), best_first);
    return run;
  }

  // Keeps the longest run of whole steps.
  absl::Status ChooseSteps() {
    size_t recorded = 0;
    const std::set<uint64_t> common = CommonSteps(&recorded);
    std::set<uint64_t> broken;
    for (WorkerSteps& source : steps_.workers) {
      std::erase_if(source.windows,
                    [&](const StepWindow& w) { return !common.contains(w.number); });
      std::vector<uint32_t> own = job_.nodes[source.node].exchanges;
      std::sort(own.begin(), own.end(), [&](uint32_t a, uint32_t b) {
        return std::pair(job_.exchanges[a].Begin(), a) < std::pair(job_.exchanges[b].Begin(), b);
      });
      source.exchanges.resize(source.windows.size());
      size_t at = 0;
      for (const uint32_t index : own) {
        const Exchange& exchange = job_.exchanges[index];
        const int64_t begin = exchange.Begin();
        while (at < source.windows.size() && source.windows[at].end_ns <= begin) ++at;
        if (at == source.windows.size()) break;
        if (begin < source.windows[at].begin_ns) continue;
        source.exchanges[at].push_back(index);
        if (!IsWhole(exchange)) broken.insert(source.windows[at].number);
      }
    }
    const std::vector<uint64_t> best = LongestRun(common, broken);
    if (best.empty()) {
      return NotFound(
          "no step is whole in these recordings: all workers' exchanges and the servers' part of "
          "them are needed");
    }
    if (best.size() < recorded) {
      steps_.warnings.push_back(absl::StrFormat(
          "of %d steps %d are replayed, from %d to %d: of the others an exchange is not recorded "
          "whole, or a worker has not recorded them",
          recorded, best.size(), best.front(), best.back()));
    }
    if (best.size() < kFewSteps) {
      steps_.warnings.push_back(absl::StrFormat(
          "only %d steps are replayed: their median and its interval say little", best.size()));
    }
    steps_.numbers = best;
    const std::set<uint64_t> chosen(best.begin(), best.end());
    for (WorkerSteps& source : steps_.workers) {
      std::vector<StepWindow> windows;
      std::vector<std::vector<uint32_t>> exchanges;
      for (size_t i = 0; i < source.windows.size(); ++i) {
        if (!chosen.contains(source.windows[i].number)) continue;
        windows.push_back(source.windows[i]);
        exchanges.push_back(std::move(source.exchanges[i]));
      }
      source.windows = std::move(windows);
      source.exchanges = std::move(exchanges);
      if (source.windows.size() != best.size()) {
        return Unimplemented("%s has recorded a step twice: two runs of a job are in one recording",
                             job_.NodeName(source.node));
      }
    }
    return absl::OkStatus();
  }

  const JobTrace& job_;
  RecordedSteps steps_;
};

}  // namespace

absl::StatusOr<RecordedSteps> ChooseSteps(const JobTrace& job) { return StepChooser(job).Choose(); }

}  // namespace bdn
