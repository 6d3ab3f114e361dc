#ifndef BANDONEON_COMMON_TELEMETRY_SYSTEM_SAMPLES_H_
#define BANDONEON_COMMON_TELEMETRY_SYSTEM_SAMPLES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/file_descriptor.h"
#include "common/telemetry/recording.h"

namespace bdn {

// Run times and run-queue waits of this process's threads, and the load of the machine, as Linux
// tells them in /proc. The files of threads stay open, as to open one takes twenty times as long as
// to read it. Not thread-safe.
class SystemSamples {
 public:
  // The totals of all processors since the machine started, and the threads that run or could.
  struct Machine {
    uint64_t busy_ns = 0;
    uint64_t idle_ns = 0;
    uint32_t runnable = 0;
  };
  // Returns false where the system does not tell.
  static bool ReadMachine(Machine* machine);

  // Returns the records of all threads and of the machine since the last call, and enters threads
  // that are new in the recording. The first call has none of the machine, nor has a thread's
  // first.
  std::vector<TraceRecord> Take(int64_t now_ns, Recording* recording);

 private:
  struct Thread {
    FileDescriptor schedstat;
    uint64_t ran_ns = 0;
    uint64_t queued_ns = 0;
    int64_t at_ns = 0;
    uint16_t place = kTraceNoThread;
    uint64_t seen = 0;  // the number of the call that has seen it last
  };
  void TakeThreads(int64_t now_ns, Recording* recording, std::vector<TraceRecord>* records);
  void TakeMachine(int64_t now_ns, std::vector<TraceRecord>* records);

  uint64_t calls_ = 0;
  absl::flat_hash_map<uint32_t, Thread> threads_;  // by the system's number
  Machine machine_;
  int64_t machine_at_ns_ = 0;
};

// Returns the first line of a file of /proc; empty where it cannot be read.
std::string ReadProcLine(const char* path);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_SYSTEM_SAMPLES_H_
