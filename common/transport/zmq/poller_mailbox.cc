#include "common/transport/zmq/poller_mailbox.h"

#include <unistd.h>

namespace bdn {

PollerMailbox::~PollerMailbox() { close(wake_fd_); }

bool PollerMailbox::Add(Connector connector) {
  MutexLock lock(&mu_);
  if (requests_.is_closed) return false;
  requests_.connectors.push_back(connector);
  Wake();
  return true;
}

bool PollerMailbox::Add(std::unique_ptr<ZmqListener>* listener) {
  MutexLock lock(&mu_);
  if (requests_.is_closed) return false;
  requests_.listeners.push_back(std::move(*listener));
  Wake();
  return true;
}

void PollerMailbox::Add(Outgoing outgoing) {
  MutexLock lock(&mu_);
  requests_.frames.push_back(std::move(outgoing));
  Wake();
}

void PollerMailbox::End(ConnectionId connector) {
  MutexLock lock(&mu_);
  requests_.ended.push_back(connector);
  Wake();
}

void PollerMailbox::SayAdmissionsChanged() {
  MutexLock lock(&mu_);
  requests_.have_admissions_changed = true;
  Wake();
}

void PollerMailbox::Close() {
  MutexLock lock(&mu_);
  requests_.is_closed = true;
  Wake();
}

void PollerMailbox::SayJoining() {
  MutexLock lock(&mu_);
  requests_.is_joining = true;
  Wake();
}

void PollerMailbox::Wake() {
  // One write wakes the poller, however many requests come before it looks.
  if (is_woken_) return;
  is_woken_ = true;
  const uint64_t one = 1;
  // The write cannot fail: the counter is far from full, and an eventfd knows no short write.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

PollerMailbox::Requests PollerMailbox::Take() {
  MutexLock lock(&mu_);
  Requests taken;
  std::swap(taken.connectors, requests_.connectors);
  std::swap(taken.listeners, requests_.listeners);
  std::swap(taken.frames, requests_.frames);
  std::swap(taken.ended, requests_.ended);
  std::swap(taken.have_admissions_changed, requests_.have_admissions_changed);
  taken.is_closed = requests_.is_closed;
  taken.is_joining = requests_.is_joining;
  // Under the same lock as the requests: one that comes later writes to the descriptor, so the
  // poller's next wait ends at once.
  is_woken_ = false;
  return taken;
}

void PollerMailbox::SetAwake(bool was_woken) {
  {
    MutexLock lock(&mu_);
    is_woken_ = true;
  }
  // Without a wake there is nothing to read, and the call is saved.
  if (!was_woken) return;
  uint64_t count;
  [[maybe_unused]] const ssize_t got = read(wake_fd_, &count, sizeof(count));
}

}  // namespace bdn
