#include <functional>
#include <memory>
#include <thread>

#include "common/transport/loopback.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/local_control_plane.h"
#include "server/server.h"
#include "tests/support/worker_rig.h"

// A server whose shard does not keep up with what comes.

namespace bdn::testing {
namespace {

using ::testing::Each;

constexpr absl::Duration kLong = absl::Minutes(1);
constexpr int kTensors = 8;
constexpr size_t kElements = 1000;

// Holds up the thread that sends a reply until it is opened.
class HeldUpTransport final : public Transport {
 public:
  explicit HeldUpTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  void Open() {
    MutexLock lock(&mu_);
    is_open_ = true;
    changed_.SignalAll();
  }

  void Start(FrameHandler handler, GoneHandler gone) override {
    inner_->Start(std::move(handler), std::move(gone));
  }
  absl::StatusOr<std::string> Listen(const std::string& address) override {
    return inner_->Listen(address);
  }
  absl::StatusOr<ConnectionId> Connect(const std::string& address,
                                       const PeerSecurity& peer) override {
    return inner_->Connect(address, peer);
  }
  void Disconnect(ConnectionId connection) override { inner_->Disconnect(connection); }
  void Send(ConnectionId to, Frame frame, SendDone done) override {
    if (frame.header.type == FrameType::kReply) {
      MutexLock lock(&mu_);
      while (!is_open_) changed_.Wait(&mu_);
    }
    inner_->Send(to, std::move(frame), std::move(done));
  }
  TransportStats stats() const override { return inner_->stats(); }
  void Close() override { inner_->Close(); }
  void Join() override { inner_->Join(); }

 private:
  const std::unique_ptr<Transport> inner_;
  Mutex mu_;
  CondVar changed_;
  bool is_open_ ABSL_GUARDED_BY(mu_) = false;
};

TEST(ServerQueue, PushesThatFindNoRoomComeAgainAndCountOnce) {
  const SteadyClock clock;
  Registry telemetry;
  LoopbackNetwork network;
  LocalScheduler scheduler({.job_id = "job", .num_workers = 1, .num_servers = 1}, &clock);
  const auto control = scheduler.Connect();
  HeldUpTransport transport(network.MakeTransport());
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
  transport.Open();
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
