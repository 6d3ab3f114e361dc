#include "common/cluster/newcomers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace bdn {
namespace {

// Returns "10.0.0.1:4711" or "[fd00::1]:4711"; empty where no peer is connected.
std::string PeerOf(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return absl::StrFormat("%s:%d", text, ntohs(v4.sin_port));
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  const int port = ntohs(v6.sin6_port);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, v6.sin6_addr.s6_addr + 12, text, sizeof(text));
    return absl::StrFormat("%s:%d", text, port);
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  return absl::StrFormat("[%s]:%d", text, port);
}

// Returns the same form of a peer's name by gRPC, which escapes brackets.
std::string PeerOf(std::string_view said) {
  const size_t scheme = said.find(':');
  if (scheme == std::string_view::npos) return "";
  const std::string_view address = said.substr(scheme + 1);
  return absl::StrReplaceAll({address.data(), address.size()}, {{"%5B", "["}, {"%5D", "]"}});
}

// ESTABLISHED, which <netinet/tcp.h> names but cannot be included beside <linux/tcp.h>.
constexpr int kEstablished = 1;

tcp_info InfoOf(int fd) {
  tcp_info info{};  // zeroed, because an older kernel fills less of it
  socklen_t size = sizeof(info);
  // A connection whose state cannot be read is not given up for that.
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) info.tcpi_state = kEstablished;
  return info;
}

// Returns for how long it has been the peer's turn to send; zero where it is ours.
absl::Duration SilenceOf(const tcp_info& info, absl::Duration age) {
  if (info.tcpi_bytes_received == 0) return age;
  if (info.tcpi_data_segs_out == 0 || info.tcpi_last_data_sent > info.tcpi_last_data_recv) {
    return absl::ZeroDuration();
  }
  return absl::Milliseconds(info.tcpi_last_data_sent);
}

}  // namespace

void Newcomers::Add(int fd) {
  Newcomer added{.fd = FileDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0)),
                 .peer = PeerOf(fd),
                 .since = clock_->Now()};
  // Without a descriptor or a peer there is nothing to follow: the connection is not counted.
  if (!added.fd.is_open() || added.peer.empty()) return;
  MutexLock lock(&mu_);
  // The kernel gives an address to one connection at a time, so an older entry has ended.
  if (const auto before = by_peer_.find(added.peer); before != by_peer_.end()) {
    Forget(before->second);
  }
  newcomers_.push_back(std::move(added));
  by_peer_[newcomers_.back().peer] = std::prev(newcomers_.end());
  size_.store(newcomers_.size(), std::memory_order_relaxed);
}

void Newcomers::Forget(Place place) {
  by_peer_.erase(place->peer);
  newcomers_.erase(place);
  size_.store(newcomers_.size(), std::memory_order_relaxed);
}

void Newcomers::SweepLocked() {
  for (auto next = newcomers_.begin(); next != newcomers_.end();) {
    const Place place = next++;
    if (InfoOf(place->fd.get()).tcpi_state == kEstablished) continue;
    if (!place->has_called) ++counts_.ended;
    Forget(place);
  }
}

void Newcomers::Sweep() {
  MutexLock lock(&mu_);
  SweepLocked();
}

bool Newcomers::MakeRoom() {
  MutexLock lock(&mu_);
  if (newcomers_.size() < limits_.most) return true;
  // Ended connections are dropped before a living one is cut.
  SweepLocked();
  if (newcomers_.size() < limits_.most) return true;
  const Place found = std::find_if(newcomers_.begin(), newcomers_.end(),
                                   [this](const Newcomer& newcomer) { return MayCut(newcomer); });
  if (found == newcomers_.end()) return false;
  // Only a shutdown: gRPC owns the connection, sees its end and closes it.
  shutdown(found->fd.get(), SHUT_RDWR);
  ++counts_.cut;
  Forget(found);
  return true;
}

bool Newcomers::MayCut(const Newcomer& newcomer) const {
  const absl::Duration age = clock_->Now() - newcomer.since;
  return age >= limits_.least_time ||
         SilenceOf(InfoOf(newcomer.fd.get()), age) >= limits_.least_silence;
}

void Newcomers::OnCall(std::string_view peer, bool is_admitted) {
  MutexLock lock(&mu_);
  const auto found = by_peer_.find(PeerOf(peer));
  if (found == by_peer_.end()) return;
  found->second->has_called = true;
  if (is_admitted) Forget(found->second);
}

Newcomers::Counts Newcomers::counts() const {
  MutexLock lock(&mu_);
  return counts_;
}

}  // namespace bdn
