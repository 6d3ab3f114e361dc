#include "trace/link_use.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trace/trace_maker.h"
#include "trace/step_report.h"

namespace bdn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

constexpr NodeId kServer = 3;  // of a job of two workers

// A sample of a link in numbers that people would say.
struct Second {
  double sent_mb = 0;
  double received_mb = 0;
  double again_mb = 0;
  int busy_ms = 0;
  int held_back_ms = 0;
  double rate_mb = 0;
  double round_trip_ms = 1;
  double least_ms = 1;
};

uint64_t Bytes(double megabytes) { return static_cast<uint64_t>(megabytes * 1e6); }

void Add(TraceMaker* maker, int second, NodeId peer, const Second& one) {
  const auto ticks = [](int ms) { return static_cast<uint32_t>(ms * 1'000'000 / kTraceTickNs); };
  maker->Add({.begin_ns = second * int64_t{1'000'000'000},
              .wall_ns = 1'000'000'000,
              .key = Bytes(one.sent_mb),
              .step = Bytes(one.received_mb),
              .cpu_ticks = ticks(one.busy_ms),
              .bytes = static_cast<uint32_t>(Bytes(one.again_mb)),
              .peer = peer,
              .kind = static_cast<uint8_t>(TraceKind::kLinkSample)});
  maker->Add({.begin_ns = second * int64_t{1'000'000'000},
              .wall_ns = 1'000'000'000,
              .key = Bytes(one.rate_mb),
              .step = static_cast<uint64_t>(one.round_trip_ms * 1e6),
              .cpu_ticks = ticks(one.held_back_ms),
              .bytes = static_cast<uint32_t>(one.least_ms * 1e3),
              .peer = peer,
              .kind = static_cast<uint8_t>(TraceKind::kPathSample)});
}

// The job of worker 0 whose link to the server has these samples.
JobTrace JobOf(const std::vector<Second>& seconds) {
  TraceMaker worker("worker", 0);
  for (size_t i = 0; i < seconds.size(); ++i) {
    Add(&worker, static_cast<int>(i) + 1, kServer, seconds[i]);
  }
  auto job = JoinTraces({worker.Read()});
  if (!job.ok()) throw std::runtime_error(std::string(job.status().message()));
  return *std::move(job);
}

std::vector<std::string> FindingsOf(const Second& second) {
  const JobTrace job = JobOf({second, second, second});
  return LinkFindings(job, LinksOf(job));
}

TEST(LinkUse, AddsUpWhatSamplesSay) {
  const JobTrace job =
      JobOf({{.sent_mb = 10,
              .received_mb = 1,
              .again_mb = 0.5,
              .busy_ms = 900,
              .held_back_ms = 20,
              .rate_mb = 11,
              .round_trip_ms = 7,
              .least_ms = 3},
             {.sent_mb = 20,
              .received_mb = 3,
              .busy_ms = 700,
              .rate_mb = 0,
              .round_trip_ms = 9,
              .least_ms = 2},
             {.sent_mb = 30, .busy_ms = 800, .rate_mb = 13, .round_trip_ms = 8, .least_ms = 0}});
  const auto links = LinksOf(job);
  ASSERT_THAT(links, SizeIs(1));
  const LinkUse& link = links[0];
  EXPECT_EQ(job.NodeName(link.node), "worker 0");
  EXPECT_EQ(job.NodeNameOf(link.peer), "server 0");
  EXPECT_EQ(link.wall_ns, 3'000'000'000);
  EXPECT_EQ(link.bytes_sent, 60'000'000);
  EXPECT_EQ(link.bytes_received, 4'000'000);
  EXPECT_EQ(link.bytes_sent_again, 500'000);
  EXPECT_NEAR(link.Share(link.busy_ns), 0.8, 1e-6);
  EXPECT_EQ(link.held_back_ns, 20'000'000);
  EXPECT_EQ(link.rate, 13'000'000);
  EXPECT_EQ(link.round_trip_ns, 8'000'000);
  EXPECT_EQ(link.least_round_trip_ns, 2'000'000);
  EXPECT_NEAR(link.SendRate(), 20e6, 1);
  EXPECT_NEAR(link.ReceiveRate(), 4e6 / 3, 1);
}

TEST(LinkUse, EachPeerHasItsOwn) {
  TraceMaker worker("worker", 0, 2, 2);
  Add(&worker, 1, 3, {.sent_mb = 1});
  Add(&worker, 1, 4, {.sent_mb = 2});
  TraceMaker server("server", 1, 2, 2);
  Add(&server, 1, 1, {.sent_mb = 5});
  const JobTrace job = *JoinTraces({worker.Read(), server.Read()});
  std::vector<std::string> names;
  for (const LinkUse& link : LinksOf(job)) {
    names.push_back(job.NodeName(link.node) + " to " + job.NodeNameOf(link.peer));
  }
  EXPECT_THAT(names,
              ElementsAre("worker 0 to server 0", "worker 0 to server 1", "server 1 to worker 0"));
}

TEST(LinkFindings, NothingIsSaidOfALinkWithRoom) {
  EXPECT_THAT(FindingsOf({.sent_mb = 5, .busy_ms = 300, .rate_mb = 50}), IsEmpty());
  // A long way is busy while little is on it.
  EXPECT_THAT(FindingsOf({.sent_mb = 1, .busy_ms = 950, .round_trip_ms = 40, .least_ms = 39}),
              IsEmpty());
}

TEST(LinkFindings, AFullNetworkIsNamed) {
  EXPECT_THAT(
      FindingsOf({.sent_mb = 11.9, .busy_ms = 950, .rate_mb = 12}),
      ElementsAre(HasSubstr("the network from worker 0 to server 0 is the limit: bytes were "
                            "on their way for 95 % of the time, at 11.9 MB/s")));
}

TEST(LinkFindings, APeerThatTakesNothingIsNamedInsteadOfTheNetwork) {
  EXPECT_THAT(FindingsOf({.sent_mb = 11.9, .busy_ms = 950, .held_back_ms = 450, .rate_mb = 12}),
              ElementsAre(HasSubstr("server 0 had no room for what worker 0 sent for 45 % of")));
}

TEST(LinkFindings, LostPacketsAndQueuesAreNamed) {
  EXPECT_THAT(
      FindingsOf({.sent_mb = 10, .again_mb = 0.2, .busy_ms = 100}),
      ElementsAre(HasSubstr("2.0 % of the bytes from worker 0 to server 0 were sent again")));
  EXPECT_THAT(FindingsOf({.sent_mb = 10, .busy_ms = 100, .round_trip_ms = 250, .least_ms = 20}),
              ElementsAre(HasSubstr(
                  "a round trip from worker 0 to server 0 takes 250 ms, and 20.00 ms at")));
}

TEST(LinkFindings, ReportsHaveThemWithTheTable) {
  const JobTrace job = JobOf({{.sent_mb = 11.9, .busy_ms = 950, .rate_mb = 12}});
  JobReport report = ExplainJob(job);
  ASSERT_THAT(report.links, SizeIs(1));
  report.steps.push_back({.step = 1, .begin_ns = 0, .end_ns = 1000});
  const std::string text = ReportText(job, report, std::nullopt);
  EXPECT_THAT(text, HasSubstr("Connections of TCP, in the seconds in which they moved bytes:"));
  EXPECT_THAT(text, HasSubstr("is the limit"));
  const auto json = nlohmann::json::parse(ReportJson(job, report, std::nullopt));
  EXPECT_EQ(json["links"][0]["from"], "worker 0");
  EXPECT_EQ(json["links"][0]["to"], "server 0");
  EXPECT_EQ(json["links"][0]["bytes_sent"], 11'900'000);
  EXPECT_EQ(json["link_findings"].size(), 1);
  report.links.clear();
  EXPECT_THAT(ReportText(job, report, std::nullopt), Not(HasSubstr("Connections of TCP")));
}

}  // namespace
}  // namespace bdn
