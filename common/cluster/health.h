#ifndef BANDONEON_COMMON_CLUSTER_HEALTH_H_
#define BANDONEON_COMMON_CLUSTER_HEALTH_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace bdn {

// gRPC's own log lines go to ours, at debug. Once, early in main().
void RouteGrpcLog();

// The standard gRPC health service, alone at an address. It answers whoever asks, in the clear, as
// those who watch over processes ask; it takes and tells nothing else. The service "liveness" is
// SERVING as long as the process answers; "readiness", and "" for the whole, are NOT_SERVING until
// told otherwise. Thread-safe.
class HealthServer {
 public:
  // `listen` is host:port, port 0 for a free one; empty for no service, null. Errors as SchedulerService::Start has them.
  static absl::StatusOr<std::unique_ptr<HealthServer>> Start(const std::string& listen);
  // Stops serving and waits.
  virtual ~HealthServer() = default;

  virtual int port() const = 0;
  // How often a connection had to wait because this process had no descriptor free for it.
  virtual uint64_t accept_failures() const = 0;
  // Of readiness, and the whole.
  virtual void SetServing(bool serving) = 0;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_HEALTH_H_
