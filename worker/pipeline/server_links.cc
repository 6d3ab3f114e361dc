#include "worker/pipeline/server_links.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace bdn {
namespace {

// The time between two looks: several round trips of any network, and far less than a step that is
// worth more connections.
constexpr absl::Duration kLook = absl::Milliseconds(250);
// After a longer pause the bytes per second between two looks say nothing of the network.
constexpr absl::Duration kLongestLook = absl::Seconds(2);

}  // namespace

std::vector<ConnectionId> ServerLinks::Set(NodeId server, ConnectionId first) {
  const auto found = servers_.find(server);
  // The network is the same, and with it the number.
  const int wanted = found == servers_.end() ? 1 : found->second.wanted;
  std::vector<ConnectionId> former = Remove(server);
  Server& its = servers_[server];
  its.links.push_back({.connection = first});
  its.wanted = wanted;
  server_of_[first] = server;
  return former;
}

bool ServerLinks::Add(NodeId server, ConnectionId first, ConnectionId more) {
  const auto found = servers_.find(server);
  if (found == servers_.end() || found->second.links[0].connection != first) return false;
  found->second.links.push_back({.connection = more});
  server_of_[more] = server;
  return true;
}

std::vector<ConnectionId> ServerLinks::Remove(NodeId server) {
  std::vector<ConnectionId> former = Of(server);
  for (const ConnectionId connection : former) server_of_.erase(connection);
  servers_.erase(server);
  return former;
}

NodeId ServerLinks::ServerOf(ConnectionId connection) const {
  const auto found = server_of_.find(connection);
  return found == server_of_.end() ? 0 : found->second;
}

std::vector<ConnectionId> ServerLinks::Of(NodeId server) const {
  std::vector<ConnectionId> all;
  const auto found = servers_.find(server);
  if (found == servers_.end()) return all;
  for (const Link& link : found->second.links) all.push_back(link.connection);
  return all;
}

ConnectionId ServerLinks::Choose(NodeId server) const {
  const auto found = servers_.find(server);
  if (found == servers_.end()) return 0;
  // Before the server is heard its first connection takes all, hellos for the most part.
  const std::vector<Link>& links = found->second.links;
  const Link* best = &links[0];
  const auto order = [](const Link& link) {
    return std::tuple(!link.is_heard, link.bytes_queued, link.frames);
  };
  for (const Link& link : links) {
    if (order(link) < order(*best)) best = &link;
  }
  return best->connection;
}

ServerLinks::Link* ServerLinks::Find(ConnectionId connection) {
  const auto server = server_of_.find(connection);
  if (server == server_of_.end()) return nullptr;
  std::vector<Link>& links = servers_[server->second].links;
  return &*std::ranges::find(links, connection, &Link::connection);
}

void ServerLinks::OnQueued(ConnectionId connection, uint64_t bytes) {
  Link* const link = Find(connection);
  if (link == nullptr) return;
  link->bytes_queued += bytes;
  ++link->frames;
}

void ServerLinks::OnSent(ConnectionId connection, uint64_t bytes) {
  if (Link* const link = Find(connection); link != nullptr) link->bytes_queued -= bytes;
}

void ServerLinks::OnHeard(ConnectionId connection) {
  if (Link* const link = Find(connection); link != nullptr) link->is_heard = true;
}

void ServerLinks::OnHello(ConnectionId connection) {
  if (Link* const link = Find(connection); link != nullptr) link->is_heard = false;
}

bool ServerLinks::IsDue(NodeId server, absl::Time now) {
  const auto found = servers_.find(server);
  if (found == servers_.end()) return false;
  Server& its = found->second;
  if (its.is_settled || its.is_looking || !its.links[0].is_heard) return false;
  its.is_looking = now - its.looked >= kLook;
  return its.is_looking;
}

int ServerLinks::WantsMore(NodeId server, std::span<const ConnectionFacts> facts, absl::Time now) {
  const auto found = servers_.find(server);
  if (found == servers_.end()) return 0;
  Server& its = found->second;
  its.is_looking = false;
  if (facts.empty() || !facts[0].is_network) {
    its.is_settled = true;
    return 0;
  }
  if (connections_ > 0) {
    its.wanted = connections_;
    its.is_settled = true;
  } else {
    its.wanted = std::max(its.wanted, Measured(servers_.size(), facts, now, &its));
  }
  return its.wanted - std::exchange(its.asked_for, its.wanted);
}

int ServerLinks::Measured(size_t servers, std::span<const ConnectionFacts> facts, absl::Time now,
                          Server* server) {
  uint64_t sent = 0;
  uint64_t received = 0;
  absl::Duration round_trip = absl::InfiniteDuration();
  for (const ConnectionFacts& each : facts) {
    sent += each.bytes_sent;
    received += each.bytes_received;
    if (each.round_trip > absl::ZeroDuration()) round_trip = std::min(round_trip, each.round_trip);
  }
  const absl::Duration passed = now - std::exchange(server->looked, now);
  const uint64_t sent_before = std::exchange(server->sent, sent);
  const uint64_t received_before = std::exchange(server->received, received);
  if (round_trip == absl::InfiniteDuration()) return 1;  // not known yet
  server->is_settled = round_trip < kNear || server->asked_for == kMostAuto;
  if (server->is_settled) return 1;
  // The servers are far away together, and share the way to them.
  double wanted =
      absl::FDivDuration(std::min(round_trip, kMostAuto * kRoundTripOfOne), kRoundTripOfOne) /
      static_cast<double>(servers);
  // A fast network moves more in a round trip, and gets more connections.
  // A connection that was replaced counts from 0 again.
  if (passed <= kLongestLook && sent >= sent_before && received >= received_before) {
    const auto bytes =
        static_cast<double>(std::max(sent - sent_before, received - received_before));
    wanted = std::max(wanted, bytes * absl::FDivDuration(round_trip, passed) / kBytesOfOne);
  }
  return static_cast<int>(std::clamp<double>(std::ceil(wanted), 1, kMostAuto));
}

}  // namespace bdn
