#include "common/transport/zmq/zmq_address.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "common/base/status.h"

namespace bdn {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kIpc = "ipc://";

sockaddr_un NameOf(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.c_str(), path.size());
  return name;
}

absl::StatusOr<FileDescriptor> OpenSocket(const std::string& path) {
  FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.is_open()) return ResourceExhausted("ipc://%s: socket: %s", path, std::strerror(errno));
  return fd;
}

absl::StatusOr<ZmqAddress> ParseIpc(const std::string& address) {
  ZmqAddress parsed{
      .is_ipc = true, .path = address.substr(kIpc.size()), .is_ipv6 = false, .is_local = true};
  if (parsed.path.empty() || parsed.path[0] != '/') {
    return InvalidArgument("address \"%s\": ipc needs an absolute path, as ipc:///run/name",
                           address);
  }
  constexpr size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;
  if (parsed.path.size() > kMaxPathBytes) {
    return InvalidArgument("address \"%s\": a path of %d bytes, at most %d", address,
                           parsed.path.size(), kMaxPathBytes);
  }
  return parsed;
}

bool IsLoopback(const std::string& host) {
  if (host == "[::1]") return true;
  return host.compare(0, 4, "127.") == 0 &&
         host.find_first_not_of("0123456789.") == std::string::npos;
}

absl::StatusOr<ZmqAddress> ParseTcp(const std::string& address) {
  const size_t colon = address.rfind(':');
  const std::string port = address.substr(colon + 1);
  const bool has_host = colon > kTcp.size();
  // At most five digits, so that stoi cannot overflow.
  const bool is_number = !port.empty() && port.size() <= 5 &&
                         port.find_first_not_of("0123456789") == std::string::npos;
  if (!has_host || !is_number || std::stoi(port) > 65535) {
    return InvalidArgument("address \"%s\": expected tcp://host:port", address);
  }
  const std::string host = address.substr(kTcp.size(), colon - kTcp.size());
  return ZmqAddress{
      .is_ipc = false, .path = {}, .is_ipv6 = host[0] == '[', .is_local = IsLoopback(host)};
}

absl::Status RemoveStaleSocketFile(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return absl::OkStatus();  // bind says what else is wrong
  if (!S_ISSOCK(info.st_mode)) {
    return InvalidArgument("ipc://%s: a file that is no socket is there", path);
  }
  const sockaddr_un name = NameOf(path);
  BDN_ASSIGN_OR_RETURN(const FileDescriptor fd, OpenSocket(path));
  // Only a refused connection shows that nobody listens; a full backlog, for one, is another error.
  const bool refused =
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0 &&
      errno == ECONNREFUSED;
  if (!refused) return AlreadyExists("ipc://%s: the address is in use", path);
  unlink(path.c_str());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ZmqAddress> ParseZmqAddress(const std::string& address) {
  const std::string_view view(address);
  if (view.substr(0, kIpc.size()) == kIpc) return ParseIpc(address);
  if (view.substr(0, kTcp.size()) == kTcp) return ParseTcp(address);
  return InvalidArgument("address \"%s\": expected tcp://host:port or ipc:///path", address);
}

absl::StatusOr<FileDescriptor> ListenAtSocketFile(const std::string& path) {
  BDN_RETURN_IF_ERROR(RemoveStaleSocketFile(path));
  const sockaddr_un name = NameOf(path);
  BDN_ASSIGN_OR_RETURN(FileDescriptor fd, OpenSocket(path));
  // The mode is set before the socket has a name, so there is no moment at which the file has
  // another.
  if (fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0 ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    if (errno == EADDRINUSE) return AlreadyExists("ipc://%s: the address is in use", path);
    return InvalidArgument("listen at ipc://%s: %s", path, std::strerror(errno));
  }
  return fd;
}

}  // namespace bdn
