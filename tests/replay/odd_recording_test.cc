#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "replay/replay_model.h"
#include "tests/replay/recorded_job.h"

namespace bdn {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::Ge;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

uint64_t KeyOf(uint32_t tensor, uint32_t partition) { return Key::Of(tensor, partition).value; }

std::string MessageOf(const absl::StatusOr<ReplayReport>& report) {
  return std::string(report.status().message());
}

TEST(OddRecording, JoinsPartitionsWhateverTheirSizeWas) {
  // The size of partitions was the scheduler's alone, and old recordings do not say it.
  RecordedJob recorded(kLongBytes);
  recorded.keys = {KeyOf(7, 0), KeyOf(7, 1)};
  recorded.Steps(4);
  const ReplayReport report = Replay(recorded.Join(), {"partition-bytes=4MiB"});
  const auto& exchanges = report.model.workers[0].steps[0].exchanges;
  ASSERT_THAT(exchanges, SizeIs(1));
  EXPECT_EQ(exchanges[0].push_bytes, 2 * kLongBytes);
}

TEST(OddRecording, SeesTheRateOfEachDirectionByItself) {
  // Replies of the first key are on their way while pushes of the second one are: 10 us each.
  RecordedJob recorded(kLongBytes);
  recorded.keys = {KeyOf(1, 0), KeyOf(2, 0)};
  recorded.apart_us = 50;
  recorded.Steps(4);
  const auto model = MakeReplayModel(recorded.Join());
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_NEAR(model->servers[0].link_rate, 2 * (kLongBytes + 96) / 10e-6, 1e9);
}

TEST(OddRecording, HasAsManyShardsAsItsServer) {
  RecordedJob recorded(kLongBytes);
  recorded.Steps(4);
  recorded.server().facts["settings"]["shards"] = "2";
  const auto model = MakeReplayModel(recorded.Join());
  EXPECT_EQ(model->servers[0].shards, 2U);
}

TEST(OddRecording, PredictsNoWorkersWhereAServerIsMissing) {
  // An answer took as long as it did because of the worker that lagged.
  RecordedJob recorded(kBytes);
  recorded.Steps(4, 300);
  const JobTrace job = recorded.Join(/*with_worker1=*/true, /*with_server=*/false);
  EXPECT_THAT(MessageOf(TryReplay(job, {"drop=1"})), HasSubstr("a server has no recording"));
  EXPECT_THAT(MessageOf(TryReplay(job, {}, "", 8)), HasSubstr("a server has no recording"));
}

TEST(OddRecording, SaysThatALinkIsNotFasterThanItWasSeen) {
  RecordedJob recorded(kLongBytes);
  recorded.Steps(4);
  const ReplayReport report = Replay(recorded.Join(), {"link=1000gbit"});
  EXPECT_THAT(report.warnings, Contains(HasSubstr("were not seen to carry more")));
  EXPECT_THAT(Replay(recorded.Join(), {"link=1mbit"}).warnings,
              Not(Contains(HasSubstr("were not seen"))));
}

TEST(OddRecording, TakesMediansOfWaking) {
  RecordedJob recorded(kBytes);
  recorded.Steps(4, 100);
  // In the last step the program of worker 0 woke 1 ms late.
  recorded.Step(5, 100);
  auto& records = recorded.worker(0).records;
  for (TraceRecord& record : records) {
    if (record.step != 5) continue;
    const auto kind = static_cast<TraceKind>(record.kind);
    if (kind == TraceKind::kWaiting || kind == TraceKind::kStep) record.wall_ns += 1'000'000;
    if (kind == TraceKind::kOptimizer) record.begin_ns += 1'000'000;
  }
  const ReplayReport report = Replay(recorded.Join(), {"median"});
  EXPECT_THAT(report.same.durations_ns, Contains(1710 * kUs));
  // Both push at once then, and the shard takes 10 us for the first push.
  EXPECT_THAT(report.predicted.durations_ns, Each(720 * kUs));
}

TEST(OddRecording, SaysHowManyStepsAllHave) {
  RecordedJob recorded(kBytes);
  recorded.Steps(10, 100);
  // The file of worker 1 was full after three steps.
  std::erase_if(recorded.worker(1).records, [](const TraceRecord& r) { return r.step > 3; });
  const ReplayReport report = Replay(recorded.Join());
  EXPECT_THAT(report.model.step_numbers, SizeIs(3));
  EXPECT_THAT(report.warnings, Contains(HasSubstr("of 10 steps 3 are replayed, from 1 to 3")));
}

TEST(OddRecording, TakesTheLongerOneOfAWorkerThatWasStartedAgain) {
  RecordedJob recorded(kBytes);
  recorded.Steps(10, 100);
  TraceMaker first = recorded.worker(1);
  TraceMaker second = recorded.worker(1);
  std::erase_if(first.records, [](const TraceRecord& record) { return record.step > 3; });
  std::erase_if(second.records, [](const TraceRecord& record) { return record.step <= 3; });
  first.facts["node"] = 9;
  first.facts["pid"] = 77;
  const ReplayReport report =
      Replay(RecordedJob::JoinAll({recorded.Read(recorded.worker(0)), recorded.Read(first),
                                   recorded.Read(second), recorded.Read(recorded.server())}));
  EXPECT_THAT(report.model.workers, SizeIs(2));
  EXPECT_EQ(report.model.step_numbers.front(), 4U);
  EXPECT_EQ(report.model.step_numbers.back(), 10U);
  EXPECT_THAT(report.warnings, Contains(HasSubstr("worker 1 was started again")));
}

TEST(OddRecording, ComparesThePathsOfTheSameSteps) {
  RecordedJob recorded(kBytes);
  recorded.Steps(5);
  recorded.Step(6, 500'000);
  // The last step is long, and not whole.
  std::erase_if(recorded.worker(0).records, [](const TraceRecord& record) {
    return record.step == 6 && record.kind == static_cast<uint8_t>(Stage::kDecode);
  });
  const ReplayReport report = Replay(recorded.Join());
  double recorded_ns = 0;
  for (const auto& kind : report.recorded_path) recorded_ns += kind.mean_ns;
  EXPECT_NEAR(recorded_ns, 610e3, 1e3);
}

TEST(OddRecording, SaysHowMuchWaitingItCannotExplain) {
  RecordedJob recorded(kBytes);
  recorded.Steps(5);
  // A second wait in each step, for something that is no exchange.
  auto& records = recorded.worker(0).records;
  for (TraceRecord& record : records) {
    if (static_cast<TraceKind>(record.kind) == TraceKind::kOptimizer) {
      record.kind = static_cast<uint8_t>(TraceKind::kWaiting);
    }
  }
  const ReplayReport report = Replay(recorded.Join());
  EXPECT_THAT(report.warnings, Contains(HasSubstr("does not say what for")));
  EXPECT_THAT(Replay([] {
                RecordedJob plain(kBytes);
                plain.Steps(5);
                return plain.Join();
              }())
                  .warnings,
              IsEmpty());
}

TEST(OddRecording, WithoutMarksDoesNotSayThatProgramsRan) {
  RecordedJob recorded(kBytes, /*with_marks=*/false);
  recorded.Steps(5, 100);
  const ReplayReport report = Replay(recorded.Join());
  EXPECT_THAT(ReplayText(report), Not(HasSubstr("ready to run")));
  EXPECT_THAT(ReplayText(report), HasSubstr("does not say how busy"));
  EXPECT_THAT(ReplayJson(report), HasSubstr("\"queued_share\": null"));
}

TEST(OddRecording, OfFewStepsSaysSo) {
  RecordedJob recorded(kBytes);
  recorded.Steps(3);
  EXPECT_THAT(Replay(recorded.Join()).warnings, Contains(HasSubstr("only 3 steps")));
}

TEST(OddRecording, TakesTheMeasuredBytesOfACodecThatMayNeedFewer) {
  RecordedJob recorded(kLongBytes);
  recorded.Steps(5);
  const std::string costs =
      R"json({"codec": "topk(ratio=0.01)", "elements": 100000, "encoded_bytes": 1234, )json"
      R"json("encode_gb_s": 4, "encode_ef_gb_s": 4, "decode_add_gb_s": 8})json";
  const ReplayReport report = Replay(recorded.Join(), {"push=topk(ratio=0.01)"}, costs);
  EXPECT_EQ(report.model.workers[0].steps[0].exchanges[0].push_bytes, 1234U);
  EXPECT_THAT(report.warnings, Contains(HasSubstr("as many bytes as on the data of the costs")));
}

TEST(OddRecording, TellsServersAloneWhoTheWorkersAre) {
  // Otherwise the memory of the predicted recording grows with the square of the workers.
  RecordedJob recorded(kBytes);
  recorded.Steps(5, 100);
  const ReplayReport report = Replay(recorded.Join(), {}, "", 50);
  ASSERT_TRUE(report.trace.has_value());
  EXPECT_THAT(report.trace->nodes, SizeIs(51));
  EXPECT_THAT(report.trace->nodes[0].trace.facts.workers, IsEmpty());
  EXPECT_THAT(report.trace->nodes[50].trace.facts.workers, SizeIs(50));
}

TEST(OddRecording, HasNoMissingWorkerWhereAServersThreadWasLate) {
  RecordedJob recorded(kBytes);
  recorded.Steps(5, 100);
  // In the third step the shard's thread stood still for 1 ms when all pushes were there.
  const int64_t late_ns = 1'000'000;
  std::vector<TraceMaker*> makers = {&recorded.worker(0), &recorded.worker(1), &recorded.server()};
  int64_t closed = 0;
  for (const TraceRecord& record : recorded.server().records) {
    const bool is_hold = record.kind == static_cast<uint8_t>(Stage::kHold);
    if (is_hold && record.step == 3) closed = std::max(closed, EndOf(record));
  }
  for (TraceMaker* maker : makers) {
    for (TraceRecord& record : maker->records) {
      const bool is_hold = record.kind == static_cast<uint8_t>(Stage::kHold) && record.step == 3;
      if (record.begin_ns >= closed && !is_hold) {
        record.begin_ns += late_ns;
      } else if (EndOf(record) >= closed) {
        record.wall_ns += late_ns;
      }
    }
  }
  const ReplayReport report = Replay(recorded.Join());
  EXPECT_THAT(report.warnings, IsEmpty());
  EXPECT_EQ(report.same.durations_ns, report.recorded.durations_ns);
  EXPECT_THAT(report.recorded.durations_ns, Contains(1710 * kUs));
}

TEST(OddRecording, CountsALateThreadOnceForAllThatWaitForIt) {
  TraceMaker worker("worker", 0, 1);
  TraceMaker server("server", 0, 1);
  int64_t at = 10'000;
  for (uint64_t step = 1; step <= 5; ++step) {
    // Twenty pushes wait for their shard's thread, which wakes after 5 ms.
    for (int64_t i = 0; i < 20; ++i) {
      const auto key = static_cast<uint64_t>(i);
      const int64_t taken = at + 5000 + 20 * i;
      worker.Phase(Stage::kQueue, at, at + i, key, step)
          .Phase(Stage::kEncode, at + i, at + i + 1, key, step)
          .Phase(Stage::kSend, at + i + 1, at + i + 2, key, step)
          .Phase(Stage::kWait, at + i + 2, taken + 30, key, step)
          .Phase(Stage::kDecodeQueue, taken + 30, taken + 30, key, step)
          .Phase(Stage::kDecode, taken + 30, taken + 31, key, step);
      server.Phase(Stage::kQueue, at + 30, taken, key, step, 1)
          .Phase(Stage::kSum, taken, taken + 10, key, step, 1)
          .Phase(Stage::kHold, taken + 10, taken + 10, key, step, 1)
          .Phase(Stage::kEncode, taken + 10, taken + 20, key, step, 1)
          .Phase(Stage::kReply, taken + 20, taken + 21, key, step, 1);
    }
    at += 6000;
  }
  const ReplayReport report = Replay(RecordedJob::JoinAll({worker.Read(), server.Read()}));
  EXPECT_EQ(report.recorded.median_ns, 5411 * kUs);
  EXPECT_NEAR(static_cast<double>(report.same.median_ns), 5411e3, 100e3);
}

TEST(OddRecording, WithoutTimeIsRefused) {
  RecordedJob recorded(kBytes);
  recorded.Steps(4);
  for (TraceMaker* maker : {&recorded.worker(0), &recorded.worker(1), &recorded.server()}) {
    for (TraceRecord& record : maker->records) {
      record.begin_ns = 1000;
      record.wall_ns = 0;
    }
  }
  EXPECT_FALSE(TryReplay(recorded.Join(), {}).ok());
}

TEST(OddRecording, WithoutRecordsIsRefused) {
  const TraceMaker worker("worker", 0);
  const TraceMaker server("server", 0);
  EXPECT_THAT(MessageOf(TryReplay(RecordedJob::JoinAll({worker.Read(), server.Read()}), {})),
              HasSubstr("no worker has recorded an exchange"));
  EXPECT_THAT(MessageOf(TryReplay(RecordedJob::JoinAll({server.Read()}), {})),
              HasSubstr("no worker has recorded an exchange"));
}

TEST(OddRecording, OfHostsWithoutACommonClockIsReplayed) {
  // Nothing ties the clocks: the server that both pushed to has no recording.
  RecordedJob recorded(kBytes);
  recorded.Steps(6);
  TraceMaker far = recorded.worker(1);
  far.facts["boot_id"] = "other";
  far.facts["host"] = "other";
  far.Clock(1'000'000, 5'000'000'000'000);
  TraceMaker near = recorded.worker(0);
  near.Clock(1'000'000, 1'000'000'000'000);
  const ReplayReport report =
      Replay(RecordedJob::JoinAll({recorded.Read(near), recorded.Read(far)}));
  EXPECT_THAT(report.same.durations_ns, Each(610 * kUs));
  EXPECT_THAT(report.warnings, Contains(HasSubstr("time of day")));
}

}  // namespace
}  // namespace bdn
