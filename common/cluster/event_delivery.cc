#include "common/cluster/event_delivery.h"

#include <vector>

#include "common/base/status.h"
#include "common/cluster/control_messages.h"
#include "proto/control.pb.h"

namespace bdn {

namespace wire = bandoneon::control;

namespace {
// More workers no job has.
constexpr uint32_t kMostWorkers = 1u << 24;
}  // namespace

absl::Status EventDelivery::Deliver(const wire::Event& event) {
  if (event.has_membership()) return DeliverMembership(event);
  if (event.has_placed()) return DeliverCatalogue(event);
  if (event.has_leaving()) return DeliverLeaving(event);
  if (event.has_candidates()) return DeliverCandidates(event);
  if (event.has_dump()) return DeliverOrder(event);
  // A failure reaches no callback here: the caller ends all calls with it first, and then has it
  // delivered.
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
  const uint32_t latest = Read(event.placed()).catalogue;
  // The stream tells the latest version only, so all versions up to it are fetched here, in order.
  while (delivered_ < latest) {
    BDN_ASSIGN_OR_RETURN(SharedDelta delta, fetch_(delivered_ + 1));
    ++delivered_;
    if (events_.on_catalogue) events_.on_catalogue(std::move(delta));
  }
  return absl::OkStatus();
}

absl::Status EventDelivery::DeliverCandidates(const wire::Event& event) {
  const uint32_t ready = event.candidates().ready();
  if (ready > kMostWorkers) return InvalidArgument("%d candidates wait at a boundary", ready);
  if (events_.on_candidates) events_.on_candidates(static_cast<int>(ready));
  return absl::OkStatus();
}

absl::Status EventDelivery::DeliverLeaving(const wire::Event& event) {
  BDN_ASSIGN_OR_RETURN(std::vector<Rank> leaving, Read(event.leaving()));
  if (events_.on_leaving) events_.on_leaving(std::move(leaving));
  return absl::OkStatus();
}

absl::Status EventDelivery::DeliverOrder(const wire::Event& event) {
  BDN_ASSIGN_OR_RETURN(const DumpOrder order, Read(event.dump()));
  if (take_order_) take_order_(order);
  return absl::OkStatus();
}

}  // namespace bdn
