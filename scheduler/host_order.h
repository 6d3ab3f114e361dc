#ifndef BANDONEON_SCHEDULER_HOST_ORDER_H_
#define BANDONEON_SCHEDULER_HOST_ORDER_H_

#include "common/cluster/membership.h"

namespace bdn {

// Returns whether `a` comes before `b` where ranks are given out: by the machine's name, with runs
// of digits as numbers, so that node2 comes before node10; then by process id; then by data
// address; then by node id, which is the order of joining. `host` is "hostname:pid"; where it is
// not, all of it is the name.
bool ComesBefore(const NodeInfo& a, const NodeInfo& b);

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_HOST_ORDER_H_
