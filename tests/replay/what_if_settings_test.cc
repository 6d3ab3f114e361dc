#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "replay/codec_costs.h"
#include "replay/replay_model.h"
#include "replay/what_if.h"
#include "tests/replay/recorded_job.h"

namespace bdn {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

uint64_t KeyOf(uint32_t tensor, uint32_t partition = 0) { return Key::Of(tensor, partition).value; }

std::string MessageOf(const absl::StatusOr<ReplayReport>& report) {
  return std::string(report.status().message());
}

// Adds samples of a machine of so many processors, of which one was busy.
void AddSamples(RecordedJob* job, int processors) {
  for (TraceMaker* const maker : {&job->worker(0), &job->worker(1), &job->server()}) {
    maker->facts["cores"] = processors;
    maker->Add({.begin_ns = 20'000'000,
                .wall_ns = 1'000'000'000,
                .key = 1'000'000'000,
                .step = static_cast<uint64_t>(processors - 1) * 1'000'000'000,
                .bytes = 1,
                .kind = static_cast<uint8_t>(TraceKind::kMachineSample)});
  }
}

// Four tensors of 400 kB that are pushed together.
RecordedJob FourTensors() {
  RecordedJob recorded(kLongBytes);
  recorded.keys = {KeyOf(1), KeyOf(2), KeyOf(3), KeyOf(4)};
  recorded.apart_us = 1;
  for (size_t i = 0; i < 2; ++i) recorded.worker(i).facts["settings"]["threads"] = "1";
  return recorded;
}

TEST(WhatIf, MoreThreadsEncodeAtOnceWhereProcessorsAreIdle) {
  RecordedJob recorded = FourTensors();
  AddSamples(&recorded, 32);
  recorded.Steps(5, 100);
  const JobTrace job = recorded.Join();
  // One thread encodes what the recording had encoded at once.
  const ReplayReport one = Replay(job, {"shards=8"});
  const ReplayReport four = Replay(job, {"shards=8", "threads=4"});
  EXPECT_EQ(four.model.workers[0].threads, 4U);
  EXPECT_LT(four.predicted.median_ns, one.predicted.median_ns);
}

TEST(WhatIf, FewerThreadsNeedNoProcessors) {
  RecordedJob recorded(kLongBytes);
  recorded.Steps(5);
  EXPECT_TRUE(TryReplay(recorded.Join(), {"threads=1"}).ok());
  EXPECT_TRUE(TryReplay(recorded.Join(), {"shards=1"}).ok());
}

TEST(WhatIf, ThreadsThatWouldWaitForProcessorsAreRefused) {
  RecordedJob recorded(kLongBytes);
  recorded.Steps(5);
  EXPECT_THAT(MessageOf(TryReplay(recorded.Join(), {"threads=4"})),
              AllOf(HasSubstr("'threads'"), HasSubstr("does not say how busy host-boot was")));
  AddSamples(&recorded, 4);
  EXPECT_THAT(MessageOf(TryReplay(recorded.Join(), {"threads=4"})),
              AllOf(HasSubstr("4 more threads on host-boot"), HasSubstr("3.0 were idle")));
  EXPECT_THAT(MessageOf(TryReplay(recorded.Join(), {"shards=9"})), HasSubstr("'shards'"));
}

TEST(WhatIf, MoreShardsSumAtOnce) {
  RecordedJob recorded = FourTensors();
  AddSamples(&recorded, 32);
  recorded.Steps(5);
  const JobTrace job = recorded.Join();
  const ReplayReport report = Replay(job, {"shards=4"});
  EXPECT_EQ(report.model.servers[0].shards, 4U);
  std::set<uint32_t> shards;
  for (const KeyModel& key : report.model.keys) shards.insert(key.shard);
  EXPECT_THAT(shards, SizeIs(4));
  EXPECT_LE(report.predicted.median_ns, report.same.median_ns);
}

// The same tensors, which the job's settings have fused, each with the next one, where that fits.
RecordedJob FusedTensors(uint64_t fusion_bytes) {
  RecordedJob recorded = FourTensors();
  for (size_t i = 0; i < 2; ++i) {
    recorded.worker(i).facts["settings"]["fusion-bytes"] = std::to_string(fusion_bytes);
  }
  recorded.Steps(5);
  return recorded;
}

TEST(WhatIf, FusionJoinsNeighboursThatFit) {
  const ReplayReport report =
      Replay(FusedTensors(500'000).Join(), {"fusion-bytes=900000", "link=80mbit"});
  const auto& exchanges = report.model.workers[0].steps[0].exchanges;
  ASSERT_THAT(exchanges, SizeIs(2));
  EXPECT_EQ(exchanges[0].push_bytes, 2 * kLongBytes);
  EXPECT_THAT(report.warnings, Contains(HasSubstr("does not say which tensors share a key")));
  // A key begins with its last tensor: 1 us after the one that was its first.
  EXPECT_THAT(report.model.workers[0].steps[0].items, Not(SizeIs(0)));
}

TEST(WhatIf, FusionJoinsNothingThatStayedApartWithRoom) {
  // The recorded settings would have fused these, had they been declared so.
  const ReplayReport report = Replay(FusedTensors(900'000).Join(), {"fusion-bytes=4MiB"});
  EXPECT_THAT(report.model.workers[0].steps[0].exchanges, SizeIs(4));
  EXPECT_EQ(report.predicted.median_ns, report.same.median_ns);
}

TEST(WhatIf, SmallerFusionIsRefusedWhereTensorsMayShareAKey) {
  EXPECT_THAT(MessageOf(TryReplay(FusedTensors(500'000).Join(), {"fusion-bytes=100000"})),
              HasSubstr("cannot predict smaller 'fusion-bytes'"));
}

TEST(WhatIf, FusionIsRefusedWhereAProgramWaitsInBetween) {
  RecordedJob recorded(kLongBytes);
  recorded.keys = {KeyOf(1), KeyOf(2)};
  recorded.apart_us = 200;
  for (size_t i = 0; i < 2; ++i) {
    recorded.worker(i).facts["settings"]["fusion-bytes"] = "500000";
  }
  recorded.Steps(5);
  // The program waits for the first tensor before the second one is pushed.
  for (size_t i = 0; i < 2; ++i) {
    auto& records = recorded.worker(i).records;
    const std::vector<TraceRecord> before = records;
    for (const TraceRecord& record : before) {
      if (static_cast<TraceKind>(record.kind) != TraceKind::kWaiting) continue;
      for (TraceRecord& one : records) {
        if (one.begin_ns != record.begin_ns || one.kind != record.kind) continue;
        one.wall_ns = 110'000;
      }
      TraceRecord second = record;
      second.begin_ns += 250'000;
      second.wall_ns -= 250'000;
      records.push_back(second);
    }
  }
  EXPECT_THAT(MessageOf(TryReplay(recorded.Join(), {"fusion-bytes=4MiB"})),
              HasSubstr("waits for a tensor before it pushes another one"));
}

TEST(WhatIf, TenThousandWorkersShareWhatTheyHaveInCommon) {
  RecordedJob recorded(kBytes);
  for (uint64_t step = 1; step <= 6; ++step) recorded.Step(step, 10 * static_cast<int64_t>(step));
  const ReplayReport report = Replay(recorded.Join(), {"link=1gbit"}, "", 10'000);
  EXPECT_THAT(report.model.workers, SizeIs(10'000));
  std::set<const void*> shared;
  for (const WorkerModel& worker : report.model.workers) shared.insert(worker.shared_steps.get());
  EXPECT_LE(shared.size(), 1U + 2 * 6);  // null is that of the recorded ones
  // All frames go through the link of the one server.
  EXPECT_GT(report.predicted.median_ns, int64_t{10'000} * kBytes * 8);
}

TEST(WhatIf, FewerStepsOfVeryManyWorkersAreTold) {
  RecordedJob recorded(kBytes);
  recorded.Steps(40, 10);
  const auto model = MakeReplayModel(recorded.Join());
  const auto many = WithSettings(*model, {.workers = 100'000}, CodecCosts());
  ASSERT_TRUE(many.ok()) << many.status().message();
  EXPECT_THAT(many->step_numbers, SizeIs(30));
  EXPECT_THAT(many->workers.front().Steps(), SizeIs(30));
  EXPECT_THAT(many->workers.back().Steps(), SizeIs(30));
  EXPECT_THAT(many->warnings, Contains(HasSubstr("30 of the 40 recorded steps")));
}

}  // namespace
}  // namespace bdn
