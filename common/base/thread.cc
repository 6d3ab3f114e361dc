#include "common/base/thread.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

#include "common/base/memory_reserve.h"

namespace bdn {
namespace {

// A scope in which this thread blocks all signals. A thread inherits the mask of the one that makes
// it, so a thread that is made in this scope blocks all of them from its first instruction on.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &saved_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t saved_;
};

}  // namespace

std::thread StartThread(const char* name, std::function<void()> body) {
  const NoSignals no_signals;
  const auto run = [name, body = std::move(body)] {
    pthread_setname_np(pthread_self(), name);
    body();
  };
  try {
    return std::thread(run);
  } catch (const std::system_error&) {
    // The stack found no room, so the reserve is given back for it; with that the process comes to
    // its end.
    if (!MemoryReserve::IsLimited()) throw;
    MemoryReserve::OnExhausted();
    return std::thread(run);
  }
}

}  // namespace bdn
