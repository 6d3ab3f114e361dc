#ifndef BANDONEON_COMMON_TELEMETRY_PROCESS_FIGURES_H_
#define BANDONEON_COMMON_TELEMETRY_PROCESS_FIGURES_H_

#include <cstdint>

namespace bdn {

// What the system says of this process. What it does not say is 0.
struct ProcessFigures {
  double cpu_seconds = 0;    // of all threads, in user and kernel mode
  double start_seconds = 0;  // when it began, since 1970
  uint64_t resident_bytes = 0;
  uint64_t open_descriptors = 0;
  uint64_t threads = 0;
};
ProcessFigures ReadProcessFigures();

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_PROCESS_FIGURES_H_
