#ifndef BANDONEON_SERVER_KEY_STATE_H_
#define BANDONEON_SERVER_KEY_STATE_H_

#include <memory>

#include "server/broadcast_key.h"
#include "server/dense_key.h"
#include "server/key_plan.h"
#include "server/key_rebuild.h"
#include "server/rows/row_key.h"

namespace bdn {

// The state that a server holds for one key. A value, so that a copy is a snapshot. The plan says
// which of the kinds the key is; the state of the others is not used.
struct KeyState {
  std::shared_ptr<const KeyPlan> plan;
  DenseState dense;
  BroadcastState broadcast;
  RowState rows;
  KeyRebuild rebuild;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_KEY_STATE_H_
