#ifndef BANDONEON_COMMON_TRANSPORT_ZMQ_TCP_BYTES_H_
#define BANDONEON_COMMON_TRANSPORT_ZMQ_TCP_BYTES_H_

#include <cstdint>

#include "common/transport/transport.h"

namespace bdn {

// Returns the facts of a connection of TCP; those of none where it is not one.
ConnectionFacts TcpFacts(int fd);

// Returns the bytes that have come on a connection so far; 0 where it is not TCP's, or the system
// does not tell.
uint64_t TcpBytesReceived(int fd);
// Returns how many of these bytes have been read, or fewer.
uint64_t TcpBytesRead(int fd);
// Ends a connection of which no more is wanted. Its reader finds the end at once, and not only
// after the bytes that the kernel still keeps for it, which may be many megabytes. (Over a Unix
// socket, where they are some 200 KiB at most, they are still read.)
void EndConnection(int fd);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_TCP_BYTES_H_
