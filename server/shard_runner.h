#ifndef BANDONEON_SERVER_SHARD_RUNNER_H_
#define BANDONEON_SERVER_SHARD_RUNNER_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "link/urgency.h"
#include "server/shard.h"

namespace bdn {

// A thread that owns one ServerShard. It runs posted work under a FloatGuard, the most urgent first
// and equally urgent work in the order of posting, and sends the frames that the work returns. It
// sleeps while nothing is posted. Thread-safe.
class ShardRunner {
 public:
  using Work = std::function<Sends(ServerShard& shard)>;
  // Sends one frame; called on the shard's thread.
  using SendFn = std::function<void(NodeId to, Frame frame)>;

  ShardRunner(const ShardOptions& options, SendFn send);
  ~ShardRunner();  // drops work that has not begun, waits for the one that runs
  ShardRunner(const ShardRunner&) = delete;
  ShardRunner& operator=(const ShardRunner&) = delete;

  // Queues work. Higher priorities go first; work without a priority goes before all other work.
  void Post(Work work, int64_t priority = std::numeric_limits<int64_t>::max());
  // These return the shard's numbers as of the end of the last piece of work.
  ShardStats stats() const;
  HeldBytes held() const;
  uint64_t most_held() const;

 private:
  struct Posted {
    ArrivalUrgency urgency;
    Work work;
  };
  // Orders a heap whose front is the most urgent.
  static bool LessUrgent(const Posted& a, const Posted& b) {
    return IsLessUrgent(a.urgency, b.urgency);
  }

  void Run();

  const SendFn send_;
  ServerShard shard_;  // owned by thread_
  mutable Mutex mu_;
  CondVar wake_;
  std::vector<Posted> queue_ ABSL_GUARDED_BY(mu_);  // a heap, ordered by LessUrgent
  uint64_t num_posted_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  ShardStats stats_ ABSL_GUARDED_BY(mu_);
  HeldBytes held_ ABSL_GUARDED_BY(mu_);
  uint64_t most_held_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread thread_;  // declared last: it uses the members above
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_SHARD_RUNNER_H_
