#include "common/transport/zmq/peer_table.h"

#include <utility>

namespace bdn {

void PeerTable::OnAccepted(int fd, absl::Time now) {
  OnClosed(fd);  // a descriptor that is given again was closed, whether we were told or not
  open_fds_.insert(fd);
  newcomers_[++num_accepted_] = {fd, now};
  newcomer_of_fd_[fd] = num_accepted_;
}

bool PeerTable::OnClosed(int fd) {
  open_fds_.erase(fd);
  ForgetNewcomer(fd);
  const auto found = by_fd_.find(fd);
  if (found == by_fd_.end()) return false;
  Close(found->second);
  return true;
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

PeerTable::Peer* PeerTable::Add(ConnectionId id, std::string name, int fd, const PublicKey& key) {
  auto added = std::make_unique<Peer>();
  Peer* const peer = added.get();
  peer->id = id;
  peer->name = std::move(name);
  peer->fd = fd;
  peer->key = key;
  peers_[id] = std::move(added);
  by_name_[peer->name] = peer;
  ForgetNewcomer(fd);
  // Read late: its connection has been closed, or the descriptor belongs to another by now.
  if (const auto holder = by_fd_.find(fd); holder != by_fd_.end()) Close(holder->second);
  if (open_fds_.contains(fd)) {
    by_fd_[fd] = peer;
  } else {
    Close(peer);
  }
  return peer;
}

void PeerTable::Close(Peer* peer) {
  if (peer->is_closed) return;
  peer->is_closed = true;
  const auto found = by_fd_.find(peer->fd);
  if (found != by_fd_.end() && found->second == peer) by_fd_.erase(found);
  closed_.push_back(peer->id);
}

std::vector<PeerTable::Peer> PeerTable::TakeClosed() {
  std::vector<Peer> taken;
  taken.reserve(closed_.size());
  for (const ConnectionId id : closed_) {
    const auto found = peers_.find(id);
    by_name_.erase(found->second->name);
    taken.push_back(std::move(*found->second));
    peers_.erase(found);
  }
  closed_.clear();
  return taken;
}

std::vector<PeerTable::Peer*> PeerTable::peers() {
  std::vector<Peer*> all;
  all.reserve(peers_.size());
  for (const auto& [id, peer] : peers_) all.push_back(peer.get());
  return all;
}

}  // namespace bdn
