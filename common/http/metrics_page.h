#ifndef BANDONEON_COMMON_HTTP_METRICS_PAGE_H_
#define BANDONEON_COMMON_HTTP_METRICS_PAGE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/http/http_server.h"
#include "common/telemetry/registry.h"

namespace bdn {

// The source of the numbers on a metrics page.
struct MetricsOrigin {
  std::string role;     // "server": part of the prefix of all names
  std::string version;  // of the build
};

// Returns the registry's values as of now in Prometheus' text format: each name as
// bandoneon_ROLE_NAME, counters with _total. Figures of the build and the process are added.
std::string MetricsText(const MetricsOrigin& origin, const Registry& registry);

// Serves MetricsText as GET /metrics to every client that reaches `listen`; returns null where that
// is empty. The registry outlives the server. Errors are those of HttpServer::Start.
absl::StatusOr<std::unique_ptr<HttpServer>> StartMetrics(const std::string& listen,
                                                         const MetricsOrigin& origin,
                                                         const Registry* registry);

}  // namespace bdn

#endif  // BANDONEON_COMMON_HTTP_METRICS_PAGE_H_
