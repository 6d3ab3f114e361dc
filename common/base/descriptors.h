#ifndef BANDONEON_COMMON_BASE_DESCRIPTORS_H_
#define BANDONEON_COMMON_BASE_DESCRIPTORS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace bdn {

// Raises this process's soft limit of open descriptors to its hard one. To be called once, at the
// start.
void RaiseDescriptorLimit();

// Returns ResourceExhausted where `needed` descriptors, and some more for what every process has
// open, cannot be open at once. The error names `who`, the process that needs them, the limit, and
// how to raise it.
absl::Status CheckDescriptors(uint64_t needed, const std::string& who);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_DESCRIPTORS_H_
