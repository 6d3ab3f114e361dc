#ifndef BANDONEON_COMMON_BASE_PROCESSORS_H_
#define BANDONEON_COMMON_BASE_PROCESSORS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// The processors that a process may use, and how much of their time.

namespace bdn {

// Parses "0-3,8", as Linux writes it: rising, each processor once. InvalidArgument shows the part
// that is wrong.
absl::StatusOr<std::vector<int>> ParseProcessorList(std::string_view text);
std::string ProcessorListText(const std::vector<int>& processors);

// Returns the processors on which this process may run, rising.
std::vector<int> AllowedProcessors();
// Returns how many processors' time this process can have: the number on which it may run, or less
// where its control group, or one around it, has a lower limit. At least 1. `root` is where the
// system's files are, for tests.
double UsableProcessors(const std::string& root = "");

// Reads a setting: a list as above, "nodeN" for the processors of a NUMA node, or "" for all on
// which this process may run. InvalidArgument: a processor is not one of these, or there is no such
// node.
absl::StatusOr<std::vector<int>> ReadProcessors(const std::string& text,
                                                const std::string& root = "");
// Keeps this thread, and the threads that it starts, to these processors from now on; memory that
// they touch first is of their NUMA node.
absl::Status KeepToProcessors(const std::vector<int>& processors);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_PROCESSORS_H_
