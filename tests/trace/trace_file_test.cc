#include "trace/trace_file.h"

#include <cstdlib>
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trace/trace_maker.h"

namespace bdn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<NodeTrace> Read(const std::string& bytes, const TraceSelection& selection = {}) {
  return ReadTrace(std::as_bytes(std::span(bytes)), selection);
}

std::string Refusal(const std::string& bytes) {
  const auto trace = Read(bytes);
  return trace.ok() ? "it was read" : std::string(trace.status().message());
}

template <typename T>
std::string With(std::string bytes, size_t offset, T value) {
  memcpy(bytes.data() + offset, &value, sizeof(value));
  return bytes;
}

// A recording with all that one can have, of 50 records.
TraceMaker Whole() {
  TraceMaker maker("worker", 1);
  maker.facts["settings"] = {{"push", "ef(onebit)"}};
  maker.Thread(77, "bdn-pool").Thread(78, "main").Name(5, "fc.weight").Name(6, "fc.bias");
  maker.Clock(2'000, 1'700'000'000'000'002'000).Clock(1'000, 1'700'000'000'000'001'000);
  for (int i = 0; i < 50; ++i) {
    maker.Phase(Stage::kEncode, 1000 - i, 1000, 5, static_cast<uint64_t>(i) + 1, 3);
    maker.records.back().thread = static_cast<uint16_t>(i % 2);
  }
  maker.ended_ns = 3'000'000;
  maker.names_lost = 2;
  maker.records_lost = 3;
  return maker;
}

TEST(TraceFile, HasAllThatWasWritten) {
  const auto trace = Read(Whole().Bytes());

  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->facts.Name(), "worker 1");
  EXPECT_EQ(trace->facts.job, "job");
  EXPECT_THAT(trace->facts.workers, ElementsAre(1, 2));
  EXPECT_THAT(trace->facts.servers, ElementsAre(3));
  EXPECT_THAT(trace->facts.settings, ElementsAre(std::pair("push", "ef(onebit)")));
  ASSERT_EQ(trace->threads.size(), 2U);
  EXPECT_EQ(trace->threads[0].id, 77U);
  EXPECT_STREQ(trace->threads[1].name, "main");
  EXPECT_EQ(trace->NameOf(5), "fc.weight");
  EXPECT_EQ(trace->NameOf(Key::Of(9, 2).value), "key 9.2");
  ASSERT_EQ(trace->records.size(), 50U);
  EXPECT_EQ(trace->records.front().step, 50U);  // by their begins
  EXPECT_EQ(trace->records.front().begin_ns, 951'000);
  EXPECT_EQ(trace->records.front().peer, 3U);
  ASSERT_EQ(trace->clocks.size(), 2U);
  EXPECT_EQ(trace->clocks.front().monotonic_ns, 1'000);
  EXPECT_EQ(trace->ended_ns, 3'000'000);
  EXPECT_EQ(trace->LastSign(), 3'000'000);
  EXPECT_EQ(trace->names_lost, 2U);
  EXPECT_EQ(trace->records_lost, 3U);
  EXPECT_EQ(trace->bytes_cut, 0U);
}

TEST(TraceFile, TakesTheNumberOfAProcessOffItsHost) {
  TraceMaker maker("worker", 1);
  maker.facts["host"] = "gpu3:4001";
  EXPECT_EQ(maker.Read().facts.host, "gpu3");
  maker.facts["host"] = "gpu3:4002";
  EXPECT_EQ(maker.Read().facts.host, "gpu3:4002");
}

TEST(TraceFile, CutAnywhereHasItsFirstRecordsOrIsRefused) {
  const std::string bytes = Whole().Bytes();
  const auto blocks = *reinterpret_cast<const uint64_t*>(bytes.data() + 88);
  for (size_t length = 0; length < bytes.size(); ++length) {
    const auto trace = Read(bytes.substr(0, length));
    if (length < blocks) {
      ASSERT_FALSE(trace.ok()) << length;
      ASSERT_EQ(trace.status().code(), absl::StatusCode::kDataLoss);
      continue;
    }
    ASSERT_TRUE(trace.ok()) << length << trace.status();
    const size_t within = (length - blocks) % TraceMaker::kBlockBytes;
    const size_t whole = (length - blocks) / TraceMaker::kBlockBytes * 20;
    const size_t part = within < 64 ? 0 : (within - 64) / 48;
    EXPECT_EQ(trace->records.size(), std::min<size_t>(50, whole + std::min<size_t>(part, 20)));
    EXPECT_EQ(trace->bytes_cut, within == 0 ? 0 : TraceMaker::kBlockBytes - within);
  }
}

TEST(TraceFile, RefusesWhatIsNoRecordingOrOfAnotherKind) {
  const std::string bytes = Whole().Bytes();

  EXPECT_THAT(Refusal("hello, world"), HasSubstr("no recording"));
  EXPECT_THAT(Refusal(With<uint32_t>(bytes, 8, 0x04030201)), HasSubstr("byte order"));
  EXPECT_THAT(Refusal(With<uint32_t>(bytes, 12, 2)), HasSubstr("version 2"));
  EXPECT_EQ(Read(With<uint32_t>(bytes, 12, 2)).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Refusal(With<uint32_t>(bytes, 16, 40)), HasSubstr("records of 40 bytes"));
  EXPECT_THAT(Refusal(With<uint32_t>(bytes, 20, 1025)), HasSubstr("blocks of 1025"));
  EXPECT_THAT(Refusal(With<uint32_t>(bytes, 20, 0)), HasSubstr("blocks of 0"));
}

TEST(TraceFile, RefusesRegionsThatOverlapOrLieOutside) {
  const std::string bytes = Whole().Bytes();

  for (const size_t region : {24, 40, 56, 72}) {
    EXPECT_THAT(Refusal(With<uint64_t>(bytes, region, 0)), HasSubstr("header is broken"));
    EXPECT_THAT(Refusal(With<uint64_t>(bytes, region, 257)), HasSubstr("header is broken"));
    EXPECT_THAT(Refusal(With<uint64_t>(bytes, region, ~uint64_t{0})), HasSubstr("broken"));
    EXPECT_THAT(Refusal(With<uint64_t>(bytes, region + 8, ~uint64_t{0} - 300)),
                HasSubstr("header is broken"));
    EXPECT_THAT(Refusal(With<uint64_t>(bytes, region + 8, 3)), HasSubstr("header is broken"));
  }
  EXPECT_THAT(Refusal(With<uint64_t>(bytes, 88, 256)), HasSubstr("blocks begin at offset 256"));
  EXPECT_THAT(Refusal(With<uint64_t>(bytes, 88, 1 << 30)), HasSubstr("cut off before its first"));
}

TEST(TraceFile, RefusesFactsThatAreNone) {
  TraceMaker maker = Whole();
  for (const char* name : {"job", "role", "host", "boot_id", "version", "rank", "node", "pid",
                           "cores", "workers", "servers", "settings"}) {
    TraceMaker without = maker;
    without.facts.erase(name);
    EXPECT_THAT(Refusal(without.Bytes()), HasSubstr(absl::StrCat("'", name, "'")));
  }
  maker.facts["rank"] = -1;
  EXPECT_THAT(Refusal(maker.Bytes()), HasSubstr("'rank'"));
  maker = Whole();
  maker.facts["workers"] = {1, "two"};
  EXPECT_THAT(Refusal(maker.Bytes()), HasSubstr("'workers'"));
  maker = Whole();
  maker.facts["role"] = "conductor";
  EXPECT_THAT(Refusal(maker.Bytes()), HasSubstr("role 'conductor'"));
  EXPECT_THAT(Refusal(With<uint32_t>(Whole().Bytes(), kTraceHeaderBytes, 1 << 20)),
              HasSubstr("facts are not understood"));
}

TEST(TraceFile, MakesControlCharactersHarmless) {
  TraceMaker maker("worker", 0);
  maker.facts["host"] = "a\x1b[31mb\n";
  maker.Thread(1, "x\ty")
      .Name(1,
            "\x07"
            "bell")
      .Name(2, "caf\xc3\xa9 \xff\xc3")
      .Name(3, std::string(300, 'z'));

  const NodeTrace trace = maker.Read();

  EXPECT_EQ(trace.facts.host, "a?[31mb?");
  EXPECT_STREQ(trace.threads[0].name, "x?y");
  EXPECT_EQ(trace.NameOf(1), "?bell");
  EXPECT_EQ(trace.NameOf(2), "caf\xc3\xa9 ??");
  EXPECT_EQ(trace.NameOf(3).size(), 200U);
}

TEST(TraceFile, LeavesOutWhatCannotBeAndCountsIt) {
  TraceMaker maker("worker", 0);
  maker.Phase(Stage::kEncode, 1, 2, 5, 1)
      .Add({.begin_ns = -1, .kind = 4})
      .Add({.begin_ns = 1, .wall_ns = ~uint64_t{0}, .kind = 4})
      .Add({.begin_ns = std::numeric_limits<int64_t>::max(), .kind = 4})
      .Add({.begin_ns = 1, .step = ~uint64_t{0}, .kind = 4})
      .Add({.begin_ns = 1, .kind = 31})
      .Add({.begin_ns = 1, .kind = 200})
      .Add({.begin_ns = 1, .thread = 9, .kind = 33});

  const NodeTrace trace = maker.Read();

  EXPECT_EQ(trace.records.size(), 2U);
  EXPECT_EQ(trace.records_bad, 4U);
  EXPECT_EQ(trace.records_unknown, 2U);
  EXPECT_EQ(trace.records[0].thread, kTraceNoThread);  // there is no thread 9, and none 0
}

TEST(TraceFile, ReadsTheLastRecordsAlone) {
  TraceMaker maker("worker", 0);
  for (int i = 0; i < 100; ++i) maker.Phase(Stage::kEncode, i * 1000, i * 1000 + 1, 5, 1);

  const auto last = Read(maker.Bytes(), {.last_ns = 9'500'000});

  ASSERT_TRUE(last.ok());
  EXPECT_EQ(last->records.size(), 10U);
  EXPECT_EQ(last->records_early, 90U);
  EXPECT_THAT(Read(maker.Bytes(), {.max_records = 99}).status().message(), HasSubstr("--last"));
  EXPECT_TRUE(Read(maker.Bytes(), {.max_records = 100}).ok());
}

// Bytes that change when a block's records have been read, as those of a writer do.
class BusyBytes final : public TraceBytes {
 public:
  BusyBytes(std::string bytes, size_t block) : bytes_(std::move(bytes)), block_(block) {}
  uint64_t size() const override { return bytes_.size(); }
  absl::Status Read(uint64_t offset, std::span<std::byte> to) const override {
    memcpy(to.data(), bytes_.data() + offset, to.size());
    if (offset == block_ + kTraceBlockHeaderBytes) {
      const uint64_t sequence = 99;
      memcpy(bytes_.data() + block_, &sequence, sizeof(sequence));
    }
    return absl::OkStatus();
  }

 private:
  mutable std::string bytes_;
  const size_t block_;
};

TEST(TraceFile, LeavesOutABlockThatIsOverwrittenMeanwhile) {
  const std::string bytes = Whole().Bytes();
  const auto blocks = *reinterpret_cast<const uint64_t*>(bytes.data() + 88);

  const auto trace = ReadTrace(BusyBytes(bytes, blocks + TraceMaker::kBlockBytes));

  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->records.size(), 30U);
  EXPECT_EQ(trace->blocks_overwritten, 1U);
}

TEST(TraceFile, SkipsBlocksThatNobodyTook) {
  const std::string bytes = Whole().Bytes();
  const auto blocks = *reinterpret_cast<const uint64_t*>(bytes.data() + 88);

  const auto trace = Read(With<uint64_t>(bytes, blocks, 0));

  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(trace->records.size(), 30U);
}

TEST(TraceFile, NamesTheFileInErrors) {
  const std::string path = testing::TempDir() + "no.bdntrace";

  EXPECT_THAT(ReadTraceFile(path).status().message(), HasSubstr("no.bdntrace cannot be read"));
  EXPECT_THAT(ReadTraceFile(testing::TempDir()).status().message(), HasSubstr("is no file"));
}

TEST(TraceFile, KnowsTheKindsOfTheFormat) {
  EXPECT_EQ(TraceKindName(0), "queue");
  EXPECT_EQ(TraceKindName(10), "deliver");
  EXPECT_EQ(TraceKindName(35), "waiting");
  EXPECT_EQ(TraceKindName(40), "backward");
  EXPECT_EQ(TraceKindName(65), "machine");
  EXPECT_EQ(TraceKindName(41), "");
}

}  // namespace
}  // namespace bdn
