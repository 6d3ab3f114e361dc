#ifndef BANDONEON_COMMON_CLUSTER_EVENT_DELIVERY_H_
#define BANDONEON_COMMON_CLUSTER_EVENT_DELIVERY_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/cluster/control_plane.h"

namespace bandoneon::control {
class Event;
}

namespace bdn {

// Hands the events of the scheduler's stream to callbacks, once each has been checked. Not
// thread-safe: owned by the thread that reads the stream.
class EventDelivery {
 public:
  explicit EventDelivery(ControlPlane::Events events) : events_(std::move(events)) {}

  // OK: there may be more. Else the job is over for this node, and nothing was called: the
  // scheduler told of a failure, or sent what cannot be.
  absl::Status Deliver(const bandoneon::control::Event& event);
  // Once, last.
  void DeliverFailure(const absl::Status& failure) const;

 private:
  absl::Status DeliverMembership(const bandoneon::control::Event& event);
  absl::Status DeliverCatalogue(const bandoneon::control::Event& event);
  absl::Status DeliverPlacement(const bandoneon::control::Event& event);
  absl::Status DeliverLeaving(const bandoneon::control::Event& event);

  const ControlPlane::Events events_;
  // The latest that came, which a placement is of.
  std::shared_ptr<const Catalogue> catalogue_ = std::make_shared<const Catalogue>();
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_EVENT_DELIVERY_H_
