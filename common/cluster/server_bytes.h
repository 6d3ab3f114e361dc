#ifndef BANDONEON_COMMON_CLUSTER_SERVER_BYTES_H_
#define BANDONEON_COMMON_CLUSTER_SERVER_BYTES_H_

#include <cstdint>

#include "common/cluster/catalogue.h"

namespace bdn {

// Return about how many bytes the servers hold for a tensor or key between steps: the sum and the
// kept reply, what a lossy pull leaves out, and with a rule the weights and its moments; for a
// broadcast its value. An estimate by the names of specs and rules, too high for the rules that
// keep less.
uint64_t ServerBytes(const TensorDeclaration& tensor);
uint64_t ServerBytes(const KeyEntry& key);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_SERVER_BYTES_H_
