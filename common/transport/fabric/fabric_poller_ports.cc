// How a fabric's poller gets rid of an endpoint that completes nothing any more, or is about to.

#include <utility>

#include "common/base/status.h"
#include "common/transport/fabric/fabric_poller.h"

namespace bdn {
namespace {

// So many peers may have been killed: what each was writing keeps some of the endpoint's entries.
constexpr int kMostLost = 8;
// Peers that were left, of the 256 that the provider can know.
constexpr size_t kMostLeft = 64;
// What was replaced is kept for whoever was in the middle of it, and for who has not met us again.
constexpr absl::Duration kLeastKept = absl::Seconds(1);
constexpr absl::Duration kMostKept = absl::Seconds(10);
constexpr absl::Duration kOpenAgain = absl::Seconds(1);
constexpr char kWhy[] = "its endpoint was opened anew, as a peer's end had blocked it";

}  // namespace

void FabricPoller::CheckPorts(absl::Time now) {
  DueAt(port_->Forget(now));
  if (former_ != nullptr) {
    const absl::Time end = replaced_at_ + (awaited_.empty() ? kLeastKept : kMostKept);
    if (now < end) return DueAt(std::min(end, now + kLeastKept));
    former_->Close();
    former_.reset();
    awaited_.clear();
  }
  if (IsStuck(now)) Replace(now);
}

bool FabricPoller::IsStuck(absl::Time now) {
  if (!port_->can_be_stuck()) return false;
  if (port_->sender->num_abandoned() == 0) lingers_since_ = absl::InfiniteFuture();
  DueAt(lingers_since_ + kMostLinger);
  return lingers_since_ + kMostLinger <= now || num_lost_ >= kMostLost ||
         port_->endpoint->num_peers() >= sessions_.size() + kMostLeft ||
         port_->endpoint->is_damaged();
}

// All that are met are met again over a new endpoint. What was on its way has failed, as if their connections
// had; those who were writing to us are answered by the former.
void FabricPoller::Replace(absl::Time now) {
  auto fresh = FabricPort::Open(options_.endpoint, &owner_.counters->bytes_copied);
  if (!fresh.ok()) {
    log_.Warning("the endpoint cannot be opened anew: %s", fresh.status().message());
    return DueAt(now + kOpenAgain);
  }
  log_.Warning(
      "fabric provider %s: a peer has gone in the middle of what was sent to it: the endpoint is "
      "opened anew, and %d peers are met again",
      port_->endpoint->provider(), by_tag_.size());
  for (int i = 0; i < kMostDrains && HandleEvents(); ++i) {
  }
  std::vector<FabricSession*> sessions;
  for (const auto& [connection, session] : sessions_) {
    if (session->tag != 0) sessions.push_back(session.get());
  }
  for (FabricSession* const session : sessions) {
    const ConnectionId connection = session->connection;
    if (session->state == FabricSession::State::kUp) awaited_.insert(connection);
    if (session->is_connector) {
      MeetAgain(session, kWhy);
      continue;
    }
    const uint64_t id = session->id;
    Remove(connection, Unavailable("send: connection %d is met anew: %s", connection, kWhy));
    owner_.say(connection, {.kind = FabricHandshake::Kind::kAgain, .session = id, .refusal = kWhy});
  }
  former_ = std::exchange(port_, *std::move(fresh));
  replaced_at_ = now;
  lingers_since_ = absl::InfiniteFuture();
  num_lost_ = 0;
  DueAt(now + kLeastKept);
}

void FabricPoller::MeetAgain(FabricSession* session, const std::string& why) {
  Revoke(session, Unavailable("send: connection %d is met anew: %s", session->connection, why));
  session->next_hello = owner_.clock->Now();
  DueAt(session->next_hello);
}

}  // namespace bdn
