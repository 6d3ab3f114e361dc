// Registries in Prometheus' text format, over sockets too.
#include "common/http/metrics_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/telemetry/stage_times.h"
#include "tests/http/http_ask.h"

namespace bdn {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr MetricsOrigin kOrigin() { return {"server", "1.2.3"}; }

constexpr auto kCounter = Metric::Kind::kCounter;
constexpr auto kGauge = Metric::Kind::kGauge;
constexpr Family kTraffic = {"traffic_bytes", kCounter, "of frames", "direction"};
constexpr MetricRow<uint64_t> kMetrics[] = {
    {{"pushes", kCounter, "that came"}, [](const uint64_t& unit) { return unit; }},
    {{"bytes_in", kCounter, "from workers", &kTraffic, "push"},
     [](const uint64_t& unit) { return 2 * unit; }},
    {{"waiting", kGauge, "tasks that wait"}, [](const uint64_t& unit) { return 3 * unit; }},
    {{"bytes_out", kCounter, "to workers", &kTraffic, "pull"},
     [](const uint64_t& unit) { return 4 * unit; }}};

TEST(MetricsText, HasNamesHelpTypesAndTheSeriesOfAFamilyTogether) {
  Registry registry;
  const auto source = registry.Add(kMetrics, [] { return uint64_t{1}; });
  EXPECT_THAT(MetricsText(kOrigin(), registry),
              StartsWith("# HELP bandoneon_server_pushes_total that came\n"
                         "# TYPE bandoneon_server_pushes_total counter\n"
                         "bandoneon_server_pushes_total 1\n"
                         "# HELP bandoneon_server_traffic_bytes_total of frames\n"
                         "# TYPE bandoneon_server_traffic_bytes_total counter\n"
                         "bandoneon_server_traffic_bytes_total{direction=\"push\"} 2\n"
                         "bandoneon_server_traffic_bytes_total{direction=\"pull\"} 4\n"
                         "# HELP bandoneon_server_waiting tasks that wait\n"
                         "# TYPE bandoneon_server_waiting gauge\n"
                         "bandoneon_server_waiting 3\n"));
}

TEST(MetricsText, HistogramsCountUpToTheBoundsInSeconds) {
  Registry registry;
  StageTimes times(MachineStageClock(false));
  times.Add(Stage::kEncode, {.items = 1, .bytes = 100, .wall_ns = 1000}, {}, 0);
  times.Add(Stage::kEncode, {.items = 2, .bytes = 100, .wall_ns = 8002}, {}, 0);
  times.Add(Stage::kEncode, {.items = 1, .wall_ns = uint64_t{100} * 1'000'000'000}, {}, 0);
  const auto sources = AddStages(ServerStages(), &times, &registry);
  const std::string text = MetricsText(kOrigin(), registry);
  const std::string name = "bandoneon_server_stage_seconds";
  EXPECT_THAT(text, HasSubstr("# TYPE " + name + " histogram\n"));
  EXPECT_THAT(text, HasSubstr(name + "_bucket{stage=\"encode\",le=\"1e-06\"} 1\n" + name +
                              "_bucket{stage=\"encode\",le=\"4e-06\"} 1\n" + name +
                              "_bucket{stage=\"encode\",le=\"1.6e-05\"} 3\n"));
  EXPECT_THAT(text, HasSubstr(name + "_bucket{stage=\"encode\",le=\"67.108864\"} 3\n" + name +
                              "_bucket{stage=\"encode\",le=\"+Inf\"} 4\n"));
  EXPECT_THAT(text, HasSubstr(name + "_count{stage=\"encode\"} 4\n"));
  EXPECT_THAT(text, ContainsRegex(name + "_sum.stage=\"encode\". 100.000009"));
  EXPECT_THAT(text, HasSubstr("bandoneon_server_stage_bytes_total{stage=\"encode\"} 200\n"));
  EXPECT_THAT(text, Not(HasSubstr("stages."))) << "what the histogram says is said once";
}

TEST(MetricsText, HasTheBuildAndTheProcess) {
  const std::string text = MetricsText(kOrigin(), Registry());
  EXPECT_THAT(text, HasSubstr("bandoneon_build_info{version=\"1.2.3\",role=\"server\"} 1\n"));
  EXPECT_THAT(text, ContainsRegex("\nprocess_resident_memory_bytes [1-9]"));
  EXPECT_THAT(text, ContainsRegex("\nprocess_open_fds [1-9]"));
  EXPECT_THAT(text, ContainsRegex("\nprocess_threads [1-9]"));
  EXPECT_THAT(text, ContainsRegex("\nprocess_start_time_seconds [1-9]"));
  EXPECT_THAT(text, HasSubstr("# TYPE process_cpu_seconds_total counter\n"));
}

TEST(MetricsText, EscapesWhatALabelSays) {
  constexpr Family kOdd = {"odd", kGauge, "names", "node"};
  Registry registry;
  const auto source = registry.AddFamily(&kOdd, [] { return std::vector<Series>{{"a\"b\n", 1}}; });
  EXPECT_THAT(MetricsText(kOrigin(), registry),
              HasSubstr("bandoneon_server_odd{node=\"a\\\"b\\n\"} 1\n"));
}

TEST(Metrics, AreServedAtOnePathToAnybody) {
  Registry registry;
  const auto source = registry.Add(kMetrics, [] { return uint64_t{7}; });
  const auto server = StartMetrics("127.0.0.1:0", kOrigin(), &registry);
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = (*server)->port();
  EXPECT_THAT(Ask(port, "GET /metrics HTTP/1.1\r\nHost: me\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"),
                    HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
                    HasSubstr("\nbandoneon_server_pushes_total 7\n"), EndsWith("\n")));
  EXPECT_THAT(Ask(port, "GET / HTTP/1.1\r\nHost: me\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
}

TEST(Metrics, AreNotServedWithoutAnAddress) {
  Registry registry;
  const auto server = StartMetrics("", kOrigin(), &registry);
  ASSERT_TRUE(server.ok());
  EXPECT_EQ(*server, nullptr);
}

}  // namespace
}  // namespace bdn
