#include "scheduler/service_core.h"

#include <random>

#include "common/base/status.h"
#include "common/cluster/control_channel.h"

namespace bdn {
namespace {

uint64_t RandomIncarnation() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random() | 1;
}

}  // namespace

ServiceCore::ServiceCore(JobOptions options, const Clock* clock)
    : clock_(clock),
      credentials_(options.credentials),
      incarnation_(RandomIncarnation()),
      host_(std::move(options), clock) {}

absl::Status ServiceCore::Authorize(const grpc::ServerContext& context) const {
  return CheckToken(credentials_, context);
}

absl::Status ServiceCore::CheckCaller(const bandoneon::control::Caller& caller) const {
  if (caller.incarnation() != incarnation_) {
    return FailedPrecondition("node %d joined a scheduler that is gone", caller.node());
  }
  absl::Status status;
  host_.Read([&](const Job& job, absl::Time) {
    if (job.table().Find(caller.node()) == nullptr) {
      status = NotFound("node %d is not of this job", caller.node());
    }
  });
  return status;
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
