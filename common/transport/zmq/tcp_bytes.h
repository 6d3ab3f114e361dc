#ifndef BANDONEON_COMMON_TRANSPORT_ZMQ_TCP_BYTES_H_
#define BANDONEON_COMMON_TRANSPORT_ZMQ_TCP_BYTES_H_

#include <cstdint>

namespace bdn {

// Bytes that have come on a connection so far; 0 where it is not TCP's, or the system does not tell.
uint64_t TcpBytesReceived(int fd);
// How many of them have been read, or fewer.
uint64_t TcpBytesRead(int fd);
// Ends a connection from which nothing more is wanted: its reader finds the end at once, and not first
// what the kernel still keeps for it, which may be many megabytes. (Over a Unix socket, where that is at
// most some 200 KiB, it is still read.)
void EndConnection(int fd);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_TCP_BYTES_H_
