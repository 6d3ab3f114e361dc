#include <nlohmann/json.hpp>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "replay/replay_model.h"
#include "replay/replay_report.h"
#include "replay/replay_settings.h"
#include "replay/replay_trace.h"
#include "tests/replay/recorded_job.h"
#include "trace/job_trace.h"

namespace bdn {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST(Replay, OfTheRecordedSettingsGivesTheRecordedSteps) {
  RecordedJob recorded(kBytes);
  recorded.Steps(5, 200);
  const JobTrace job = recorded.Join();
  const ReplayReport report = Replay(job);
  EXPECT_THAT(report.recorded.durations_ns, AllOf(SizeIs(4), Each(810 * kUs)));
  EXPECT_EQ(report.same.durations_ns, report.recorded.durations_ns);
  EXPECT_EQ(report.same_error, 0);
  EXPECT_EQ(report.same.exposed_ns, report.recorded.exposed_ns);
  EXPECT_THAT(report.warnings, IsEmpty());
}

TEST(Replay, EmulatesALinkThatServersAndWorkersHave) {
  RecordedJob recorded(kBytes);
  recorded.Steps(6);
  // At 80 Mbit/s a frame of 40,096 bytes takes 4,009.6 us. Of two replies that leave together the
  // one to worker 1 is the second. So worker 1 begins its steps later by one frame, its push meets
  // no other one, and its step has a push and two replies more.
  const ReplayReport report = Replay(recorded.Join(), {"link=80mbit"});
  ASSERT_THAT(report.predicted.durations_ns, SizeIs(5));
  EXPECT_NEAR(static_cast<double>(report.predicted.durations_ns.back()), 610e3 + 3 * 4009.6e3, 10);
  EXPECT_LE(report.low_ns, report.predicted.median_ns);
  EXPECT_GE(report.high_ns, report.predicted.median_ns);
}

TEST(Replay, ExplainsWhatALinkOfTheSettingsTook) {
  // The same, recorded with a link so fast that it explains none of the 10 us on the way.
  RecordedJob recorded(kBytes);
  recorded.Steps(4, 100);
  for (size_t i = 0; i < 2; ++i) recorded.worker(i).facts["settings"]["link"] = "1000gbit";
  const ReplayReport report = Replay(recorded.Join());
  EXPECT_NEAR(static_cast<double>(report.same.median_ns), 710e3, 20);
}

TEST(Replay, LeavesOutAWorkerThatLagged) {
  RecordedJob recorded(kBytes);
  recorded.Steps(5, 200);
  const ReplayReport report = Replay(recorded.Join(), {"drop=1"});
  EXPECT_THAT(report.predicted.durations_ns, Each(610 * kUs));
  EXPECT_THAT(std::string(TryReplay(recorded.Join(), {"drop=9"}).status().message()),
              HasSubstr("no worker of rank 9"));
  EXPECT_FALSE(TryReplay(recorded.Join(), {"drop=0", "drop=1"}).ok());
}

TEST(Replay, TakesMediansOfSlowSteps) {
  RecordedJob recorded(kBytes);
  for (uint64_t step = 1; step <= 9; ++step) recorded.Step(step, step == 5 ? 5000 : 100);
  const ReplayReport report = Replay(recorded.Join(), {"median"});
  EXPECT_THAT(report.same.durations_ns, Contains(5610 * kUs));
  EXPECT_THAT(report.predicted.durations_ns, Each(testing::Le(735 * kUs)));
}

TEST(Replay, GoesOnWithoutAWorkersRecording) {
  RecordedJob recorded(kBytes);
  recorded.Steps(5, 300);
  const ReplayReport report = Replay(recorded.Join(/*with_worker1=*/false));
  EXPECT_EQ(report.same.durations_ns, report.recorded.durations_ns);
  EXPECT_THAT(report.warnings, Contains(HasSubstr("there is no recording of worker 1")));
  EXPECT_THAT(report.warnings, Contains(HasSubstr("has them wait as long")));
}

TEST(Replay, GoesOnWithoutAServersRecording) {
  RecordedJob recorded(kBytes);
  recorded.Steps(5);
  const JobTrace job = recorded.Join(true, /*with_server=*/false);
  const ReplayReport report = Replay(job);
  EXPECT_THAT(report.same.durations_ns, Each(610 * kUs));
  EXPECT_THAT(report.warnings, Contains(HasSubstr("a server has no recording")));
  EXPECT_EQ(TryReplay(job, {"servers=2"}).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(Replay, IsOfExchangesAloneWithoutMarks) {
  RecordedJob recorded(kBytes, /*with_marks=*/false);
  recorded.Steps(5, 100);
  const JobTrace job = recorded.Join();
  const ReplayReport report = Replay(job);
  EXPECT_FALSE(report.model.has_marks);
  EXPECT_THAT(report.recorded.durations_ns, Each(200 * kUs));
  EXPECT_EQ(report.same.durations_ns, report.recorded.durations_ns);
  EXPECT_THAT(ReplayText(report), HasSubstr("exchanges alone are replayed"));
  // The time between two exchanges stays, and the exchanges take longer.
  const ReplayReport slow = Replay(job, {"link=80mbit"});
  EXPECT_NEAR(static_cast<double>(slow.predicted.durations_ns.back()), 200e3 + 4 * 4009.6e3, 2e3);
}

TEST(Replay, LeavesOutWhatIsNotWhole) {
  RecordedJob recorded(kBytes);
  recorded.Steps(5);
  TraceMaker& worker = recorded.worker(0);
  // The reply of the last step never came.
  std::erase_if(worker.records, [](const TraceRecord& record) {
    return record.step == 5 && record.kind == static_cast<uint8_t>(Stage::kDecode);
  });
  const ReplayReport report = Replay(recorded.Join());
  EXPECT_EQ(report.model.step_numbers.back(), 4U);
  EXPECT_THAT(report.warnings, Contains(HasSubstr("of 5 steps 4 are replayed, from 1 to 4")));
}

TEST(Replay, SaysWhatIsMissingForACodec) {
  RecordedJob recorded(kLongBytes);
  recorded.Steps(4, 100);
  const JobTrace job = recorded.Join();
  const auto without = TryReplay(job, {"push=ef(onebit(block=64))"});
  EXPECT_THAT(std::string(without.status().message()),
              AllOf(HasSubstr("--costs"),
                    HasSubstr("bandoneon bench codecs --codec 'onebit(block=64)' --json")));
  // The recorded codec costs what it did, and changes nothing.
  EXPECT_EQ(Replay(job, {"push=none", "pull=none"}).predicted.median_ns,
            Replay(job).same.median_ns);
  // 100,000 values at 4 GB/s take 100 us to encode in place of 10, and at 8 GB/s 50 us to be
  // added in place of 10; the 10 us on the way go down in proportion to the bytes.
  const std::string costs =
      R"json({"codec": "onebit(block=64)", "elements": 100000, "encode_gb_s": 4, )json"
      R"json("encode_ef_gb_s": 4, "decode_add_gb_s": 8})json";
  const ReplayReport changed = Replay(job, {"push=ef(onebit(block=64))"}, costs);
  EXPECT_NEAR(static_cast<double>(changed.predicted.median_ns - changed.same.median_ns),
              90e3 + 40e3 - 10e3, 2e3);
  EXPECT_LT(changed.model.workers[0].steps[0].exchanges[0].push_bytes, kLongBytes / 15);
  EXPECT_THAT(std::string(TryReplay(job, {}, "{}").status().message()),
              HasSubstr("line 1 of the costs"));
}

TEST(Replay, CutsKeysAnew) {
  RecordedJob recorded(kLongBytes);
  recorded.Steps(4);
  const JobTrace job = recorded.Join();
  const ReplayReport report = Replay(job, {"partition-bytes=195KiB", "link=80mbit"});
  const auto& exchanges = report.model.workers[0].steps[0].exchanges;
  ASSERT_THAT(exchanges, SizeIs(3));
  EXPECT_EQ(exchanges[0].push_bytes + exchanges[1].push_bytes + exchanges[2].push_bytes,
            kLongBytes);
  EXPECT_THAT(report.warnings, Contains(HasSubstr("all keys of the recording are of one size")));
  // A server answers the first part while the others are on their way.
  EXPECT_LT(report.predicted.median_ns, Replay(job, {"link=80mbit"}).predicted.median_ns);
  const ReplayReport two = Replay(job, {"partition-bytes=195KiB", "servers=2", "link=80mbit"});
  EXPECT_LT(two.predicted.median_ns, report.predicted.median_ns);
}

TEST(Replay, MakesMoreWorkersOfTheRecordedOnes) {
  RecordedJob recorded(kBytes);
  for (uint64_t step = 1; step <= 6; ++step) recorded.Step(step, 10 * static_cast<int64_t>(step));
  const JobTrace job = recorded.Join();
  ReplaySettings settings{.workers = 8, .texts = {"8 workers"}};
  const auto replayer = Replayer::Make(job, "");
  const auto report = replayer->Report(settings);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_THAT(report->model.workers, SizeIs(8));
  EXPECT_EQ(report->trace->nodes.size(), 9U);
  // The slowest of eight in each step is slower than of two.
  EXPECT_GE(report->predicted.median_ns, report->same.median_ns);
  // Eight pushes take the server's thread 20 us each.
  EXPECT_LE(report->predicted.median_ns, (610 + 60 + 8 * 20) * kUs);
}

TEST(Replay, IsARecordingThatCanBeExplained) {
  RecordedJob recorded(kBytes);
  recorded.Steps(5, 200);
  const JobTrace job = recorded.Join();
  const ReplayReport report = Replay(job, {"link=80mbit"});
  EXPECT_THAT(report.trace->warnings, IsEmpty());
  EXPECT_EQ(report.trace->exchanges.size(), 10U);
  const auto kinds = nlohmann::json::parse(ReplayJson(report))["critical_path"];
  EXPECT_EQ(kinds[0]["kind"], "reply");
  EXPECT_THAT(ReplayText(report), AllOf(HasSubstr("With link=80mbit"), HasSubstr("reply")));
}

TEST(Replay, RefusesProcessesOfADaemon) {
  RecordedJob recorded(kBytes);
  recorded.Steps(2);
  recorded.worker(1).facts["role"] = "process";
  EXPECT_EQ(TryReplay(recorded.Join(), {}).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace bdn
