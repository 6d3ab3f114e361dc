#ifndef BANDONEON_SERVER_MEMORY_BUDGET_H_
#define BANDONEON_SERVER_MEMORY_BUDGET_H_

#include <atomic>
#include <cstdint>

namespace bdn {

// A count of the bytes that all shards of a server hold for their keys, with a limit. Allows only
// tells: it reserves nothing. Thread-safe.
class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  uint64_t max_bytes() const { return max_bytes_; }
  bool Allows(uint64_t more) const {
    const uint64_t held = held_.load(std::memory_order_relaxed);
    return held <= max_bytes_ && more <= max_bytes_ - held;
  }
  // Counts that one shard, which held `before` bytes, now holds `after`.
  void Change(uint64_t before, uint64_t after) {
    held_.fetch_add(after - before, std::memory_order_relaxed);
  }

 private:
  const uint64_t max_bytes_;
  std::atomic<uint64_t> held_{0};  // a count; publishes nothing else
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_MEMORY_BUDGET_H_
