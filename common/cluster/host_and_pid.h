#ifndef BANDONEON_COMMON_CLUSTER_HOST_AND_PID_H_
#define BANDONEON_COMMON_CLUSTER_HOST_AND_PID_H_

#include <string>

namespace bdn {

// "hostname:pid" of this process: what a node is called in messages for people.
std::string HostAndPid();

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_HOST_AND_PID_H_
