#include "common/transport/fabric/fabric_lock_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/file_descriptor.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "common/transport/fabric/fabric_host_names.h"

namespace bdn {
namespace {

constexpr char kScheme[] = "fi_shm://";
constexpr size_t kPage = 4096;
// Of libfabric's smr_region.
constexpr uint8_t kVersion = 4;
constexpr size_t kVersionAt = 0;
constexpr size_t kProcessAt = 4;
constexpr size_t kLockAt = 24;

constexpr absl::Duration kLook = absl::Milliseconds(100);
// A live process holds the lock of a dead one's endpoint for an instant, and its own while it reads all that
// lies in its queue.
constexpr int kLooksAtPeers = 2;
constexpr int kLooksAtOwn = 20;

bool IsDead(pid_t process) {
  const FileDescriptor handle(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  if (!handle.is_open()) return errno == ESRCH;
  pollfd ended = {handle.get(), POLLIN, 0};
  return poll(&ended, 1, 0) == 1;
}

}  // namespace

class FabricLockWatch::Header {
 public:
  // Null: nothing that is known here.
  static std::unique_ptr<Header> Map(const std::string& address) {
    if (!absl::StartsWith(address, kScheme)) return nullptr;
    const std::string name = address.substr(sizeof(kScheme) - 1);
    // A process of another namespace looks dead from here.
    if (!IsFabricNameOfHere(name) || absl::StrContains(name, '/')) return nullptr;
    const FileDescriptor file(open(("/dev/shm/" + name).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    struct stat is = {};
    if (!file.is_open() || fstat(file.get(), &is) != 0 || is.st_uid != geteuid() ||
        is.st_size < static_cast<off_t>(kPage)) {
      return nullptr;
    }
    void* const page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (page == MAP_FAILED) return nullptr;
    std::unique_ptr<Header> header(new Header(static_cast<std::byte*>(page)));
    const bool is_known = static_cast<uint8_t>(header->page_[kVersionAt]) == kVersion;
    return is_known ? std::move(header) : nullptr;
  }
  ~Header() { munmap(page_, kPage); }
  Header(const Header&) = delete;
  Header& operator=(const Header&) = delete;

  bool is_of_dead() const {
    const pid_t process = __atomic_load_n(At<pid_t>(kProcessAt), __ATOMIC_RELAXED);
    return process > 0 && IsDead(process);
  }
  bool is_locked() const {
    if (pthread_spin_trylock(At<pthread_spinlock_t>(kLockAt)) != 0) return true;
    Free();
    return false;
  }
  void Free() const { pthread_spin_unlock(At<pthread_spinlock_t>(kLockAt)); }

 private:
  explicit Header(std::byte* page) : page_(page) {}
  template <typename T>
  T* At(size_t offset) const {
    return reinterpret_cast<T*>(page_ + offset);
  }

  std::byte* const page_;
};

FabricLockWatch::FabricLockWatch(const std::string& own)
    : own_(Header::Map(own)), thread_(StartThread("bdn-fabric-lock", [this] { Run(); })) {}

FabricLockWatch::~FabricLockWatch() {
  {
    MutexLock lock(&mu_);
    is_closed_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void FabricLockWatch::Add(const std::string& peer) {
  std::unique_ptr<Header> header = Header::Map(peer);
  if (header == nullptr) return;
  MutexLock lock(&mu_);
  peers_[peer] = std::move(header);
}

void FabricLockWatch::Remove(const std::string& peer) {
  MutexLock lock(&mu_);
  peers_.erase(peer);
}

void FabricLockWatch::Run() {
  uint64_t last = 0;
  // That have found this call; not a time, for all of the process may have stood still.
  int looks = 0;
  MutexLock lock(&mu_);
  while (!is_closed_) {
    const absl::Time next = clock_.Now() + kLook;
    while (!is_closed_ && clock_.WaitUntil(&changed_, &mu_, next)) {
    }
    const uint64_t call = call_.load(std::memory_order_relaxed);
    looks = call % 2 == 1 && call == std::exchange(last, call) ? looks + 1 : 0;
    if (!is_closed_ && looks > 0) Look(looks);
  }
}

void FabricLockWatch::Look(int looks) {
  if (looks < kLooksAtPeers) return;
  bool is_one_dead = false;
  for (const auto& [address, peer] : peers_) {
    if (!peer->is_of_dead()) continue;
    is_one_dead = true;
    if (!peer->is_locked()) continue;
    LogWarning("fabric provider shm: %s was killed while its queue was locked: unlocked",
               address.c_str());
    peer->Free();
  }
  if (looks < kLooksAtOwn || !is_one_dead || own_ == nullptr || !own_->is_locked()) return;
  LogWarning("fabric provider shm: a peer was killed while it had locked this queue: unlocked");
  has_freed_own_ = true;
  own_->Free();
}

}  // namespace bdn
