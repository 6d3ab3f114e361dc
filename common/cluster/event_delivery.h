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

// A translator of the scheduler's stream of events into callbacks, once each event has been
// checked. Not thread-safe: owned by the thread that reads the stream.
class EventDelivery {
 public:
  // Fetches the additions of a version of the catalogue.
  using Fetch = std::function<absl::StatusOr<SharedDelta>(uint32_t version)>;

  // Takes an order to send records, which must not block; null: orders are ignored.
  using TakeOrder = std::function<void(const DumpOrder&)>;

  EventDelivery(ControlPlane::Events events, Fetch fetch, TakeOrder take_order = nullptr)
      : events_(std::move(events)), fetch_(std::move(fetch)), take_order_(std::move(take_order)) {}

  // Delivers one event. After OK more may come. Otherwise the job is over for this node: the
  // scheduler told of a failure, sent an impossible event, or did not let the catalogue be fetched.
  // Then the event reached no callback, except that on_catalogue may have been called for the
  // versions that were fetched before the one that could not be.
  absl::Status Deliver(const bandoneon::control::Event& event);
  // Delivers the failure of the job. To be called once, last.
  void DeliverFailure(const absl::Status& failure) const;

 private:
  absl::Status DeliverMembership(const bandoneon::control::Event& event);
  absl::Status DeliverCatalogue(const bandoneon::control::Event& event);
  absl::Status DeliverCandidates(const bandoneon::control::Event& event);
  absl::Status DeliverLeaving(const bandoneon::control::Event& event);
  absl::Status DeliverOrder(const bandoneon::control::Event& event);

  const ControlPlane::Events events_;
  const Fetch fetch_;
  const TakeOrder take_order_;
  uint32_t delivered_ = 0;  // the version of the catalogue delivered last
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_EVENT_DELIVERY_H_
