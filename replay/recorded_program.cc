#include "replay/recorded_program.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace bdn {
namespace {

int64_t LastEnd(const JobTrace& job, const std::vector<uint32_t>& exchanges, int64_t until) {
  int64_t last = kNoTime;
  for (const uint32_t index : exchanges) {
    const int64_t end = job.exchanges[index].End();
    if (end <= until) last = std::max(last, end);
  }
  return last;
}

class ProgramMaker {
 public:
  ProgramMaker(const JobTrace& job, const WorkerSteps& source, WorkerModel* worker)
      : job_(job), source_(source), worker_(*worker) {}

  int64_t Make(bool has_marks) {
    for (size_t i = 0; i < source_.windows.size(); ++i) {
      worker_.steps[i].wall_ns = source_.windows[i].end_ns - source_.windows[i].begin_ns;
      worker_.steps[i].queued_ns = source_.windows[i].queued_ns;
    }
    if (has_marks) {
      AddMarked();
    } else {
      AddUnmarked();
    }
    return unexplained_ns_;
  }

 private:
  // A wait of a program.
  struct WaitTime {
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
    uint32_t step = 0;
    uint32_t number = 0;                                 // in its step
    std::vector<std::pair<uint32_t, uint32_t>> awaited;  // step and exchange
    int64_t last_end_ns = kNoTime;                       // of those
  };

  std::vector<WaitTime> Waits() const {
    std::vector<WaitTime> waits;
    size_t at = 0;
    for (uint32_t step = 0; step < source_.windows.size(); ++step) {
      const StepWindow& window = source_.windows[step];
      uint32_t number = 0;
      for (; at < source_.spans.size() && source_.spans[at].begin_ns < window.end_ns; ++at) {
        const ProgramSpan& span = source_.spans[at];
        if (span.kind != TraceKind::kWaiting || span.begin_ns < window.begin_ns) continue;
        waits.push_back({span.begin_ns, span.end_ns, step, number++, {}, kNoTime});
      }
    }
    return waits;
  }

  // Finds out which wait of the program waits for which exchange: the recording does not say that.
  // The wait that a key is awaited in ends behind its exchange in each step, so it is the first one
  // that does so in all of them, where steps have equally many waits.
  void AssignExchanges(std::vector<WaitTime>* waits) const {
    std::vector<uint32_t> counts(source_.windows.size(), 0);
    for (const WaitTime& wait : *waits) ++counts[wait.step];
    const bool is_even =
        std::all_of(counts.begin(), counts.end(), [&](uint32_t c) { return c == counts[0]; });
    std::vector<uint32_t> first(source_.windows.size() + 1, 0);
    for (size_t i = 0; i < counts.size(); ++i) first[i + 1] = first[i] + counts[i];
    using Distance = std::pair<uint32_t, uint32_t>;  // steps later, and the wait's number there
    std::map<std::pair<uint64_t, size_t>, Distance> of_key;
    const auto find = [&](uint32_t index) {
      const int64_t end = job_.exchanges[index].End();
      return static_cast<size_t>(
          std::lower_bound(waits->begin(), waits->end(), end,
                           [](const WaitTime& wait, int64_t ns) { return wait.end_ns < ns; }) -
          waits->begin());
    };
    // A key may be pushed several times in a step. Then each push counts by itself.
    const auto ids_of = [&](uint32_t step) {
      std::vector<std::pair<uint64_t, size_t>> ids;
      absl::flat_hash_map<uint64_t, size_t> pushes;
      for (const uint32_t index : source_.exchanges[step]) {
        const uint64_t key = job_.exchanges[index].key;
        ids.emplace_back(key, pushes[key]++);
      }
      return ids;
    };
    for (uint32_t step = 0; is_even && step < source_.windows.size(); ++step) {
      const auto ids = ids_of(step);
      for (size_t i = 0; i < source_.exchanges[step].size(); ++i) {
        const size_t wait = find(source_.exchanges[step][i]);
        if (wait == waits->size()) continue;
        Distance& distance = of_key[ids[i]];
        distance = std::max(distance, {(*waits)[wait].step - step, (*waits)[wait].number});
      }
    }
    for (uint32_t step = 0; step < source_.windows.size(); ++step) {
      const auto ids = ids_of(step);
      for (uint32_t i = 0; i < source_.exchanges[step].size(); ++i) {
        size_t wait = find(source_.exchanges[step][i]);
        if (is_even) {
          const auto found = of_key.find(ids[i]);
          if (found == of_key.end() || step + found->second.first >= source_.windows.size())
            continue;
          wait = first[step + found->second.first] + found->second.second;
        }
        if (wait >= waits->size()) continue;
        WaitTime& one = (*waits)[wait];
        one.awaited.emplace_back(step, i);
        one.last_end_ns =
            std::max(one.last_end_ns, job_.exchanges[source_.exchanges[step][i]].End());
      }
    }
  }

  // A cursor that turns a worker's recorded time into items.
  class ItemWriter {
   public:
    ItemWriter(int64_t at, StepProgram* step) : at_(at), step_(step) {}
    void Compute(int64_t until, uint8_t mark) {
      if (until <= at_) return;
      step_->items.push_back({ProgramItem::Kind::kCompute, mark, 0, 0, until - at_});
      at_ = until;
    }
    void Start(uint32_t exchange, int64_t at) {
      step_->items.push_back(
          {ProgramItem::Kind::kStart, 0, exchange, 0, std::max<int64_t>(0, at - at_)});
    }
    void Wait(const std::vector<std::pair<uint32_t, uint32_t>>& awaited, uint32_t step,
              int64_t until, int64_t after_ns) {
      const auto first = static_cast<uint32_t>(step_->awaited.size());
      for (const auto& [of_step, exchange] : awaited) {
        step_->awaited.push_back({step - of_step, exchange});
      }
      step_->items.push_back(
          {ProgramItem::Kind::kWait, 0, first, static_cast<uint32_t>(awaited.size()), after_ns});
      at_ = std::max(at_, until);
    }
    int64_t at() const { return at_; }

   private:
    int64_t at_;
    StepProgram* step_;
  };

  void AddMarked() {
    std::vector<WaitTime> waits = Waits();
    AssignExchanges(&waits);
    size_t next_wait = 0;
    size_t span = 0;
    for (uint32_t number = 0; number < source_.windows.size(); ++number) {
      const StepWindow& window = source_.windows[number];
      ItemWriter writer(window.begin_ns, &worker_.steps[number]);
      uint32_t next = 0;
      const auto& exchanges = source_.exchanges[number];
      const auto begin_of = [&](uint32_t i) { return job_.exchanges[exchanges[i]].Begin(); };
      // Computes until `until`, and starts what began meanwhile.
      const auto compute = [&](int64_t until, uint8_t mark) {
        while (next < exchanges.size() && begin_of(next) < until) {
          writer.Compute(begin_of(next), mark);
          writer.Start(next, begin_of(next));
          ++next;
        }
        writer.Compute(until, mark);
      };
      for (; span < source_.spans.size() && source_.spans[span].begin_ns < window.end_ns; ++span) {
        const ProgramSpan& one = source_.spans[span];
        const auto mark = static_cast<uint8_t>(one.kind.value_or(TraceKind{}));
        compute(std::max(one.begin_ns, writer.at()), 0);
        const int64_t end = std::min(one.end_ns, window.end_ns);
        const bool is_wait = one.kind == TraceKind::kWaiting && next_wait < waits.size() &&
                             waits[next_wait].begin_ns == one.begin_ns;
        if (!is_wait) {
          compute(end, mark);
          // A span that goes on belongs to the next step, too.
          if (one.end_ns > window.end_ns) break;
          continue;
        }
        const WaitTime& wait = waits[next_wait++];
        if (wait.awaited.empty()) {
          unexplained_ns_ += end - std::max(one.begin_ns, writer.at());
          compute(end, mark);
          continue;
        }
        while (next < exchanges.size() && begin_of(next) < end) {
          writer.Start(next, begin_of(next));
          ++next;
        }
        writer.Wait(wait.awaited, number, end,
                    std::max<int64_t>(0, end - std::max(wait.begin_ns, wait.last_end_ns)));
      }
      compute(window.end_ns, 0);
    }
  }

  // A program without marks is known by the times at which its exchanges began. The first one of a
  // step is taken to follow the last exchange that had ended by then.
  void AddUnmarked() {
    int64_t at = source_.windows[0].begin_ns;
    for (uint32_t number = 0; number < source_.windows.size(); ++number) {
      ItemWriter writer(at, &worker_.steps[number]);
      const auto& exchanges = source_.exchanges[number];
      const int64_t begin = source_.windows[number].begin_ns;
      std::vector<std::pair<uint32_t, uint32_t>> awaited;
      if (number > 0) {
        const auto& before = source_.exchanges[number - 1];
        for (uint32_t i = 0; i < before.size(); ++i) {
          if (job_.exchanges[before[i]].End() <= begin) awaited.emplace_back(number - 1, i);
        }
        const int64_t last = LastEnd(job_, before, begin);
        if (!awaited.empty() && last >= at) writer.Wait(awaited, number, last, 0);
      }
      for (uint32_t i = 0; i < exchanges.size(); ++i) {
        const int64_t start = job_.exchanges[exchanges[i]].Begin();
        writer.Compute(start, 0);
        writer.Start(i, start);
      }
      at = writer.at();
    }
  }

  const JobTrace& job_;
  const WorkerSteps& source_;
  WorkerModel& worker_;
  int64_t unexplained_ns_ = 0;
};

}  // namespace

int64_t AddProgram(const JobTrace& job, const WorkerSteps& source, bool has_marks,
                   WorkerModel* worker) {
  return ProgramMaker(job, source, worker).Make(has_marks);
}

}  // namespace bdn
