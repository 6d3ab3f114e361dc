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

// Unix sockets of whole packets, which carry descriptors. Names are paths of files, where they begin with
// a slash; else of the abstract kind: seen by the processes of one network namespace, in no file system,
// and gone with their listener. None of the sockets blocks.

namespace bdn {

// "shm://name" to name. InvalidArgument names the address.
absl::StatusOr<std::string> ParseShmAddress(const std::string& address);

// A listener; its file, if it has one, is there until it goes.
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
  std::string file_;  // to remove; empty: none
};
// AlreadyExists: somebody listens at that name.
absl::StatusOr<ShmListeningSocket> ListenAt(const std::string& name);
// "shm://name", at which nobody listens and which nobody guesses: of a file in `directory`, if only this
// process's user comes there and the path fits, and the files of listeners that are gone are removed from it;
// else of the abstract kind.
std::string NewShmAddress(const std::string& directory);
// NotFound: nobody listens there. PermissionDenied: another user's process does. Unavailable: too many
// wait to be taken. ResourceExhausted: no descriptors are left.
absl::StatusOr<FileDescriptor> ConnectTo(const std::string& name);
// The next who connects; a closed one where there is none. PermissionDenied: it was another user's,
// and is cut. ResourceExhausted: no descriptors are left.
absl::StatusOr<FileDescriptor> AcceptFrom(int listener);

// Sends a packet, with a descriptor where `fd` is not negative. False: the peer is gone, or takes
// none now.
bool SendPacket(int socket, ByteSpan packet, int fd = -1);

template <typename T>
ByteSpan BytesOf(const T& packet) {
  return {reinterpret_cast<const std::byte*>(&packet), sizeof(packet)};
}

struct Packet {
  enum class Result { kNothing, kPacket, kEnd };
  Result result = Result::kNothing;
  size_t size = 0;  // of what was sent, which may be more than there is
  std::array<std::byte, 256> bytes{};
  FileDescriptor fd;  // the first that came with it
};
Packet ReceivePacket(int socket);
// Nothing: it is a packet of another kind or size.
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
