#ifndef BANDONEON_COMMON_CLUSTER_MEMBERSHIP_HISTORY_H_
#define BANDONEON_COMMON_CLUSTER_MEMBERSHIP_HISTORY_H_

#include "common/cluster/membership.h"
#include "common/telemetry/history_file.h"

namespace bdn {

// Writes that this process knows a membership. Does nothing where `history` is null.
void WriteEpoch(const Membership& membership, HistoryFile* history);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_MEMBERSHIP_HISTORY_H_
