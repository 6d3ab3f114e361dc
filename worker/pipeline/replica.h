#ifndef BANDONEON_WORKER_PIPELINE_REPLICA_H_
#define BANDONEON_WORKER_PIPELINE_REPLICA_H_

#include <optional>
#include <span>
#include <vector>

#include "common/base/buffer.h"
#include "common/base/mutex.h"
#include "common/wire/frame.h"

namespace bdn {

// The weights that every worker holds a copy of, where replies build on them. Only the exchange
// that is under way changes them, under the lock, and it may read them without; other threads copy
// them. Thread-safe so far.
struct Replica {
  mutable Mutex mu;
  std::vector<float> values;  // float32[elements], or empty before their first use
  // The step that left them so. Without one there are no weights yet: they are fetched when the
  // first reply comes.
  std::optional<Step> step;

  // Returns the weights as they are now.
  Buffer CopyNow() const {
    MutexLock lock(&mu);
    return Buffer::CopyOf(std::as_bytes(std::span(values)));
  }
  // Returns the weights as the step left them, float32[elements]; nothing if they are of another.
  std::optional<Buffer> CopyOf(Step of) const {
    MutexLock lock(&mu);
    if (step != of) return std::nullopt;
    return Buffer::CopyOf(std::as_bytes(std::span(values)));
  }
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_REPLICA_H_
