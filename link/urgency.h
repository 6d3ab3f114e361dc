#ifndef BANDONEON_LINK_URGENCY_H_
#define BANDONEON_LINK_URGENCY_H_

#include <cstdint>
#include <tuple>

#include "common/base/ids.h"

// The orders of the queues that a key passes, for the job and for its replay.

namespace bdn {

// The place of a task in a worker's queue: the higher priority first, then the earlier step, then
// the lower key. Keys are rotated by the worker's rank, so that not all workers send to the same
// server first.
struct TaskUrgency {
  int32_t priority = 0;
  Step step = 0;
  Key key;
};
inline Key RotatedKey(Key key, Rank rank) { return Key{key.value ^ static_cast<uint64_t>(rank)}; }
inline bool IsLessUrgent(const TaskUrgency& a, const TaskUrgency& b) {
  return std::tie(b.priority, a.step, a.key) > std::tie(a.priority, b.step, b.key);
}

// The place of a push in its shard's queue, or of a reply in the queue of its connection: the
// higher priority first, then what came first.
struct ArrivalUrgency {
  int64_t priority = 0;
  uint64_t number = 0;  // in the order of arrival
};
inline bool IsLessUrgent(const ArrivalUrgency& a, const ArrivalUrgency& b) {
  return a.priority != b.priority ? a.priority < b.priority : a.number > b.number;
}

}  // namespace bdn

#endif  // BANDONEON_LINK_URGENCY_H_
