#ifndef BANDONEON_COMMON_TRANSPORT_SHM_FD_POLLER_H_
#define BANDONEON_COMMON_TRANSPORT_SHM_FD_POLLER_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/file_descriptor.h"

namespace bdn {

// Descriptors, and what is done when one of them can be read. Used by one thread.
class FdPoller {
 public:
  using Source = std::function<void()>;

  // `epoll` is one of epoll_create1.
  explicit FdPoller(FileDescriptor epoll) : epoll_(std::move(epoll)) {}

  bool Watches(int fd) const { return sources_.contains(fd); }
  void Watch(int fd, Source source);
  // To be called before the descriptor is closed. No-op for one that is not watched.
  void Forget(int fd);
  // Waits so long (-1 is for ever) until some can be read.
  void Wait(int timeout_ms);
  // Runs the sources of those. They may watch and forget any.
  void Run();

 private:
  const FileDescriptor epoll_;
  std::vector<int> ready_;
  absl::flat_hash_map<int, Source> sources_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_SHM_FD_POLLER_H_
