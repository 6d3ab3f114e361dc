#ifndef BANDONEON_SERVER_SHARD_RUNNER_H_
#define BANDONEON_SERVER_SHARD_RUNNER_H_

#include <deque>
#include <functional>
#include <thread>

#include "common/base/mutex.h"
#include "server/shard.h"

namespace bdn {

// One thread that owns one ServerShard and runs what is posted, in order, under a FloatGuard, and
// sends what that returns. Blocks while there is nothing. Thread-safe.
class ShardRunner {
 public:
  using Work = std::function<Sends(ServerShard& shard)>;
  // Runs on the shard's thread.
  using SendFn = std::function<void(NodeId to, Frame frame)>;

  ShardRunner(const ServerShard::Options& options, SendFn send);
  ~ShardRunner();  // drops what has not begun, waits for what has
  ShardRunner(const ShardRunner&) = delete;
  ShardRunner& operator=(const ShardRunner&) = delete;

  void Post(Work work);
  // As of the last piece of work.
  ShardStats stats() const;
  HeldBytes held() const;
  uint64_t most_held() const;

 private:
  void Run();

  const SendFn send_;
  ServerShard shard_;  // owned by thread_
  mutable Mutex mu_;
  CondVar wake_;
  std::deque<Work> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  ShardStats stats_ ABSL_GUARDED_BY(mu_);
  HeldBytes held_ ABSL_GUARDED_BY(mu_);
  uint64_t most_held_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread thread_;  // last: starts when everything above is there
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_SHARD_RUNNER_H_
