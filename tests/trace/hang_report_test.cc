#include "trace/hang_report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trace/trace_maker.h"

namespace bdn {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

constexpr int64_t kSecondUs = 1'000'000;

// Three workers and two servers that have exchanged 'a' (key 7, server 0) and 'b' (key 8, server 1)
// in steps 1 to 5, and whose clocks are read until second 20.
class HungJob {
 public:
  HungJob() {
    for (int i = 0; i < 3; ++i) workers.emplace_back("worker", i, 3, 2);
    for (int i = 0; i < 2; ++i) servers.emplace_back("server", i, 3, 2);
    workers[0].Name(7, "a").Name(8, "b");
    for (uint64_t step = 1; step <= 5; ++step) {
      const int64_t at = static_cast<int64_t>(step) * kSecondUs;
      for (TraceMaker& worker : workers) {
        AddExchange(&worker, &servers[0], at, 7, step, 0);
        AddExchange(&worker, &servers[1], at, 8, step, 0);
        worker.Mark(TraceKind::kForward, at - 500, at - 100, step);
      }
    }
  }
  // A push that its server keeps, as the round is not complete.
  void Push(size_t worker, uint64_t key, uint64_t step, int64_t at, bool arrives = true) {
    const auto server = static_cast<size_t>(key - 7);
    const auto node = static_cast<uint32_t>(worker + 1);
    workers[worker]
        .Phase(Stage::kQueue, at, at + 10, key, step)
        .Phase(Stage::kEncode, at + 10, at + 20, key, step)
        .Phase(Stage::kSend, at + 20, at + 25, key, step);
    if (!arrives) return;
    servers[server]
        .Phase(Stage::kQueue, at + 30, at + 40, key, step, node)
        .Phase(Stage::kSum, at + 40, at + 50, key, step, node);
  }
  JobTrace Join(std::vector<std::string> silent = {}) const {
    std::vector<NodeTrace> traces;
    const auto add = [&](TraceMaker maker, const std::string& name) {
      const bool is_silent = std::count(silent.begin(), silent.end(), name) > 0;
      maker.Clock((is_silent ? 6 : 20) * kSecondUs * 1000, 1'700'000'000'000'000'000);
      traces.push_back(maker.Read());
    };
    for (size_t i = 0; i < workers.size(); ++i) add(workers[i], absl::StrCat("worker ", i));
    for (size_t i = 0; i < servers.size(); ++i) add(servers[i], absl::StrCat("server ", i));
    auto job = JoinTraces(std::move(traces));
    if (!job.ok()) throw std::runtime_error(std::string(job.status().message()));
    return *std::move(job);
  }

  std::vector<TraceMaker> workers;
  std::vector<TraceMaker> servers;
};

TEST(HangReport, NamesTheWorkerThatHasNotPushed) {
  HungJob hung;
  hung.Push(0, 7, 6, 6 * kSecondUs);
  hung.Push(2, 7, 6, 6 * kSecondUs + 100);

  const JobTrace job = hung.Join();
  const HangReport report = ExplainHang(job);

  EXPECT_EQ(
      report.sentence,
      "worker 1 has not pushed 'a' of step 6, for which worker 0, worker 2 wait; last it ended "
      "deliver of 'b' step 5 15.0 s before the newest record; its process (pid 4001 on "
      "host-boot) runs");
  ASSERT_THAT(report.rounds, SizeIs(1));
  EXPECT_THAT(report.rounds[0].missing, testing::ElementsAre(2));
  EXPECT_EQ(report.nodes[0].open_exchanges, 1U);
  EXPECT_EQ(report.nodes[1].open_exchanges, 0U);
  EXPECT_EQ(report.nodes[1].last_mark, "forward of step 5");
  const std::string text = HangText(job, report);
  EXPECT_THAT(text, StartsWith(report.sentence + ".\n"));
  EXPECT_THAT(text, HasSubstr("OPEN ROUND"));
  EXPECT_THAT(text, HasSubstr("a           6     worker 0, worker 2  worker 1"));
}

TEST(HangReport, SaysWhoseStackMayTellWhyItHangs) {
  HungJob hung;
  hung.Push(0, 7, 6, 6 * kSecondUs);
  hung.Push(2, 7, 6, 6 * kSecondUs + 100);
  const JobTrace job = hung.Join();
  HangReport report = ExplainHang(job);
  EXPECT_THAT(NodesToAsk(job, report), testing::ElementsAre(1));
  // Where nobody is known to be missing any program may be why, and no server.
  report.rounds.clear();
  EXPECT_THAT(NodesToAsk(job, report), testing::ElementsAre(0, 1, 2));
  report.nodes[2].has_ended = true;
  EXPECT_THAT(NodesToAsk(job, report), testing::ElementsAre(0, 1));
}

TEST(HangReport, ShowsTheStackOrWhyThereIsNone) {
  const JobTrace job = HungJob().Join();
  HangReport report = ExplainHang(job);
  EXPECT_THAT(HangText(job, report), testing::Not(HasSubstr("stack")));
  report.nodes[0].stack = "Stack (most recent call first):\n  File \"a.py\", line 3 in f\n";
  report.nodes[1].why_no_stack = "it has ended";
  const std::string text = HangText(job, report);
  EXPECT_THAT(text, HasSubstr("The Python stack of worker 0 (pid 4000 on host-boot):\n"
                              "  Stack (most recent call first):\n"
                              "    File \"a.py\", line 3 in f\n"));
  EXPECT_THAT(text, HasSubstr("There is no Python stack of worker 1 (pid 4001 on host-boot): "
                              "it has ended.\n"));
  const auto json = nlohmann::json::parse(HangJson(job, report));
  EXPECT_THAT(json["nodes"][0]["stack"].get<std::string>(), StartsWith("Stack ("));
  EXPECT_EQ(json["nodes"][1]["why_no_stack"], "it has ended");
  EXPECT_FALSE(json["nodes"][2].contains("stack"));
}

TEST(HangReport, ListsWorkersByTheirRanks) {
  HungJob hung;
  hung.workers[0].facts["node"] = 9;
  for (TraceMaker& worker : hung.workers) worker.facts["workers"] = {9, 2, 3};
  hung.Push(2, 7, 6, 6 * kSecondUs);
  hung.servers[0].Phase(Stage::kQueue, 6 * kSecondUs, 6 * kSecondUs + 5, 7, 6, 9);

  EXPECT_THAT(ExplainHang(hung.Join()).sentence, HasSubstr("for which worker 0, worker 2 wait"));
}

TEST(HangReport, TellsAProcessThatWasStoppedFromOneThatRuns) {
  HungJob hung;
  hung.Push(0, 7, 6, 6 * kSecondUs);
  hung.Push(0, 8, 6, 6 * kSecondUs);
  hung.Push(1, 7, 6, 6 * kSecondUs);
  hung.workers[2].Mark(TraceKind::kForward, 6 * kSecondUs - 500, 6 * kSecondUs, 6);

  const HangReport report = ExplainHang(hung.Join({"worker 2"}));

  EXPECT_THAT(report.sentence,
              StartsWith("worker 2 has not pushed 'a' of step 6 (and 1 more), for which"));
  EXPECT_THAT(report.sentence, HasSubstr("its program last ended forward of step 6 14.0 s before"));
  EXPECT_THAT(report.sentence, HasSubstr("was stopped or killed: not even its clock was read for "
                                         "14.0 s"));
  EXPECT_TRUE(report.nodes[2].is_silent);
}

TEST(HangReport, NamesAServerThatDoesNotAnswer) {
  HungJob hung;
  for (size_t worker = 0; worker < 3; ++worker) {
    hung.Push(worker, 8, 6, 6 * kSecondUs, /*arrives=*/false);
  }

  const HangReport report = ExplainHang(hung.Join({"server 1"}));

  EXPECT_THAT(report.sentence, StartsWith("server 1 does not answer; last it ended"));
  EXPECT_THAT(report.sentence, HasSubstr("stopped or killed"));
}

TEST(HangReport, SeesThatTwoWorkersWaitForEachOther) {
  HungJob hung;
  hung.Push(0, 7, 6, 6 * kSecondUs);
  hung.Push(2, 7, 6, 6 * kSecondUs);
  hung.Push(1, 8, 6, 6 * kSecondUs);

  const HangReport report = ExplainHang(hung.Join());

  EXPECT_THAT(report.sentence, HasSubstr("wait for each other"));
  EXPECT_THAT(report.sentence, HasSubstr("'a' of step 6"));
  EXPECT_THAT(report.sentence, HasSubstr("'b' of step 6"));
}

TEST(HangReport, GoesByTheWorkersWithoutRecordingsOfServers) {
  HungJob hung;
  hung.Push(0, 7, 6, 6 * kSecondUs);
  hung.Push(2, 7, 6, 6 * kSecondUs);
  const JobTrace all = hung.Join();
  std::vector<NodeTrace> traces;
  for (size_t i = 0; i < 3; ++i) traces.push_back(all.nodes[i].trace);

  const auto job = JoinTraces(traces);

  ASSERT_TRUE(job.ok());
  EXPECT_THAT(ExplainHang(*job).sentence, StartsWith("worker 1 has not pushed 'a' of step 6"));
}

TEST(HangReport, NamesAWorkerWithoutARecording) {
  HungJob hung;
  hung.Push(0, 7, 6, 6 * kSecondUs);
  hung.Push(2, 7, 6, 6 * kSecondUs);
  const JobTrace all = hung.Join();
  std::vector<NodeTrace> traces;
  for (const size_t i : {0, 2, 3, 4}) traces.push_back(all.nodes[i].trace);

  const auto job = JoinTraces(traces);

  ASSERT_TRUE(job.ok());
  EXPECT_THAT(ExplainHang(*job).sentence, StartsWith("worker 1 has not pushed 'a' of step 6"));
  EXPECT_THAT(ExplainHang(*job).sentence, HasSubstr("there is no recording of it"));
}

// Returns the job without the recordings of some nodes, which a dump has asked in vain.
JobTrace Without(const JobTrace& all, const std::vector<size_t>& absent, const AbsentNode& why) {
  std::vector<NodeTrace> traces;
  std::map<NodeId, AbsentNode> nodes;
  for (size_t i = 0; i < all.nodes.size(); ++i) {
    const NodeTrace& trace = all.nodes[i].trace;
    if (std::count(absent.begin(), absent.end(), i) == 0) {
      traces.push_back(trace);
    } else {
      nodes[trace.facts.node] = {trace.facts.Name(), why.why, why.is_silent};
    }
  }
  JobTrace job = *JoinTraces(traces);
  job.absent = nodes;
  return job;
}

TEST(HangReport, SaysWhyANodeThatWasAskedGaveNoRecording) {
  HungJob hung;
  hung.Push(0, 7, 6, 6 * kSecondUs);
  hung.Push(2, 7, 6, 6 * kSecondUs);
  const JobTrace job =
      Without(hung.Join(), {1}, {.why = "it did not answer for 5s", .is_silent = true});
  EXPECT_EQ(ExplainHang(job).sentence,
            "worker 1 has not pushed 'a' of step 6, for which worker 0, worker 2 wait; there is no "
            "recording of it: it did not answer for 5s");
}

TEST(HangReport, NamesAServerThatDidNotAnswerWhenItWasAsked) {
  HungJob hung;
  for (size_t worker = 0; worker < 3; ++worker) {
    hung.Push(worker, 8, 6, 6 * kSecondUs, /*arrives=*/false);
  }
  const JobTrace all = hung.Join();
  const char* const kSentence =
      "server 1 does not answer; there is no recording of it: it did not answer for 5s";
  const AbsentNode silent = {.why = "it did not answer for 5s", .is_silent = true};
  EXPECT_EQ(ExplainHang(Without(all, {4}, silent)).sentence, kSentence);
  // A server that records nothing may well answer pushes.
  const AbsentNode off = {.why = "it records nothing"};
  EXPECT_THAT(ExplainHang(Without(all, {4}, off)).sentence,
              StartsWith("worker 0 has no answer to its push of 'b' of step 6"));
}

TEST(HangReport, AServerThatIsSilentIsNotWhyAWorkerHasNotPushed) {
  HungJob hung;
  hung.Push(0, 7, 6, 6 * kSecondUs);
  hung.Push(2, 7, 6, 6 * kSecondUs);
  const AbsentNode silent = {.why = "it did not answer for 5s", .is_silent = true};
  EXPECT_THAT(ExplainHang(Without(hung.Join(), {4}, silent)).sentence,
              StartsWith("worker 1 has not pushed 'a' of step 6"));
}

TEST(HangReport, SaysThatNobodyWaits) {
  HungJob hung;

  const HangReport report = ExplainHang(hung.Join());

  EXPECT_THAT(report.sentence, HasSubstr("no exchange is open"));
  EXPECT_THAT(report.rounds, IsEmpty());
}

TEST(HangReport, NamesAPushThatNeverArrived) {
  HungJob hung;
  for (size_t worker = 0; worker < 3; ++worker) {
    hung.Push(worker, 7, 6, 6 * kSecondUs, /*arrives=*/worker != 1);
  }

  const HangReport report = ExplainHang(hung.Join());

  EXPECT_THAT(report.sentence,
              StartsWith("worker 1 has no answer to its push of 'a' of step 6, which "
                         "server 0 has not recorded"));
}

TEST(HangReport, WritesJson) {
  HungJob hung;
  hung.Push(0, 7, 6, 6 * kSecondUs);
  const JobTrace job = hung.Join({"worker 2"});

  const auto json = nlohmann::json::parse(HangJson(job, ExplainHang(job)));

  EXPECT_EQ(json["nodes"].size(), 5U);
  EXPECT_EQ(json["nodes"][2]["state"], "silent");
  EXPECT_EQ(json["open_rounds"][0]["tensor"], "a");
  EXPECT_EQ(json["open_rounds"][0]["missing"], nlohmann::json({2, 3}));
}

}  // namespace
}  // namespace bdn
