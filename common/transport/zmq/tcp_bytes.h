#ifndef BANDONEON_COMMON_TRANSPORT_ZMQ_TCP_BYTES_H_
#define BANDONEON_COMMON_TRANSPORT_ZMQ_TCP_BYTES_H_

#include <cstdint>

namespace bdn {

// Bytes that have come on a connection so far; 0 where it is not TCP's, or the system does not tell.
uint64_t TcpBytesReceived(int fd);
// How many of them have been read, or fewer.
uint64_t TcpBytesRead(int fd);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_TCP_BYTES_H_
