#ifndef BANDONEON_COMMON_CLUSTER_HEALTH_H_
#define BANDONEON_COMMON_CLUSTER_HEALTH_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace bdn {

// Turns gRPC's own log lines into ours, at debug. To be called once, early in main().
void RouteGrpcLog();

// The standard gRPC health service, alone at an address. It answers every caller, in the clear,
// because those who watch over processes ask so; it takes and tells nothing else. The service
// "liveness" is SERVING as long as the process answers; "readiness", and "" for the whole, are
// NOT_SERVING until SetServing. Thread-safe.
class HealthServer {
 public:
  // Starts to serve at `listen`, which is host:port, with port 0 for a free one; returns null where
  // it is empty. Errors are those of SchedulerService::Start.
  static absl::StatusOr<std::unique_ptr<HealthServer>> Start(const std::string& listen);
  // Stops serving, and waits for that.
  virtual ~HealthServer() = default;

  virtual int port() const = 0;
  // Returns how often a connection had to wait because this process had no descriptor free for it.
  virtual uint64_t accept_failures() const = 0;
  // Sets the state of "readiness" and of the whole.
  virtual void SetServing(bool serving) = 0;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_HEALTH_H_
