// The schedule of `bandoneon check` and its verdicts, as pure functions.

#include "cli/job_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/check_report.h"

namespace bdn::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr double kMbit = 1e6;

// Each node on a machine of its own.
JobPlaces Apart(int workers, int servers) {
  JobPlaces places;
  for (int i = 0; i < workers + servers; ++i) {
    (i < workers ? places.workers : places.servers).push_back(i);
    places.hosts.push_back(i < workers ? absl::StrCat("w", i) : absl::StrCat("s", i - workers));
  }
  return places;
}

// All nodes on one machine.
JobPlaces Together(int workers, int servers) {
  return {.hosts = {"one"},
          .workers = std::vector<int>(static_cast<size_t>(workers)),
          .servers = std::vector<int>(static_cast<size_t>(servers))};
}

// A job without a fault, whose figures differ by some percent from each other.
JobFigures Sound(JobPlaces places) {
  JobFigures figures;
  figures.codec = "onebit";
  for (size_t i = 0; i < places.num_pairs(); ++i) {
    const double noise = 1 + 0.01 * static_cast<double>(i * 7 % 10);
    figures.links.push_back({.up = 95 * kMbit * noise,
                             .down = 93 * kMbit * noise,
                             .round_trip = 150e-6 * noise,
                             .up_seconds = 0.1,
                             .down_seconds = 0.1});
  }
  figures.machines.resize(places.hosts.size());
  for (const int machine : places.workers) {
    figures.machines[static_cast<size_t>(machine)] = {.memory = 10e9 + 1e8 * machine,
                                                      .codec = 2e9,
                                                      .loopback = 30e9,
                                                      .processors = 8,
                                                      .load = 0.3,
                                                      .share = 0.99};
  }
  figures.all_up = figures.all_down = 90 * kMbit * static_cast<double>(places.servers.size());
  figures.places = std::move(places);
  return figures;
}

LinkFigures& LinkOf(JobFigures& figures, int worker, int server) {
  return figures.links[static_cast<size_t>(worker) * figures.places.servers.size() +
                       static_cast<size_t>(server)];
}

// Divides the rates of the pairs for which it is asked.
template <typename Which>
JobFigures Slowed(JobFigures figures, double up, double down, Which which) {
  for (const NodePair& pair : AllPairs(figures.places)) {
    if (!which(pair)) continue;
    LinkOf(figures, pair.worker, pair.server).up /= up;
    LinkOf(figures, pair.worker, pair.server).down /= down;
  }
  return figures;
}

// Returns "warning link both ways worker 1", one for each verdict.
std::vector<std::string> Told(const JobFigures& figures) {
  std::vector<std::string> told;
  for (const Verdict& verdict : JudgeJob(figures)) {
    std::string line = absl::StrCat(SeverityName(verdict.finding.severity), " ", verdict.kind);
    if (!verdict.direction.empty()) absl::StrAppend(&line, " ", verdict.direction);
    if (verdict.worker >= 0) absl::StrAppend(&line, " worker ", verdict.worker);
    if (verdict.server >= 0) absl::StrAppend(&line, " server ", verdict.server);
    if (verdict.machine >= 0) {
      absl::StrAppend(&line, " ", figures.places.hosts[static_cast<size_t>(verdict.machine)]);
    }
    told.push_back(line);
  }
  return told;
}

void ExpectEachPairOnce(const JobPlaces& places, const std::vector<PairRound>& rounds) {
  std::set<std::pair<int, int>> seen;
  for (const PairRound& round : rounds) {
    std::set<int> machines;
    for (const NodePair& pair : round) {
      EXPECT_TRUE(seen.insert({pair.worker, pair.server}).second);
      const int worker = places.workers[static_cast<size_t>(pair.worker)];
      const int server = places.servers[static_cast<size_t>(pair.server)];
      EXPECT_TRUE(machines.insert(worker).second) << "machine " << worker << " twice in a round";
      EXPECT_TRUE(worker == server || machines.insert(server).second);
    }
  }
  EXPECT_EQ(seen.size(), places.num_pairs());
}

TEST(PairRounds, HaveEachPairOnceAndEachMachineOnceARound) {
  for (const auto& [workers, servers] :
       {std::pair(1, 1), {3, 2}, {2, 3}, {1, 7}, {7, 1}, {8, 8}, {40, 9}}) {
    const JobPlaces apart = Apart(workers, servers);
    const auto rounds = PairRounds(apart, AllPairs(apart), 1000);
    ExpectEachPairOnce(apart, rounds);
    // No schedule can have fewer.
    EXPECT_THAT(rounds, SizeIs(std::max(workers, servers)));
    const JobPlaces together = Together(workers, servers);
    const auto one_by_one = PairRounds(together, AllPairs(together), 1000);
    ExpectEachPairOnce(together, one_by_one);
    EXPECT_THAT(one_by_one, SizeIs(workers * servers));
  }
}

TEST(PairRounds, KeepWorkersOfOneMachineApart) {
  // Four machines of four workers and a server each.
  JobPlaces places;
  for (int i = 0; i < 4; ++i) {
    places.hosts.push_back(absl::StrCat("h", i));
    places.workers.insert(places.workers.end(), 4, i);
    places.servers.push_back(i);
  }
  const auto rounds = PairRounds(places, AllPairs(places), 1000);
  ExpectEachPairOnce(places, rounds);
  // 48 pairs of two machines, two at a time, and 16 of one, four at a time: 28 would be the least.
  EXPECT_LE(rounds.size(), 40u);
}

TEST(PairRounds, LeavePairsOutWhereTheRoundsAreTooMany) {
  const JobPlaces places = Apart(100, 10);
  const auto rounds = PairRounds(places, AllPairs(places), 20);
  EXPECT_THAT(rounds, SizeIs(20));
  size_t pairs = 0;
  for (const PairRound& round : rounds) pairs += round.size();
  EXPECT_GE(pairs, 150u);
  JobFigures figures = Sound(places);
  for (size_t i = 0; i < 30; ++i) figures.links[i] = LinkFigures();
  EXPECT_THAT(Told(figures), ElementsAre("note pairs"));
}

TEST(JudgeJob, IsContentWithASoundJob) {
  for (const auto& [workers, servers] :
       {std::pair(3, 2), {2, 1}, {1, 2}, {2, 2}, {8, 4}, {1, 5}, {5, 1}}) {
    EXPECT_THAT(Told(Sound(Apart(workers, servers))), IsEmpty()) << workers << " x " << servers;
    EXPECT_THAT(Told(Sound(Together(workers, servers))), IsEmpty());
  }
}

TEST(JudgeJob, ComparesNothingWhereThereIsOnePair) {
  EXPECT_THAT(Told(Sound(Apart(1, 1))), ElementsAre("note pairs"));
  EXPECT_THAT(Told(Slowed(Sound(Apart(1, 1)), 9, 9, [](NodePair) { return true; })),
              ElementsAre("note pairs"));
}

TEST(JudgeJob, NamesAWorkerOnceWhoseLinkIsSlow) {
  for (const auto& [workers, servers] : {std::pair(2, 1), {2, 2}, {3, 2}, {3, 1}, {9, 5}}) {
    const JobFigures figures = Slowed(Sound(Apart(workers, servers)), 2, 2,
                                      [](NodePair pair) { return pair.worker == 1; });
    EXPECT_THAT(Told(figures), ElementsAre("warning link both ways worker 1"))
        << workers << " x " << servers;
  }
}

TEST(JudgeJob, NamesAServerOnceWhoseLinkIsSlow) {
  for (const auto& [workers, servers] : {std::pair(1, 2), {2, 2}, {3, 2}, {1, 3}, {9, 5}}) {
    const JobFigures figures = Slowed(Sound(Apart(workers, servers)), 2, 2,
                                      [](NodePair pair) { return pair.server == 1; });
    EXPECT_THAT(Told(figures), ElementsAre("warning link both ways server 1"))
        << workers << " x " << servers;
  }
}

TEST(JudgeJob, NamesAPairAndNeitherOfItsEnds) {
  for (const auto& [workers, servers] : {std::pair(2, 2), {3, 2}, {9, 5}}) {
    const JobFigures figures = Slowed(Sound(Apart(workers, servers)), 3, 3, [](NodePair pair) {
      return pair == NodePair{1, 0};
    });
    EXPECT_THAT(Told(figures), ElementsAre("warning link both ways worker 1 server 0"));
  }
}

TEST(JudgeJob, TellsTheDirectionThatIsSlow) {
  const auto of_worker = [](NodePair pair) { return pair.worker == 2; };
  EXPECT_THAT(Told(Slowed(Sound(Apart(4, 3)), 3, 1, of_worker)),
              ElementsAre("warning link up worker 2"));
  EXPECT_THAT(Told(Slowed(Sound(Apart(4, 3)), 1, 3, of_worker)),
              ElementsAre("warning link down worker 2"));
}

TEST(JudgeJob, SaysWithNumbersWhatIsSlowAndWhatToDo) {
  const JobFigures figures =
      Slowed(Sound(Apart(3, 2)), 3, 1, [](NodePair pair) { return pair.worker == 2; });
  const std::vector<Verdict> verdicts = JudgeJob(figures);
  ASSERT_THAT(verdicts, SizeIs(1));
  const Finding& finding = verdicts[0].finding;
  EXPECT_THAT(finding.seen,
              AllOf(HasSubstr("worker 2 on w2 carries 34."), HasSubstr("to the servers"),
                    HasSubstr("the workers' median is 9"), HasSubstr("times as much")));
  EXPECT_THAT(finding.remedy, AllOf(HasSubstr("link of w2"), HasSubstr("ethtool")));
}

TEST(JudgeJob, TakesAQuarterOfTheRateForAnError) {
  const auto of_worker = [](NodePair pair) { return pair.worker == 2; };
  const JobFigures slow = Slowed(Sound(Apart(4, 3)), 3, 3, of_worker);
  EXPECT_EQ(CheckExitCode(JudgeJob(slow)), 0);
  const JobFigures very_slow = Slowed(Sound(Apart(4, 3)), 5, 5, of_worker);
  EXPECT_THAT(Told(very_slow), ElementsAre("error link both ways worker 2"));
  EXPECT_EQ(CheckExitCode(JudgeJob(very_slow)), 1);
}

TEST(JudgeJob, KnowsSeveralFaultsApart) {
  JobFigures figures = Sound(Apart(6, 4));
  for (const NodePair& pair : AllPairs(figures.places)) {
    LinkFigures& link = LinkOf(figures, pair.worker, pair.server);
    if (pair.worker == 1) link.up /= 3;
    if (pair.server == 3) link.down /= 3;
    if (pair == NodePair{4, 0}) link.up /= 3;
  }
  EXPECT_THAT(Told(figures),
              ElementsAre("warning link up worker 1", "warning link up worker 4 server 0",
                          "warning link down server 3"));
}

TEST(JudgeJob, ComparesPairsOfOneMachineWithSuchPairs) {
  // Two machines of a worker and a server each: memory within, a network between.
  JobPlaces places = {.hosts = {"a", "b"}, .workers = {0, 1}, .servers = {0, 1}};
  JobFigures figures = Sound(places);
  figures.all_up = figures.all_down = 0;
  for (const int i : {0, 1}) {
    LinkOf(figures, i, i) = {.up = 40e9, .down = 40e9, .round_trip = 20e-6};
  }
  EXPECT_THAT(Told(figures), IsEmpty());
  LinkOf(figures, 0, 1).up /= 3;
  // With one such pair nobody knows which of its ends it is.
  EXPECT_THAT(Told(figures), ElementsAre("warning link up worker 0 server 1"));
}

TEST(JudgeJob, ForgivesOneMeasurementThatIsTooGood) {
  JobFigures figures = Sound(Apart(8, 6));
  LinkOf(figures, 3, 2).up *= 5;
  EXPECT_THAT(Told(figures), IsEmpty());
}

TEST(JudgeJob, NamesARoundTripThatIsLong) {
  JobFigures figures = Sound(Apart(4, 3));
  for (int s = 0; s < 3; ++s) LinkOf(figures, 1, s).round_trip = 900e-6;
  EXPECT_THAT(Told(figures), ElementsAre("warning round trip worker 1"));
  // Four times as much, and still not worth a word.
  JobFigures fast = Sound(Apart(4, 3));
  for (LinkFigures& link : fast.links) link.round_trip = 20e-6;
  for (int s = 0; s < 3; ++s) LinkOf(fast, 1, s).round_trip = 80e-6;
  EXPECT_THAT(Told(fast), IsEmpty());
}

TEST(JudgeJob, NamesMachinesThatAreSlow) {
  JobFigures figures = Sound(Apart(4, 2));
  figures.machines[1].memory /= 2;
  figures.machines[2].codec /= 2;
  figures.machines[3].loopback /= 2.5;
  EXPECT_THAT(Told(figures),
              ElementsAre("warning memory w1", "warning codec w2", "warning loopback w3"));
  EXPECT_THAT(JudgeJob(figures)[0].finding.seen,
              AllOf(HasSubstr("w1 copies memory at 5.05 GB/s"), HasSubstr("machines' median is")));
  EXPECT_EQ(CheckExitCode(JudgeJob(figures)), 0);
}

TEST(JudgeJob, ComparesWhatVariesOnABusyMachineWithAWideMargin) {
  const auto of_worker = [](NodePair pair) { return pair.worker == 1; };
  JobFigures figures = Slowed(Sound(Apart(4, 2)), 3, 3, of_worker);
  for (LinkFigures& link : figures.links) link.spread = 2;
  figures.machines[1].memory /= 2;
  figures.machines[1].share = 0.5;
  EXPECT_THAT(Told(figures), ElementsAre("warning busy w1"));
  EXPECT_THAT(SuspectsOf(figures.places, JudgeJob(figures)).machines, ElementsAre(1));
  // The load before the check stays what it was.
  figures.machines[1].share = 0.99;
  figures.machines[1].load = 20;
  EXPECT_THAT(Told(figures), ElementsAre("warning busy w1"));
  EXPECT_TRUE(SuspectsOf(figures.places, JudgeJob(figures)).IsEmpty());
  // A rate that is the same each time is the link's.
  for (LinkFigures& link : figures.links) link.spread = 1.1;
  figures = Slowed(figures, 3, 3, of_worker);
  EXPECT_THAT(Told(figures), ElementsAre("warning busy w1", "error link both ways worker 1"));
}

TEST(JudgeJob, TellsOfBusyMachinesOnlyWhatStandsOut) {
  // One machine, whose pairs differ by twice and more.
  JobFigures figures = Sound(Together(4, 3));
  figures.machines[0].share = 0.2;
  for (size_t i = 0; i < figures.links.size(); ++i) {
    figures.links[i].up *= 1 + static_cast<double>(i * 5 % 12) / 4;
    figures.links[i].round_trip *= 1 + static_cast<double>(i * 5 % 12);
  }
  EXPECT_THAT(Told(figures), ElementsAre("warning busy one"));
  LinkOf(figures, 2, 1).up /= 20;
  EXPECT_THAT(Told(figures), ElementsAre("warning busy one", "error link up worker 2 server 1"));
  LinkOf(figures, 2, 1).spread = 2;
  EXPECT_THAT(Told(figures), ElementsAre("warning busy one"));
  LinkOf(figures, 2, 1).spread = 1;
  LinkOf(figures, 2, 1).up_seconds = 0.01;
  EXPECT_THAT(Told(figures), ElementsAre("warning busy one"));
}

TEST(SumUpPairs, TellsManyPairsAsOne) {
  const auto some = [](int most) {
    return Slowed(Sound(Apart(20, 10)), 3, 3, [most](NodePair pair) {
      return pair.worker % 5 == 0 && pair.server % 5 == 0 && pair.worker < 5 * most;
    });
  };
  const JobFigures few = some(3);  // 6 of 200 pairs
  EXPECT_THAT(SumUpPairs(few, JudgeJob(few)), SizeIs(6));
  JobFigures many = Slowed(some(4), 1, 1, [](NodePair) { return true; });
  many = Slowed(many, 3, 3, [](NodePair pair) { return pair.server == pair.worker % 10; });
  const std::vector<Verdict> verdicts = SumUpPairs(many, JudgeJob(many));
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].kind, "pairs");
  EXPECT_THAT(verdicts[0].finding.seen,
              AllOf(HasSubstr("of 200 pairs are slow"), HasSubstr("the worst: worker")));
}

TEST(JudgeJob, TellsWhatAllTogetherLack) {
  JobFigures figures = Sound(Apart(4, 3));
  figures.all_up = 100 * kMbit;
  EXPECT_THAT(Told(figures), ElementsAre("warning together up"));
  // On one machine its processors bound what goes at once.
  JobFigures together = Sound(Together(4, 3));
  together.all_up = 10 * kMbit;
  EXPECT_THAT(Told(together), IsEmpty());
}

TEST(SuspectsOf, AreThePairsAndMachinesOfVerdicts) {
  const JobPlaces places = Apart(3, 2);
  const std::vector<Verdict> verdicts = {{.worker = 1}, {.worker = 2, .server = 0}, {.machine = 4}};
  const Suspects suspects = SuspectsOf(places, verdicts);
  EXPECT_THAT(suspects.pairs,
              ::testing::UnorderedElementsAre(NodePair{1, 0}, NodePair{1, 1}, NodePair{2, 0}));
  EXPECT_THAT(suspects.machines, ElementsAre(4));
  EXPECT_TRUE(SuspectsOf(places, {}).IsEmpty());
}

TEST(LinkFigures, TakeTheBetterOfTwoMeasurements) {
  LinkFigures link = {.up = 2, .down = 3, .round_trip = 0};
  link.Improve({.up = 5, .down = 1, .round_trip = 7});
  EXPECT_EQ(link.up, 5);
  EXPECT_EQ(link.down, 3);
  EXPECT_EQ(link.round_trip, 7);
  link.Improve({.up = 0, .down = 0, .round_trip = 6});
  EXPECT_EQ(link.round_trip, 6);
  EXPECT_EQ(link.spread, 3);  // 3 by 1, as what was not measured does not count
}

TEST(CheckText, HasATableOfAFewNodesAndTheWorstOfMany) {
  const JobFigures few = Sound(Apart(3, 2));
  EXPECT_THAT(CheckText(few, JudgeJob(few)),
              AllOf(HasSubstr("up, workers to servers, Mbit/s"), HasSubstr("worker 2 w2"),
                    HasSubstr("nothing is slower than the rest of its kind")));
  const JobFigures many = Slowed(Sound(Apart(40, 20)), 3, 3, [](NodePair pair) {
    return pair == NodePair{33, 7};
  });
  const std::string text = CheckText(many, JudgeJob(many));
  EXPECT_THAT(text,
              AllOf(HasSubstr("of 800 pairs; the worst"), HasSubstr("worker 33 w33, server 7"),
                    Not(HasSubstr("nothing is slower"))));
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 60);
}

TEST(CheckJson, HasAllFiguresAndVerdicts) {
  JobFigures figures =
      Slowed(Sound(Apart(3, 2)), 3, 3, [](NodePair pair) { return pair.server == 1; });
  figures.links[0].up = 0;
  const auto json = nlohmann::json::parse(CheckJson(figures, JudgeJob(figures)));
  EXPECT_EQ(json["pairs"].size(), 6u);
  EXPECT_TRUE(json["pairs"][0]["up_bits_per_s"].is_null());
  EXPECT_EQ(json["workers"][2]["host"], "w2");
  EXPECT_EQ(json["machines"].size(), 3u);
  EXPECT_EQ(json["verdicts"][0]["kind"], "link");
  EXPECT_EQ(json["verdicts"][0]["server"], 1);
  EXPECT_TRUE(json["verdicts"][0]["worker"].is_null());
  EXPECT_NEAR(json["verdicts"][0]["factor"].get<double>(), 3, 0.3);
}

}  // namespace
}  // namespace bdn::cli
