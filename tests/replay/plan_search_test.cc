#include "replay/plan_search.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "replay/replay_report.h"
#include "tests/trace/trace_maker.h"

namespace bdn {
namespace {

using testing::Contains;
using testing::IsEmpty;
using testing::Not;

// A worker without marks that exchanges one tensor of 8 MiB, in partitions of so many KiB, of which
// each costs 1 ms to encode whatever its size.
JobTrace SmallPartitions(int64_t kib) {
  TraceMaker worker("worker", 0, 1);
  TraceMaker server("server", 0, 1);
  worker.facts["settings"] = {{"partition-bytes", std::to_string(kib) + "KiB"}, {"threads", "1"}};
  const auto bytes = static_cast<uint32_t>(kib << 10);
  const auto add = [bytes](TraceMaker* node, Stage stage, int64_t begin, int64_t end, uint64_t key,
                           uint64_t step) {
    node->Phase(stage, begin, end, key, step, node->facts["role"] == "server" ? 1 : 0);
    node->records.back().bytes = bytes;
  };
  int64_t at = 10'000;
  for (uint64_t step = 1; step <= 4; ++step) {
    const int64_t begin = at;
    for (int64_t part = 0; part < 8192 / kib; ++part) {
      const uint64_t key = (uint64_t{1} << 32) | static_cast<uint64_t>(part);
      add(&worker, Stage::kQueue, begin, at, key, step);
      add(&worker, Stage::kEncode, at, at + 1000, key, step);
      at += 1000;
      add(&worker, Stage::kSend, at, at + 1, key, step);
      add(&server, Stage::kQueue, at + 10, at + 20, key, step);
      add(&server, Stage::kSum, at + 20, at + 30, key, step);
      add(&server, Stage::kHold, at + 30, at + 30, key, step);
      add(&server, Stage::kEncode, at + 30, at + 40, key, step);
      add(&server, Stage::kReply, at + 40, at + 41, key, step);
      add(&worker, Stage::kWait, at + 1, at + 50, key, step);
      add(&worker, Stage::kDecodeQueue, at + 50, at + 50, key, step);
      add(&worker, Stage::kDecode, at + 50, at + 60, key, step);
    }
    at += 200;
  }
  auto job = JoinTraces({worker.Read(), server.Read()});
  if (!job.ok()) throw std::runtime_error(std::string(job.status().message()));
  return *std::move(job);
}

TEST(PlanSearch, FindsWhatIsFasterByTheReplay) {
  // With keys of one size all of their cost is put down to their bytes, so the gain is that the
  // server answers some while others are encoded.
  const JobTrace job = SmallPartitions(4096);
  const auto replayer = Replayer::Make(job, "");
  ASSERT_TRUE(replayer.ok()) << replayer.status().message();
  const auto search = SearchPlans(*replayer, {});
  ASSERT_TRUE(search.ok()) << search.status().message();
  ASSERT_THAT(search->plans, Not(IsEmpty()));
  EXPECT_LE(search->plans.size(), 3U);
  for (size_t i = 0; i < search->plans.size(); ++i) {
    const Plan& plan = search->plans[i];
    EXPECT_LT(plan.step.median_ns, search->recorded.median_ns);
    EXPECT_LT(plan.step.low_ns, plan.step.median_ns);
    EXPECT_GT(plan.step.high_ns, plan.step.median_ns);
    if (i > 0) EXPECT_GE(plan.step.median_ns, search->plans[i - 1].step.median_ns);
    EXPECT_EQ(replayer->Predict(plan.settings)->median_ns, plan.step.median_ns);
    EXPECT_EQ(replayer->Report(plan.settings)->predicted.median_ns, plan.step.median_ns);
  }
}

TEST(PlanSearch, MakesNoPlanOfASettingThatChangesNothing) {
  const JobTrace job = SmallPartitions(4096);
  const auto replayer = Replayer::Make(job, "");
  const auto search = SearchPlans(*replayer, {});
  ASSERT_TRUE(search.ok()) << search.status().message();
  for (const Plan& plan : search->plans) {
    // A tensor of 8 MiB is no small one.
    EXPECT_THAT(plan.settings.texts, Not(Contains(testing::HasSubstr("fusion-bytes"))));
  }
}

TEST(PlanSearch, NamesTheCodecWhoseCostsAreMissing) {
  const JobTrace job = SmallPartitions(4096);
  const auto replayer = Replayer::Make(job, "");
  const auto search = SearchPlans(*replayer, {.codecs = {"fp16"}});
  EXPECT_THAT(std::string(search.status().message()),
              testing::HasSubstr("bandoneon bench codecs --codec 'fp16'"));
}

}  // namespace
}  // namespace bdn
