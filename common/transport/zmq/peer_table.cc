#include "common/transport/zmq/peer_table.h"

#include <algorithm>
#include <utility>

namespace bdn {

PeerTable::Peer* PeerTable::OnAccepted(int fd, absl::Time now) {
  Peer* waiting = nullptr;
  if (const auto found = untold_.find(fd); found != untold_.end()) {
    waiting = found->second.peer;
    untold_.erase(found);
  }
  OnClosed(fd);  // a descriptor that is used again was closed before, whether we were told or not
  closed_before_a_frame_.erase(fd);
  connections_[fd].peer = waiting;
  if (waiting != nullptr) {
    waiting->is_told_of = true;
    return waiting;
  }
  has_watched_ = true;
  newcomers_[++num_accepted_] = {fd, now};
  newcomer_of_fd_[fd] = num_accepted_;
  return nullptr;
}

bool PeerTable::OnClosed(int fd) {
  ForgetNewcomer(fd);
  Peer* peer = nullptr;
  if (const auto found = connections_.find(fd); found != connections_.end()) {
    peer = found->second.peer;
    connections_.erase(found);
    if (peer == nullptr) closed_before_a_frame_.insert(fd);
  } else if (const auto untold = untold_.find(fd); untold != untold_.end()) {
    peer = untold->second.peer;
  }
  if (peer != nullptr) Close(peer);
  return peer != nullptr;
}

void PeerTable::ForgetNewcomer(int fd) {
  const auto found = newcomer_of_fd_.find(fd);
  if (found == newcomer_of_fd_.end()) return;
  newcomers_.erase(found->second);
  newcomer_of_fd_.erase(found);
}

void PeerTable::ForgetNewcomersBefore(absl::Time time) {
  while (!newcomers_.empty() && newcomers_.begin()->second.since < time) {
    ForgetNewcomer(newcomers_.begin()->second.fd);
  }
}

PeerTable::Peer* PeerTable::Find(const std::string& name) {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

PeerTable::Peer* PeerTable::Find(ConnectionId id) {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second.get();
}

PeerTable::Peer* PeerTable::Add(ConnectionId id, std::string name, int fd, const PublicKey& key,
                                absl::Time now) {
  auto added = std::make_unique<Peer>();
  Peer* const peer = added.get();
  peer->id = id;
  peer->name = std::move(name);
  peer->fd = fd;
  peer->key = key;
  peers_[id] = std::move(added);
  by_name_[peer->name] = peer;
  ForgetNewcomer(fd);
  // A peer that was found on the descriptor before has gone.
  if (const auto untold = untold_.find(fd); untold != untold_.end()) Close(untold->second.peer);
  const auto connection = connections_.find(fd);
  if (connection == connections_.end()) {
    if (closed_before_a_frame_.erase(fd) != 0) {  // the frame is read late
      Close(peer);
      return peer;
    }
    peer->is_told_of = false;
    untold_[fd] = {peer, now};
    return peer;
  }
  if (connection->second.peer != nullptr) Close(connection->second.peer);
  connections_[fd].peer = peer;
  return peer;
}

void PeerTable::CloseUntoldBefore(absl::Time time) {
  std::vector<Peer*> late;
  for (const auto& [fd, untold] : untold_) {
    if (untold.since < time) late.push_back(untold.peer);
  }
  for (Peer* peer : late) Close(peer);  // takes them out of untold_
}

void PeerTable::Close(Peer* peer) {
  if (peer->is_closed) return;
  peer->is_closed = true;
  peer->closed_in = turn_;
  // The descriptor may belong to another connection by now, which stays.
  const auto found = connections_.find(peer->fd);
  if (found != connections_.end() && found->second.peer == peer) connections_.erase(found);
  const auto untold = untold_.find(peer->fd);
  if (untold != untold_.end() && untold->second.peer == peer) untold_.erase(untold);
  closed_.push_back(peer->id);
}

void PeerTable::OnRead(Peer* peer) {
  peer->read_in = turn_;
  peer->was_read = true;
}

std::vector<PeerTable::Peer> PeerTable::EndTurn() {
  // A peer that was closed during this turn may have a message that the turn has passed by, and one
  // that had a message read may have more.
  const auto stays = [this](ConnectionId id) {
    const Peer& peer = *peers_.at(id);
    return peer.closed_in == turn_ || peer.read_in == turn_;
  };
  const auto over = std::partition(closed_.begin(), closed_.end(), stays);
  const std::vector<ConnectionId> gone(over, closed_.end());
  closed_.erase(over, closed_.end());
  ++turn_;
  return Take(gone);
}

std::vector<PeerTable::Peer> PeerTable::TakeClosed() { return Take(std::exchange(closed_, {})); }

std::vector<PeerTable::Peer> PeerTable::Take(const std::vector<ConnectionId>& ids) {
  std::vector<Peer> taken;
  taken.reserve(ids.size());
  for (const ConnectionId id : ids) {
    const auto found = peers_.find(id);
    by_name_.erase(found->second->name);
    taken.push_back(std::move(*found->second));
    peers_.erase(found);
  }
  return taken;
}

std::vector<PeerTable::Weight> PeerTable::Weigh(Weighed weighed,
                                                const std::function<uint64_t(int fd)>& read,
                                                const MostUnread& most) {
  std::vector<Weight> heavy;
  std::vector<Weight> first;
  uint64_t sum = 0;
  has_watched_ = false;
  for (auto& [fd, connection] : connections_) {
    Peer* const peer = connection.peer;
    if (weighed == Weighed::kWatched && peer != nullptr && !connection.is_heavy) continue;
    const bool was_read = peer != nullptr && std::exchange(peer->was_read, false);
    // The weight is that of the last weighing: if a message had ended in these bytes, the turn
    // since then would have read one of this peer.
    const uint64_t unread =
        connection.at_weighing - std::min(connection.at_weighing, connection.at_read);
    if (!was_read && unread > (peer == nullptr ? most.first_bytes : most.bytes)) {
      heavy.push_back({fd, unread, peer});
    } else if (peer == nullptr) {
      first.push_back({fd, unread, peer});
      sum += unread;
    }
    connection.at_weighing = read(fd);
    if (was_read) connection.at_read = connection.at_weighing;
    connection.is_heavy =
        connection.at_weighing - std::min(connection.at_weighing, connection.at_read) >
        most.bytes / 4;
    has_watched_ |= peer == nullptr || connection.is_heavy;
  }
  std::sort(first.begin(), first.end(),
            [](const Weight& a, const Weight& b) { return a.unread < b.unread; });
  // The heaviest first: a slow but honest connection has sent little.
  for (; sum > most.first_bytes_together; first.pop_back()) {
    sum -= first.back().unread;
    heavy.push_back(first.back());
  }
  // Each is reported once; the caller ends the connection, whose closing takes a while to be told.
  for (const Weight& weight : heavy) {
    Connection& connection = connections_.at(weight.fd);
    connection.at_read = connection.at_weighing;
  }
  return heavy;
}

std::vector<PeerTable::Peer*> PeerTable::peers() {
  std::vector<Peer*> all;
  all.reserve(peers_.size());
  for (const auto& [id, peer] : peers_) all.push_back(peer.get());
  return all;
}

}  // namespace bdn
