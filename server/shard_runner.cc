#include "server/shard_runner.h"

#include <algorithm>
#include <utility>

#include "common/base/fault_point.h"
#include "common/base/float_guard.h"
#include "common/base/thread.h"

namespace bdn {

ShardRunner::ShardRunner(const ShardOptions& options, SendFn send)
    : send_(std::move(send)),
      shard_(options),
      thread_(StartThread("bdn-shard", [this] { Run(); })) {}

ShardRunner::~ShardRunner() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  wake_.Signal();
  thread_.join();
}

void ShardRunner::Post(Work work, int64_t priority) {
  {
    MutexLock lock(&mu_);
    queue_.push_back({{priority, num_posted_++}, std::move(work)});
    std::push_heap(queue_.begin(), queue_.end(), LessUrgent);
  }
  wake_.Signal();
}

ShardStats ShardRunner::stats() const {
  MutexLock lock(&mu_);
  return stats_;
}

HeldBytes ShardRunner::held() const {
  MutexLock lock(&mu_);
  return held_;
}

uint64_t ShardRunner::most_held() const {
  MutexLock lock(&mu_);
  return most_held_;
}

void ShardRunner::Run() {
  const FloatGuard guard;
  for (;;) {
    Work work;
    {
      MutexLock lock(&mu_);
      while (queue_.empty() && !stopping_) wake_.Wait(&mu_);
      // Without the rest of the queue, which would only be sent into a transport that is closing.
      if (stopping_) return;
      std::pop_heap(queue_.begin(), queue_.end(), LessUrgent);
      work = std::move(queue_.back().work);
      queue_.pop_back();
    }
    Sends sends = work(shard_);
    work = nullptr;  // frees the frame's payload before the wait
    {
      MutexLock lock(&mu_);
      // Copied under the lock before the sends, so that a reader that has seen a reply sees it
      // counted.
      stats_ = shard_.stats();
      held_ = shard_.held();
      most_held_ = shard_.most_held();
    }
    for (size_t i = 0; i < sends.size(); ++i) {
      const FrameType type = sends[i].frame.header.type;
      send_(sends[i].to, std::move(sends[i].frame));
      if (type == FrameType::kReply && i + 1 < sends.size()) FaultPoint("reply.some");
      if (type == FrameType::kRebuild) FaultPoint("rebuild.said");
    }
  }
}

}  // namespace bdn
