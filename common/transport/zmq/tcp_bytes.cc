#include "common/transport/zmq/tcp_bytes.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>

namespace bdn {

uint64_t TcpBytesReceived(int fd) {
  tcp_info info{};  // an older kernel fills less of it
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  return info.tcpi_bytes_received;
}

uint64_t TcpBytesRead(int fd) {
  const uint64_t received = TcpBytesReceived(fd);
  int waiting = 0;  // asked last: what comes in between makes the difference smaller
  if (ioctl(fd, SIOCINQ, &waiting) != 0 || waiting < 0) return 0;
  return received - std::min(received, static_cast<uint64_t>(waiting));
}

}  // namespace bdn
