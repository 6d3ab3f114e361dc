#include "tests/support/worker_rig.h"

#include <cstdlib>
#include <iostream>
#include <thread>

namespace bdn::testing {
namespace {

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::cerr << value.status() << std::endl;
    std::abort();
  }
  return *std::move(value);
}

}  // namespace

ClusterRig::ClusterRig(int workers, std::vector<std::string> flags, Worker::Options options,
                       LocalCluster::TransportFactory make_transport)
    : workers_(workers) {
  flags.push_back("--workers=" + std::to_string(workers));
  cluster_ = Must(make_transport ? LocalCluster::Create(flags, std::move(make_transport))
                                 : LocalCluster::Create(flags));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < workers; ++rank) {
    threads.emplace_back([this, rank, options]() mutable {
      options.join.wanted_rank = rank;
      options.join.host = "worker " + std::to_string(rank) + " of the test";
      workers_[rank] = Must(Worker::Create(options, &clock_, &telemetry_, cluster_->Connect(),
                                           cluster_->MakeTransport()));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

ClusterRig::~ClusterRig() {
  // Leaving waits for the others: all at once. Those who cannot, go without.
  std::vector<std::thread> threads;
  for (auto& worker : workers_) {
    if (worker == nullptr) continue;
    threads.emplace_back([&worker] {
      (void)worker->Leave(absl::Seconds(10));
      worker.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void ClusterRig::OnEach(const std::function<void(Worker&, int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    if (workers_[rank] == nullptr) continue;
    threads.emplace_back([this, rank, &body] { body(*workers_[rank], rank); });
  }
  for (std::thread& thread : threads) thread.join();
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
