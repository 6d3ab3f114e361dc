#include "common/base/memory_reserve.h"

#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <new>
#include <string_view>

namespace bdn {
namespace {

constexpr size_t kReserveBytes = size_t{48} << 20;
constexpr int kTimeToEndMs = 5000;
// A server near its limit may have no room at one moment, and work on: only several looks in a row
// count.
constexpr int kFailuresInARow = 5;
// The bytes that ZeroMQ and malloc keep for a message beside its own.
constexpr size_t kMessageOverhead = 4096;
constexpr std::string_view kLastWords =
    "bandoneon: out of memory, and what was kept for a proper end is used up: this process ends "
    "now\n";

// A new handler is given no argument, so its state lies here, written before the handler is set.
int exhausted_fd = -1;
pthread_t main_thread;
std::atomic<void*> reserve{nullptr};
// These publish no other memory.
std::atomic<size_t> longest_message{0};
std::atomic<bool> was_found{false};  // since the last look
std::atomic<bool> was_missed{false};

// Returns whether malloc finds so many bytes now.
bool HasPlaceFor(size_t bytes) {
  if (bytes == 0) return true;
  // The pointer is volatile: otherwise the compiler may leave out both calls.
  void* volatile place = std::malloc(bytes + kMessageOverhead);
  std::free(place);
  return place != nullptr;
}

// Gives the reserve back; returns false where that was done before.
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
  if (IsLimited()) mallopt(M_ARENA_MAX, 1);
  exhausted_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  main_thread = pthread_self();
  // Address space alone: PROT_NONE pages take no memory, but count against a limit of address
  // space, so that unmapping them makes room.
  void* const kept =
      mmap(nullptr, kReserveBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (kept == MAP_FAILED) return;
  reserve.store(kept);
  std::set_new_handler(&OnNoMemory);
}

int MemoryReserve::fd() const { return exhausted_fd; }

void MemoryReserve::OnExhausted() { (void)GiveBack(); }

void MemoryReserve::ExpectMessage(size_t bytes) {
  size_t known = longest_message.load();
  while (known < bytes && !longest_message.compare_exchange_weak(known, bytes)) {
  }
}

void MemoryReserve::OnAsked(bool found) {
  std::atomic<bool>& told = found ? was_found : was_missed;
  if (!told.load(std::memory_order_relaxed)) told.store(true, std::memory_order_relaxed);
}

void MemoryReserve::ExpectNoMessages() { longest_message.store(0); }

bool MemoryReserve::IsLimited() {
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit limit{};
    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) return true;
  }
  int overcommit = 0;
  std::ifstream("/proc/sys/vm/overcommit_memory") >> overcommit;
  constexpr int kNever = 2;
  return overcommit == kNever;
}

void MemoryReserve::Look() {
  // Memory that was found by another caller since the last look shows that there is some.
  const bool has_missed = was_missed.exchange(false) && !was_found.load();
  was_found.store(false);
  failures_ = has_missed || !HasPlaceFor(longest_message.load()) ? failures_ + 1 : 0;
  if (failures_ == kFailuresInARow) OnExhausted();
}

}  // namespace bdn
