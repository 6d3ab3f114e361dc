#include <zmq.h>

#include <atomic>
#include <random>
#include <sstream>
#include <thread>

#include "common/transport/zmq/zmq_transport.h"
#include "common/wire/headers.h"
#include "common/wire/message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/local_control_plane.h"
#include "server/server.h"
#include "tests/support/worker_rig.h"

// A real server over tcp, two real workers that exchange through it, and a peer that sends rubbish
// meanwhile: the workers' sums are right, the server lives, and what came is counted.

namespace bdn::testing {
namespace {

using ::testing::Each;

constexpr absl::Duration kLong = absl::Minutes(1);

class HostilePeer : public ::testing::Test {
 protected:
  static JobConfig Config() {
    JobConfig config;
    config.job_id = "job";
    config.num_workers = 2;
    config.num_servers = 1;
    return config;
  }

  HostilePeer() {
    std::thread start([this] { ASSERT_TRUE(server_.Start().ok()); });
    std::vector<std::thread> joins;
    for (int rank = 0; rank < 2; ++rank) {
      joins.emplace_back([this, rank] {
        Worker::Options options;
        options.join.wanted_rank = rank;
        workers_[rank] = Worker::Create(options, &clock_, &telemetry_, scheduler_.Connect(),
                                        MakeZmqTransport().value())
                             .value();
        if (rank == 0) {
          // Everybody may read where the server listens.
          address_ = NetworkUrl(workers_[0]->servers().at(0).endpoints);
        }
      });
    }
    for (std::thread& join : joins) join.join();
    start.join();
  }
  ~HostilePeer() override {
    std::thread other([this] { (void)workers_[1]->Leave(kLong); });
    (void)workers_[0]->Leave(kLong);
    other.join();
  }

  // Both workers exchange until `attack` has returned and `arrived`; every result is checked.
  void ExchangeDuring(const std::function<void()>& attack, const std::function<bool()>& arrived) {
    std::atomic<bool> over = false;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        Worker& worker = *workers_[rank];
        const uint32_t id = worker.Declare({Tensor("w", 1000)}, kLong)->at(0);
        bool last = false;
        for (int step = 0; !last; ++step) {
          // The flag travels with the data, so that both stop after the same step.
          std::vector<float> data(1000, static_cast<float>(step + rank));
          data[0] = over ? 1 : 0;
          ASSERT_TRUE(PushPull(worker, id, data).ok());
          last = data[0] > 0;
          data[0] = data[1];
          ASSERT_THAT(data, Each(step + 0.5f));
        }
      });
    }
    attack();
    while (!arrived()) std::this_thread::yield();
    over = true;
    for (std::thread& thread : threads) thread.join();
  }

  const SteadyClock clock_;
  Registry telemetry_;
  LocalScheduler scheduler_{Config(), &clock_};
  std::unique_ptr<ControlPlane> control_ = scheduler_.Connect();
  // Open, so that a peer without a key gets as far as a member.
  std::unique_ptr<Transport> transport_ =
      MakeZmqTransport({.security = LinkSecurity::kOpen}).value();
  Server server_{{}, &telemetry_, control_.get(), transport_.get()};
  std::unique_ptr<Worker> workers_[2];
  std::string address_;
};

// Sends raw messages of one or more parts.
class RawPeer {
 public:
  explicit RawPeer(const std::string& address) {
    zmq_setsockopt(socket_, ZMQ_LINGER, &kLinger, sizeof(kLinger));
    EXPECT_EQ(zmq_connect(socket_, address.c_str()), 0);
  }
  ~RawPeer() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  void Send(const std::vector<std::string>& parts) {
    for (size_t i = 0; i < parts.size(); ++i) {
      zmq_send(socket_, parts[i].data(), parts[i].size(), i + 1 < parts.size() ? ZMQ_SNDMORE : 0);
    }
  }
  // Of whatever it is told.
  void ReadMessages(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      int more = 1;
      size_t size = sizeof(more);
      while (more != 0) {
        zmq_recv(socket_, nullptr, 0, 0);
        zmq_getsockopt(socket_, ZMQ_RCVMORE, &more, &size);
      }
    }
  }

 private:
  static constexpr int kLinger = 1000;
  void* const context_ = zmq_ctx_new();
  void* const socket_ = zmq_socket(context_, ZMQ_DEALER);
};

std::string Bytes(const FrameHeader& header) {
  const auto bytes = EncodeHeader(header);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

TEST_F(HostilePeer, MalformedMessagesAreDroppedAndCounted) {
  ExchangeDuring(
      [&] {
        RawPeer peer(address_);
        std::mt19937 random(1);
        FrameHeader push;
        push.type = FrameType::kPush;
        push.sender = 1;
        push.key = Key::Of(0, 0);
        push.step = 1;
        const std::string good = Bytes(push);
        for (size_t length = 0; length < good.size(); ++length) peer.Send({good.substr(0, length)});
        for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
          std::string flipped = good;
          flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
          peer.Send({flipped});
        }
        for (int i = 0; i < 200; ++i) {
          std::string noise(random() % 300, '\0');
          for (char& c : noise) c = static_cast<char>(random());
          peer.Send({noise, noise});
        }
        peer.Send({good, "a payload that the header does not announce"});
        peer.Send({"", ""});
        RawPeer(address_).Send({"", "", "", ""});  // ends its connection
      },
      [&] { return server_.stats().transport.frames_malformed > 1000; });
  EXPECT_EQ(server_.stats().shards.refused, 0u);
}

TEST_F(HostilePeer, FramesWithoutAGreetingOrFromAnotherJobReachNoShard) {
  ExchangeDuring(
      [&] {
        RawPeer peer(address_);
        FrameHeader header;
        header.type = FrameType::kHello;
        header.sender = workers_[0]->node();
        const auto hello = [&](const Hello& said) {
          const Frame frame = MakeFrame(header, EncodeHello(said));
          peer.Send(
              {Bytes(frame.header), std::string(reinterpret_cast<const char*>(frame.payload.data()),
                                                frame.payload.size())});
        };
        hello({.job_id = "another job", .node = workers_[0]->node()});
        hello({.job_id = "job", .node = 4711});
        // It knows everything but what only the scheduler gives.
        hello({.job_id = "job", .node = workers_[0]->node()});
        hello({.job_id = "job", .node = workers_[0]->node(), .token = "a guess"});
        FrameHeader push;
        push.type = FrameType::kPush;
        push.flags = kFlagNonFinite;  // would spoil the round
        push.sender = workers_[0]->node();
        push.key = Key::Of(0, 0);
        push.num_elements = 1000;
        push.epoch = 1;
        for (Step step = 1; step < 300; ++step) {
          push.step = step;
          peer.Send({Bytes(push)});
        }
      },
      [&] { return server_.stats().frames_unauthenticated == 299; });
  EXPECT_EQ(server_.stats().shards.rounds_nonfinite, 0u);
  EXPECT_EQ(server_.stats().shards.refused, 0u);
}

TEST_F(HostilePeer, AFloodOfRefusedHellosIsALineASecondInTheLog) {
  constexpr uint64_t kHellos = 5000;
  ::testing::internal::CaptureStderr();
  const absl::Time begun = clock_.Now();
  ExchangeDuring(
      [&] {
        RawPeer peer(address_);
        const Frame hello = MakeFrame(
            HelloHeader(workers_[0]->node()),
            EncodeHello({.job_id = "a\nhello refused: job", .node = workers_[0]->node()}));
        for (uint64_t i = 0; i < kHellos; ++i) {
          peer.Send(
              {Bytes(hello.header), std::string(reinterpret_cast<const char*>(hello.payload.data()),
                                                hello.payload.size())});
        }
        peer.ReadMessages(kHellos);  // each is refused by an answer
      },
      [] { return true; });
  const auto seconds = static_cast<size_t>(absl::ToInt64Seconds(clock_.Now() - begun));
  const std::string log = ::testing::internal::GetCapturedStderr();
  size_t lines = 0;
  std::istringstream stream(log);
  for (std::string line; std::getline(stream, line);) {
    if (line.find("hello refused") != line.npos) ++lines;
  }
  EXPECT_GE(lines, 1u) << log;
  EXPECT_LE(lines, 2 + seconds) << log;
}

TEST_F(HostilePeer, AHelloLongerThanAnyIsNoFrame) {
  ExchangeDuring(
      [&] {
        RawPeer peer(address_);
        FrameHeader header;
        header.type = FrameType::kHello;
        header.sender = workers_[0]->node();
        const std::string payload(1 << 20, 'x');
        header.payload_bytes = 1 << 20;
        for (int i = 0; i < 20; ++i) peer.Send({Bytes(header), payload});
      },
      [&] { return server_.stats().transport.frames_malformed >= 20; });
}

// All that it takes to be a worker of a job without being one: the member's process, by hand.
TEST(HostileMember, DoesNotSpeakForAnotherRank) {
  const SteadyClock clock;
  Registry telemetry;
  JobConfig config;
  config.job_id = "job";
  config.num_workers = 2;
  config.num_servers = 1;
  LocalScheduler scheduler(config, &clock);
  const auto server_control = scheduler.Connect();
  const auto server_transport = *MakeZmqTransport({.security = LinkSecurity::kEncrypted});
  Server server({}, &telemetry, server_control.get(), server_transport.get());
  std::thread start([&] { EXPECT_TRUE(server.Start().ok()); });
  std::unique_ptr<Worker> victim;
  std::thread join([&] {
    Worker::Options options;
    options.join.wanted_rank = 0;
    victim = *Worker::Create(options, &clock, &telemetry, scheduler.Connect(), *MakeZmqTransport());
  });

  const auto transport = *MakeZmqTransport();
  std::vector<Frame> answers;
  Mutex mu;
  CondVar came;
  transport->Start([&](ConnectionId, Frame frame) {
    MutexLock lock(&mu);
    answers.push_back(std::move(frame));
    came.SignalAll();
  });
  const auto control = scheduler.Connect();
  const auto joined = control->Join(
      {.role = Role::kWorker, .wanted_rank = 1, .public_key = transport->public_key()}, kLong);
  join.join();
  start.join();
  ASSERT_TRUE(joined.ok()) << joined.status();
  const NodeInfo& info = joined->membership->servers[0];
  const ConnectionId to_server =
      *transport->Connect({info.endpoints, info.public_key, joined->data_secret});
  const auto answer_to = [&](const Frame& frame, size_t nth) {
    transport->Send(to_server, frame, [](const absl::Status&) {});
    MutexLock lock(&mu);
    while (answers.size() < nth) came.Wait(&mu);
    return answers[nth - 1];
  };
  const auto hello_of = [&](NodeId node) {
    return MakeFrame(HelloHeader(node),
                     EncodeHello({.job_id = "job", .node = node, .token = joined->data_secret}));
  };
  const Frame refused = answer_to(hello_of(victim->node()), 1);
  ASSERT_EQ(refused.header.type, FrameType::kError);
  EXPECT_EQ(DecodeError(refused.payload.span()).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(answer_to(hello_of(joined->node), 2).header.type, FrameType::kHello);
  // Its own connection does not carry another's frames either.
  FrameHeader push;
  push.type = FrameType::kPush;
  push.sender = victim->node();
  transport->Send(to_server, Frame{push, {}}, [](const absl::Status&) {});
  while (server.stats().frames_forged == 0) std::this_thread::yield();
  EXPECT_EQ(server.stats().frames_unauthenticated, 0u);
  victim.reset();
}

}  // namespace
}  // namespace bdn::testing
