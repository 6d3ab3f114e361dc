#include "common/transport/fabric/fabric_mailbox.h"

#include <unistd.h>

namespace bdn {

void FabricMailbox::Wake() {
  is_asked_ = true;
  // Only a poller that sleeps is woken, and once: a system call for each request would cost more
  // than most requests.
  if (!is_asleep_) return;
  is_asleep_ = false;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

FabricMailbox::Requests FabricMailbox::Take() {
  MutexLock lock(&mu_);
  Requests taken = std::exchange(requests_, Requests());
  requests_.is_closed = taken.is_closed;
  requests_.is_joining = taken.is_joining;
  is_asked_ = false;
  return taken;
}

bool FabricMailbox::BeginSleep() {
  MutexLock lock(&mu_);
  // Looked at and set under one lock, so that no request falls between the look and the sleep.
  is_asleep_ = !is_asked_;
  return is_asleep_;
}

void FabricMailbox::EndSleep(bool was_woken) {
  {
    MutexLock lock(&mu_);
    is_asleep_ = false;
  }
  if (!was_woken) return;
  uint64_t count;
  [[maybe_unused]] const ssize_t got = read(wake_.get(), &count, sizeof(count));
}

}  // namespace bdn
