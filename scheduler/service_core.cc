#include "scheduler/service_core.h"

#include <optional>

#include "common/base/status.h"
#include "common/cluster/control_channel.h"

namespace bdn {
namespace {

// The most nonces that are kept: several for every node that a job can have.
constexpr size_t kMostNonces = size_t{1} << 17;

}  // namespace

ServiceCore::ServiceCore(JobOptions options, const Clock* clock, JobHost::Logged logged)
    : clock_(clock),
      credentials_(options.credentials),
      newcomers_({}, clock),
      host_(std::move(options), clock, std::move(logged)),
      refusal_log_(clock) {}

const Method* ServiceCore::FindMethod(const std::string& name) const {
  const auto found = methods_.find(name);
  return found == methods_.end() ? nullptr : &found->second;
}

absl::Status ServiceCore::Authorize(const grpc::ServerContext& context) {
  absl::Status status = bdn::CheckCaller(credentials_, context);
  if (!newcomers_.empty()) newcomers_.OnCall(context.peer(), status.ok());
  if (status.ok()) return status;
  calls_refused.fetch_add(1, std::memory_order_relaxed);
  refusal_log_.Warning("refused a call: %s", Printable(std::string(status.message())));
  return status;
}

absl::Status ServiceCore::CheckCaller(const bandoneon::control::Caller& caller) const {
  std::optional<uint64_t> join_id;
  bool was_forgotten = false;
  host_.Read([&](const Job& job, absl::Time) {
    const MembershipTable::Member* member = job.table().Find(caller.node());
    if (member != nullptr && job.table().frozen()) join_id = member->join_id;
    was_forgotten = job.table().WasForgotten(caller.node());
  });
  if (was_forgotten) {
    return Evicted("the job goes on without node %d, which waited to be taken in", caller.node());
  }
  if (!join_id.has_value()) return NotFound("node %d is not of this job", caller.node());
  if (*join_id == caller.incarnation()) return absl::OkStatus();
  return FailedPrecondition("who calls as node %d joined a scheduler that is gone, or is another",
                            caller.node());
}

absl::Status ServiceCore::TakeNonce(uint64_t nonce) {
  MutexLock lock(&mu_);
  if (nonces_.size() >= kMostNonces) {
    return ResourceExhausted("more than %d nodes have asked to join", kMostNonces);
  }
  if (nonces_.insert(nonce).second) return absl::OkStatus();
  return AlreadyExists("this very Join came before: it is a repetition of another's");
}

void ServiceCore::RunQueue() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) static_cast<Tag*>(tag)->Run(ok);
}

void ServiceCore::ShutQueue() {
  is_closing_ = true;
  queue_->Shutdown();
}

}  // namespace bdn
