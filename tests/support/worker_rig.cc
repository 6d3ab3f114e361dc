#include "tests/support/worker_rig.h"

#include "tests/support/rig_parts.h"

namespace bdn::testing {

ClusterRig::ClusterRig(int workers, std::vector<std::string> flags, Worker::Options options,
                       LocalCluster::TransportFactory make_transport)
    : workers_(workers) {
  flags.push_back("--workers=" + std::to_string(workers));
  cluster_ = Must(make_transport ? LocalCluster::Create(flags, std::move(make_transport))
                                 : LocalCluster::Create(flags));
  AtOnce(workers_.size(), [this, &options](size_t rank) {
    Worker::Options of_worker = options;
    of_worker.join.wanted_rank = static_cast<Rank>(rank);
    of_worker.join.host = "worker " + std::to_string(rank) + " of the test";
    workers_[rank] = Must(Worker::Create(of_worker, &clock_, &telemetry_, cluster_->Connect(),
                                         cluster_->MakeTransport()));
  });
}

ClusterRig::~ClusterRig() { LeaveAll(&workers_); }

void ClusterRig::OnEach(const std::function<void(Worker&, int)>& body) {
  OnEachOf(&workers_, body);
}

TensorDeclaration Tensor(const std::string& name, uint64_t elements, const std::string& push,
                         const std::string& pull) {
  return {.name = name, .elements = elements, .push_spec = push, .pull_spec = pull};
}

absl::StatusOr<PushResult> PushPull(Worker& worker, uint32_t tensor, std::vector<float>& data,
                                    float loss_scale) {
  auto ticket = worker.PushPull({.tensor = tensor,
                                 .data = {data.data(), DType::kFloat32, data.size()},
                                 .loss_scale = loss_scale});
  if (!ticket.ok()) return ticket.status();
  return worker.Wait(*ticket, absl::Minutes(1));
}

}  // namespace bdn::testing
