#include "trace/step_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trace/trace_maker.h"
#include "trace/program_time.h"

namespace bdn {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

JobTrace Join(std::vector<NodeTrace> traces) {
  auto job = JoinTraces(std::move(traces));
  if (!job.ok()) throw std::runtime_error(std::string(job.status().message()));
  return *std::move(job);
}

// A job of two workers with marks. Each step takes 1000 us: 100 us forward, 300 us backward, an
// exchange of both that begins at the backward pass's end, and 100 us of the optimizer behind it.
// The times are about those of worker 0.
class MarkedJob {
 public:
  // Adds a step, in which worker 1 has `input_us` of input before its forward pass.
  void Step(uint64_t step, int64_t input_us, int64_t queued_us = 0) {
    const int64_t pushed0 = at_ + 400;
    const int64_t pushed1 = pushed0 + input_us;
    AddExchange(&worker0_, &server_, pushed0, 7, step, input_us);
    const int64_t done = AddExchange(&worker1_, &server_, pushed1, 7, step, 0);
    AddRound(&server_, pushed1 + 50, 7, step);
    const int64_t end = done + 110;
    Marks(&worker0_, step, 0, pushed0, done, end, 0);
    Marks(&worker1_, step, input_us, pushed1, done, end, queued_us);
    at_ = end;
  }
  JobTrace Joined() const { return Join({worker0_.Read(), worker1_.Read(), server_.Read()}); }

 private:
  void Marks(TraceMaker* worker, uint64_t step, int64_t input_us, int64_t pushed, int64_t done,
             int64_t end, int64_t queued_us) const {
    if (input_us > 0) worker->Mark(TraceKind::kInput, at_, at_ + input_us, step);
    worker->Mark(TraceKind::kForward, at_ + input_us, at_ + input_us + 100, step)
        .Mark(TraceKind::kBackward, at_ + input_us + 100, pushed, step)
        .Mark(TraceKind::kWaiting, pushed, done + 5, step)
        .Mark(TraceKind::kOptimizer, done + 5, end, step)
        .Mark(TraceKind::kStep, at_, end, step, queued_us);
  }

  TraceMaker worker0_{"worker", 0};
  TraceMaker worker1_{"worker", 1};
  TraceMaker server_{"server", 0};
  int64_t at_ = 10'000;
};

std::string PathOf(const JobTrace& job, const StepReport& step) {
  std::string text;
  for (const PathPiece& piece : step.path) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", job.NodeName(piece.node), " ", piece.kind, " ",
                    (piece.end_ns - piece.begin_ns) / 1000);
  }
  return text;
}

int64_t PartUs(const ExposedTime& exposed, ExchangePart part) {
  return exposed.by_part[static_cast<size_t>(part)] / 1000;
}

TEST(ProgramTime, HasTheInnermostMarkOfEachTime) {
  TraceMaker maker("worker", 0);
  maker.Mark(TraceKind::kForward, 0, 100, 1)
      .Mark(TraceKind::kWaiting, 20, 40, 1)
      .Mark(TraceKind::kCollection, 30, 35, 1)
      .Mark(TraceKind::kBackward, 120, 200, 1)
      .Mark(TraceKind::kStep, 0, 250, 1);

  const ProgramTime time(maker.Read().records);

  std::string text;
  for (const ProgramSpan& span : time.spans()) {
    absl::StrAppendFormat(&text, "%d-%d %s ", span.begin_ns / 1000, span.end_ns / 1000,
                          span.kind ? TraceKindName(static_cast<uint8_t>(*span.kind)) : "none");
  }
  EXPECT_EQ(text,
            "0-20 forward 20-30 waiting 30-35 collection 35-40 waiting 40-100 forward 100-120 none "
            "120-200 backward ");
  EXPECT_THAT(time.steps(), SizeIs(1));
  EXPECT_EQ(time.SpanBefore(0), std::nullopt);
  EXPECT_EQ(time.SpanBefore(20'000), 0U);
  EXPECT_EQ(time.SpanBefore(200'000), 6U);
  EXPECT_EQ(time.SpanBefore(201'000), std::nullopt);
}

TEST(StepReport, FollowsAHoldToTheWorkerThatCameLast) {
  MarkedJob marked;
  marked.Step(1, 0);
  marked.Step(2, 250);

  const JobTrace job = marked.Joined();
  const JobReport report = ExplainJob(job);

  ASSERT_TRUE(report.has_marks);
  ASSERT_THAT(report.steps, SizeIs(2));
  const StepReport& step = report.steps[1];
  EXPECT_EQ(step.step, 2U);
  EXPECT_EQ(step.Duration(), 860'000);
  // Worker 0 ended the step as late as worker 1, whose input all waited for.
  const std::string path = PathOf(job, step);
  EXPECT_THAT(path,
              testing::StartsWith("worker 1 input 250, worker 1 forward 100, worker 1 "
                                  "backward 300, worker 1 queue 10, worker 1 encode 10, "
                                  "worker 1 send 10, server 0 server_queue 10, server 0 sum "));
  int64_t sum = 0;
  for (const PathPiece& piece : step.path) sum += piece.end_ns - piece.begin_ns;
  EXPECT_EQ(sum, step.Duration());
}

TEST(StepReport, SplitsExposedCommunication) {
  MarkedJob marked;
  marked.Step(1, 250);

  const JobTrace job = marked.Joined();
  const JobReport report = ExplainJob(job);

  ASSERT_THAT(report.steps, SizeIs(1));
  const ExposedTime& exposed = report.steps[0].exposed.at(0);
  EXPECT_EQ(PartUs(exposed, ExchangePart::kQueue), 10);
  EXPECT_EQ(PartUs(exposed, ExchangePart::kEncode), 10);
  EXPECT_EQ(PartUs(exposed, ExchangePart::kSend), 10);
  EXPECT_EQ(PartUs(exposed, ExchangePart::kServerQueue), 10);
  EXPECT_EQ(PartUs(exposed, ExchangePart::kHold), 250);
  EXPECT_EQ(PartUs(exposed, ExchangePart::kRule), 10);
  EXPECT_EQ(PartUs(exposed, ExchangePart::kServerEncode), 10);
  EXPECT_EQ(PartUs(exposed, ExchangePart::kReply), 10);
  EXPECT_EQ(PartUs(exposed, ExchangePart::kDecodeQueue), 10);
  EXPECT_EQ(PartUs(exposed, ExchangePart::kDecode), 10);
  EXPECT_EQ(PartUs(exposed, ExchangePart::kDeliver), 5);
  EXPECT_EQ(exposed.hold_by_worker.at(1), 250'000);
  EXPECT_EQ(exposed.without_exchange_ns, 0);
  EXPECT_EQ(PartUs(report.steps[0].exposed.at(1), ExchangePart::kHold), 0);
}

TEST(StepReport, SaysWhyTheSlowStepWasSlow) {
  MarkedJob marked;
  for (uint64_t step = 1; step <= 9; ++step) marked.Step(step, step == 5 ? 2000 : 0);

  const JobTrace job = marked.Joined();
  const JobReport report = ExplainJob(job);

  EXPECT_EQ(report.median_ns, 610'000);
  EXPECT_EQ(report.steps[4].reason,
            "step 5 took 2.6 ms, 2.0 ms more than the median of 0.6 ms: input took 2.0 ms of "
            "its critical path, most of it at worker 1, and takes 0.0 ms in the median");
  EXPECT_THAT(report.steps[3].reason, IsEmpty());
  const std::string text = ReportText(job, report, std::nullopt);
  EXPECT_THAT(text, HasSubstr("job job: 9 steps, 0.61 ms in the median, 2.61 ms the slowest"));
  EXPECT_THAT(text, HasSubstr("The slowest steps:\n  step 5 took 2.6 ms"));
  EXPECT_THAT(text, HasSubstr("a step waited for: worker 1 0.22 ms"));
  const std::string one = ReportText(job, report, 5);
  EXPECT_THAT(one, HasSubstr("The critical path of step 5:"));
  EXPECT_THAT(one, HasSubstr("+0.00  2.00  worker 1  input"));
  EXPECT_THAT(ReportText(job, report, 4), HasSubstr("about as long as others"));
}

TEST(StepReport, SaysThatAMachineWasBusy) {
  MarkedJob marked;
  for (uint64_t step = 1; step <= 9; ++step) {
    marked.Step(step, step == 5 ? 2000 : 0, step == 5 ? 1600 : 100);
  }

  const JobReport report = ExplainJob(marked.Joined());

  EXPECT_THAT(report.steps[4].reason, HasSubstr("did not for 1.5 ms more than in the median"));
  EXPECT_THAT(report.steps[3].reason, IsEmpty());
}

TEST(StepReport, SpeaksOfExchangesAloneWithoutMarks) {
  TraceMaker worker0("worker", 0);
  TraceMaker worker1("worker", 1);
  TraceMaker server("server", 0);
  for (uint64_t step = 1; step <= 5; ++step) {
    const int64_t at = static_cast<int64_t>(step) * 10'000;
    const int64_t late = step == 3 ? 700 : 0;
    AddExchange(&worker0, &server, at, 7, step, late);
    AddExchange(&worker1, &server, at + late, 7, step, 0);
    AddRound(&server, at + late + 50, 7, step);
  }

  const JobTrace job = Join({worker0.Read(), worker1.Read(), server.Read()});
  const JobReport report = ExplainJob(job);

  EXPECT_FALSE(report.has_marks);
  ASSERT_THAT(report.steps, SizeIs(5));
  EXPECT_EQ(report.median_ns, 100'000);
  EXPECT_EQ(report.steps[2].Duration(), 800'000);
  EXPECT_THAT(PathOf(job, report.steps[2]), testing::StartsWith("worker 1 other 700, worker 1 "));
  EXPECT_THAT(report.steps[2].reason,
              HasSubstr("what no mark covers took 0.7 ms of its critical path, most of it "
                        "at worker 1"));
  EXPECT_THAT(ReportText(job, report, std::nullopt), HasSubstr("exchanges alone"));
  EXPECT_THAT(ReportText(job, report, std::nullopt), Not(HasSubstr("Exposed")));
}

TEST(StepReport, WritesJson) {
  MarkedJob marked;
  for (uint64_t step = 1; step <= 9; ++step) marked.Step(step, step == 5 ? 2000 : 0);
  const JobTrace job = marked.Joined();

  const auto json = nlohmann::json::parse(ReportJson(job, ExplainJob(job), std::nullopt));

  EXPECT_EQ(json["job"], "job");
  EXPECT_EQ(json["marks"], true);
  ASSERT_EQ(json["steps"].size(), 9U);
  EXPECT_NEAR(json["steps"][4]["ms"].get<double>(), 2.61, 1e-9);
  EXPECT_NEAR(
      json["steps"][4]["exposed"]["worker 0"]["hold_by_worker_ms"]["worker 1"].get<double>(), 2.0,
      1e-9);
  EXPECT_EQ(json["steps"][4]["critical_path"][0]["kind"], "input");
  EXPECT_EQ(json["nodes"][2]["name"], "server 0");
  EXPECT_EQ(nlohmann::json::parse(ReportJson(job, ExplainJob(job), 3))["steps"].size(), 1U);
}

TEST(StepReport, EndsWhateverTheRecordsAre) {
  TraceMaker worker("worker", 0, 1, 1);
  // Marks that cross, exchanges of no length, and one that ends before it begins.
  worker.Mark(TraceKind::kStep, 0, 100, 1)
      .Mark(TraceKind::kForward, 0, 60, 1)
      .Mark(TraceKind::kWaiting, 40, 90, 1)
      .Phase(Stage::kQueue, 50, 50, 7, 1)
      .Phase(Stage::kDecode, 50, 50, 7, 1)
      .Phase(Stage::kQueue, 80, 85, 8, 1)
      .Phase(Stage::kDecode, 60, 70, 8, 1);

  const JobTrace job = Join({worker.Read()});
  const JobReport report = ExplainJob(job);

  ASSERT_THAT(report.steps, SizeIs(1));
  int64_t sum = 0;
  for (const PathPiece& piece : report.steps[0].path) sum += piece.end_ns - piece.begin_ns;
  EXPECT_EQ(sum, 100'000);
}

TEST(StepReport, SaysThatThereIsNoStep) {
  const JobTrace job = Join({TraceMaker("worker", 0, 1, 0).Read()});

  EXPECT_THAT(ReportText(job, ExplainJob(job), std::nullopt), HasSubstr("no step has ended"));
}

}  // namespace
}  // namespace bdn
