#ifndef BANDONEON_COMMON_TRANSPORT_TRANSPORT_COUNTERS_H_
#define BANDONEON_COMMON_TRANSPORT_TRANSPORT_COUNTERS_H_

#include <atomic>
#include <cstdint>

#include "common/transport/transport.h"

namespace bdn {

// One number of a transport's statistics. It publishes nothing else, so all accesses are relaxed.
// Thread-safe.
class TransportCounter {
 public:
  void Add(uint64_t by = 1) { value_.fetch_add(by, std::memory_order_relaxed); }
  void Remove(uint64_t by = 1) { value_.fetch_sub(by, std::memory_order_relaxed); }
  void Set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  uint64_t Read() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// The live counters behind TransportStats, whose fields say what each one counts. Thread-safe.
struct TransportCounters {
  TransportCounter frames_sent;
  TransportCounter frames_received;
  TransportCounter bytes_sent;
  TransportCounter bytes_received;
  TransportCounter frames_malformed;
  TransportCounter sends_failed;
  TransportCounter connections_refused;
  TransportCounter connections_cut;
  TransportCounter connections_new;
  TransportCounter connections_open;
  TransportCounter bytes_queued;

  TransportStats Read() const {
    return {.frames_sent = frames_sent.Read(),
            .frames_received = frames_received.Read(),
            .bytes_sent = bytes_sent.Read(),
            .bytes_received = bytes_received.Read(),
            .frames_malformed = frames_malformed.Read(),
            .sends_failed = sends_failed.Read(),
            .connections_refused = connections_refused.Read(),
            .connections_cut = connections_cut.Read(),
            .connections_new = connections_new.Read(),
            .connections_open = connections_open.Read(),
            .bytes_queued = bytes_queued.Read()};
  }
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_TRANSPORT_COUNTERS_H_
