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

// A part of the state that this worker's end of a tensor's link keeps. kReplica: the weights that
// servers hold, as this worker has followed them. kLearningRate: that of the step that left the
// residual.
enum class LinkState { kResidual, kMomentum, kReplica, kLearningRate };

// Return the part of this name. InvalidArgument lists the names that exist; for a server, those of
// float32 parts.
absl::StatusOr<LinkState> LinkStateNamed(std::string_view name);
absl::StatusOr<StatePart> ServerPartNamed(std::string_view name);

// A call that reads or sets the state of a tensor, at this worker's end of its link or at its
// servers. Client::Perform makes it, and borrows its arrays until it returns. A value.
//
// Arrays are float32[elements of the tensor], or float32[1] for kLearningRate. Some of a tensor's
// partitions may not keep a part at the servers, as those too small to be compressed; their
// elements are read as 0.
struct StateCall {
  enum class What {
    // Reads a part into `out`, zeros where nothing was kept yet, or sets it from `in`. At a link,
    // `in` must be finite. At the servers, kSet also sets `step`, the step at which the tensor
    // stands there, and with the weights the replica.
    kGet,
    kSet,
    // Reads or sets the last step that was pushed, at a link. The next push is that step + 1. It
    // cannot be set back: InvalidArgument.
    kGetStep,
    kSetStep,
    // Reads or sets `counters`, at the servers; kSetCounters sets `step`, too.
    kGetCounters,
    kSetCounters,
    // Replaces the rule of `tensors` at the servers by `rule`, of the declared rule's kind, from
    // the next step on. Where some servers refuse it, others may have taken it.
    kSetRule,
    // Reads into `out` the weights as every worker holds them, on which later replies build. Every
    // worker does it after they were set and before its first push; else its first reply fetches
    // them.
    kFetchWeights,
    // Does the same where `out` already holds weights that may be equal: parts that are equal by
    // their digest are not sent, and stay as they are. A process with a host daemon is sent all of
    // them.
    kSyncWeights,
  };
  enum class Where { kThisLink, kServer };

  What what = What::kGet;
  Where where = Where::kThisLink;
  uint32_t tensor = 0;
  LinkState link_part = LinkState::kResidual;  // of kGet and kSet at kThisLink
  StatePart server_part = StatePart::kNone;    // of kGet and kSet at kServer: a float32 part
  Step step = 0;
  std::span<float> out = {};
  std::span<const float> in = {};
  StateCounters counters = {};
  std::span<const uint32_t> tensors = {};  // of kSetRule, which ignores `tensor`
  std::string rule = {};

  // Returns the tensors that the call is about.
  std::span<const uint32_t> subjects() const {
    return what == What::kSetRule ? tensors : std::span<const uint32_t>(&tensor, 1);
  }
  // Returns whether the call fills `out`.
  bool fills_out() const;
  // Returns whether the call only reads, so that it changes nothing at the servers.
  bool reads() const;
};

// Returns the number of floats in the array that the call reads or sets, for a tensor of so many
// elements.
uint64_t ElementsOf(const StateCall& call, uint64_t tensor_elements);

// A tensor that a call is about, as it is at this worker.
struct StateSubject {
  const TensorDeclaration* declaration;
  Step pushed;   // the last step that was pushed
  bool is_idle;  // no exchange of it is in flight
};

// Checks a call without asking another node: the part that it reads or sets exists where the call
// looks for it, its arrays are there and have the tensor's size, its numbers can be set, and its
// tensors are idle, which all calls but kGetStep need. `subjects` are the tensors of
// call.subjects(), in order.
absl::Status CheckStateCall(const StateCall& call, std::span<const StateSubject> subjects);

}  // namespace bdn

#endif  // BANDONEON_WORKER_STATE_CALL_H_
