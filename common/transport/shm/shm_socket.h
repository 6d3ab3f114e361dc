#ifndef BANDONEON_COMMON_TRANSPORT_SHM_SHM_SOCKET_H_
#define BANDONEON_COMMON_TRANSPORT_SHM_SHM_SOCKET_H_

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/bytes.h"
#include "common/base/file_descriptor.h"
#include "common/transport/shm/shm_layout.h"

// Unix sockets of whole packets, which can carry descriptors. A name that begins with a slash is
// the path of a file. Any other is of the abstract kind: the processes of one network namespace see
// it, it is in no file system, and it goes with its listener. None of the sockets blocks.

namespace bdn {

// Returns the name in "shm://name". InvalidArgument names the address.
absl::StatusOr<std::string> ParseShmAddress(const std::string& address);

// A socket that listens. Its file, if it has one, is removed with it. Not thread-safe.
class ShmListeningSocket {
 public:
  explicit ShmListeningSocket(FileDescriptor socket, std::string file = "")
      : socket_(std::move(socket)), file_(std::move(file)) {}
  ~ShmListeningSocket();
  ShmListeningSocket(ShmListeningSocket&& other) noexcept
      : socket_(std::move(other.socket_)), file_(std::exchange(other.file_, "")) {}
  int get() const { return socket_.get(); }

 private:
  FileDescriptor socket_;
  std::string file_;  // to be removed; empty where there is none
};
// Listens at a name. AlreadyExists: another process listens there. InvalidArgument: nothing can
// listen there. ResourceExhausted: no descriptors are left.
absl::StatusOr<ShmListeningSocket> ListenAt(const std::string& name);
// Returns an address "shm://name" at which nobody listens and which nobody can guess. The name is
// of a file in `directory` if only this process's user can enter that and the path fits; files
// there of listeners that are gone are removed. Else the name is of the abstract kind.
std::string NewShmAddress(const std::string& directory);
// Connects to a name. NotFound: nobody listens there. PermissionDenied: another user's process
// does. Unavailable: too many connections wait to be accepted. ResourceExhausted: no descriptors
// are left.
absl::StatusOr<FileDescriptor> ConnectTo(const std::string& name);
// Accepts the next connection; returns a closed descriptor where there is none. PermissionDenied:
// it was another user's, and is cut. ResourceExhausted: no descriptors are left.
absl::StatusOr<FileDescriptor> AcceptFrom(int listener);

// Returns whether the process that made the other end of a connection lives, also where its socket
// has ended. A process that cannot be seen from here, as in another container, lives as long as its
// socket.
bool PeerLives(int socket);

// Sends a packet, with a descriptor where `fd` is not negative. Returns false where the peer is
// gone, or takes no packet now.
bool SendPacket(int socket, ByteSpan packet, int fd = -1);

template <typename T>
ByteSpan BytesOf(const T& packet) {
  return {reinterpret_cast<const std::byte*>(&packet), sizeof(packet)};
}

// A received packet; kEnd where the peer has closed its side.
struct Packet {
  enum class Result { kNothing, kPacket, kEnd };
  Result result = Result::kNothing;
  size_t size = 0;  // as sent, which may be more than `bytes` holds
  std::array<std::byte, 256> bytes{};
  FileDescriptor fd;  // the first descriptor that came with the packet
};
Packet ReceivePacket(int socket);
// Reads a packet as a T. Returns nothing for a packet of another kind or size.
template <typename T>
std::optional<T> ReadAs(const Packet& packet, ShmPacket kind) {
  if (packet.size != sizeof(T)) return std::nullopt;
  ShmPacket found;
  std::memcpy(&found, packet.bytes.data(), sizeof(found));
  if (found != kind) return std::nullopt;
  T value;
  std::memcpy(&value, packet.bytes.data(), sizeof(value));
  return value;
}

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_SHM_SHM_SOCKET_H_
