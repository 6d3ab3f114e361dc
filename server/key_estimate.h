#ifndef BANDONEON_SERVER_KEY_ESTIMATE_H_
#define BANDONEON_SERVER_KEY_ESTIMATE_H_

#include "absl/status/status.h"
#include "common/wire/message.h"
#include "server/dense_key.h"
#include "server/key_plan.h"

// An estimate of a dense key whose pushes nobody has any more, because a worker was lost together
// with the key's server. It stands at the last step that any worker has, with the reply that all
// workers got, or will get. So no worker goes back, and all go on with the same weights. What the
// server owed of the replies, its residual, is lost; a rule's moments and counts are those of the
// newest snapshot, or begin anew.

namespace bdn {

// Returns the most bytes of a given reply.
uint64_t MaxGivenBytes(const KeyPlan& plan);
// Checks a reply against the key's codecs, before its payload may be sent to workers.
absl::Status CheckGiven(const KeyPlan& plan, const GivenReply& given);

// Sets the weights and the residual to what is known of them after the last reply of a worker;
// `state` is that of the newest snapshot, or empty. InvalidArgument says what does not fit the key;
// then `state` is of no use.
absl::Status EstimateFrom(const KeyPlan& plan, const GivenReply& given, DenseState* state);

}  // namespace bdn

#endif  // BANDONEON_SERVER_KEY_ESTIMATE_H_
