#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "common/transport/forwarding.h"
#include "common/transport/loopback.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/local_control_plane.h"
#include "server/server.h"
#include "tests/support/worker_rig.h"

// A server whose shard does not keep up with what comes.

namespace bdn::testing {
namespace {

using ::testing::_;
using ::testing::Each;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr absl::Duration kLong = absl::Minutes(1);
constexpr int kTensors = 8;
constexpr size_t kElements = 1000;

// A transport whose frames go as `send` says.
class HookedTransport final : public ForwardingTransport {
 public:
  using SendFn = std::function<void(Transport* inner, ConnectionId to, Frame frame, SendDone done)>;

  HookedTransport(std::unique_ptr<Transport> inner, SendFn send)
      : ForwardingTransport(std::move(inner)), send_(std::move(send)) {}

  void Send(ConnectionId to, Frame frame, SendDone done) override {
    send_(inner(), to, std::move(frame), std::move(done));
  }

 private:
  const SendFn send_;
};

// Holds up the thread that sends a reply until it is opened.
class Gate {
 public:
  void Open() {
    MutexLock lock(&mu_);
    is_open_ = true;
    changed_.SignalAll();
  }
  void Pass(Transport* inner, ConnectionId to, Frame frame, Transport::SendDone done) {
    if (frame.header.type == FrameType::kReply) {
      MutexLock lock(&mu_);
      while (!is_open_) changed_.Wait(&mu_);
    }
    inner->Send(to, std::move(frame), std::move(done));
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool is_open_ ABSL_GUARDED_BY(mu_) = false;
};

// Takes over replies and lets them go when it is told to.
class SlowLink {
 public:
  void Pass(Transport* inner, ConnectionId to, Frame frame, Transport::SendDone done) {
    if (frame.header.type != FrameType::kReply) {
      return inner->Send(to, std::move(frame), std::move(done));
    }
    MutexLock lock(&mu_);
    replies_.push_back({inner, to, std::move(frame), std::move(done)});
    changed_.SignalAll();
  }
  void AwaitReply() {
    MutexLock lock(&mu_);
    while (replies_.empty()) changed_.Wait(&mu_);
  }
  // The one that it has had the longest.
  void LetGo() {
    AwaitReply();
    Sending reply;
    {
      MutexLock lock(&mu_);
      reply = std::move(replies_.front());
      replies_.erase(replies_.begin());
    }
    order_[reply.to].push_back(reply.frame.header.key);
    reply.inner->Send(reply.to, std::move(reply.frame), std::move(reply.done));
  }
  // Of what it has let go, by connection. REQUIRES: nobody lets go.
  const std::map<ConnectionId, std::vector<Key>>& order() const { return order_; }
  size_t size() {
    MutexLock lock(&mu_);
    return replies_.size();
  }

 private:
  struct Sending {
    Transport* inner;
    ConnectionId to;
    Frame frame;
    Transport::SendDone done;
  };

  Mutex mu_;
  CondVar changed_;
  std::vector<Sending> replies_ ABSL_GUARDED_BY(mu_);
  std::map<ConnectionId, std::vector<Key>> order_;  // of the thread that lets go
};

TEST(ServerQueue, PushesThatFindNoRoomComeAgainAndCountOnce) {
  const SteadyClock clock;
  Registry telemetry;
  LoopbackNetwork network;
  LocalScheduler scheduler({.job_id = "job", .num_workers = 1, .num_servers = 1}, &clock);
  const auto control = scheduler.Connect();
  Gate gate;
  HookedTransport transport(network.MakeTransport(), std::bind_front(&Gate::Pass, &gate));
  Server server({.listen = "loopback://server", .max_bytes_waiting = 20000}, &telemetry,
                control.get(), &transport);
  std::thread start([&] { ASSERT_TRUE(server.Start().ok()); });
  Worker::Options options;
  options.probe_interval = absl::Milliseconds(3);
  const std::unique_ptr<Worker> worker =
      *Worker::Create(options, &clock, &telemetry, scheduler.Connect(), network.MakeTransport());
  start.join();

  std::vector<TensorDeclaration> tensors;
  for (int i = 0; i < kTensors; ++i) {
    tensors.push_back(Tensor(absl::StrFormat("w%d", i), kElements));
    tensors.back().fuse = false;
  }
  const std::vector<uint32_t> ids = *worker->Declare(tensors, kLong);
  std::vector<std::vector<float>> data(kTensors, std::vector<float>(kElements, 3.0f));
  std::vector<TicketId> tickets;
  for (int i = 0; i < kTensors; ++i) {
    tickets.push_back(*worker->PushPull(
        {.tensor = ids[i], .data = {data[i].data(), DType::kFloat32, kElements}}));
  }
  // The first holds the shard up, one more finds room.
  while (server.stats().frames_dropped < kTensors - 2) std::this_thread::yield();
  gate.Open();
  for (const TicketId ticket : tickets) EXPECT_TRUE(worker->Wait(ticket, kLong).ok());
  EXPECT_THAT(data, Each(Each(3.0f)));
  EXPECT_EQ(server.stats().shards.pushes, kTensors);
  scheduler.host()->Read([](const Job& job, absl::Time) {
    uint64_t held = 0;
    for (const auto& [id, member] : job.table().members()) held += member.progress.held.replies;
    EXPECT_EQ(held, kTensors * kElements * sizeof(float)) << "as the server has reported";
  });
  EXPECT_TRUE(worker->Leave(kLong).ok());
}

// Over a link that is slower than the rounds, where the transport is given one reply at a time.
TEST(ServerQueue, RepliesLeaveByUrgencyWhereTheLinkIsSlow) {
  const SteadyClock clock;
  Registry telemetry;
  LoopbackNetwork network;
  LocalScheduler scheduler({.job_id = "job", .num_workers = 2, .num_servers = 1}, &clock);
  const auto control = scheduler.Connect();
  SlowLink link;
  HookedTransport transport(network.MakeTransport(), std::bind_front(&SlowLink::Pass, &link));
  Server server({.listen = "loopback://server", .max_bytes_in_flight = 1}, &telemetry,
                control.get(), &transport);
  std::thread start([&] { ASSERT_TRUE(server.Start().ok()); });
  std::unique_ptr<Worker> workers[2];
  std::vector<uint32_t> ids;
  std::thread other;
  const auto join = [&](int rank) {
    workers[rank] =
        *Worker::Create({}, &clock, &telemetry, scheduler.Connect(), network.MakeTransport());
    std::vector<TensorDeclaration> tensors;
    for (int i = 0; i < kTensors; ++i) {
      tensors.push_back(Tensor(absl::StrFormat("w%d", i), kElements));
      tensors.back().fuse = false;
    }
    const auto declared = workers[rank]->Declare(tensors, kLong);
    if (rank == 0) ids = declared.value();
  };
  other = std::thread([&] { join(1); });
  join(0);
  other.join();
  start.join();

  std::vector<std::vector<float>> data(2 * kTensors, std::vector<float>(kElements, 3.0f));
  std::vector<TicketId> tickets[2];
  const auto push = [&](int i, int rank, int32_t priority) {
    tickets[rank].push_back(
        *workers[rank]->PushPull({.tensor = ids[i],
                                  .data = {data[2 * i + rank].data(), DType::kFloat32, kElements},
                                  .priority = priority}));
  };
  // Keeps the link of both workers busy.
  for (const int rank : {0, 1}) push(0, rank, 0);
  while (link.size() < 2) link.AwaitReply();
  // Later frames are more urgent; one worker says so of the last, whatever the other says.
  for (int i = 1; i < kTensors; ++i) {
    push(i, 0, i);
    push(i, 1, i == kTensors - 1 ? -100 : i);
  }
  constexpr uint64_t kReplyBytes = kHeaderBytes + kElements * sizeof(float);
  while (server.stats().transport.bytes_queued < 2 * (kTensors - 1) * kReplyBytes) {
    std::this_thread::yield();
  }
  EXPECT_EQ(link.size(), 2u) << "one for each worker";

  for (int i = 0; i < 2 * kTensors; ++i) link.LetGo();
  std::vector<Key> expected = {Key::Of(ids[0], 0)};
  for (int i = kTensors - 1; i > 0; --i) expected.push_back(Key::Of(ids[i], 0));
  EXPECT_THAT(link.order(), SizeIs(2));
  EXPECT_THAT(link.order(), Each(Pair(_, expected)));
  for (const int rank : {0, 1}) {
    for (const TicketId ticket : tickets[rank]) {
      EXPECT_TRUE(workers[rank]->Wait(ticket, kLong).ok());
    }
  }
  EXPECT_THAT(data, Each(Each(3.0f)));
  other = std::thread([&] { EXPECT_TRUE(workers[1]->Leave(kLong).ok()); });
  EXPECT_TRUE(workers[0]->Leave(kLong).ok());
  other.join();
}

TEST(WaitingFrames, CountsWhatWaitsOfEachWorker) {
  WaitingFrames waiting(30000);
  const Frame push{{}, Buffer::Allocate(10000)};
  const uint64_t bytes = waiting.Add(1, push);
  EXPECT_GT(bytes, 10000u);
  EXPECT_EQ(waiting.Add(1, push), 0u);
  EXPECT_GT(waiting.Add(1, Frame{}), 0u);  // which is small
  EXPECT_EQ(waiting.Add(2, push), bytes);
  EXPECT_EQ(waiting.dropped(), 1u);
  waiting.Remove(1, bytes);
  EXPECT_EQ(waiting.Add(1, push), bytes);
}

TEST(WaitingFrames, TheOnlyFrameOfAWorkerAlwaysHasRoom) {
  WaitingFrames waiting(1);
  const uint64_t bytes = waiting.Add(1, Frame{{}, Buffer::Allocate(10000)});
  EXPECT_GT(bytes, 0u);
  EXPECT_EQ(waiting.Add(1, Frame{}), 0u);
  waiting.Remove(1, bytes);
  EXPECT_GT(waiting.Add(1, Frame{}), 0u);
}

}  // namespace
}  // namespace bdn::testing
