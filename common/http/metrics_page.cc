#include "common/http/metrics_page.h"

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/log.h"
#include "common/telemetry/process_figures.h"

namespace bdn {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

MetricType TypeOf(Metric::Kind kind) {
  switch (kind) {
    case Metric::Kind::kCounter:
      return MetricType::Counter;
    case Metric::Kind::kHistogram:
      return MetricType::Histogram;
    case Metric::Kind::kGauge:
      break;
  }
  return MetricType::Gauge;
}

ClientMetric::Histogram HistogramOf(const Family& family, const Series& series) {
  ClientMetric::Histogram histogram;
  // Prometheus wants cumulative buckets; ours count each item once.
  histogram.sample_sum = series.value;
  for (size_t i = 0; i < series.counts.size(); ++i) {
    histogram.sample_count += series.counts[i];
    // The last bucket is unbounded: its count is sample_count.
    if (i >= family.bounds.size()) continue;
    histogram.bucket.push_back({histogram.sample_count, family.bounds[i]});
  }
  return histogram;
}

MetricFamily Translate(const std::string& prefix, const FamilySamples& samples) {
  const Family& family = samples.family;
  MetricFamily out;
  out.name = prefix + family.name;
  if (family.kind == Metric::Kind::kCounter && !absl::EndsWith(out.name, "_total")) {
    out.name += "_total";
  }
  out.help = family.help;
  out.type = TypeOf(family.kind);
  for (const Series& series : samples.series) {
    ClientMetric& metric = out.metric.emplace_back();
    if (family.label != nullptr) metric.label.push_back({family.label, series.label_value});
    if (family.kind == Metric::Kind::kHistogram) {
      metric.histogram = HistogramOf(family, series);
    } else {  // the serializer reads the member that the type names
      metric.counter.value = series.value;
      metric.gauge.value = series.value;
    }
  }
  return out;
}

MetricFamily One(const char* name, Metric::Kind kind, const char* help, double value) {
  return Translate("", {{name, kind, help}, {{"", value}}});
}

// Adds the process's figures, by the names that all of Prometheus' libraries give them.
void AddProcess(std::vector<MetricFamily>* out) {
  constexpr auto kCounter = Metric::Kind::kCounter;
  constexpr auto kGauge = Metric::Kind::kGauge;
  const ProcessFigures now = ReadProcessFigures();
  out->push_back(One("process_cpu_seconds", kCounter,
                     "All threads of the process have used so much CPU time.", now.cpu_seconds));
  out->push_back(One("process_resident_memory_bytes", kGauge,
                     "So many bytes of the process's memory are resident.",
                     static_cast<double>(now.resident_bytes)));
  out->push_back(One("process_open_fds", kGauge, "The process has so many open descriptors.",
                     static_cast<double>(now.open_descriptors)));
  out->push_back(One("process_threads", kGauge, "The process has so many threads.",
                     static_cast<double>(now.threads)));
  out->push_back(One("process_start_time_seconds", kGauge,
                     "The process was started at this time, in seconds since 1970.",
                     now.start_seconds));
}

}  // namespace

std::string MetricsText(const MetricsOrigin& origin, const Registry& registry) {
  std::vector<MetricFamily> out;
  const std::string prefix = "bandoneon_" + origin.role + "_";
  for (const FamilySamples& samples : registry.CollectFamilies()) {
    out.push_back(Translate(prefix, samples));
  }
  AddProcess(&out);
  MetricFamily build = One("bandoneon_build_info", Metric::Kind::kGauge,
                           "The build is of this version, for this role; the value is 1.", 1);
  build.metric[0].label = {{"version", origin.version}, {"role", origin.role}};
  out.push_back(std::move(build));
  return prometheus::TextSerializer().Serialize(out);
}

absl::StatusOr<std::unique_ptr<HttpServer>> StartMetrics(const std::string& listen,
                                                         const MetricsOrigin& origin,
                                                         const Registry* registry) {
  auto server = HttpServer::Start(listen, [origin, registry](const HttpRequest& request) {
    if (request.path != "/metrics") {
      return HttpReply{.code = 404, .body = "there is nothing here but /metrics\n"};
    }
    return HttpReply{.content_type = "text/plain; version=0.0.4; charset=utf-8",
                     .body = MetricsText(origin, *registry)};
  });
  if (server.ok() && *server != nullptr) LogInfo("metrics at port %d", (*server)->port());
  return server;
}

}  // namespace bdn
