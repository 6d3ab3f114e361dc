#ifndef BANDONEON_SERVER_SHARD_RUNNER_H_
#define BANDONEON_SERVER_SHARD_RUNNER_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "server/shard.h"

namespace bdn {

// One thread that owns one ServerShard and runs what is posted, the most urgent first and among
// equals in order, under a FloatGuard, and sends what that returns. Blocks while there is nothing.
// Thread-safe.
class ShardRunner {
 public:
  using Work = std::function<Sends(ServerShard& shard)>;
  // Runs on the shard's thread.
  using SendFn = std::function<void(NodeId to, Frame frame)>;

  ShardRunner(const ShardOptions& options, SendFn send);
  ~ShardRunner();  // drops what has not begun, waits for what has
  ShardRunner(const ShardRunner&) = delete;
  ShardRunner& operator=(const ShardRunner&) = delete;

  // Higher goes first. What says no priority goes before all that do.
  void Post(Work work, int64_t priority = std::numeric_limits<int64_t>::max());
  // As of the last piece of work.
  ShardStats stats() const;
  HeldBytes held() const;
  uint64_t most_held() const;

 private:
  struct Posted {
    int64_t priority;
    uint64_t number;
    Work work;
  };
  // Order of a max-heap.
  static bool IsLessUrgent(const Posted& a, const Posted& b) {
    return a.priority != b.priority ? a.priority < b.priority : a.number > b.number;
  }

  void Run();

  const SendFn send_;
  ServerShard shard_;  // owned by thread_
  mutable Mutex mu_;
  CondVar wake_;
  std::vector<Posted> queue_ ABSL_GUARDED_BY(mu_);  // a heap
  uint64_t num_posted_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  ShardStats stats_ ABSL_GUARDED_BY(mu_);
  HeldBytes held_ ABSL_GUARDED_BY(mu_);
  uint64_t most_held_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread thread_;  // last: starts when everything above is there
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_SHARD_RUNNER_H_
