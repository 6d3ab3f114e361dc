#include <fstream>
#include <nlohmann/json.hpp>

#include "gtest/gtest.h"
#include "trace/trace_file.h"

namespace bdn {
namespace {

using Json = nlohmann::json;

// The listing is that of tests/reference/trace_reference.py, which shares nothing with the reader.
TEST(TraceGolden, IsReadAsItsListingSays) {
  const Json listing = Json::parse(std::ifstream(BDN_GOLDEN_DIR "/recording.json"));

  const auto trace = ReadTraceFile(BDN_GOLDEN_DIR "/recording.bdntrace");

  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->facts.job, listing["facts"]["job"]);
  EXPECT_EQ(trace->facts.Name(), "worker 1");
  EXPECT_EQ(Json(trace->facts.servers), listing["facts"]["servers"]);
  EXPECT_EQ(trace->clocks.size(), 64U);
  const auto pair = [](const TraceClockPair& clock) {
    return Json({clock.monotonic_ns, clock.real_ns});
  };
  EXPECT_EQ(Json({pair(trace->clocks.front()), pair(trace->clocks.back())}), listing["clocks"]);
  Json threads = Json::array();
  for (const TraceThread& thread : trace->threads) threads.push_back({thread.id, thread.name});
  EXPECT_EQ(threads, listing["threads"]);
  Json names = Json::object();
  for (const auto& [key, name] : trace->names) names[std::to_string(key)] = name;
  EXPECT_EQ(names, listing["names"]);
  Json records = Json::array();
  for (const TraceRecord& record : trace->records) {
    records.push_back({record.begin_ns, record.wall_ns, record.key, record.step, record.cpu_ticks,
                       record.bytes, record.peer, record.thread, TraceKindName(record.kind),
                       record.flags});
  }
  EXPECT_EQ(records, listing["records"]);
  EXPECT_EQ(trace->names_lost, listing["names_lost"]);
  EXPECT_EQ(trace->records_lost, listing["records_lost"]);
  EXPECT_EQ(trace->ended_ns, listing["end"]);
  EXPECT_EQ(trace->records_unknown, 1U);
}

}  // namespace
}  // namespace bdn
