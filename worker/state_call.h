#ifndef BANDONEON_WORKER_STATE_CALL_H_
#define BANDONEON_WORKER_STATE_CALL_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/cluster/catalogue.h"
#include "common/wire/frame.h"
#include "common/wire/message.h"

namespace bdn {

// A part of what this worker's end of a tensor's link remembers. kReplica: the weights that servers
// hold, as this worker has followed them. kLearningRate: that of the step that left the residual.
enum class LinkState { kResidual, kMomentum, kReplica, kLearningRate };

// Returns the part of this name. InvalidArgument lists the names that there are: of a server, those
// of parts of float32.
absl::StatusOr<LinkState> LinkStateNamed(std::string_view name);
absl::StatusOr<StatePart> ServerPartNamed(std::string_view name);

// A call that reads or sets the state of a tensor, at this worker's end of its link or at its
// servers. Client::Perform makes it. Arrays are borrowed until that returns.
//
// Arrays are float32[elements of the tensor], or float32[1] for kLearningRate. At the servers,
// where only some of a tensor's partitions keep a part (those too small to be compressed do not),
// what is read of the others is 0.
struct StateCall {
  enum class What {
    // Reads a part into `out`, zeros where nothing was kept yet, or sets it from `in`. At a link,
    // `in` is finite. At the servers, kSet also sets `step`, at which the tensor stands there, and
    // with the weights the replica.
    kGet,
    kSet,
    // Reads or sets the last step that was pushed, at a link. The next push is that step + 1.
    kGetStep,
    kSetStep,
    // Reads or sets `counters`, at the servers; kSetCounters sets `step`, too.
    kGetCounters,
    kSetCounters,
    // Puts `rule`, at the servers, in the place of the declared one and of its kind, from the next
    // step of `tensors` on. Where some servers refuse it, others may have taken it.
    kSetRule,
    // Reads into `out` the weights as every worker holds them, which later replies build on. Every
    // worker does it after they were set and before its first push; else its first reply fetches
    // them.
    kFetchWeights,
    // Does the same where `out` holds what the weights may be: what is equal by its digest is not
    // sent, and stays. A process with a host's daemon is sent all of them.
    kSyncWeights,
  };
  enum class Where { kThisLink, kServer };

  What what = What::kGet;
  Where where = Where::kThisLink;
  uint32_t tensor = 0;
  LinkState link_part = LinkState::kResidual;  // of kGet and kSet at kThisLink
  StatePart server_part = StatePart::kNone;    // of kGet and kSet at kServer: one of float32
  Step step = 0;
  std::span<float> out = {};
  std::span<const float> in = {};
  StateCounters counters = {};
  std::span<const uint32_t> tensors = {};  // of kSetRule, which does not look at `tensor`
  std::string rule = {};

  // Returns the tensors that the call is about.
  std::span<const uint32_t> subjects() const {
    return what == What::kSetRule ? tensors : std::span<const uint32_t>(&tensor, 1);
  }
  // Tells whether the call fills `out`.
  bool fills_out() const;
  // Tells whether the call only reads: then it changes nothing at the servers.
  bool reads() const;
};

// Returns how many floats the array has that the call reads or sets of a tensor of so many
// elements.
uint64_t ElementsOf(const StateCall& call, uint64_t tensor_elements);

// A tensor that a call is about, as it is at this worker.
struct StateSubject {
  const TensorDeclaration* declaration;
  Step pushed;   // the last step that was pushed
  bool is_idle;  // nothing of it is in flight
};

// Checks a call without asking anybody else: what it reads or sets is kept where the call looks for
// it, its arrays are there and have the tensor's size, its numbers can be set, and its tensors are
// idle, which all but kGetStep need. `subjects` are those of call.subjects(), in order.
//
// InvalidArgument: the call is wrong in itself. FailedPrecondition: a tensor is in flight.
absl::Status CheckStateCall(const StateCall& call, std::span<const StateSubject> subjects);

}  // namespace bdn

#endif  // BANDONEON_WORKER_STATE_CALL_H_
