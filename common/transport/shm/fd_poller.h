#ifndef BANDONEON_COMMON_TRANSPORT_SHM_FD_POLLER_H_
#define BANDONEON_COMMON_TRANSPORT_SHM_FD_POLLER_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/file_descriptor.h"

namespace bdn {

// Descriptors, each with a function to run when it can be read. Not thread-safe: used by one
// thread.
class FdPoller {
 public:
  using Source = std::function<void()>;

  // Takes over a descriptor that epoll_create1 has made.
  explicit FdPoller(FileDescriptor epoll) : epoll_(std::move(epoll)) {}

  bool Watches(int fd) const { return sources_.contains(fd); }
  void Watch(int fd, Source source);
  // Stops watching a descriptor. To be called before it is closed. No-op for one that is not
  // watched.
  void Forget(int fd);
  // Waits until some descriptors can be read, for `timeout_ms` at most; -1 is for ever.
  void Wait(int timeout_ms);
  // Runs the functions of the descriptors that Wait found. They may watch and forget any
  // descriptor.
  void Run();

 private:
  const FileDescriptor epoll_;
  std::vector<int> ready_;
  absl::flat_hash_map<int, Source> sources_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_SHM_FD_POLLER_H_
