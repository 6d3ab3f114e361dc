#include "common/telemetry/recorder.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/telemetry/stage_times.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;

// What a test reads of a recording, by the offsets of docs/trace_format.md.
struct Read {
  TraceHeader header;
  nlohmann::json facts;
  std::map<uint64_t, std::string> names;
  std::vector<std::string> threads;
  std::vector<TraceRecord> records;  // by block
  uint64_t clock_pairs = 0;

  std::vector<TraceRecord> OfKind(uint8_t kind) const {
    std::vector<TraceRecord> found;
    std::ranges::copy_if(records, std::back_inserter(found),
                         [kind](const TraceRecord& record) { return record.kind == kind; });
    return found;
  }
};

template <typename T>
T At(const std::string& bytes, uint64_t offset) {
  T value;
  EXPECT_LE(offset + sizeof(value), bytes.size());
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

Read ReadBytes(const std::string& bytes) {
  Read read{.header = At<TraceHeader>(bytes, 0)};
  const TraceHeader& header = read.header;
  EXPECT_EQ(std::string_view(header.magic, 8), kTraceMagic);
  read.facts = nlohmann::json::parse(
      bytes.substr(header.facts.offset + 4, At<uint32_t>(bytes, header.facts.offset)));
  read.clock_pairs = At<uint64_t>(bytes, header.clocks.offset);
  const uint64_t names = header.names.offset + kTraceTableHeaderBytes;
  for (uint64_t at = 0; at < At<uint64_t>(bytes, header.names.offset);) {
    const auto length = At<uint32_t>(bytes, names + at + 8);
    read.names[At<uint64_t>(bytes, names + at)] = bytes.substr(names + at + 12, length);
    at += 12 + length;
  }
  for (uint32_t i = 0; i < At<uint32_t>(bytes, header.threads.offset); ++i) {
    const auto thread = At<TraceThread>(
        bytes, header.threads.offset + kTraceTableHeaderBytes + i * sizeof(TraceThread));
    read.threads.emplace_back(thread.name);
  }
  for (uint64_t at = header.blocks_offset; at + header.block_bytes <= bytes.size();
       at += header.block_bytes) {
    const auto block = At<TraceBlockHeader>(bytes, at);
    for (uint32_t i = 0; block.sequence != 0 && i < block.records; ++i) {
      read.records.push_back(At<TraceRecord>(bytes, at + 64 + i * sizeof(TraceRecord)));
      EXPECT_EQ(read.records.back().thread, block.thread);
    }
  }
  return read;
}

Read ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return ReadBytes(text.str());
}

class RecorderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/recorder-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  RecorderOptions InMemory(uint64_t bytes = 1 << 20) const { return {.bytes = bytes}; }
  RecorderOptions InFile() const {
    return {.bytes = 1 << 20, .directory = directory_, .max_file_bytes = 64 << 20};
  }
  Read Written(const Recorder& recorder) const {
    const absl::StatusOr<std::string> path = recorder.WriteTo(directory_);
    EXPECT_TRUE(path.ok()) << path.status();
    return ReadFile(*path);
  }

  std::string directory_;
};

const RecorderFacts kFacts = {.job = "gpt-7",
                              .role = "worker",
                              .host = "here",
                              .rank = 3,
                              .node = 9,
                              .workers = {4, 5, 0, 9},
                              .servers = {2, 3}};

TEST_F(RecorderTest, IsNullWhereNothingIsAskedFor) {
  EXPECT_EQ(Recorder::Open({}, kFacts), nullptr);
}

TEST_F(RecorderTest, TellsFactsNamesThreadsAndClocks) {
  RecorderOptions options = InMemory();
  options.settings = {{"threads", "3"}};
  const auto recorder = Recorder::Open(options, kFacts);
  recorder->Name(7, "layer1.weight");
  recorder->Name(7, "not the first");
  const uint64_t text = recorder->NumberOf("validation");
  EXPECT_EQ(recorder->NumberOf("validation"), text);
  EXPECT_NE(recorder->NumberOf("other"), text);
  recorder->Add({.begin_ns = 5, .wall_ns = 6, .key = 7, .step = 8, .peer = 2, .kind = 4});
  const Read read = Written(*recorder);
  EXPECT_EQ(read.facts["job"], "gpt-7");
  EXPECT_EQ(read.facts["rank"], 3);
  EXPECT_EQ(read.facts["workers"], (std::vector<int>{4, 5, 0, 9}));
  EXPECT_EQ(read.facts["settings"]["threads"], "3");
  EXPECT_EQ(read.facts["pid"], getpid());
  EXPECT_EQ(read.names.at(7), "layer1.weight");
  EXPECT_EQ(read.names.at(text), "validation");
  EXPECT_GE(read.clock_pairs, 1);
  const std::vector<TraceRecord> encodes = read.OfKind(4);
  ASSERT_EQ(encodes.size(), 1);
  EXPECT_EQ(encodes[0].key, 7);
  EXPECT_EQ(encodes[0].step, 8);
  ASSERT_LT(encodes[0].thread, read.threads.size());
}

TEST_F(RecorderTest, KeepsTheLatestRecordsOfABusyThread) {
  const auto recorder = Recorder::Open(InMemory(128 << 10), kFacts);
  for (uint64_t i = 1; i <= 100'000; ++i) recorder->Add({.step = i, .kind = 5});
  const std::vector<TraceRecord> kept = Written(*recorder).OfKind(5);
  EXPECT_GT(kept.size(), 1000);
  uint64_t least = ~uint64_t{0};
  for (const TraceRecord& record : kept) least = std::min(least, record.step);
  // All of the latest ones, without a gap.
  EXPECT_EQ(least, 100'000 - kept.size() + 1);
}

TEST_F(RecorderTest, KeepsWhatIdleThreadsHaveRecorded) {
  const auto recorder = Recorder::Open(InMemory(128 << 10), kFacts);
  std::thread idle([&] { recorder->Add({.step = 1, .kind = 6}); });
  idle.join();
  std::thread holder;
  CondVar changed;
  Mutex mu;
  bool has_added = false;
  bool may_end = false;
  holder = std::thread([&] {
    recorder->Add({.step = 2, .kind = 7});
    MutexLock lock(&mu);
    has_added = true;
    changed.SignalAll();
    while (!may_end) changed.Wait(&mu);
  });
  {
    MutexLock lock(&mu);
    while (!has_added) changed.Wait(&mu);
  }
  for (uint64_t i = 1; i <= 100'000; ++i) recorder->Add({.step = i, .kind = 5});
  const Read read = Written(*recorder);
  // The thread that lives holds its block; that of the other one was used again.
  EXPECT_EQ(read.OfKind(7).size(), 1);
  EXPECT_EQ(read.OfKind(6).size(), 0);
  {
    MutexLock lock(&mu);
    may_end = true;
  }
  changed.SignalAll();
  holder.join();
}

TEST_F(RecorderTest, ManyThreadsLoseNoRecordInAFile) {
  const auto recorder = Recorder::Open(InFile(), kFacts);
  ASSERT_FALSE(recorder->path().empty());
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 1; i <= 20'000; ++i) recorder->Add({.key = t, .step = i, .kind = 4});
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Read read = ReadFile(recorder->path());
  std::map<uint64_t, uint64_t> sums;
  for (const TraceRecord& record : read.OfKind(4)) sums[record.key] += record.step;
  ASSERT_EQ(sums.size(), 8);
  for (const auto& [key, sum] : sums) EXPECT_EQ(sum, 20'000ull * 20'001 / 2) << key;
  EXPECT_EQ(read.header.records_lost, 0);
}

TEST_F(RecorderTest, AFileHasAllWhenTheProcessIsKilled) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto recorder = Recorder::Open(InFile(), kFacts);
    for (uint64_t i = 1; i <= 5000; ++i) recorder->Add({.step = i, .kind = 4});
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const Read read = ReadFile(absl::StrFormat("%s/worker-3.%d.bdntrace", directory_, child));
  EXPECT_EQ(read.OfKind(4).size(), 5000);
  EXPECT_EQ(read.header.ended_ns, 0);
}

TEST_F(RecorderTest, AForkedChildWritesNothingIntoItsParentsFile) {
  const auto recorder = Recorder::Open(InFile(), kFacts);
  recorder->Add({.step = 1, .kind = 4});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    recorder->Add({.step = 2, .kind = 4});
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  recorder->Add({.step = 3, .kind = 4});
  const std::vector<TraceRecord> records = ReadFile(recorder->path()).OfKind(4);
  ASSERT_EQ(records.size(), 2);
  EXPECT_EQ(records[1].step, 3);
}

TEST_F(RecorderTest, AFileSaysThatItWasClosedInOrder) {
  auto recorder = Recorder::Open(InFile(), kFacts);
  const std::string path = recorder->path();
  recorder = nullptr;
  EXPECT_GT(ReadFile(path).header.ended_ns, 0);
}

TEST_F(RecorderTest, ASecondFileOfAProcessHasAnotherName) {
  const auto first = Recorder::Open(InFile(), kFacts);
  const auto second = Recorder::Open(InFile(), kFacts);
  EXPECT_NE(first->path(), second->path());
  EXPECT_THAT(second->path(), HasSubstr(".2.bdntrace"));
}

TEST_F(RecorderTest, ADirectoryThatCannotBeWrittenCostsOnlyTheFile) {
  RecorderOptions options = InFile();
  options.directory = "/dev/null/traces";
  const auto recorder = Recorder::Open(options, kFacts);
  ASSERT_NE(recorder, nullptr);
  EXPECT_EQ(recorder->path(), "");
  recorder->Add({.step = 1, .kind = 4});
  EXPECT_EQ(Written(*recorder).OfKind(4).size(), 1);
  options.bytes = 0;
  EXPECT_EQ(Recorder::Open(options, kFacts), nullptr);
}

TEST_F(RecorderTest, AFullDiskEndsTheGrowthAlone) {
  RecorderOptions options = InFile();
  const auto recorder = Recorder::Open(options, kFacts);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  // A file that may not grow any more is what a full disk looks like from here.
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {20 << 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  for (uint64_t i = 1; i <= 200'000; ++i) recorder->Add({.step = i, .kind = 4});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  const std::vector<TraceRecord> records = ReadFile(recorder->path()).OfKind(4);
  EXPECT_GT(records.size(), 10'000);
  EXPECT_LT(records.size(), 200'000);
  uint64_t most = 0;
  for (const TraceRecord& record : records) most = std::max(most, record.step);
  EXPECT_EQ(most, 200'000);
}

TEST_F(RecorderTest, AReaderDuringWritesSeesWholeRecords) {
  const auto recorder = Recorder::Open(InMemory(128 << 10), kFacts);
  std::atomic<bool> is_over = false;
  std::thread writer([&] {
    for (uint64_t i = 1; !is_over; ++i) {
      recorder->Add({.begin_ns = static_cast<int64_t>(i), .key = 3 * i, .step = i, .kind = 4});
    }
  });
  for (int i = 0; i < 200; ++i) {
    for (const TraceRecord& record : Written(*recorder).OfKind(4)) {
      ASSERT_EQ(record.key, 3 * record.step);
      ASSERT_EQ(record.begin_ns, static_cast<int64_t>(record.step));
    }
  }
  is_over = true;
  writer.join();
}

TEST_F(RecorderTest, SamplesThreadsAndTheMachine) {
  const auto recorder = Recorder::Open(InMemory(), kFacts);
  volatile uint64_t work = 0;
  for (int i = 0; i < 50'000'000; ++i) work = work + 1;
  recorder->Sample();
  const Read read = Written(*recorder);
  const auto threads = read.OfKind(static_cast<uint8_t>(TraceKind::kThreadSample));
  ASSERT_FALSE(threads.empty());
  uint64_t ran = 0;
  for (const TraceRecord& sample : threads) {
    ASSERT_LT(sample.peer, read.threads.size());
    EXPECT_LE(sample.key, sample.wall_ns + 20'000'000);  // as ticks of the scheduler are coarse
    ran += sample.key;
  }
  EXPECT_GT(ran, 10'000'000);
  EXPECT_FALSE(read.OfKind(static_cast<uint8_t>(TraceKind::kMachineSample)).empty());
}

TEST_F(RecorderTest, SamplesLinksUntilTheyAreTakenAway) {
  auto recorder = Recorder::Open(InMemory(), kFacts);
  std::atomic<uint64_t> sent = 1'000;
  const auto links = [&sent] { return std::vector<LinkTotals>{{.peer = 3, .bytes_sent = sent}}; };
  recorder->SetLinks(links);
  sent = 1'700;
  recorder->Sample();
  sent = 1'900;
  recorder->SetLinks(nullptr);
  sent = 5'000;
  recorder->Sample();
  uint64_t moved = 0;
  for (const TraceRecord& record :
       Written(*recorder).OfKind(static_cast<uint8_t>(TraceKind::kLinkSample))) {
    EXPECT_EQ(record.peer, 3);
    moved += record.key;
  }
  EXPECT_EQ(moved, 900) << "what was there before, and what came afterwards, is no one's";
}

TEST_F(RecorderTest, StepsOutsideOfTheSettingAreLeftOut) {
  RecorderOptions options = InMemory();
  options.steps = *ParseTraceSteps("100-120");
  const auto recorder = Recorder::Open(options, kFacts);
  for (uint64_t i = 0; i <= 200; ++i) recorder->Add({.step = i, .kind = 4});
  EXPECT_EQ(Written(*recorder).OfKind(4).size(), 22);  // with what belongs to no step
}

// The newest records of a recorder, within so many bytes.
std::string LatestOf(Recorder& recorder, uint64_t most_bytes,
                     absl::Duration last = absl::InfiniteDuration()) {
  const absl::StatusOr<std::string> bytes = recorder.Latest(most_bytes, last);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_LE(bytes->size(), most_bytes);
  return bytes.ok() ? *bytes : std::string();
}

TEST_F(RecorderTest, TheLatestRecordsAreARecordingOfAtMostSoManyBytes) {
  for (const bool is_file : {false, true}) {
    const auto recorder = Recorder::Open(is_file ? InFile() : InMemory(4 << 20), kFacts);
    // Three times what a ring has room for, of two threads by turns, each with keys of its own.
    std::vector<std::thread> threads;
    std::barrier turn(2);
    for (uint64_t t = 0; t < 2; ++t) {
      threads.emplace_back([&, t] {
        for (uint64_t i = 1; i <= 100'000; ++i) {
          if (i % 100 == 0) turn.arrive_and_wait();
          const uint64_t key = 1000 * (t + 1) + i / 1000;
          recorder->Name(key, "tensor " + std::to_string(key));
          recorder->Add({.begin_ns = static_cast<int64_t>(1000 * i + t),
                         .wall_ns = 10,
                         .key = key,
                         .step = i,
                         .kind = 4});
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const Read all = Written(*recorder);
    for (const uint64_t most_bytes : {24 << 10, 100 << 10, 1 << 20}) {
      const std::string bytes = LatestOf(*recorder, most_bytes);
      EXPECT_GT(bytes.size(), most_bytes - 4096);
      const Read read = ReadBytes(bytes);
      EXPECT_EQ(read.facts, all.facts);
      // The recorder's own thread may have entered itself between the two.
      ASSERT_GE(read.threads.size(), all.threads.size());
      EXPECT_TRUE(std::equal(all.threads.begin(), all.threads.end(), read.threads.begin()));
      EXPECT_GT(read.clock_pairs, all.clock_pairs) << "it shows that the process lives";
      const std::vector<TraceRecord> kept = read.OfKind(4);
      // With its samples, whose last block need not be full.
      ASSERT_GT(read.records.size() + 20, (most_bytes - (12 << 10)) / 60);
      // All from the oldest one that is there on, and no other.
      Step oldest = kMaxStep;
      for (const TraceRecord& record : kept) oldest = std::min<Step>(oldest, record.step);
      EXPECT_GE(kept.size(), 2 * (100'000 - oldest) + 1);
      EXPECT_LE(kept.size(), 2 * (100'000 - oldest) + 2);
      std::map<uint64_t, std::string> names;
      std::map<uint16_t, Step> before;
      for (const TraceRecord& record : kept) {
        names[record.key] = "tensor " + std::to_string(record.key);
        EXPECT_GT(record.step, before[record.thread]) << "a thread's records keep their order";
        before[record.thread] = record.step;
      }
      EXPECT_EQ(read.names, names) << "of these records alone";
    }
  }
}

TEST_F(RecorderTest, TheLatestRecordsMayBeThoseOfSomeTime) {
  const auto recorder = Recorder::Open(InMemory(), kFacts);
  const int64_t now = int64_t{1} << 59;  // later than all that the recorder samples itself
  for (int64_t i = 0; i <= 10; ++i) {
    recorder->Add({.begin_ns = now + i * 1'000'000'000, .step = 1, .kind = 4});
  }
  EXPECT_EQ(ReadBytes(LatestOf(*recorder, 1 << 20, absl::Seconds(3))).records.size(), 4);
  EXPECT_EQ(ReadBytes(LatestOf(*recorder, 1 << 20)).OfKind(4).size(), 11);
}

TEST_F(RecorderTest, OfAThreadThatRecordsSeldomTheLatestRecordsAreThere) {
  const auto recorder = Recorder::Open(InMemory(4 << 20), kFacts);
  // Its block is the oldest of all, and it holds it.
  recorder->Add({.begin_ns = 1, .step = 1, .kind = 33});
  std::thread busy([&] {
    for (int64_t i = 1; i <= 60'000; ++i) recorder->Add({.begin_ns = i, .step = 1, .kind = 4});
  });
  busy.join();
  recorder->Add({.begin_ns = 60'000, .step = 2, .kind = 33});
  const Read read = ReadBytes(LatestOf(*recorder, 64 << 10));
  ASSERT_EQ(read.OfKind(33).size(), 1);
  EXPECT_EQ(read.OfKind(33)[0].step, 2);
  EXPECT_GT(read.OfKind(4).size(), 800);
}

TEST_F(RecorderTest, TablesThatTakeMoreThanIsAskedForAreNoRecording) {
  const auto recorder = Recorder::Open(InMemory(), kFacts);
  EXPECT_THAT(recorder->Latest(4096, absl::InfiniteDuration()).status().message(),
              HasSubstr("tables of"));
}

TEST_F(RecorderTest, TheLatestRecordsAreWholeWhileOthersAreWritten) {
  const auto recorder = Recorder::Open(InMemory(128 << 10), kFacts);
  std::atomic<bool> is_over = false;
  std::thread writer([&] {
    for (uint64_t i = 1; !is_over; ++i) {
      recorder->Name(3 * i, "a name");
      recorder->Add({.begin_ns = static_cast<int64_t>(i), .key = 3 * i, .step = i, .kind = 4});
    }
  });
  for (int i = 0; i < 200; ++i) {
    for (const TraceRecord& record : ReadBytes(LatestOf(*recorder, 64 << 10)).OfKind(4)) {
      ASSERT_EQ(record.key, 3 * record.step);
      ASSERT_EQ(record.begin_ns, static_cast<int64_t>(record.step));
    }
  }
  is_over = true;
  writer.join();
}

TEST(TraceSteps, AreParsed) {
  EXPECT_TRUE(ParseTraceSteps("")->Has(5));
  EXPECT_FALSE(ParseTraceSteps("every 50")->Has(75));
  EXPECT_TRUE(ParseTraceSteps("every 50")->Has(100));
  for (const char* const wrong : {"every 0", "every", "5", "7-3", "a-b", "-", "1-2-3"}) {
    EXPECT_THAT(ParseTraceSteps(wrong).status().message(), HasSubstr("expected steps as"));
  }
}

TEST_F(RecorderTest, WritesOnTroubleAtMostOnceAMinute) {
  RecorderOptions options = InMemory();
  options.trouble_directory = directory_;
  const auto recorder = Recorder::Open(options, kFacts);
  recorder->WriteOnTrouble("late");
  recorder->WriteOnTrouble("late again");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_), {}), 1);
}

TEST_F(RecorderTest, HasWhatThePhasesCount) {
  const auto recorder = Recorder::Open(InMemory(), kFacts);
  StageTimes times(MachineStageClock(/*with_cpu=*/true));
  times.RecordWith(recorder.get());
  const SpanId id = {.key = Key{5}, .step = 6, .peer = 7};
  const StageSpan span(&times);
  span.End(Stage::kSend, 100, id);
  StageLaps laps(&times, id);
  laps.End(Stage::kSum, 0, 0);
  const Read read = Written(*recorder);
  const auto sends = read.OfKind(static_cast<uint8_t>(Stage::kSend));
  ASSERT_EQ(sends.size(), 1);
  EXPECT_EQ(sends[0].key, 5);
  EXPECT_EQ(sends[0].step, 6);
  EXPECT_EQ(sends[0].peer, 7);
  EXPECT_EQ(sends[0].bytes, 100);
  EXPECT_EQ(sends[0].flags, 0);
  EXPECT_EQ(sends[0].wall_ns, times.Read()[Stage::kSend].wall_ns);
  const auto sums = read.OfKind(static_cast<uint8_t>(Stage::kSum));
  ASSERT_EQ(sums.size(), 1);
  EXPECT_EQ(sums[0].flags, kTraceCountedElsewhere);
}

}  // namespace
}  // namespace bdn
