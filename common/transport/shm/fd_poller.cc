#include "common/transport/shm/fd_poller.h"

#include <sys/epoll.h>

#include <array>

namespace bdn {

void FdPoller::Watch(int fd, Source source) {
  sources_[fd] = std::move(source);
  epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void FdPoller::Forget(int fd) {
  if (sources_.erase(fd) > 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void FdPoller::Wait(int timeout_ms) {
  std::array<epoll_event, 64> events;
  const int count =
      epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  for (int i = 0; i < count; ++i) ready_.push_back(events[i].data.fd);
}

void FdPoller::Run() {
  for (const int fd : std::exchange(ready_, {})) {
    const auto found = sources_.find(fd);
    if (found == sources_.end()) continue;  // a source before it has forgotten this one
    const Source source = found->second;    // a copy, as a source may forget itself
    source();
  }
}

}  // namespace bdn
