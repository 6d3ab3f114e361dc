#include "common/base/memory_reserve.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <new>
#include <string_view>

namespace bdn {
namespace {

constexpr size_t kReserveBytes = size_t{48} << 20;
constexpr int kTimeToEndMs = 5000;
constexpr std::string_view kLastWords =
    "bandoneon: out of memory, and what was kept for a proper end is used up: this process ends now\n";

// A new handler is given nothing: what it knows lies here, written before it is set.
int exhausted_fd = -1;
pthread_t main_thread;
std::atomic<void*> reserve{nullptr};

// False where it was given back before.
bool GiveBack() {
  void* const kept = reserve.exchange(nullptr);
  if (kept == nullptr) return false;
  munmap(kept, kReserveBytes);
  const uint64_t one = 1;
  (void)!write(exhausted_fd, &one, sizeof(one));
  return true;
}

void OnNoMemory() {
  if (GiveBack()) return;
  // main() is at its end, which may need what this thread holds: so not for ever.
  if (pthread_equal(pthread_self(), main_thread) == 0) poll(nullptr, 0, kTimeToEndMs);
  pollfd standard_error = {STDERR_FILENO, POLLOUT, 0};
  if (poll(&standard_error, 1, 0) == 1) {
    (void)!write(STDERR_FILENO, kLastWords.data(), kLastWords.size());
  }
  _exit(1);
}

}  // namespace

MemoryReserve::MemoryReserve() {
  if (exhausted_fd >= 0) return;
  exhausted_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  main_thread = pthread_self();
  void* const kept =
      mmap(nullptr, kReserveBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (kept == MAP_FAILED) return;
  reserve.store(kept);
  std::set_new_handler(&OnNoMemory);
}

int MemoryReserve::fd() const { return exhausted_fd; }

void MemoryReserve::OnExhausted() { (void)GiveBack(); }

}  // namespace bdn
