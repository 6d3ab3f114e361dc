#include "tests/support/simulated_job.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/endian.h"
#include "common/wire/headers.h"
#include "common/wire/message.h"
#include "server/session_table.h"
#include "server/shard_map.h"
#include "tests/support/shard_rig.h"

namespace bdn::testing {
namespace {

constexpr char kJob[] = "simulated";
constexpr ConnectionId kNoConnection = 0;
constexpr NodeId kFirstServer = 1'000'000;  // beyond all workers

[[noreturn]] void Die(const absl::Status& status) {
  std::fprintf(stderr, "simulated job: %s\n", status.ToString().c_str());
  std::abort();
}

std::string AddressOf(Rank server) { return "loopback://server-" + std::to_string(server); }

struct Received {
  ConnectionId from = 0;
  Frame frame;
};

// Returns the end of the run of frames of one type that begins at `begin`. A run is measured as
// one.
template <typename Frames, typename TypeOf>
size_t EndOfRun(const Frames& frames, size_t begin, const TypeOf& type_of) {
  size_t end = begin;
  while (end < frames.size() && type_of(frames[end]) == type_of(frames[begin])) ++end;
  return end;
}

}  // namespace

struct SimulatedJob::Worker {
  explicit Worker(const RequestTable::Options& options) : table(options) {}

  RequestTable table;
  std::unique_ptr<Transport> transport;
  std::vector<ConnectionId> connections;  // by server
  absl::flat_hash_map<ConnectionId, NodeId> servers;
  std::vector<Received> inbox;
  std::vector<std::pair<Key, uint64_t>> sent;  // requests that are out
  bool is_stalled = false;                     // what arrives stays in the inbox
};

struct SimulatedJob::Server {
  explicit Server(NodeId self) : node(self), sessions(kJob, ""), shard({.self = self}) {}

  const NodeId node;
  std::unique_ptr<Transport> transport;
  SessionTable sessions;
  ShardMap shard_map;
  ServerShard shard;
  std::vector<Received> inbox;
};

SimulatedJob::SimulatedJob(const Shape& shape, Meter meter)
    : shape_(shape), meter_(std::move(meter)) {
  auto all = std::make_shared<Membership>();
  all->epoch = 1;
  for (Rank rank = 0; rank < shape.workers; ++rank) {
    all->workers.push_back({.id = WorkerNode(rank), .role = Role::kWorker, .rank = rank});
  }
  for (Rank rank = 0; rank < shape.servers; ++rank) {
    all->servers.push_back({.id = kFirstServer + static_cast<NodeId>(rank),
                            .role = Role::kServer,
                            .rank = rank,
                            .endpoints = {EndpointOf(AddressOf(rank))}});
  }
  all->MakeIndex();
  auto of_workers = std::make_shared<Membership>();
  of_workers->epoch = 1;
  of_workers->servers = all->servers;
  of_workers->MakeIndex();

  for (const NodeInfo& info : all->servers) {
    auto& server = servers_.emplace_back(std::make_unique<Server>(info.id));
    server->sessions.SetMembership(all);
    server->shard.SetMembership(all);
    server->transport = network_.MakeTransport();
    server->transport->Start(
        [server = server.get()](ConnectionId from, Frame frame) {
          server->inbox.push_back({from, std::move(frame)});
        },
        [server = server.get()](ConnectionId gone) { server->sessions.Forget(gone); });
    if (const auto at = server->transport->Listen(UrlOf(info.endpoints.at(0))); !at.ok())
      Die(at.status());
  }
  for (int key = 0; key < shape.dense_keys + shape.broadcast_keys; ++key) {
    KeyOptions options{.segments = {shape.elements}};
    if (key >= shape.dense_keys) options.kind = KeyKind::kBroadcast;
    Server& server = *servers_[static_cast<size_t>(key % shape.servers)];
    server.shard_map.Add(MakeEntry(KeyOf(key), options));
    server.shard.AddKey(MakePlan(KeyOf(key), options));
  }
  for (const auto& server : servers_) server->shard.SetCatalogueVersion(1);
  for (Rank rank = 0; rank < shape.workers; ++rank) {
    auto& worker = workers_.emplace_back(
        std::make_unique<Worker>(RequestTable::Options{.self = WorkerNode(rank),
                                                       .rank = rank,
                                                       .job_id = kJob,
                                                       .probe_interval = shape.probe_interval}));
    worker->transport = network_.MakeTransport();
    worker->transport->Start([worker = worker.get()](ConnectionId from, Frame frame) {
      worker->inbox.push_back({from, std::move(frame)});
    });
    worker->connections.resize(servers_.size());
    for (size_t i = 0; i < servers_.size(); ++i) Connect(worker.get(), i);
    std::vector<RequestTable::Actions> hellos;
    hellos.push_back(worker->table.SetMembership(of_workers, now_));
    Perform(worker.get(), std::move(hellos));
  }
  Deliver();
}

SimulatedJob::~SimulatedJob() = default;

void SimulatedJob::Measure(SimulatedSide side, const char* kind, const Work& work) {
  if (meter_ != nullptr) return meter_(side, kind, work);
  (void)work();
}

NodeId SimulatedJob::ServerOf(int key) const {
  return kFirstServer + static_cast<NodeId>(key % shape_.servers);
}

void SimulatedJob::Push(int worker, const std::vector<int>& keys, Step step) {
  const std::vector<float> values(shape_.elements, static_cast<float>(worker + 1));
  FrameHeader header = PushHeader({}, step, shape_.elements);
  header.codec = MakePush({}, step, 0, values, {.segments = {shape_.elements}}).header.codec;
  header.weight = 1.0f;
  Submit(worker, header, EncodeFloats(values), keys);
}

void SimulatedJob::Init(int worker, const std::vector<int>& keys, Step step) {
  Submit(worker, BroadcastHeader(FrameType::kInit, {}, step, shape_.elements),
         EncodeFloats(std::vector<float>(shape_.elements, static_cast<float>(step))), keys);
}

void SimulatedJob::Fetch(int worker, const std::vector<int>& keys, Step step) {
  Submit(worker, BroadcastHeader(FrameType::kFetch, {}, step, shape_.elements), {}, keys);
}

void SimulatedJob::Submit(int rank, const FrameHeader& header, const Buffer& payload,
                          const std::vector<int>& keys) {
  Worker* worker = workers_[static_cast<size_t>(rank)].get();
  std::vector<RequestTable::Request> requests;
  for (const int key : keys) {
    FrameHeader own = header;
    own.key = KeyOf(key);
    requests.push_back({.frame = MakeFrame(own, payload),
                        .server = ServerOf(key),
                        .catalogue_version = 1,
                        .tensor = "tensor"});
  }
  std::vector<RequestTable::Actions> all;
  all.reserve(requests.size());
  Measure(SimulatedSide::kWorker, FrameTypeName(header.type), [&] {
    for (RequestTable::Request& request : requests) {
      auto actions = worker->table.Submit(std::move(request), now_);
      if (!actions.ok()) Die(actions.status());
      all.push_back(*std::move(actions));
    }
    return requests.size();
  });
  Perform(worker, std::move(all));
}

// Connects as RequestRunner does: frames that still come on the former connection are dropped.
void SimulatedJob::Connect(Worker* worker, size_t server) {
  const auto connection =
      worker->transport->Connect({.endpoints = {EndpointOf(AddressOf(static_cast<Rank>(server)))}});
  if (!connection.ok()) Die(connection.status());
  const ConnectionId former = std::exchange(worker->connections[server], *connection);
  worker->servers.erase(former);
  worker->servers[*connection] = servers_[server]->node;
  if (former != kNoConnection) worker->transport->Disconnect(former);
}

void SimulatedJob::Perform(Worker* worker, std::vector<RequestTable::Actions> all) {
  for (RequestTable::Actions& actions : all) {
    for (const NodeId server : actions.reconnects) Connect(worker, server - kFirstServer);
    for (const RequestTable::Answer& answer : actions.answers) {
      const absl::StatusOr<Frame>& frame = answer.outcome.frame;
      if (!frame.ok()) Die(frame.status());
      ++results_;
      const Buffer& payload = frame->payload;
      if (!payload.empty()) first_elements_ += LoadLittle<float>(payload.span(), 0);
    }
  }
  const auto sends = [](const RequestTable::Actions& actions) { return !actions.sends.empty(); };
  if (std::none_of(all.begin(), all.end(), sends)) return;
  Measure(SimulatedSide::kNetwork, "send", [&] {
    size_t frames = 0;
    for (RequestTable::Actions& actions : all) {
      for (RequestTable::Outgoing& out : actions.sends) {
        const FrameHeader& header = out.frame.header;
        Traffic& traffic = sent_[static_cast<size_t>(header.type)];
        ++traffic.frames;
        traffic.bytes += kHeaderBytes + out.frame.payload.size();
        worker->transport->Send(
            worker->connections[out.server - kFirstServer], std::move(out.frame),
            [worker, key = header.key, request = out.request](const absl::Status&) {
              if (request != 0) worker->sent.push_back({key, request});
            });
        ++frames;
      }
    }
    return frames;
  });
}

void SimulatedJob::Deliver() {
  for (bool is_first = true;; is_first = false) {
    size_t steps = 0;
    Measure(SimulatedSide::kNetwork, "deliver", [&] { return steps = network_.DeliverAll(); });
    if (steps == 0 && !is_first) return;  // a link that goes on may have something in an inbox
    for (const auto& worker : workers_) HandleSent(worker.get());
    for (const auto& server : servers_) HandleAtServer(server.get());
    for (const auto& worker : workers_) HandleAtWorker(worker.get());
  }
}

void SimulatedJob::HandleSent(Worker* worker) {
  if (worker->sent.empty()) return;
  Measure(SimulatedSide::kWorker, "sent", [&] {
    for (const auto& [key, request] : worker->sent) {
      (void)worker->table.OnSent(key, request, now_);
    }
    return worker->sent.size();
  });
  worker->sent.clear();
}

// Handles frames as Server does, but for the queues of its shards.
void SimulatedJob::HandleAtServer(Server* server) {
  const std::vector<Received> inbox = std::exchange(server->inbox, {});
  const auto type_of = [](const Received& received) { return received.frame.header.type; };
  for (size_t begin = 0; begin < inbox.size();) {
    const size_t end = EndOfRun(inbox, begin, type_of);
    std::vector<std::pair<ConnectionId, Frame>> to_connections;  // not to nodes
    Sends sends;
    sends.reserve(end - begin);
    Measure(SimulatedSide::kServer, FrameTypeName(type_of(inbox[begin])), [&] {
      for (size_t i = begin; i < end; ++i) {
        const auto& [from, frame] = inbox[i];
        if (frame.header.type == FrameType::kHello) {
          const auto hello = DecodeHello(frame.payload.span());
          if (!hello.ok()) Die(hello.status());
          if (auto taken = server->sessions.OnHello(from, {}, *hello); !taken.ok()) Die(taken);
          to_connections.push_back(
              {from, MakeFrame(HelloHeader(server->node),
                               EncodeHello({.node = server->node, .role = Role::kServer}))});
          continue;
        }
        const auto sender = server->sessions.NodeOf(from);
        if (!sender.ok()) {
          FrameHeader header = AnswerTo(frame.header, FrameType::kError);
          header.sender = server->node;
          to_connections.push_back({from, MakeFrame(header, EncodeError(sender.status()))});
          continue;
        }
        server->sessions.OnHeard(from, frame.header.key);
        (void)server->shard_map.PlaceOf(frame.header.key);
        for (Outgoing& out : server->shard.OnFrame(*sender, frame)) sends.push_back(std::move(out));
      }
      return end - begin;
    });
    for (auto& [to, frame] : to_connections) {
      server->transport->Send(to, std::move(frame), [](const absl::Status&) {});
    }
    Answer(server, std::move(sends));
    begin = end;
  }
}

void SimulatedJob::Answer(Server* server, Sends sends) {
  for (size_t begin = 0; begin < sends.size();) {
    const size_t end =
        EndOfRun(sends, begin, [](const Outgoing& o) { return o.frame.header.type; });
    const FrameType type = sends[begin].frame.header.type;
    std::vector<ConnectionId> to;
    to.reserve(end - begin);
    Measure(SimulatedSide::kServer, FrameTypeName(type), [&] {
      for (size_t i = begin; i < end; ++i) {
        const Key key = sends[i].frame.header.key;
        to.push_back(server->sessions.ConnectionOf(sends[i].to, key).value_or(kNoConnection));
      }
      return to.size();
    });
    Measure(SimulatedSide::kNetwork, "send", [&] {
      Traffic& traffic = sent_[static_cast<size_t>(type)];
      for (size_t i = begin; i < end; ++i) {
        ++traffic.frames;
        traffic.bytes += kHeaderBytes + sends[i].frame.payload.size();
        server->transport->Send(to[i - begin], std::move(sends[i].frame),
                                [](const absl::Status&) {});
      }
      return to.size();
    });
    begin = end;
  }
}

void SimulatedJob::HandleAtWorker(Worker* worker) {
  if (worker->is_stalled) return;
  const std::vector<Received> inbox = std::exchange(worker->inbox, {});
  const auto type_of = [](const Received& received) { return received.frame.header.type; };
  for (size_t begin = 0; begin < inbox.size();) {
    const size_t end = EndOfRun(inbox, begin, type_of);
    std::vector<RequestTable::Actions> all;
    all.reserve(end - begin);
    Measure(SimulatedSide::kWorker, FrameTypeName(type_of(inbox[begin])), [&] {
      for (size_t i = begin; i < end; ++i) {
        const auto server = worker->servers.find(inbox[i].from);
        if (server == worker->servers.end()) continue;
        all.push_back(worker->table.OnFrame(server->second, inbox[i].frame, now_));
      }
      return end - begin;
    });
    Perform(worker, std::move(all));
    begin = end;
  }
}

void SimulatedJob::Advance(absl::Duration by) {
  const absl::Time end = now_ + by;
  for (const auto& worker : workers_) {
    if (worker->table.NextTick() > end) continue;
    std::vector<RequestTable::Actions> all;
    Measure(SimulatedSide::kWorker, FrameTypeName(FrameType::kProbe), [&] {
      size_t probes = 0;
      for (absl::Time now = now_; worker->table.NextTick() <= end;) {
        now = std::max(now, worker->table.NextTick());
        all.push_back(worker->table.OnTick(now));
        probes += all.back().sends.size();
      }
      return probes;
    });
    Perform(worker.get(), std::move(all));
  }
  now_ = end;
}

void SimulatedJob::Stall(int worker) {
  workers_[static_cast<size_t>(worker)]->is_stalled = true;
  network_.Hold(FromNode(WorkerNode(worker)));
}

void SimulatedJob::Release(int worker) {
  workers_[static_cast<size_t>(worker)]->is_stalled = false;
  network_.ClearFaults();
  (void)network_.Release();
}

RequestStats SimulatedJob::worker_stats(int worker) const {
  return workers_[static_cast<size_t>(worker)]->table.stats();
}

ShardStats SimulatedJob::server_stats() const {
  ShardStats all;
  for (const auto& server : servers_) all += server->shard.stats();
  return all;
}

}  // namespace bdn::testing
