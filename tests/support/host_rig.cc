#include "tests/support/host_rig.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "worker/host/host_messages.h"

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

std::pair<FileDescriptor, FileDescriptor> SocketPair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) std::abort();
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

HostRig::HostRig(const Options& options) : hosts_(options.hosts.size()) {
  std::vector<std::string> flags = options.flags;
  flags.push_back("--workers=" + std::to_string(options.hosts.size()));
  cluster_ = Must(LocalCluster::Create(flags));
  for (const int processes : options.hosts) {
    for (int i = 0; i < std::max(processes, 1); ++i) {
      telemetry_.push_back(std::make_unique<Registry>());
      clients_.emplace_back();
    }
  }
  int first = 0;
  std::vector<std::thread> threads;
  for (size_t h = 0; h < hosts_.size(); ++h) {
    const int processes = options.hosts[h];
    const int of_host = std::max(processes, 1);
    Host& host = hosts_[h];
    if (processes > 0) {
      host.server = std::make_unique<HostServer>(
          HostServer::Options{
              .processes = processes, .job_id = "job", .wait_timeout = options.wait_timeout},
          &clock_);
    }
    threads.emplace_back([this, &options, &host, h, first, processes, of_host] {
      Worker::Options of_worker = options.worker;
      of_worker.join.wanted_rank = static_cast<Rank>(h);
      of_worker.join.host = "host " + std::to_string(h) + " of the test";
      of_worker.join.processes = of_host;
      if (host.server != nullptr) {
        of_worker.failed = [&host](const absl::Status& status) { host.server->OnFailure(status); };
      }
      Registry* const telemetry = processes > 0 ? &host.telemetry : telemetry_[first].get();
      host.worker = Must(Worker::Create(of_worker, &clock_, telemetry, cluster_->Connect(),
                                        cluster_->MakeTransport()));
      if (host.server == nullptr) {
        clients_[first] = std::shared_ptr<Client>(host.worker.get(), [](Client*) {});
        return;
      }
      host.server->Start(nullptr, host.worker.get(), &host.telemetry);
      std::vector<std::thread> attaching;
      for (int i = 0; i < processes; ++i) {
        attaching.emplace_back([this, &options, &host, first, i, processes] {
          auto [theirs, ours] = SocketPair();
          host.server->Adopt(std::move(ours));
          clients_[first + i] = Must(HostClient::Attach(
              {.address = "unix:@test",
               .local_rank = i,
               .local_size = processes,
               .codec = options.codec.empty() ? nullptr : Must(ParseHostCodec(options.codec))},
              std::move(theirs), &clock_, telemetry_[first + i].get()));
        });
      }
      for (std::thread& thread : attaching) thread.join();
    });
    first += of_host;
  }
  for (std::thread& thread : threads) thread.join();
}

HostRig::~HostRig() {
  // Leaving waits for the others: all at once. Those who cannot, go without.
  std::vector<std::thread> threads;
  for (auto& client : clients_) {
    if (client == nullptr) continue;
    threads.emplace_back([&client] {
      (void)client->Leave(absl::Seconds(10));
      client.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  for (Host& host : hosts_) {
    threads.emplace_back([&host] {
      host.worker->Close();  // ends the waits of the daemon's calls
      if (host.server != nullptr) host.server->Close();
      host.worker.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void HostRig::StopDaemon(int host) { hosts_[host].server->Close(); }

void HostRig::OnEach(const std::function<void(Client&, int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    if (clients_[rank] == nullptr) continue;
    threads.emplace_back([this, rank, &body] { body(*clients_[rank], rank); });
  }
  for (std::thread& thread : threads) thread.join();
}

uint64_t HostRig::Counter(int rank, const std::string& name) const {
  for (const Sample& sample : telemetry_[rank]->Collect()) {
    if (sample.metric->name == name) return sample.value;
  }
  std::cerr << "no counter " << name << std::endl;
  std::abort();
}

absl::StatusOr<PushResult> PushPull(Client& client, uint32_t tensor, std::vector<float>& data,
                                    PushRequest request) {
  request.tensor = tensor;
  request.data = {data.data(), DType::kFloat32, data.size()};
  auto ticket = client.PushPull(std::move(request));
  if (!ticket.ok()) return ticket.status();
  return client.Wait(*ticket, absl::Minutes(1));
}

}  // namespace bdn::testing
