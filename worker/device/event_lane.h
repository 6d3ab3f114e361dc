#ifndef BANDONEON_WORKER_DEVICE_EVENT_LANE_H_
#define BANDONEON_WORKER_DEVICE_EVENT_LANE_H_

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/float_guard.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"
#include "device/compute_device.h"

namespace bdn {

// A thread that waits for points in devices' streams, one after the other in the order in which
// they were posted, and reports those that were passed. Thread-safe.
template <typename T>
class EventLane {
 public:
  struct Item {
    T what;
    ComputeDevice* device = nullptr;  // null: nothing is to be waited for
    DeviceEvent event;
    absl::Status status;  // the result of the wait
  };
  // Called on the lane's thread, under no lock, with all items passed meanwhile.
  using PassedFn = std::function<void(std::vector<Item> items)>;

  EventLane(const char* thread_name, PassedFn passed)
      : passed_(std::move(passed)), thread_(StartThread(thread_name, [this] { Run(); })) {}
  // Waits for all posted items.
  ~EventLane() { Stop(); }
  EventLane(const EventLane&) = delete;
  EventLane& operator=(const EventLane&) = delete;

  void Post(Item item) {
    MutexLock lock(&mu_);
    items_.push_back(std::move(item));
    changed_.SignalAll();
  }
  // Waits for all posted items; none may be posted afterwards. Idempotent.
  void Stop() {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      changed_.SignalAll();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Run() {
    const FloatGuard guard;
    std::vector<Item> passed;
    while (TakeNext(&passed)) {
      Item& first = passed.front();
      if (first.device != nullptr) first.status = first.device->Await(first.event);
      while (TakeIfPassed(&passed)) continue;
      passed_(std::exchange(passed, {}));
    }
  }
  // Takes the next item, waiting for one. Returns false if the lane is stopped and none is left.
  bool TakeNext(std::vector<Item>* to) {
    MutexLock lock(&mu_);
    while (items_.empty() && !stopping_) changed_.Wait(&mu_);
    if (items_.empty()) return false;
    Take(to);
    return true;
  }
  bool TakeIfPassed(std::vector<Item>* to) {
    MutexLock lock(&mu_);
    if (items_.empty()) return false;
    const Item& next = items_.front();
    if (next.device != nullptr) {
      const absl::StatusOr<bool> is_done = next.device->IsDone(next.event);
      if (!is_done.ok() || !*is_done) return false;  // Await will return the error
    }
    Take(to);
    return true;
  }
  void Take(std::vector<Item>* to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    to->push_back(std::move(items_.front()));
    items_.pop_front();
  }

  const PassedFn passed_;
  Mutex mu_;
  CondVar changed_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // declared last: it uses the members above
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_DEVICE_EVENT_LANE_H_
