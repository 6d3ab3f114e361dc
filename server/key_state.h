#ifndef BANDONEON_SERVER_KEY_STATE_H_
#define BANDONEON_SERVER_KEY_STATE_H_

#include <memory>

#include "server/broadcast_key.h"
#include "server/dense_key.h"
#include "server/key_plan.h"

namespace bdn {

// Everything a server holds of one key: a value, copyable, that can be snapshotted and compared.
// The plan says which of the two kinds it is; the other's state stays empty.
struct KeyState {
  std::shared_ptr<const KeyPlan> plan;
  DenseState dense;
  BroadcastState broadcast;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_KEY_STATE_H_
