#include "trace/job_trace.h"

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trace/trace_maker.h"

namespace bdn {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

// Two workers and a server; worker 1 pushes `late_us` after worker 0.
struct SmallJob {
  TraceMaker worker0{"worker", 0};
  TraceMaker worker1{"worker", 1};
  TraceMaker server{"server", 0};

  explicit SmallJob(int64_t late_us, int steps = 1) {
    worker0.Name(7, "fc.weight");
    for (int step = 1; step <= steps; ++step) {
      const int64_t at = 1000 * step;
      AddExchange(&worker0, &server, at, 7, static_cast<uint64_t>(step), late_us);
      AddExchange(&worker1, &server, at + late_us, 7, static_cast<uint64_t>(step), 0);
      AddRound(&server, at + late_us + 50, 7, static_cast<uint64_t>(step));
    }
  }
  JobTrace Join() const {
    auto job = JoinTraces({worker0.Read(), worker1.Read(), server.Read()});
    if (!job.ok()) throw std::runtime_error(std::string(job.status().message()));
    return *std::move(job);
  }
};

std::string PartsText(const Exchange& exchange) {
  std::string text;
  for (const PartSpan& part : PartsOf(exchange)) {
    absl::StrAppendFormat(&text, "%s%s %d", text.empty() ? "" : " ", ExchangePartName(part.part),
                          (part.end_ns - part.begin_ns) / 1000);
  }
  return text;
}

TEST(JobTrace, JoinsBothEndsOfAnExchange) {
  const JobTrace job = SmallJob(200).Join();

  ASSERT_THAT(job.exchanges, SizeIs(2));
  const Exchange& first = job.exchanges[0];
  EXPECT_EQ(first.key, 7U);
  EXPECT_EQ(first.step, 1U);
  EXPECT_EQ(job.NodeName(first.worker), "worker 0");
  EXPECT_EQ(job.NodeName(static_cast<uint32_t>(first.server)), "server 0");
  EXPECT_EQ(job.NodeName(static_cast<uint32_t>(first.last_worker)), "worker 1");
  EXPECT_EQ(job.NameOf(7), "fc.weight");
  EXPECT_EQ(PartsText(first),
            "queue 10 encode 10 send 10 server_queue 10 sum 10 hold 200 rule 10 server_encode 10 "
            "reply 10 decode_queue 10 decode 10");
  EXPECT_EQ(PartsText(job.exchanges[1]),
            "queue 10 encode 10 send 10 server_queue 10 sum 10 rule 10 server_encode 10 reply 10 "
            "decode_queue 10 decode 10");
  EXPECT_THAT(job.warnings, IsEmpty());
}

TEST(JobTrace, HasThePartsOfAWorkerAloneWithoutItsServer) {
  SmallJob small(200);

  const auto job = JoinTraces({small.worker0.Read(), small.worker1.Read()});

  ASSERT_TRUE(job.ok());
  EXPECT_EQ(PartsText(job->exchanges[0]),
            "queue 10 encode 10 send 5 answer 255 decode_queue 10 decode 10");
  EXPECT_EQ(job->exchanges[0].server_node, 0U);
  EXPECT_THAT(job->warnings, ElementsAre(HasSubstr("no recording of server 0")));
}

TEST(JobTrace, NamesRanksThatAreMissingAndGoesOn) {
  SmallJob small(200);

  const auto job = JoinTraces({small.worker1.Read(), small.server.Read()});

  ASSERT_TRUE(job.ok());
  EXPECT_THAT(job->exchanges, SizeIs(1));
  EXPECT_THAT(job->warnings, ElementsAre(HasSubstr("no recording of worker 0: what it did")));
}

TEST(JobTrace, FindsExchanges) {
  const JobTrace job = SmallJob(200, 3).Join();

  ASSERT_THAT(job.exchanges, SizeIs(6));
  EXPECT_EQ(job.FindExchange(7, 2, 1), 3U);
  EXPECT_EQ(job.FindExchange(7, 4, 1), std::nullopt);
  EXPECT_THAT(job.ExchangesOf(7, 3), ElementsAre(4U, 5U));
  EXPECT_THAT(job.ExchangesOf(8, 3), IsEmpty());
}

TEST(JobTrace, BringsClocksTogether) {
  TraceMaker worker0("worker", 0, 2, 1, "a");
  TraceMaker worker1("worker", 1, 2, 1, "b");
  TraceMaker server("server", 0, 2, 1, "c");
  constexpr int64_t kAhead = 5'000'000;  // us, of the server against worker 0
  constexpr int64_t kAhead1 = 9'000'000;
  for (int64_t step = 1; step <= 50; ++step) {
    const int64_t at = 100'000 * step;
    AddExchange(&worker0, &server, at, 7, static_cast<uint64_t>(step), 200, kAhead);
    AddExchange(&worker1, &server, at + kAhead1 + 200, 7, static_cast<uint64_t>(step), 0,
                kAhead - kAhead1);
    AddRound(&server, at + kAhead + 250, 7, static_cast<uint64_t>(step));
  }

  const auto job = JoinTraces({worker0.Read(), worker1.Read(), server.Read()});

  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->warnings, IsEmpty());
  ASSERT_THAT(job->nodes, SizeIs(3));
  EXPECT_EQ(job->nodes[2].clock.basis(), ClockMap::Basis::kExchanges);
  // The way there takes 10 us and the way back 10 us, and nothing tells one from the other.
  EXPECT_NEAR(static_cast<double>(job->nodes[2].clock.OffsetNs()), 5e9, 10'000);
  EXPECT_NEAR(static_cast<double>(job->nodes[1].clock.OffsetNs()), 9e9, 20'000);
  for (const Exchange& exchange : job->exchanges) {
    if (exchange.worker != 1) continue;
    EXPECT_NEAR(static_cast<double>(exchange.Begin()),
                static_cast<double>(exchange.step * 100'000'000 + 200'000), 20'000);
  }
}

TEST(JobTrace, TiesNoClocksWithoutExchanges) {
  TraceMaker worker("worker", 0, 1, 1, "a");
  TraceMaker server("server", 0, 1, 1, "");
  worker.Clock(1'000, 1'700'000'000'000'000'000);
  server.Clock(501'000, 1'700'000'000'000'000'000).Phase(Stage::kRule, 600, 700, 7, 1);

  const auto job = JoinTraces({worker.Read(), server.Read()});

  ASSERT_TRUE(job.ok());
  EXPECT_THAT(job->warnings, ElementsAre(HasSubstr("no exchange ties the clock of host-")));
  EXPECT_EQ(job->nodes[1].trace.records[0].begin_ns, 100'000);
}

TEST(JobTrace, TakesSeveralRecordingsOfAProcessForOne) {
  SmallJob small(200, 3);
  TraceMaker earlier = small.worker0;
  earlier.records.resize(10);
  TraceMaker later = small.worker0;
  later.records.erase(later.records.begin(), later.records.begin() + 5);

  const auto job =
      JoinTraces({later.Read(), earlier.Read(), small.worker1.Read(), small.server.Read()});

  ASSERT_TRUE(job.ok());
  ASSERT_THAT(job->nodes, SizeIs(3));
  EXPECT_EQ(job->nodes[0].trace.records.size(), small.worker0.records.size());
}

TEST(JobTrace, SaysWhatARecordingLacks) {
  SmallJob small(200);
  small.server.records_lost = 12;
  small.worker0.Add({.begin_ns = -5, .kind = 4});

  const JobTrace job = small.Join();

  EXPECT_THAT(job.warnings, Contains(HasSubstr("server 0 is not whole: 12 records found no room")));
  EXPECT_THAT(job.warnings, Contains(HasSubstr("worker 0 is not whole: 1 records had impossible")));
}

// A directory of recordings.
class ReadJobTest : public testing::Test {
 protected:
  ReadJobTest() {
    std::string folder = testing::TempDir() + "traces-XXXXXX";
    folder_ = mkdtemp(folder.data());
    small_.worker0.WriteTo(folder_ + "/worker-0.1.bdntrace");
    small_.worker1.WriteTo(folder_ + "/worker-1.2.bdntrace");
    small_.server.WriteTo(folder_ + "/server-0.3.bdntrace");
  }
  ~ReadJobTest() override { std::filesystem::remove_all(folder_); }

  SmallJob small_{200};
  std::string folder_;
};

TEST_F(ReadJobTest, ReadsADirectory) {
  std::ofstream(folder_ + "/notes.txt") << "not a recording";

  const auto job = ReadJob(folder_);

  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->job, "job");
  EXPECT_THAT(job->nodes, SizeIs(3));
  EXPECT_THAT(job->warnings, IsEmpty());
}

TEST_F(ReadJobTest, AsksWhichOfTwoJobs) {
  TraceMaker other("worker", 0);
  other.facts["job"] = "another";
  other.WriteTo(folder_ + "/worker-0.9.bdntrace");

  EXPECT_THAT(ReadJob(folder_).status().message(),
              HasSubstr("2 jobs: 'another' (1 file), 'job' (3 files); choose one by --job NAME"));
  const auto job = ReadJob(folder_, {.job = "job"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->nodes, SizeIs(3));
  EXPECT_THAT(ReadJob(folder_, {.job = "jop"}).status().message(), HasSubstr("of job 'jop'"));
}

TEST_F(ReadJobTest, GoesOnWithoutAFileThatCannotBeRead) {
  std::ofstream(folder_ + "/server-0.3.bdntrace") << "BDNTRACE and then nothing";

  const auto job = ReadJob(folder_);

  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->warnings, Contains(HasSubstr("server-0.3.bdntrace: it is cut off")));
  EXPECT_THAT(job->warnings, Contains(HasSubstr("no recording of server 0")));
}

TEST_F(ReadJobTest, SaysWhatADirectoryWithoutRecordingsLacks) {
  EXPECT_THAT(ReadJob(folder_ + "/none").status().message(), HasSubstr("none cannot be read"));
  for (const auto& file : std::filesystem::directory_iterator(folder_)) {
    std::ofstream(file.path().string()) << "gone";
  }
  EXPECT_EQ(ReadJob(folder_).status().code(), absl::StatusCode::kDataLoss);
  std::filesystem::remove_all(folder_);
  std::filesystem::create_directory(folder_);
  EXPECT_THAT(ReadJob(folder_).status().message(), HasSubstr("run the job with setting trace="));
}

TEST_F(ReadJobTest, RefusesMoreRecordsThanItMayHold) {
  const auto job = ReadJob(folder_, {.records = {.max_records = 15}});

  EXPECT_EQ(job.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(job.status().message(), Not(IsEmpty()));
}

}  // namespace
}  // namespace bdn
