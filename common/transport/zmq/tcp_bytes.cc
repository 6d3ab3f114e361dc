#include "common/transport/zmq/tcp_bytes.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace bdn {

uint64_t TcpBytesReceived(int fd) {
  tcp_info info{};  // an older kernel fills less of it
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  return info.tcpi_bytes_received;
}

uint64_t ReceiveBufferBytes(int fd) {
  int bytes = 0;
  socklen_t size = sizeof(bytes);
  if (getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, &size) != 0 || bytes < 0) return 0;
  return static_cast<uint64_t>(bytes);
}

}  // namespace bdn
