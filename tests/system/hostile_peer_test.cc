#include <zmq.h>

#include <atomic>
#include <random>
#include <thread>

#include "common/transport/zmq/zmq_transport.h"
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
          address_ = workers_[0]->servers().at(0).data_address;
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
  std::unique_ptr<Transport> transport_ = MakeZmqTransport().value();
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
          peer.Send({noise, noise, noise});
        }
        peer.Send({good, "a payload that the header does not announce"});
        peer.Send({"", "", "", ""});
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

}  // namespace
}  // namespace bdn::testing
