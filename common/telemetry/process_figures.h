#ifndef BANDONEON_COMMON_TELEMETRY_PROCESS_FIGURES_H_
#define BANDONEON_COMMON_TELEMETRY_PROCESS_FIGURES_H_

#include <cstdint>

namespace bdn {

// The system's figures about this process. A figure that the system does not give is 0.
struct ProcessFigures {
  double cpu_seconds = 0;    // of all threads, in user and kernel mode
  double start_seconds = 0;  // when the process began, in seconds since 1970
  uint64_t resident_bytes = 0;
  uint64_t open_descriptors = 0;
  uint64_t threads = 0;
};
ProcessFigures ReadProcessFigures();

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_PROCESS_FIGURES_H_
