#include "tests/support/host_rig.h"

#include <sys/socket.h>

#include <algorithm>

#include "tests/support/rig_parts.h"
#include "worker/host/host_messages.h"

namespace bdn::testing {

std::pair<FileDescriptor, FileDescriptor> SocketPair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) std::abort();
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

HostRig::HostRig(const Options& options) : options_(options), hosts_(options.hosts.size()) {
  std::vector<std::string> flags = options.flags;
  flags.push_back("--workers=" + std::to_string(options.hosts.size()));
  cluster_ = Must(LocalCluster::Create(flags));
  for (const int processes : options.hosts) {
    for (int i = 0; i < std::max(processes, 1); ++i) {
      telemetry_.push_back(std::make_unique<Registry>());
      clients_.emplace_back();
    }
  }
  int ranks = 0;
  for (size_t h = 0; h < hosts_.size(); ++h) {
    hosts_[h].first = ranks;
    ranks += std::max(options.hosts[h], 1);
    if (options.hosts[h] == 0) continue;
    MakeServer(static_cast<int>(h));
  }
  AtOnce(hosts_.size(), [&](size_t h) { Start(static_cast<int>(h)); });
}

void HostRig::MakeServer(int h) {
  hosts_[h].server = std::make_unique<HostServer>(
      HostServer::Options{.processes = options_.hosts[h], .job_id = "job"}, &clock_);
}

void HostRig::Start(int h) {
  const int processes = options_.hosts[h];
  Host& host = hosts_[h];
  Worker::Options of_worker = options_.worker;
  of_worker.join.wanted_rank = h;
  of_worker.join.host = "host " + std::to_string(h) + " of the test";
  of_worker.join.processes = std::max(processes, 1);
  if (host.server != nullptr) {
    of_worker.failed = [&host](const absl::Status& status) { host.server->OnFailure(status); };
    of_worker.presence_changed = [&host, told = of_worker.presence_changed](const Presence& now,
                                                                            int candidates) {
      host.server->OnPresence(now, candidates);
      if (told) told(now, candidates);
    };
  }
  Registry* const telemetry = processes > 0 ? &host.telemetry : telemetry_[host.first].get();
  std::unique_ptr<ControlPlane> control = cluster_->Connect();
  host.control = control.get();
  host.worker = Must(
      Worker::Create(of_worker, &clock_, telemetry, std::move(control), cluster_->MakeTransport()));
  if (host.server == nullptr) {
    clients_[host.first] = std::shared_ptr<Client>(host.worker.get(), [](Client*) {});
    return;
  }
  host.server->Start(nullptr, host.worker.get(), &host.telemetry);
  if (h != options_.attaches_later) AttachProcesses(h);
}

void HostRig::AttachProcesses(int h) {
  const int processes = options_.hosts[h];
  Host& host = hosts_[h];
  const std::string& codec = options_.codec;
  AtOnce(processes, [&](size_t i) {
    auto [theirs, ours] = SocketPair();
    host.server->Adopt(std::move(ours));
    clients_[host.first + i] =
        Must(HostClient::Attach({.address = "unix:@test",
                                 .local_rank = static_cast<int>(i),
                                 .local_size = processes,
                                 .codec = codec.empty() ? nullptr : Must(ParseHostCodec(codec))},
                                std::move(theirs), &clock_, telemetry_[host.first + i].get()));
  });
}

HostRig::~HostRig() {
  LeaveAll(&clients_);
  AtOnce(hosts_.size(), [this](size_t h) {
    Host& host = hosts_[h];
    host.worker->Close();  // ends the waits of the daemon's calls
    if (host.server != nullptr) host.server->Close();
    host.worker.reset();
  });
}

void HostRig::StartAgain(int h) {
  Host& host = hosts_[h];
  for (int i = 0; i < options_.hosts[h]; ++i) clients_[host.first + i].reset();
  host.worker->Close();
  host.server->Close();
  host.worker.reset();
  MakeServer(h);
  Start(h);
}

void HostRig::StopDaemon(int host) { hosts_[host].server->Close(); }

void HostRig::OnEach(const std::function<void(Client&, int)>& body) { OnEachOf(&clients_, body); }

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
