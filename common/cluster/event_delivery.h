#ifndef BANDONEON_COMMON_CLUSTER_EVENT_DELIVERY_H_
#define BANDONEON_COMMON_CLUSTER_EVENT_DELIVERY_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cluster/control_plane.h"

namespace bandoneon::control {
class Event;
}

namespace bdn {

// Hands the events of the scheduler's stream to callbacks, once each has been checked. Not
// thread-safe: owned by the thread that reads the stream.
class EventDelivery {
 public:
  // Brings what a version of the catalogue added.
  using Fetch = std::function<absl::StatusOr<SharedDelta>(uint32_t version)>;

  EventDelivery(ControlPlane::Events events, Fetch fetch)
      : events_(std::move(events)), fetch_(std::move(fetch)) {}

  // OK: there may be more. Else the job is over for this node, and nothing was called: the scheduler
  // told of a failure, sent what cannot be, or did not let the catalogue be fetched.
  absl::Status Deliver(const bandoneon::control::Event& event);
  // Once, last.
  void DeliverFailure(const absl::Status& failure) const;

 private:
  absl::Status DeliverMembership(const bandoneon::control::Event& event);
  absl::Status DeliverCatalogue(const bandoneon::control::Event& event);
  absl::Status DeliverLeaving(const bandoneon::control::Event& event);

  const ControlPlane::Events events_;
  const Fetch fetch_;
  uint32_t delivered_ = 0;  // the version of the catalogue
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_EVENT_DELIVERY_H_
