// A server or a worker of a job whose transport may be one of kTestTransports:
//
//   job_node schemes                        prints the schemes of these and of "ipc", one a line
//   job_node server SETTINGS...             serves one job, as bandoneon-server does
//   job_node worker SCHEME SETTINGS...      trains over that scheme, and checks every value
//
// tests/system/transport_job_test.py runs it with a scheduler. Exits with 0 when all was right.

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/status.h"
#include "common/cluster/scheduler_client.h"
#include "common/cluster/settings.h"
#include "common/telemetry/registry.h"
#include "server/server.h"
#include "server/server_options.h"
#include "tests/transport/test_transports.h"
#include "worker/host/worker_join.h"

namespace bdn {
namespace {

constexpr absl::Duration kLong = absl::Minutes(1);
constexpr int kSteps = 10;

absl::Status Serve(const std::vector<std::string>& flags) {
  const SteadyClock clock;
  Registry telemetry;
  BDN_ASSIGN_OR_RETURN(const Config config,
                       Config::Load(ServerSettings(), flags, ReadEnvironment(), AllSettings()));
  BDN_ASSIGN_OR_RETURN(ServerOptions options, ReadServerOptions(config));
  options.transport.clock = &clock;
  BDN_ASSIGN_OR_RETURN(
      const auto control,
      SchedulerClient::Create(options.scheduler, options.server.credentials, &clock));
  BDN_ASSIGN_OR_RETURN(const auto transport,
                       MakeTransport(options.server.listen, options.transport, kTestTransports));
  Server server(options.server, &telemetry, control.get(), transport.get());
  BDN_RETURN_IF_ERROR(server.Start());
  BDN_RETURN_IF_ERROR(server.Wait());
  return control->Leave(absl::OkStatus(), kLong);
}

absl::StatusOr<std::unique_ptr<Worker>> Join(const std::string& scheme,
                                             const std::vector<std::string>& flags,
                                             const Clock* clock, Registry* telemetry) {
  BDN_ASSIGN_OR_RETURN(const Config config,
                       Config::Load(WorkerSettings(), flags, ReadEnvironment(), AllSettings()));
  BDN_ASSIGN_OR_RETURN(const Worker::Options options, ReadWorkerOptions(config));
  BDN_ASSIGN_OR_RETURN(const Credentials credentials, Credentials::Load(config, "worker"));
  BDN_ASSIGN_OR_RETURN(auto control,
                       SchedulerClient::Create(config.Text("scheduler"), credentials, clock));
  BDN_ASSIGN_OR_RETURN(const TransportOptions ways, ReadConnectorOptions(config, clock));
  BDN_ASSIGN_OR_RETURN(auto transport, MakeTransport(scheme, ways, kTestTransports));
  return Worker::Create(options, clock, telemetry, std::move(control), std::move(transport));
}

// The gradient of (w - target)^2 / 2 as this rank sees it; the mean over the ranks is exact in
// float32, because all numbers are small multiples of 1/1024.
float Gradient(float weight, size_t i, Rank rank) {
  const float target = static_cast<float>(i % 7) + (rank == 0 ? 1.0f : -1.0f);
  return weight - target;
}

// Trains by gradient descent with a rate of 1/2, and does the same by plain arithmetic beside it.
absl::Status Train(Worker* worker) {
  // Of many partitions, each far longer than a socket's buffer; and a short one.
  const std::vector<size_t> sizes = {1000000, 10};
  std::vector<TensorDeclaration> declarations;
  for (const size_t size : sizes) {
    declarations.push_back({.name = absl::StrFormat("w%d", size), .elements = size});
  }
  BDN_ASSIGN_OR_RETURN(const auto tensors, worker->Declare(declarations, kLong));
  std::vector<std::vector<float>> weights = {std::vector<float>(sizes[0]),
                                             std::vector<float>(sizes[1])};
  std::vector<std::vector<float>> plain = weights;
  for (int step = 1; step <= kSteps; ++step) {
    for (size_t t = 0; t < tensors.size(); ++t) {
      std::vector<float> gradient(sizes[t]);
      for (size_t i = 0; i < sizes[t]; ++i) {
        gradient[i] = Gradient(weights[t][i], i, worker->rank());
        plain[t][i] -= 0.5f * (Gradient(plain[t][i], i, 0) + Gradient(plain[t][i], i, 1)) / 2;
      }
      BDN_ASSIGN_OR_RETURN(
          const TicketId ticket,
          worker->PushPull(
              {.tensor = tensors[t], .data = {gradient.data(), DType::kFloat32, sizes[t]}}));
      BDN_RETURN_IF_ERROR(worker->Wait(ticket, kLong).status());
      for (size_t i = 0; i < sizes[t]; ++i) weights[t][i] -= 0.5f * gradient[i];
      if (weights[t] != plain[t]) return Internal("step %d: other weights than plainly", step);
    }
  }
  std::printf("trained: w[6] = %g\n", weights[0][6]);
  return worker->Leave(kLong);
}

absl::Status Run(const std::vector<std::string>& words) {
  const std::string what = words.empty() ? "" : words[0];
  if (what == "schemes") {
    std::printf("ipc\n");
    for (const TransportRow& row : kTestTransports) {
      std::printf("%s\n", std::string(row.scheme).c_str());
    }
    return absl::OkStatus();
  }
  if (what == "server") return Serve({words.begin() + 1, words.end()});
  if (what != "worker" || words.size() < 2) return InvalidArgument("see job_node.cc");
  const SteadyClock clock;
  Registry telemetry;
  BDN_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker,
                       Join(words[1], {words.begin() + 2, words.end()}, &clock, &telemetry));
  return Train(worker.get());
}

}  // namespace
}  // namespace bdn

int main(int argc, char** argv) {
  const absl::Status status = bdn::Run({argv + 1, argv + argc});
  if (status.ok()) return 0;
  std::fprintf(stderr, "job_node: %s\n", std::string(status.message()).c_str());
  return 1;
}
