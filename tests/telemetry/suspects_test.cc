#include "common/telemetry/suspects.h"

#include <algorithm>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// The times of one worker in one step, in seconds, but for exchanges.
struct Turn {
  double compute = 0.05;
  double input = 0.004;
  double collection = 0;
  double queued = 0.0005;
};

// A job in which all workers exchange some keys with each server in each step, and go on when they
// have all replies. Its times have noise of a seed.
class Job {
 public:
  int workers = 4;
  int servers = 2;
  int keys = 3;                    // of each server
  double interval = 0.25;          // of heartbeats, in seconds
  double noise = 0.02;             // standard deviation of each time, as a share of it
  double hiccups = 0;              // of so many turns one takes half as long again
  std::vector<std::string> hosts;  // of workers; "a" where there are fewer
  double machine_busy = 0.4;
  // What a test changes: the turn of a worker, the link of a worker or server (rank) and the work
  // of a server in a step, and the nodes that are not heard.
  std::function<void(int step, int worker, Turn* turn)> turn = [](int, int, Turn*) {};
  std::function<double(int step, Role role, int rank)> link = [](int, Role, int) { return 0.002; };
  std::function<double(int step, int server)> work = [](int, int) { return 0.001; };
  std::set<NodeId> silent;
  std::set<NodeId> gone;

  explicit Job(uint32_t seed = 1) : random_(seed) {}

  void Run(int steps) {
    if (now_.empty()) Begin();
    for (int i = 0; i < steps; ++i) Step();
  }
  // Lets time pass in which no step ends.
  void Stand(double seconds) {
    BeatUntil(*std::max_element(now_.begin(), now_.end()) + seconds);
    for (double& now : now_) now += seconds;
  }
  void SetOpen(int worker, uint64_t requests) {
    work_of_[NodeOf(Role::kWorker, worker)].open_requests = requests;
  }
  int step() const { return step_; }
  absl::Time now() const { return TimeOf(*std::max_element(now_.begin(), now_.end())); }

  NodeId NodeOf(Role role, int rank) const {
    return static_cast<NodeId>(1 + rank + (role == Role::kWorker ? servers : 0));
  }
  // Returns "compute of worker 2" for each verdict that has begun, in order.
  const std::vector<std::string>& verdicts() const { return verdicts_; }
  const std::vector<std::string>& ends() const { return ends_; }
  int verdict_step() const { return verdict_step_; }  // of the latest
  SuspectWatch& watch() { return *watch_; }
  std::string Sentence() const {
    return watch_->suspects().empty() ? "" : SentenceOf(watch_->suspects().begin()->second, now());
  }

 private:
  static absl::Time TimeOf(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }
  static uint64_t Ns(double seconds) { return static_cast<uint64_t>(seconds * 1e9); }

  void Begin() {
    watch_ = std::make_unique<SuspectWatch>(absl::Seconds(interval),
                                            [this](NodeId node) { return !gone.contains(node); });
    now_.assign(static_cast<size_t>(workers), 0);
    for (int i = 0; i < workers + servers; ++i) next_beat_.push_back(interval * i / 7);
  }

  double Noisy(double mean) {
    double value = mean * (1 + noise * normal_(random_));
    if (hiccups > 0 && uniform_(random_) < hiccups) value += mean / 2;
    return std::max(0.0, value);
  }

  void Step() {
    ++step_;
    std::vector<double> pushed = now_;
    for (int w = 0; w < workers; ++w) {
      Turn mine;
      turn(step_, w, &mine);
      const double compute = Noisy(mine.compute);
      const double input = Noisy(mine.input);
      const double queued = Noisy(mine.queued);
      pushed[static_cast<size_t>(w)] += compute + input + mine.collection + queued;
      ProgramTimes& program = work_of_[NodeOf(Role::kWorker, w)].program;
      ++program.steps;
      program.compute_ns += Ns(compute);
      program.input_ns += Ns(input);
      program.collection_ns += Ns(mine.collection);
      program.queued_ns += Ns(queued);
      ++ended_[NodeOf(Role::kWorker, w)];
    }
    std::vector<double> ends = now_;
    for (int s = 0; s < servers; ++s) {
      std::vector<double> there;
      for (int w = 0; w < workers; ++w) {
        there.push_back(pushed[static_cast<size_t>(w)] + Noisy(link(step_, Role::kWorker, w)) +
                        Noisy(link(step_, Role::kServer, s)));
      }
      const double first = *std::min_element(there.begin(), there.end());
      const double last = *std::max_element(there.begin(), there.end());
      const double working = Noisy(work(step_, s));
      StageCounts& stages = stages_of_[NodeOf(Role::kServer, s)];
      WorkCounts& server = work_of_[NodeOf(Role::kServer, s)];
      server.peers.resize(static_cast<size_t>(workers));
      for (int w = 0; w < workers; ++w) {
        const auto at = static_cast<size_t>(w);
        const double back = last + working + Noisy(link(step_, Role::kWorker, w)) +
                            Noisy(link(step_, Role::kServer, s));
        ends[at] = std::max(ends[at], back);
        Count(&server.peers[at], w, there[at] - first);
        std::vector<PeerWait>& waits = work_of_[NodeOf(Role::kWorker, w)].peers;
        waits.resize(static_cast<size_t>(servers));
        Count(&waits[static_cast<size_t>(s)], s, back - pushed[at]);
        Add(&stages[Stage::kHold], last - there[at]);
      }
      Add(&stages[Stage::kSum], working / 2);
      Add(&stages[Stage::kEncode], working / 2);
      ++ended_[NodeOf(Role::kServer, s)];
    }
    now_ = ends;
    BeatUntil(*std::max_element(now_.begin(), now_.end()));
  }

  void Count(PeerWait* wait, int rank, double seconds) const {
    wait->rank = rank;
    wait->items += static_cast<uint64_t>(keys);
    wait->ns += static_cast<uint64_t>(keys) * Ns(seconds);
  }
  void Add(StageCount* count, double seconds) const {
    count->items += static_cast<uint64_t>(keys);
    count->bytes += static_cast<uint64_t>(keys) * 1000;
    count->wall_ns += static_cast<uint64_t>(keys) * Ns(seconds);
  }

  // Sends the heartbeats that are due, with the totals as they are now.
  void BeatUntil(double end) {
    for (;;) {
      const auto next = std::min_element(next_beat_.begin(), next_beat_.end());
      if (*next > end) return;
      const auto node = static_cast<NodeId>(next - next_beat_.begin() + 1);
      const double when = *next;
      *next += interval;
      if (silent.contains(node) || gone.contains(node)) continue;
      const bool is_server = node <= static_cast<NodeId>(servers);
      const int rank = static_cast<int>(node) - 1 - (is_server ? 0 : servers);
      const std::string host = !is_server && static_cast<size_t>(rank) < hosts.size()
                                   ? hosts[static_cast<size_t>(rank)]
                                   : "a";
      WorkCounts& work = work_of_[node];
      work.machine_busy_ns = Ns(when * 4 * machine_busy);
      work.machine_idle_ns = Ns(when * 4 * (1 - machine_busy));
      work.process_cpu_ns = Ns(when * 0.1);
      watch_->Heard(TimeOf(when),
                    {node, is_server ? Role::kServer : Role::kWorker, rank, host + ":7"},
                    ended_[node], stages_of_[node], work);
      for (const SuspectWatch::Change& change : watch_->TakeChanges()) {
        const Finding& finding = change.suspect.finding;
        (change.begins ? verdicts_ : ends_)
            .push_back(std::string(SuspectKindName(finding.kind)) + " of " +
                       PlaceName(finding.who));
        if (change.begins) verdict_step_ = step_;
      }
    }
  }

  std::mt19937 random_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
  std::unique_ptr<SuspectWatch> watch_;
  std::vector<double> now_;  // by worker: when its step began
  std::vector<double> next_beat_;
  std::map<NodeId, WorkCounts> work_of_;
  std::map<NodeId, StageCounts> stages_of_;
  std::map<NodeId, uint64_t> ended_;
  int step_ = 0;
  int verdict_step_ = 0;
  std::vector<std::string> verdicts_;
  std::vector<std::string> ends_;
};

constexpr int kQuiet = 120;  // steps before a fault begins

// Changes one worker's turns after the quiet steps.
void Disturb(Job* job, int who, std::function<void(int step, Turn*)> change) {
  job->turn = [who, change = std::move(change)](int step, int worker, Turn* turn) {
    if (worker == who && step > kQuiet) change(step, turn);
  };
}

TEST(Suspects, NamesTheWorkerThatComputesATenthLonger) {
  Job job;
  Disturb(&job, 2, [](int, Turn* turn) { turn->compute *= 1.1; });
  job.Run(kQuiet + 60);
  EXPECT_THAT(job.verdicts(), ElementsAre("compute of worker 2"));
  EXPECT_LE(job.verdict_step(), kQuiet + 40);
  EXPECT_THAT(job.Sentence(),
              AllOf(HasSubstr("worker 2 on a:7 computes longer than the others"),
                    HasSubstr("ms a step ("), HasSubstr("since "), HasSubstr("clock rate")));
}

TEST(Suspects, NamesTheWorkerWhoseLoaderSleeps) {
  Job job;
  Disturb(&job, 0, [](int, Turn* turn) { turn->input += 0.03; });
  job.Run(kQuiet + 60);
  EXPECT_THAT(job.verdicts(), ElementsAre("input of worker 0"));
  EXPECT_LE(job.verdict_step(), kQuiet + 20);
  EXPECT_THAT(job.Sentence(), HasSubstr("data loader"));
}

TEST(Suspects, NamesTheWorkerThatCollectsGarbageEverySeventhStep) {
  Job job;
  Disturb(&job, 3, [](int step, Turn* turn) { turn->collection = step % 7 == 0 ? 0.05 : 0; });
  job.Run(kQuiet + 60);
  EXPECT_THAT(job.verdicts(), ElementsAre("gc of worker 3"));
  EXPECT_THAT(job.Sentence(), HasSubstr("gc.freeze()"));
}

TEST(Suspects, NamesTheHostWhereThreadsWaitForAProcessorAndNotTheWorker) {
  Job job;
  job.hosts = {"a", "a", "b", "a"};
  Disturb(&job, 2, [](int, Turn* turn) {
    turn->queued = 0.02;
    turn->compute *= 1.3;  // as caches are shared
  });
  job.machine_busy = 0.9;
  job.Run(kQuiet + 60);
  EXPECT_THAT(job.verdicts(), ElementsAre("host of host b"));
  EXPECT_THAT(job.Sentence(), AllOf(HasSubstr("host b is busy"), HasSubstr("worker 2 waits most"),
                                    HasSubstr("of 4 processors")));
}

TEST(Suspects, NamesTheWorkerWhoseLinkIsSlow) {
  Job job;
  job.link = [](int step, Role role, int rank) {
    return role == Role::kWorker && rank == 1 && step > kQuiet ? 0.008 : 0.002;
  };
  job.Run(kQuiet + 60);
  EXPECT_THAT(job.verdicts(), ElementsAre("link of worker 1"));
  EXPECT_THAT(job.Sentence(), HasSubstr("frames to and from worker 1"));
}

TEST(Suspects, NamesTheServerWhoseLinkIsSlowFromTheBeginning) {
  Job job;
  job.link = [](int, Role role, int rank) {
    return role == Role::kServer && rank == 1 ? 0.012 : 0.002;
  };
  job.Run(kQuiet);
  EXPECT_THAT(job.verdicts(), ElementsAre("link of server 1"));
}

TEST(Suspects, NamesTheServerThatWorksLongerOnItsKeys) {
  Job job;
  job.work = [](int step, int server) { return server == 0 && step > kQuiet ? 0.009 : 0.001; };
  job.Run(kQuiet + 60);
  EXPECT_THAT(job.verdicts(), ElementsAre("server of server 0"));
  EXPECT_THAT(job.Sentence(), HasSubstr("works on its keys longer"));
}

TEST(Suspects, NamesTheNodeThatIsNotHeardAndForgivesItLater) {
  Job job;
  job.Run(kQuiet);
  job.silent = {job.NodeOf(Role::kWorker, 1)};
  job.Stand(3);
  EXPECT_THAT(job.verdicts(), ElementsAre("stalled of worker 1"));
  EXPECT_THAT(job.Sentence(),
              AllOf(HasSubstr("worker 1 on a:7 was not heard for "), HasSubstr("stopped")));
  EXPECT_THAT(job.ends(), IsEmpty());
  job.silent.clear();
  job.Run(400);
  EXPECT_THAT(job.verdicts(), ElementsAre("stalled of worker 1"));
  EXPECT_THAT(job.ends(), ElementsAre("stalled of worker 1"));
}

TEST(Suspects, NamesTheWorkerForWhichTheOthersWait) {
  Job job;
  job.Run(kQuiet);
  for (const int waiting : {0, 2, 3}) job.SetOpen(waiting, 6);
  job.Stand(6);
  EXPECT_THAT(job.verdicts(), ElementsAre("stalled of worker 1"));
  EXPECT_THAT(job.Sentence(), HasSubstr("worker 1 on a:7 has pushed nothing, and others wait"));
}

TEST(Suspects, NameNobodyWhileAllRestOrTheSchedulerHearsNobody) {
  Job job;
  job.Run(kQuiet);
  job.Stand(30);  // all validate
  for (const Role role : {Role::kWorker, Role::kServer}) {
    for (int rank = 0; rank < 4; ++rank) job.silent.insert(job.NodeOf(role, rank));
  }
  job.Stand(3);
  job.silent.clear();
  job.Run(100);
  EXPECT_THAT(job.verdicts(), IsEmpty());
}

TEST(Suspects, TwoWorkersAreComparedWithTheirOwnPast) {
  Job changed;
  changed.workers = 2;
  Disturb(&changed, 1, [](int, Turn* turn) { turn->compute *= 1.2; });
  changed.Run(kQuiet + 100);
  EXPECT_THAT(changed.verdicts(), ElementsAre("compute of worker 1"));

  Job other;  // from the beginning: nobody knows which of the two is right
  other.workers = 2;
  other.turn = [](int, int worker, Turn* turn) { turn->compute *= worker == 1 ? 1.2 : 1; };
  other.Run(kQuiet + 100);
  EXPECT_THAT(other.verdicts(), IsEmpty());
}

TEST(Suspects, NameNobodyInQuietSteps) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    for (const int workers : {1, 2, 3, 4, 16}) {
      Job job(seed);
      job.workers = workers;
      job.noise = 0.01 * (seed % 6 + 1);
      job.hiccups = seed % 2 == 0 ? 0.02 : 0;
      job.Run(1000);
      EXPECT_THAT(job.verdicts(), IsEmpty()) << "seed " << seed << ", workers " << workers;
    }
  }
}

TEST(Suspects, NameNobodyWhereAllBecomeSlowerTogether) {
  Job job;
  job.turn = [](int step, int, Turn* turn) {
    turn->compute *= step > kQuiet ? 2 : 1;
    turn->input *= step > 2 * kQuiet ? 9 : 1;
  };
  job.Run(3 * kQuiet);
  EXPECT_THAT(job.verdicts(), IsEmpty());
}

TEST(Suspects, NameNobodyForOneLongStep) {
  Job job;
  job.turn = [](int step, int worker, Turn* turn) {
    if (step % 100 == 0 && worker == 0) turn->input += 2;  // it validates alone
  };
  job.Run(1000);
  EXPECT_THAT(job.verdicts(), IsEmpty());
}

TEST(Suspects, AVerdictEndsWithItsCause) {
  Job job;
  job.turn = [](int step, int worker, Turn* turn) {
    if (worker == 2 && step > kQuiet && step <= 2 * kQuiet) turn->compute *= 1.3;
  };
  job.Run(4 * kQuiet);
  EXPECT_THAT(job.verdicts(), ElementsAre("compute of worker 2"));
  EXPECT_THAT(job.ends(), ElementsAre("compute of worker 2"));
  EXPECT_TRUE(job.watch().suspects().empty());
}

TEST(Suspects, ANodeThatHasLeftIsNoneAnyMore) {
  Job job;
  Disturb(&job, 2, [](int, Turn* turn) { turn->compute *= 1.3; });
  job.Run(kQuiet + 60);
  ASSERT_THAT(job.verdicts(), ElementsAre("compute of worker 2"));
  job.gone = {job.NodeOf(Role::kWorker, 2)};
  job.Run(20);
  EXPECT_THAT(job.ends(), ElementsAre("compute of worker 2"));
}

TEST(Suspects, TotalsThatFallBeginAnew) {
  SuspectWatch watch(absl::Seconds(1), [](NodeId) { return true; });
  WorkCounts work = {.program = {.steps = 50, .compute_ns = 1000}};
  for (int i = 0; i < 40; ++i) {
    work.program.compute_ns = i % 2 == 0 ? 1000 : 0;
    watch.Heard(absl::UnixEpoch() + absl::Seconds(i), {1, Role::kWorker, 0, "a:1"},
                static_cast<uint64_t>(10 + 20 * i), {}, work);
  }
  EXPECT_TRUE(watch.heat().empty());
}

TEST(Suspects, HeatHasTheTimesOfAllNodes) {
  Job job;
  job.Run(kQuiet);
  std::vector<std::string> rows;
  for (const HeatRow& row : job.watch().heat()) rows.push_back(PlaceName(row.who));
  EXPECT_THAT(rows,
              ElementsAre("server 0", "server 1", "worker 0", "worker 1", "worker 2", "worker 3"));
  const HeatRow& worker = job.watch().heat()[2];
  ASSERT_EQ(worker.cells.size(), 5u);
  EXPECT_EQ(worker.cells[0].kind, SuspectKind::kCompute);
  EXPECT_NEAR(worker.cells[0].seconds, 0.05, 0.005);
  EXPECT_THAT(worker.cells[0].share, AllOf(testing::Gt(-0.05), testing::Lt(0.05)));
}

TraceRecord Mark(TraceKind kind, int64_t begin, uint64_t wall, uint64_t queued = 0) {
  return {.begin_ns = begin,
          .wall_ns = wall,
          .bytes = static_cast<uint32_t>(queued / kTraceTickNs),
          .kind = static_cast<uint8_t>(kind)};
}

TEST(ProgramClock, TakesWaitsCollectionsAndTheRunQueueOutOfParts) {
  ProgramClock clock;
  // A wait of the forward pass comes with an earlier call than the pass.
  clock.Add(std::vector<TraceRecord>{Mark(TraceKind::kCollection, 1000, 2000),
                                     Mark(TraceKind::kInput, 0, 8000, 1600),
                                     Mark(TraceKind::kWaiting, 9000, 5000)});
  EXPECT_EQ(clock.Read(), ProgramTimes());  // the step has not ended
  clock.Add(std::vector<TraceRecord>{
      Mark(TraceKind::kForward, 8000, 16000), Mark(TraceKind::kBackward, 24000, 20000, 3200),
      Mark(TraceKind::kWaiting, 44000, 6000), Mark(TraceKind::kOptimizer, 50000, 4000),
      Mark(TraceKind::kStep, 0, 54000, 4800)});
  EXPECT_EQ(clock.Read(), (ProgramTimes{.steps = 1,
                                        .compute_ns = 11000 + 16800 + 4000,
                                        .input_ns = 8000 - 1600 - 2000,
                                        .collection_ns = 2000,
                                        .queued_ns = 4800}));
}

TEST(ProgramClock, CountsAnOptimizersPartOfAForwardPassOnce) {
  ProgramClock clock;
  clock.Add(std::vector<TraceRecord>{Mark(TraceKind::kOptimizer, 1000, 300),
                                     Mark(TraceKind::kForward, 0, 2000),
                                     Mark(TraceKind::kStep, 0, 3000)});
  EXPECT_EQ(clock.Read().compute_ns, 2000u);
}

TEST(ProgramClock, StaysBoundedWhateverAProgramMarks) {
  ProgramClock clock;
  for (int i = 0; i < 10000; ++i) {
    clock.Add(std::vector<TraceRecord>{Mark(TraceKind::kWaiting, INT64_MIN, UINT64_MAX),
                                       Mark(TraceKind::kForward, INT64_MAX, UINT64_MAX, UINT64_MAX),
                                       Mark(TraceKind::kStep, -5, UINT64_MAX)});
  }
  EXPECT_LE(clock.Read().compute_ns, uint64_t{1} << 62);
}

TEST(WorkCounts, KnowTheMachine) {
  WorkCounts counts;
  ReadMachineTimes(&counts);
  EXPECT_GT(counts.machine_busy_ns, 0u);
  EXPECT_GT(counts.process_cpu_ns, 0u);
}

}  // namespace
}  // namespace bdn
