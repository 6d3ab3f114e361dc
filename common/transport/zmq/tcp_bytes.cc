#include "common/transport/zmq/tcp_bytes.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>

namespace bdn {

namespace {

// Returns zeros where it is no socket of TCP.
tcp_info InfoOf(int fd) {
  tcp_info info{};  // an older kernel fills less of it
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  return info;
}

absl::Duration MicrosecondsOf(uint64_t number) {
  return absl::Microseconds(static_cast<int64_t>(number));
}

}  // namespace

ConnectionFacts TcpFacts(int fd) {
  const tcp_info info = InfoOf(fd);
  // The kernel says "all ones" before it has seen one.
  const bool has_least = info.tcpi_min_rtt > 0 && info.tcpi_min_rtt != ~uint32_t{0};
  const uint32_t microseconds = has_least ? info.tcpi_min_rtt : info.tcpi_rtt;
  return {.is_network = info.tcpi_state != 0,
          .round_trip = absl::Microseconds(microseconds),
          .bytes_sent = info.tcpi_bytes_acked,
          .bytes_received = info.tcpi_bytes_received,
          .bytes_sent_again = info.tcpi_bytes_retrans,
          .busy = MicrosecondsOf(info.tcpi_busy_time),
          .held_back = MicrosecondsOf(info.tcpi_rwnd_limited),
          .round_trip_now = MicrosecondsOf(info.tcpi_rtt),
          .rate = info.tcpi_delivery_rate_app_limited != 0 ? 0 : info.tcpi_delivery_rate};
}

uint64_t TcpBytesReceived(int fd) { return InfoOf(fd).tcpi_bytes_received; }

uint64_t TcpBytesRead(int fd) {
  const uint64_t received = TcpBytesReceived(fd);
  int waiting = 0;  // asked last: bytes that come in between make the difference smaller
  if (ioctl(fd, SIOCINQ, &waiting) != 0 || waiting < 0) return 0;
  return received - std::min(received, static_cast<uint64_t>(waiting));
}

void EndConnection(int fd) {
  shutdown(fd, SHUT_RDWR);  // first, so that nothing more comes in
  // On TCP this drops bytes without copying them, all of them in one call. The other calls are for
  // bytes that were just on their way in.
  constexpr int kMostCalls = 16;
  constexpr size_t kAll = size_t{1} << 30;
  for (int i = 0; i < kMostCalls; ++i) {
    if (recv(fd, nullptr, kAll, MSG_DONTWAIT | MSG_TRUNC) <= 0) return;
  }
}

}  // namespace bdn
