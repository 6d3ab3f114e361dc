#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_LOCK_WATCH_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_LOCK_WATCH_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace bdn {

// libfabric's shm locks an endpoint's queues in the memory that its processes share, and who waits for a lock
// turns for ever once its holder was killed. This looks, on a thread of its own, whether a call of the provider
// makes no headway, and takes the lock from the dead. It knows the memory of libfabric 1.17 and 1.18, and does
// nothing where it is another. Thread-safe, but for Call.
class FabricLockWatch {
 public:
  // Of the endpoint with this address.
  explicit FabricLockWatch(const std::string& own);
  ~FabricLockWatch();
  FabricLockWatch(const FabricLockWatch&) = delete;
  FabricLockWatch& operator=(const FabricLockWatch&) = delete;

  void Add(const std::string& peer);
  void Remove(const std::string& peer);
  // A dead peer held the endpoint's own lock: its queue may hold the half of something.
  bool has_freed_own() const { return has_freed_own_; }

  // While it lives the provider works. One at a time.
  class Call {
   public:
    explicit Call(FabricLockWatch* watch) : watch_(watch) { Step(); }
    ~Call() { Step(); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    void Step() {
      if (watch_ == nullptr) return;
      watch_->call_.store(watch_->call_.load(std::memory_order_relaxed) + 1,
                          std::memory_order_relaxed);
    }
    FabricLockWatch* const watch_;  // null where there is none
  };

 private:
  class Header;  // the first page of an endpoint's memory

  void Run();
  void Look(int looks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const SteadyClock clock_;
  std::atomic<uint64_t> call_ = 0;  // odd during one; only compared with itself
  std::atomic<bool> has_freed_own_ = false;
  const std::unique_ptr<Header> own_;
  Mutex mu_;
  CondVar changed_;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, std::unique_ptr<Header>> peers_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last: it uses everything above
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_LOCK_WATCH_H_
