#include "common/cluster/event_delivery.h"

#include <vector>

#include "common/base/status.h"
#include "common/cluster/control_messages.h"
#include "proto/control.pb.h"

namespace bdn {

namespace wire = bandoneon::control;

absl::Status EventDelivery::Deliver(const wire::Event& event) {
  if (event.has_membership()) return DeliverMembership(event);
  if (event.has_catalogue()) return DeliverCatalogue(event);
  if (event.has_placement()) return DeliverPlacement(event);
  if (event.has_leaving()) return DeliverLeaving(event);
  if (event.has_failure()) return ReadFailure(event.failure());
  if (event.has_done() && events_.on_finished) events_.on_finished();
  return absl::OkStatus();
}

void EventDelivery::DeliverFailure(const absl::Status& failure) const {
  if (events_.on_failure) events_.on_failure(failure);
}

absl::Status EventDelivery::DeliverMembership(const wire::Event& event) {
  BDN_ASSIGN_OR_RETURN(Membership membership, Read(event.membership()));
  if (events_.on_membership) {
    events_.on_membership(std::make_shared<const Membership>(std::move(membership)));
  }
  return absl::OkStatus();
}

absl::Status EventDelivery::DeliverCatalogue(const wire::Event& event) {
  BDN_ASSIGN_OR_RETURN(Catalogue catalogue, Read(event.catalogue()));
  catalogue_ = std::make_shared<const Catalogue>(std::move(catalogue));
  if (events_.on_catalogue) events_.on_catalogue(catalogue_);
  return absl::OkStatus();
}

absl::Status EventDelivery::DeliverPlacement(const wire::Event& event) {
  BDN_ASSIGN_OR_RETURN(PlacementTable placement, Read(event.placement()));
  BDN_RETURN_IF_ERROR(CheckPlaced(*catalogue_, placement));
  if (events_.on_placement) {
    events_.on_placement(std::make_shared<const PlacementTable>(std::move(placement)));
  }
  return absl::OkStatus();
}

absl::Status EventDelivery::DeliverLeaving(const wire::Event& event) {
  BDN_ASSIGN_OR_RETURN(std::vector<Rank> leaving, Read(event.leaving()));
  if (events_.on_leaving) events_.on_leaving(std::move(leaving));
  return absl::OkStatus();
}

}  // namespace bdn
