#ifndef BANDONEON_COMMON_HTTP_METRICS_PAGE_H_
#define BANDONEON_COMMON_HTTP_METRICS_PAGE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/http/http_server.h"
#include "common/telemetry/registry.h"

namespace bdn {

// Whose numbers they are.
struct MetricsOrigin {
  std::string role;     // "server": in front of all names
  std::string version;  // of the build
};

// What the registry has now, in Prometheus' text format, each name as bandoneon_ROLE_NAME, counters with
// _total; besides, the build and the process.
std::string MetricsText(const MetricsOrigin& origin, const Registry& registry);

// Serves that as GET /metrics to anybody who reaches `listen`; empty for no service, null. The registry
// outlives it. Errors: as HttpServer::Start.
absl::StatusOr<std::unique_ptr<HttpServer>> StartMetrics(const std::string& listen,
                                                         const MetricsOrigin& origin,
                                                         const Registry* registry);

}  // namespace bdn

#endif  // BANDONEON_COMMON_HTTP_METRICS_PAGE_H_
