#ifndef BANDONEON_WORKER_HOST_HOST_ADDRESS_H_
#define BANDONEON_WORKER_HOST_HOST_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"

// The address at which a host daemon listens for its processes. It is "unix:@NAME", an abstract
// address, which is in no file system and ends with the daemon; or "unix:/PATH", a file that only
// its user can open. Sockets are non-blocking streams.

namespace bdn {

// A parsed address of a host daemon.
struct HostAddress {
  std::string text;  // as it was given
  std::string path;  // begins with a zero byte if the address is abstract
};
// Parses an address. InvalidArgument says what is expected.
absl::StatusOr<HostAddress> ParseHostAddress(const std::string& text);

// A listening socket at an address. Its file, if it has one, exists until Close.
class HostListener {
 public:
  // Listens at an address. Replaces the file of a daemon that has ended. AlreadyExists: another
  // daemon listens there.
  static absl::StatusOr<HostListener> ListenAt(const HostAddress& address);
  ~HostListener() { Close(); }
  HostListener(HostListener&&) = default;

  int fd() const { return socket_.get(); }
  // Stops listening, and removes the file.
  void Close();
  // Returns the connection of the next process, or a closed descriptor if no process waits.
  // PermissionDenied: the process was another user's, and its connection is closed.
  absl::StatusOr<FileDescriptor> Accept();

 private:
  HostListener(FileDescriptor socket, std::string file)
      : socket_(std::move(socket)), file_(std::move(file)) {}

  FileDescriptor socket_;
  std::string file_;  // the file to remove; empty: none
};

// Connects to a daemon. NotFound: no daemon listens there. PermissionDenied: another user's process
// does.
absl::StatusOr<FileDescriptor> ConnectToHost(const HostAddress& address);

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_HOST_ADDRESS_H_
