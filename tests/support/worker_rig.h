#ifndef BANDONEON_TESTS_SUPPORT_WORKER_RIG_H_
#define BANDONEON_TESTS_SUPPORT_WORKER_RIG_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "worker/local/local_cluster.h"
#include "worker/worker.h"

namespace bdn::testing {

// A whole local cluster in this process: real shells and state machines, loopback transport.
class ClusterRig {
 public:
  // `flags` as LocalCluster's ("--servers=2"); `workers` comes first.
  explicit ClusterRig(int workers, std::vector<std::string> flags = {},
                      Worker::Options options = {},
                      LocalCluster::TransportFactory make_transport = nullptr);
  ~ClusterRig();

  int size() const { return static_cast<int>(workers_.size()); }
  Worker& worker(int rank) { return *workers_[rank]; }
  // Runs `body` for every rank at once, on a thread each, and waits.
  void OnEach(const std::function<void(Worker& worker, int rank)>& body);
  // Returns the memory that all servers hold.
  HeldBytes held() const { return cluster_->held(); }
  // Ends a worker without leaving, as if its process had died.
  void Kill(int rank) { workers_[rank].reset(); }

 private:
  const SteadyClock clock_;
  Registry telemetry_;
  std::unique_ptr<LocalCluster> cluster_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

TensorDeclaration Tensor(const std::string& name, uint64_t elements,
                         const std::string& push = "none", const std::string& pull = "none");
// Pushes and waits, a minute at most.
absl::StatusOr<PushResult> PushPull(Worker& worker, uint32_t tensor, std::vector<float>& data,
                                    float loss_scale = 1.0f);

}  // namespace bdn::testing

#endif  // BANDONEON_TESTS_SUPPORT_WORKER_RIG_H_
