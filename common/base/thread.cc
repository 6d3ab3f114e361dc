#include "common/base/thread.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace bdn {

std::thread StartThread(const char* name, std::function<void()> body) {
  // A thread inherits the mask of the one that makes it.
  sigset_t all;
  sigset_t saved;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &saved);
  std::thread thread([name, body = std::move(body)] {
    pthread_setname_np(pthread_self(), name);
    body();
  });
  pthread_sigmask(SIG_SETMASK, &saved, nullptr);
  return thread;
}

}  // namespace bdn
