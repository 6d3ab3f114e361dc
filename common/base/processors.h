#ifndef BANDONEON_COMMON_BASE_PROCESSORS_H_
#define BANDONEON_COMMON_BASE_PROCESSORS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Which processors a process may use, and how much of them.

namespace bdn {

// "0-3,8" as Linux writes it: rising, each once. InvalidArgument shows the part that is wrong.
absl::StatusOr<std::vector<int>> ParseProcessorList(std::string_view text);
std::string ProcessorListText(const std::vector<int>& processors);

// Those that this process may run on, rising.
std::vector<int> AllowedProcessors();
// How many processors' time this process can have: those that it may run on, or less where its control
// group, or one around it, has less. At least 1. `root` is where the system's files are, for tests.
double UsableProcessors(const std::string& root = "");

// A setting: a list as above, "nodeN" for those of a NUMA node, or nothing for all that this process may
// run on. InvalidArgument: a processor is not one of those, or there is no such node.
absl::StatusOr<std::vector<int>> ReadProcessors(const std::string& text,
                                                const std::string& root = "");
// From now on this thread, and those that it starts, run on these alone; memory that they touch first is
// of their node.
absl::Status KeepToProcessors(const std::vector<int>& processors);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_PROCESSORS_H_
