#include "trace/timeline.h"

#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trace/trace_maker.h"
#include "trace/perfetto.pb.h"

namespace bdn {
namespace {

namespace pb = bandoneon::perfetto;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;
using Json = nlohmann::json;

constexpr int64_t kEpochNs = 1'700'000'000'000'000'000;  // at 0 of the recordings' clock

class TimelineTest : public testing::Test {
 protected:
  TimelineTest() {
    std::string folder = testing::TempDir() + "timeline-XXXXXX";
    folder_ = mkdtemp(folder.data());
    for (TraceMaker* maker : {&worker0_, &worker1_, &server_}) {
      maker->Thread(501, "bdn-pool").Thread(502, "main").Clock(1'000'000, kEpochNs + 1'000'000);
    }
    worker0_.Name(7, "fc.weight").Name(99, "epoch \"3\"");
    for (uint64_t step = 1; step <= 3; ++step) {
      const int64_t at = 2000 * static_cast<int64_t>(step);
      AddExchange(&worker0_, &server_, at, 7, step, 200);
      AddExchange(&worker0_, &server_, at + 5, 8, step, 200);
      AddExchange(&worker1_, &server_, at + 200, 7, step, 0);
      AddExchange(&worker1_, &server_, at + 205, 8, step, 0);
      AddRound(&server_, at + 250, 7, step);
      AddRound(&server_, at + 270, 8, step);
      worker0_.Mark(TraceKind::kStep, at - 500, at + 500, step)
          .Mark(TraceKind::kForward, at - 500, at - 200, step)
          .Mark(TraceKind::kWaiting, at, at + 400, step);
    }
    worker0_.Add({.begin_ns = 100, .key = 99, .kind = static_cast<uint8_t>(TraceKind::kUser)});
    worker0_.Add(
        {.begin_ns = 100, .key = 7, .step = 1, .kind = static_cast<uint8_t>(TraceKind::kReady)});
    server_.Add({.begin_ns = 0,
                 .wall_ns = 1'000'000,
                 .key = 1'500'000,
                 .bytes = 5,
                 .kind = static_cast<uint8_t>(TraceKind::kMachineSample)});
  }
  ~TimelineTest() override { std::filesystem::remove_all(folder_); }

  JobTrace Job() const {
    auto job = JoinTraces({worker0_.Read(), worker1_.Read(), server_.Read()});
    if (!job.ok()) throw std::runtime_error(std::string(job.status().message()));
    return *std::move(job);
  }
  std::string PathOf(const char* name) const { return folder_ + "/" + name; }
  std::string TextOf(const char* name) const {
    std::string text;
    gzFile file = gzopen(PathOf(name).c_str(), "rb");
    char buffer[4096];
    for (int got; (got = gzread(file, buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<size_t>(got));
    }
    gzclose(file);
    return text;
  }
  Json WriteJson(std::span<const TorchProfile> profiles = {}) const {
    const auto written = WriteTimeline(Job(), profiles, PathOf("job.json"));
    if (!written.ok()) throw std::runtime_error(std::string(written.message()));
    return Json::parse(TextOf("job.json"));
  }
  TorchProfile ReadProfile(const std::string& text, std::optional<int> rank = {}) const {
    std::ofstream(PathOf("torch.json")) << text;
    auto profile = ReadTorchProfile(PathOf("torch.json"), rank);
    if (!profile.ok()) throw std::runtime_error(std::string(profile.status().message()));
    return *std::move(profile);
  }

  TraceMaker worker0_{"worker", 0};
  TraceMaker worker1_{"worker", 1};
  TraceMaker server_{"server", 0};
  std::string folder_;
};

// Returns the events of a phase by their names.
std::vector<Json> EventsOf(const Json& timeline, const std::string& phase,
                           const std::string& name) {
  std::vector<Json> found;
  for (const Json& event : timeline["traceEvents"]) {
    if (event["ph"] == phase && event["name"] == name) found.push_back(event);
  }
  return found;
}

int64_t NsOf(const Json& timeline, const Json& event) {
  return timeline["baseTimeNanoseconds"].get<int64_t>() +
         std::llround(event["ts"].get<double>() * 1000);
}

TEST_F(TimelineTest, HasNamesOfProcessesAndThreads) {
  const Json timeline = WriteJson();

  std::vector<std::string> processes;
  for (const Json& event : EventsOf(timeline, "M", "process_name")) {
    processes.push_back(event["args"]["name"]);
  }
  EXPECT_THAT(processes, UnorderedElementsAre("worker 0", "worker 1", "server 0"));
  std::vector<std::string> threads;
  for (const Json& event : EventsOf(timeline, "M", "thread_name")) {
    if (event["pid"] == 1) threads.push_back(event["args"]["name"]);
  }
  EXPECT_THAT(threads, Contains("bdn-pool 501"));
  EXPECT_THAT(threads, Contains("steps"));
  EXPECT_THAT(threads, Contains("program"));
  EXPECT_EQ(timeline["otherData"]["clocks"].size(), 3U);
  EXPECT_EQ(timeline["otherData"]["clocks"][0]["by"], "same clock");
}

TEST_F(TimelineTest, IsInRealTime) {
  const Json timeline = WriteJson();

  const auto steps = EventsOf(timeline, "X", "step");
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_EQ(NsOf(timeline, steps[0]), kEpochNs + 1'500'000);
  EXPECT_EQ(steps[0]["dur"], 1000.0);
  const auto marks = EventsOf(timeline, "i", "user");
  ASSERT_EQ(marks.size(), 1U);
  EXPECT_EQ(marks[0]["args"]["subject"], "epoch \"3\"");
}

TEST_F(TimelineTest, ShowsWaitingAsEventsThatMayCross) {
  const Json timeline = WriteJson();

  const auto begins = EventsOf(timeline, "b", "wait");
  const auto ends = EventsOf(timeline, "e", "wait");
  ASSERT_EQ(begins.size(), 12U);
  ASSERT_EQ(ends.size(), 12U);
  std::map<std::string, double> begun;
  for (const Json& event : begins) begun[event["id"]] = event["ts"];
  EXPECT_EQ(begun.size(), 12U);
  for (const Json& event : ends) EXPECT_GT(event["ts"].get<double>(), begun.at(event["id"]));
  EXPECT_EQ(begins[0]["args"]["subject"], "fc.weight");
  EXPECT_EQ(EventsOf(timeline, "b", "hold")[0]["args"]["peer"], "worker 0");
}

TEST_F(TimelineTest, NoSlicesOfAThreadCross) {
  const Json timeline = WriteJson();

  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> tracks;
  for (const Json& event : timeline["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const double begin = event["ts"];
    tracks[{event["pid"], event["tid"]}].emplace_back(begin, begin + event["dur"].get<double>());
  }
  for (const auto& [track, slices] : tracks) {
    for (const auto& [begin, end] : slices) {
      for (const auto& [other_begin, other_end] : slices) {
        EXPECT_FALSE(begin < other_begin && other_begin < end && end < other_end);
      }
    }
  }
}

TEST_F(TimelineTest, TiesPushSumReplyAndDecoding) {
  const Json timeline = WriteJson();

  std::map<int, std::vector<std::pair<double, std::string>>> flows;
  for (const Json& event : timeline["traceEvents"]) {
    const std::string phase = event["ph"];
    if (phase != "s" && phase != "t" && phase != "f") continue;
    flows[event["id"]].emplace_back(event["ts"], phase + event["pid"].dump());
  }
  ASSERT_EQ(flows.size(), 12U);  // exchanges
  for (auto& [exchange, points] : flows) {
    std::sort(points.begin(), points.end());
    ASSERT_EQ(points.size(), 4U);
    EXPECT_EQ(points[0].second.substr(0, 1), "s");
    EXPECT_EQ(points[1].second, "t3");  // the server's sum and encoding
    EXPECT_EQ(points[2].second, "t3");
    EXPECT_EQ(points[3].second, "f" + points[0].second.substr(1));
  }
}

TEST_F(TimelineTest, CountsTheMachine) {
  const Json timeline = WriteJson();

  const auto busy = EventsOf(timeline, "C", "processors of the machine that are busy");
  ASSERT_EQ(busy.size(), 1U);
  EXPECT_EQ(busy[0]["args"]["value"], 1.5);
}

TEST_F(TimelineTest, CountsLinks) {
  server_.Add({.begin_ns = 0,
               .wall_ns = 500'000'000,
               .key = 3'000'000,
               .step = 1'000'000,
               .peer = 2,
               .kind = static_cast<uint8_t>(TraceKind::kLinkSample)});
  server_.Add({.begin_ns = 0,
               .wall_ns = 500'000'000,
               .step = 40'000'000,
               .peer = 2,
               .kind = static_cast<uint8_t>(TraceKind::kPathSample)});
  const Json timeline = WriteJson();

  for (const auto& [name, value] :
       {std::pair("MB/s to worker 1", 6.0), std::pair("MB/s from worker 1", 2.0),
        std::pair("round trip in ms to worker 1", 40.0)}) {
    const auto counts = EventsOf(timeline, "C", name);
    ASSERT_EQ(counts.size(), 1U) << name;
    EXPECT_EQ(counts[0]["args"]["value"], value) << name;
  }
}

TEST_F(TimelineTest, IsCompressedWhereItsNameSaysSo) {
  ASSERT_TRUE(WriteTimeline(Job(), {}, PathOf("job.json.gz")).ok());
  ASSERT_TRUE(WriteTimeline(Job(), {}, PathOf("job.json")).ok());

  EXPECT_EQ(TextOf("job.json.gz"), TextOf("job.json"));
  EXPECT_LT(std::filesystem::file_size(PathOf("job.json.gz")) * 3,
            std::filesystem::file_size(PathOf("job.json")));
  EXPECT_EQ(std::ifstream(PathOf("job.json")).get(), '{');
}

TEST_F(TimelineTest, RefusesNamesPathsAndSizesThatCannotBe) {
  EXPECT_THAT(WriteTimeline(Job(), {}, PathOf("job.txt")).message(),
              HasSubstr("expected a name that ends in .json, .json.gz, .pftrace or .svg"));
  EXPECT_THAT(WriteTimeline(Job(), {}, PathOf("no/job.json")).message(),
              HasSubstr("job.json cannot be written"));
  EXPECT_THAT(WriteTimeline(Job(), {}, PathOf("no/job.pftrace")).message(),
              HasSubstr("job.pftrace cannot be written"));
  EXPECT_THAT(WriteTimeline(Job(), {}, PathOf("no/job.svg")).message(),
              HasSubstr("job.svg cannot be written"));
  const auto long_one = WriteTimeline(Job(), {}, PathOf("job.json"), {.max_json_bytes = 1000});
  EXPECT_EQ(long_one.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(long_one.message(), HasSubstr("--force"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

constexpr char kTorch[] = R"json({
  "schemaVersion": 1, "distributedInfo": {"backend": "gloo", "rank": 1, "world_size": 2},
  "baseTimeNanoseconds": 1699999999000000000,
  "traceEvents": [
    {"ph": "M", "name": "process_name", "pid": 4001, "tid": 0, "args": {"name": "python"}},
    {"ph": "M", "name": "thread_name", "pid": 4001, "tid": 502,
     "args": {"name": "thread 502 (python)"}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 4001, "tid": 502, "ts": 1002000.250,
     "dur": 150.5, "args": {"External id": 1}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 4001, "tid": 502, "ts": 1002010,
     "dur": 20},
    {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 3, "pid": 4001, "tid": 502, "ts": 1002010},
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1002100, "dur": 90}
  ]
})json";

TEST_F(TimelineTest, PutsProfilesOfPyTorchOnTheSameAxis) {
  const TorchProfile profile = ReadProfile(kTorch);
  EXPECT_EQ(profile.rank, 1);
  EXPECT_EQ(profile.events.size(), 3U);
  EXPECT_EQ(profile.skipped, 1U);

  const Json timeline = WriteJson(std::span(&profile, 1));

  const auto mm = EventsOf(timeline, "X", "aten::mm");
  ASSERT_EQ(mm.size(), 1U);
  EXPECT_EQ(mm[0]["pid"], 2);  // worker 1
  EXPECT_EQ(NsOf(timeline, mm[0]), kEpochNs + 2'000'250);
  EXPECT_EQ(mm[0]["dur"], 150.5);
  EXPECT_EQ(mm[0]["args"]["External id"], 1);
  EXPECT_EQ(EventsOf(timeline, "X", "aten::add")[0]["tid"], mm[0]["tid"]);
  EXPECT_NE(EventsOf(timeline, "X", "gemm")[0]["tid"], mm[0]["tid"]);
  std::vector<std::string> threads;
  for (const Json& event : EventsOf(timeline, "M", "thread_name")) {
    threads.push_back(event["args"]["name"]);
  }
  EXPECT_THAT(threads, Contains("torch thread 502 (python)"));
  EXPECT_THAT(threads, Contains("torch 0 7"));
}

TEST_F(TimelineTest, FindsAProfilesProcessOrAsks) {
  std::string text = kTorch;
  text.replace(text.find("distributedInfo"), 15, "somethingElseHr");
  const TorchProfile by_pid = ReadProfile(text);
  EXPECT_EQ(by_pid.rank, std::nullopt);
  EXPECT_EQ(EventsOf(WriteJson(std::span(&by_pid, 1)), "X", "aten::mm")[0]["pid"], 2);

  TorchProfile nowhere = by_pid;
  for (TorchEvent& event : nowhere.events) event.process = "17";
  EXPECT_THAT(WriteTimeline(Job(), std::span(&nowhere, 1), PathOf("x.json")).message(),
              HasSubstr("say --torch RANK="));
  nowhere.rank = 0;
  EXPECT_EQ(EventsOf(WriteJson(std::span(&nowhere, 1)), "X", "aten::mm")[0]["pid"], 1);
  nowhere.rank = 5;
  EXPECT_THAT(WriteTimeline(Job(), std::span(&nowhere, 1), PathOf("x.json")).message(),
              HasSubstr("rank 5, of which there is no recording"));
}

TEST_F(TimelineTest, RefusesProfilesThatAreNone) {
  const auto refusal = [&](const std::string& text) {
    std::ofstream(PathOf("torch.json")) << text;
    const auto profile = ReadTorchProfile(PathOf("torch.json"), std::nullopt);
    return profile.ok() ? "it was read" : std::string(profile.status().message());
  };

  EXPECT_THAT(refusal("no JSON"), HasSubstr("torch.json is no profile of PyTorch"));
  EXPECT_THAT(refusal("[1, 2]"), HasSubstr("is no profile of PyTorch"));
  EXPECT_THAT(refusal(std::string(kTorch).substr(0, 400)), HasSubstr("is no profile of PyTorch"));
  EXPECT_THAT(refusal(R"({"traceEvents": [], "baseTimeNanoseconds": "x"})"),
              HasSubstr("baseTimeNanoseconds"));
  EXPECT_THAT(ReadTorchProfile(PathOf("none.json"), std::nullopt).status().message(),
              HasSubstr("none.json cannot be read"));
  // Odd events are skipped, whatever they are.
  const TorchProfile odd = ReadProfile(
      R"({"traceEvents": [{"ph": "X"}, {"ph": 3}, {"ph": "X", "ts": 1e300, "dur": 1},
          {"ph": "X", "ts": 5, "dur": -1}, 7, {"ph": "M", "name": "process_name", "args": 3}]})");
  EXPECT_THAT(odd.events, IsEmpty());
  EXPECT_EQ(odd.skipped, 4U);
}

TEST_F(TimelineTest, WritesPerfettosProtobuf) {
  const TorchProfile profile = ReadProfile(kTorch);
  ASSERT_TRUE(WriteTimeline(Job(), std::span(&profile, 1), PathOf("job.pftrace")).ok());

  pb::Trace trace;
  std::ifstream file(PathOf("job.pftrace"), std::ios::binary);
  ASSERT_TRUE(trace.ParseFromIstream(&file));
  std::map<uint64_t, std::string> names;
  std::map<uint64_t, std::string> tracks;
  std::map<uint64_t, uint64_t> last;                // time of each track
  std::map<uint64_t, int> open;                     // slices of each track
  std::map<uint64_t, std::vector<uint64_t>> flows;  // times
  std::vector<std::string> slices;
  for (const pb::TracePacket& packet : trace.packet()) {
    for (const auto& name : packet.interned_data().event_names()) names[name.iid()] = name.name();
    if (packet.has_track_descriptor()) {
      tracks[packet.track_descriptor().uuid()] = packet.track_descriptor().name();
    }
    if (!packet.has_track_event()) continue;
    const pb::TrackEvent& event = packet.track_event();
    ASSERT_TRUE(tracks.contains(event.track_uuid()));
    EXPECT_GE(packet.timestamp(), last[event.track_uuid()]);
    last[event.track_uuid()] = packet.timestamp();
    for (const uint64_t flow : event.flow_ids()) flows[flow].push_back(packet.timestamp());
    for (const uint64_t flow : event.terminating_flow_ids()) {
      flows[flow].push_back(packet.timestamp());
    }
    if (event.type() == pb::TrackEvent::TYPE_SLICE_BEGIN) {
      ASSERT_TRUE(names.contains(event.name_iid()));
      slices.push_back(tracks[event.track_uuid()] + ": " + names[event.name_iid()]);
      ++open[event.track_uuid()];
    } else if (event.type() == pb::TrackEvent::TYPE_SLICE_END) {
      EXPECT_GE(--open[event.track_uuid()], 0);
    }
  }
  for (const auto& [track, count] : open) EXPECT_EQ(count, 0) << tracks[track];
  EXPECT_THAT(slices, Contains("wait: fc.weight"));
  EXPECT_THAT(slices, Contains("bdn-pool 501: encode"));
  EXPECT_THAT(slices, Contains("torch thread 502 (python): aten::mm"));
  ASSERT_EQ(flows.size(), 12U);
  for (const auto& [flow, times] : flows) EXPECT_EQ(times.size(), 6U);
}

TEST_F(TimelineTest, WritesOneStepWithItsCriticalPath) {
  const JobTrace job = Job();
  const JobReport report = ExplainJob(job);
  ASSERT_EQ(report.steps.size(), 3U);
  const StepReport& step = report.steps[1];
  ASSERT_TRUE(WriteTimeline(job, {}, PathOf("job.json"), {.step = &step}).ok());
  const Json timeline = Json::parse(TextOf("job.json"));

  EXPECT_EQ(EventsOf(timeline, "M", "process_name")[0]["args"]["name"], "critical path of step 2");
  double path_us = 0;
  for (const Json& event : timeline["traceEvents"]) {
    if (event["pid"] == 1 && event["ph"] == "X") path_us += event["dur"].get<double>();
    if (event["ph"] != "X") continue;
    const int64_t ns = std::llround(event["dur"].get<double>() * 1000);
    EXPECT_LT(NsOf(timeline, event), kEpochNs + step.end_ns) << event;
    EXPECT_GT(NsOf(timeline, event) + ns, kEpochNs + step.begin_ns) << event;
  }
  EXPECT_DOUBLE_EQ(path_us * 1000, static_cast<double>(step.Duration()));
  EXPECT_EQ(EventsOf(timeline, "X", "forward").size(), 1U);
}

TEST_F(TimelineTest, DrawsAPicture) {
  const JobTrace job = Job();
  const JobReport report = ExplainJob(job);
  const TorchProfile profile = ReadProfile(kTorch);
  ASSERT_TRUE(WriteTimeline(job, std::span(&profile, 1), PathOf("job.svg")).ok());

  const std::string all = TextOf("job.svg");
  EXPECT_TRUE(all.starts_with("<svg ")) << all.substr(0, 100);
  EXPECT_TRUE(all.ends_with("</svg>\n"));
  for (const char* const text :
       {"job job", "worker 0   host-boot pid 4000", "worker 1", "server 0", "bdn-pool 501",
        "<title>forward, 300.0 us, step 1", "<title>user: epoch &quot;3&quot;</title>",
        "torch thread 502", "<title>aten::mm, 150.5 us", "<title>wait: at most 2</title>",
        "A line leads from a push"}) {
    EXPECT_THAT(all, HasSubstr(text));
  }

  ASSERT_TRUE(WriteTimeline(job, {}, PathOf("step.svg"), {.step = &report.steps[1]}).ok());
  const std::string one = TextOf("step.svg");
  EXPECT_THAT(one, HasSubstr("job job, step 2: 2.00 ms"));
  EXPECT_THAT(one, HasSubstr("critical path of step 2"));
  EXPECT_THAT(one, HasSubstr("<title>forward, 300.0 us, step 2"));
  EXPECT_THAT(one, Not(HasSubstr("epoch")));
}

TEST_F(TimelineTest, DrawsNoPictureThatNobodyCouldRead) {
  // Each thread has as many slices side by side as there are pixels.
  for (uint16_t thread = 2; thread < 30; ++thread) {
    worker0_.Thread(600U + thread, "busy");
    for (int64_t at = 0; at < 1000; ++at) {
      worker0_.Add({.begin_ns = at * 7000,
                    .wall_ns = 7000,
                    .key = 7,
                    .thread = thread,
                    .kind = static_cast<uint8_t>(Stage::kEncode)});
    }
  }
  const absl::Status status = WriteTimeline(Job(), {}, PathOf("job.svg"));

  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("say --step NUMBER"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

// Has twenty thousand slices that begin and end within one pixel.
TEST_F(TimelineTest, LeavesOutOfAPictureWhatNobodyCouldSee) {
  for (int64_t at = 0; at < 20'000; ++at) {
    worker0_.Add(
        {.begin_ns = 1'000'000 + at, .wall_ns = 1, .kind = static_cast<uint8_t>(Stage::kEncode)});
  }
  ASSERT_TRUE(WriteTimeline(Job(), {}, PathOf("job.svg")).ok());

  EXPECT_THAT(TextOf("job.svg"), HasSubstr(" slices that share a pixel with others"));
  EXPECT_LT(std::filesystem::file_size(PathOf("job.svg")), 100'000U);
}

}  // namespace
}  // namespace bdn
