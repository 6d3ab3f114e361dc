#include "worker/server_requests.h"

#include <optional>
#include <thread>

#include "common/base/status.h"
#include "common/wire/headers.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "tests/support/scripted_loopback.h"
#include "tests/support/shard_rig.h"
#include "tests/support/worker_rig.h"

namespace bdn::testing {
namespace {

constexpr Key kKey = Key::Of(0, 0);

// The requests of worker 1 about a broadcast of worker 0, with a server that the test plays.
class ServerRequestsTest : public ::testing::Test {
 protected:
  ServerRequestsTest() {
    server_->Start([this](ConnectionId from, Frame frame) {
      worker_ = from;
      const bool is_probe = frame.header.type == FrameType::kProbe;
      (is_probe ? probes_ : received_).push_back(std::move(frame));
    });
    EXPECT_TRUE(server_->Listen("loopback://server").ok());
    transport_->Start([this](ConnectionId from, Frame frame) { runner_->OnFrame(from, frame); });
    runner_.emplace(RequestTable::Options{.self = WorkerNode(1), .rank = 1, .job_id = "job"},
                    transport_.get(), &clock_);
    EXPECT_TRUE(runner_->SetMembership(MakeMembership(2)).ok());
    requests_.emplace(&tensors_, &*runner_, &clock_);
    network_.DeliverAll();
    Answer(HelloHeader(kServerNode), {});
    received_.clear();
    AddBroadcast();
  }
  ~ServerRequestsTest() override {
    runner_->Stop();
    transport_->Close();
    transport_->Join();
    server_->Close();
    server_->Join();
  }

  void AddBroadcast() {
    KeyEntry key = MakeEntry(kKey, {.segments = {3}, .kind = KeyKind::kBroadcast});
    key.dtype = DType::kUInt8;
    const CatalogueDelta delta{.version = {1, 1},
                               .tensors = {{.name = "broadcast/b",
                                            .dtype = DType::kUInt8,
                                            .elements = 3,
                                            .kind = KeyKind::kBroadcast}},
                               .keys = {key},
                               .owners = {kServerNode}};
    MutexLock lock(tensors_.mutex());
    tensors_.participation().rank = 1;
    ASSERT_TRUE(tensors_.Add(delta).ok());
  }
  absl::Status Broadcast(std::string* data) { return BroadcastBy(data, absl::InfiniteFuture()); }
  absl::Status BroadcastBy(std::string* data, absl::Time deadline,
                           Holding holding = Holding::kUnknown) {
    const MutableByteSpan span{reinterpret_cast<std::byte*>(data->data()), data->size()};
    return requests_->Broadcast({.name = "b", .data = {&span, 1}, .root = 0, .holding = holding}, 0,
                                deadline);
  }
  // Steps the network until the server has so many frames.
  void AwaitFrames(size_t count) {
    while (received_.size() < count) ASSERT_TRUE(network_.WaitAndStep());
  }
  void Answer(FrameHeader header, const std::string& value) {
    header.sender = kServerNode;
    header.epoch = 1;
    const ByteSpan bytes{reinterpret_cast<const std::byte*>(value.data()), value.size()};
    server_->Send(worker_, MakeFrame(header, Buffer::CopyOf(bytes)), [](const absl::Status&) {});
    network_.DeliverAll();
  }

  ManualClock clock_;
  ScriptedLoopback network_;
  std::unique_ptr<Transport> server_ = network_.MakeTransport();
  std::unique_ptr<Transport> transport_ = network_.MakeTransport();
  TensorTable tensors_;
  std::optional<RequestRunner> runner_;
  std::optional<ServerRequests> requests_;
  ConnectionId worker_ = 0;
  std::vector<Frame> received_;
  std::vector<Frame> probes_;
};

TEST_F(ServerRequestsTest, AWorkerFetchesWhatTheRootHasSet) {
  std::string data = "...";
  std::thread caller([&] { EXPECT_TRUE(Broadcast(&data).ok()); });
  AwaitFrames(1);
  EXPECT_EQ(received_[0].header.type, FrameType::kFetch);
  EXPECT_EQ(received_[0].header.step, 1u);
  Answer(AnswerTo(received_[0].header, FrameType::kValue), "abc");
  caller.join();
  EXPECT_EQ(data, "abc");
  ASSERT_EQ(probes_.size(), 1u);  // which says that it has the value
  EXPECT_EQ(probes_[0].header.step, 1u);
}

TEST_F(ServerRequestsTest, ACallThatIsRefusedDoesNotCountAsABroadcast) {
  std::string data = "...";
  std::string refused = "...";
  std::thread first([&] { EXPECT_TRUE(Broadcast(&data).ok()); });
  AwaitFrames(1);
  EXPECT_EQ(Broadcast(&refused).code(), absl::StatusCode::kFailedPrecondition);
  Answer(AnswerTo(received_[0].header, FrameType::kValue), "abc");
  first.join();
  std::thread second([&] { EXPECT_TRUE(Broadcast(&data).ok()); });
  AwaitFrames(2);
  EXPECT_EQ(received_[1].header.step, 2u);
  Answer(AnswerTo(received_[1].header, FrameType::kValue), "def");
  second.join();
  EXPECT_EQ(data, "def");
}

TEST_F(ServerRequestsTest, ACallEndsAtItsDeadlineAndItsKeyIsFreeAgain) {
  std::string data = "...";
  const absl::Status late = BroadcastBy(&data, clock_.Now());
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  MutexLock lock(tensors_.mutex());
  EXPECT_FALSE(tensors_.keys().at(kKey)->has_server_request());
}

TEST_F(ServerRequestsTest, SaysWhatItWaitsForWhileItWaitsLong) {
  ::testing::internal::CaptureStderr();
  std::string data = "...";
  std::thread caller([&] {
    const absl::Time deadline = absl::UnixEpoch() + absl::Seconds(200);
    EXPECT_TRUE(absl::IsDeadlineExceeded(BroadcastBy(&data, deadline)));
  });
  AwaitFrames(1);
  clock_.Advance(absl::Seconds(201));  // whether it waits already or is about to
  caller.join();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("still waiting: broadcast 'b': waiting for"), std::string::npos) << log;
}

TEST_F(ServerRequestsTest, WhoHoldsAValueIsSentNoneAndKeepsItsOwn) {
  std::string data = "own";
  std::thread caller(
      [&] { EXPECT_TRUE(BroadcastBy(&data, absl::InfiniteFuture(), Holding::kValue).ok()); });
  AwaitFrames(1);
  EXPECT_EQ(received_[0].header.type, FrameType::kFetch);
  EXPECT_EQ(received_[0].header.flags, kFlagUnwanted);
  FrameHeader same = AnswerTo(received_[0].header, FrameType::kValue);
  same.flags = kFlagSame;
  Answer(same, "");
  caller.join();
  EXPECT_EQ(data, "own");
}

TEST_F(ServerRequestsTest, AValueComesInPieces) {
  std::string first = "..", second = ".";
  const std::vector<MutableByteSpan> parts = {std::as_writable_bytes(std::span(first)),
                                              std::as_writable_bytes(std::span(second))};
  std::thread caller([&] {
    EXPECT_TRUE(
        requests_
            ->Broadcast({.name = "b", .data = parts, .root = 0, .holding = Holding::kNothing}, 0,
                        absl::InfiniteFuture())
            .ok());
  });
  AwaitFrames(1);
  Answer(AnswerTo(received_[0].header, FrameType::kValue), "abc");
  caller.join();
  EXPECT_EQ(first + second, "abc");
}

TEST_F(ServerRequestsTest, SaysWhatItsServerMayNotHave) {
  std::string data = "...";
  std::thread caller([&] { EXPECT_TRUE(Broadcast(&data).ok()); });
  AwaitFrames(1);
  {
    MutexLock lock(tensors_.mutex());
    EXPECT_TRUE(tensors_.keys().at(kKey)->has_server_request());
  }
  EXPECT_FALSE(runner_->IsAccepted(kKey));
  FrameHeader waiting = AnswerTo(received_[0].header, FrameType::kWaiting);
  waiting.sender = kServerNode;
  waiting.epoch = 1;
  server_->Send(worker_, MakeFrame(waiting, EncodeRanks({})), [](const absl::Status&) {});
  network_.DeliverAll();
  EXPECT_TRUE(runner_->IsAccepted(kKey));
  Answer(AnswerTo(received_[0].header, FrameType::kValue), "abc");
  caller.join();
}

TEST_F(ServerRequestsTest, AFailureOfTheJobEndsWhoWaits) {
  std::string data = "...";
  std::thread caller([&] { EXPECT_EQ(Broadcast(&data).code(), absl::StatusCode::kAborted); });
  AwaitFrames(1);
  runner_->Fail(Aborted("worker 0 was lost"));
  caller.join();
}

}  // namespace
}  // namespace bdn::testing
