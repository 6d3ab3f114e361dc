#ifndef BANDONEON_SCHEDULER_HOST_ORDER_H_
#define BANDONEON_SCHEDULER_HOST_ORDER_H_

#include "common/cluster/membership.h"

namespace bdn {

// Whether `a` comes before `b` where ranks are given out. By the host's name, with runs of digits as
// numbers, so that node2 comes before node10; then by process id; then by data address; then by id,
// which is the order of coming. `host` is "hostname:pid", and all of it a name where it is not.
bool ComesBefore(const NodeInfo& a, const NodeInfo& b);

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_HOST_ORDER_H_
