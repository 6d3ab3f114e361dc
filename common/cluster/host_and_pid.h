#ifndef BANDONEON_COMMON_CLUSTER_HOST_AND_PID_H_
#define BANDONEON_COMMON_CLUSTER_HOST_AND_PID_H_

#include <string>

namespace bdn {

// Returns "hostname:pid" of this process, by which messages for people call a node.
std::string HostAndPid();

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_HOST_AND_PID_H_
