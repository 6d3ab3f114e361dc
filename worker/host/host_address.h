#ifndef BANDONEON_WORKER_HOST_HOST_ADDRESS_H_
#define BANDONEON_WORKER_HOST_HOST_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"

// Where the daemon of a host listens for its processes: "unix:@NAME", of the abstract kind, which is in no
// file system and gone with the daemon; or "unix:/PATH", a file of its user alone. Sockets are streams,
// and none of them blocks.

namespace bdn {

struct HostAddress {
  std::string text;  // as it was given
  std::string path;  // begins with a zero where it is of the abstract kind
};
// InvalidArgument says what is expected.
absl::StatusOr<HostAddress> ParseHostAddress(const std::string& text);

// A listener; a file is there until it goes.
class HostListener {
 public:
  // AlreadyExists: another daemon listens there. What one that is gone left behind is taken over.
  static absl::StatusOr<HostListener> ListenAt(const HostAddress& address);
  ~HostListener() { Close(); }
  HostListener(HostListener&&) = default;

  int fd() const { return socket_.get(); }
  // Nobody can connect any more.
  void Close();
  // The next process that connects; a closed one where there is none. PermissionDenied: another user's,
  // which is cut.
  absl::StatusOr<FileDescriptor> Accept();

 private:
  HostListener(FileDescriptor socket, std::string file)
      : socket_(std::move(socket)), file_(std::move(file)) {}

  FileDescriptor socket_;
  std::string file_;  // to remove; empty: none
};

// NotFound: nobody listens there. PermissionDenied: another user's process does.
absl::StatusOr<FileDescriptor> ConnectToHost(const HostAddress& address);

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_HOST_ADDRESS_H_
