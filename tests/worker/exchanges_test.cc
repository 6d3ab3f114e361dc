#include "worker/exchanges.h"

#include <optional>
#include <thread>

#include "common/base/status.h"
#include "common/wire/headers.h"
#include "common/wire/message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "tests/support/manual_executor.h"
#include "tests/support/scripted_loopback.h"
#include "tests/support/shard_rig.h"
#include "tests/support/worker_rig.h"

namespace bdn::testing {
namespace {

using ::testing::HasSubstr;

constexpr Key kKey = Key::Of(0, 0);
constexpr absl::Duration kWaitTimeout = absl::Seconds(60);

// The exchanges of a worker that has one tensor of one key, by a clock that a test moves. The
// server greets, and then says only what the test makes it say.
class ExchangesTest : public ::testing::Test {
 protected:
  ExchangesTest() {
    server_->Start([this](ConnectionId from, Frame frame) {
      worker_ = from;
      if (frame.header.type == FrameType::kHello) {
        Say(MakeFrame(HelloHeader(kServerNode), {}));
      } else if (frame.header.type == FrameType::kPush) {
        pushes_.push_back(std::move(frame));
      }
    });
    EXPECT_TRUE(server_->Listen("loopback://server").ok());
    transport_->Start([this](ConnectionId from, Frame frame) { requests_->OnFrame(from, frame); });
    requests_.emplace(RequestTable::Options{.self = WorkerNode(0),
                                            .job_id = "job",
                                            .probe_interval = absl::Hours(1),
                                            .timeout = kWaitTimeout},
                      transport_.get(), &clock_);
    exchanges_.emplace(
        ExchangePipeline::Options{.context = {.pool = &pool_}, .max_bytes_in_flight = 1 << 20},
        &tensors_, &*requests_, &executor_, &clock_,
        Exchanges::Callbacks{.over = [](Step, uint64_t) {},
                             .stuck =
                                 [this](const std::string& reason) {
                                   stuck_ = reason;
                                   stuck_at_ = Seconds();
                                 }});
    EXPECT_TRUE(requests_->SetMembership(MakeMembership(1)).ok());
    network_.DeliverAll();
    MutexLock lock(tensors_.mutex());
    EXPECT_TRUE(tensors_
                    .Add({.version = {1, 1},
                          .tensors = {Tensor("w", 4)},
                          .keys = {MakeEntry(kKey)},
                          .owners = {kServerNode}})
                    .ok());
  }
  ~ExchangesTest() override {
    exchanges_->Fail(Cancelled("the test is over"));
    executor_.RunAll();
    requests_->Stop();
    for (Transport* transport : {transport_.get(), server_.get()}) {
      transport->Close();
      transport->Join();
    }
    executor_.RunAll();
  }

  void Say(Frame frame) {
    frame.header.sender = kServerNode;
    frame.header.epoch = 1;
    server_->Send(worker_, std::move(frame), [](const absl::Status&) {});
  }
  void Push() {
    PushRequest request{.tensor = 0, .data = {data_.data(), DType::kFloat32, 4}};
    request.done = [this](TicketId, const auto& result) { ends_.push_back(result.status()); };
    std::vector<TicketId> tickets;
    EXPECT_TRUE(exchanges_->PushPullAll({&request, 1}, &tickets).ok());
  }
  // A push at 0 s whose callers are told at 60 s that there is no answer; it is sent again.
  void PushInVain() {
    Push();
    RunUntil([&] { return pushes_.size() == 1; });
    AdvanceTo(60);
    RunUntil([&] { return pushes_.size() == 2; });
    ASSERT_EQ(ends_.size(), 1u);
    EXPECT_TRUE(absl::IsUnknown(ends_[0])) << ends_[0];
  }
  void ExpectStuckAt(int64_t seconds) {
    AdvanceTo(seconds);
    RunUntil([&] { return !stuck_.empty(); });
    EXPECT_EQ(stuck_at_, seconds);
    EXPECT_THAT(stuck_, HasSubstr("pushes wait behind one without an answer"));
  }
  int64_t Seconds() const { return absl::ToInt64Seconds(clock_.Now() - begun_); }
  void AdvanceTo(int64_t seconds) { clock_.Advance(absl::Seconds(seconds - Seconds())); }
  // Work that falls due is done by the requests' own thread, at its next look at the clock.
  template <typename Condition>
  void RunUntil(Condition condition) {
    while (!condition()) {
      network_.DeliverAll();
      executor_.RunAll();
      std::this_thread::yield();
    }
  }

  ManualClock clock_;
  const absl::Time begun_ = clock_.Now();
  BufferPool pool_;
  ManualExecutor executor_;
  ScriptedLoopback network_;
  std::unique_ptr<Transport> server_ = network_.MakeTransport();
  std::unique_ptr<Transport> transport_ = network_.MakeTransport();
  TensorTable tensors_;
  std::optional<RequestRunner> requests_;
  std::optional<Exchanges> exchanges_;
  ConnectionId worker_ = 0;  // as the server knows it
  std::vector<float> data_ = {1, 2, 3, 4};
  std::vector<Frame> pushes_;       // that have reached the server, repeats included
  std::vector<absl::Status> ends_;  // of pushes, in the order in which they ended
  std::string stuck_;               // why the job cannot go on
  int64_t stuck_at_ = 0;
};

// As the C interface pushes: it knows an address alone.
TEST_F(ExchangesTest, DataOfNoElementsIsOfTheDeclaredTypeAndSize) {
  std::vector<TicketId> tickets;
  PushRequest request{.tensor = 0, .data = {.data = data_.data()}};
  ASSERT_TRUE(exchanges_->PushPullAll({&request, 1}, &tickets).ok());
  RunUntil([&] { return pushes_.size() == 1; });
  std::vector<float> pushed(4);
  ASSERT_EQ(pushes_[0].payload.size(), sizeof(float) * pushed.size());
  DecodeFloats(pushes_[0].payload.span(), pushed);
  EXPECT_EQ(pushed, data_);

  PushRequest unknown{.tensor = 7, .data = {.data = data_.data()}};
  EXPECT_TRUE(absl::IsNotFound(exchanges_->PushPullAll({&unknown, 1}, &tickets)));
  PushRequest without_data{.tensor = 0};
  EXPECT_TRUE(absl::IsInvalidArgument(exchanges_->PushPullAll({&without_data, 1}, &tickets)));
}

TEST_F(ExchangesTest, WhatWaitsBehindAPushWithoutAnAnswerWaitsForTheWholeTimeout) {
  PushInVain();
  AdvanceTo(110);
  Push();
  AdvanceTo(120);  // the first has waited twice as long; who waits behind it, 10 s
  RunUntil([&] { return pushes_.size() == 3; });
  EXPECT_EQ(stuck_, "");
  ExpectStuckAt(170);
}

TEST_F(ExchangesTest, TheFirstOfThoseThatWaitBehindItCounts) {
  PushInVain();
  AdvanceTo(90);
  Push();
  AdvanceTo(110);
  Push();
  AdvanceTo(120);
  RunUntil([&] { return pushes_.size() == 3; });
  EXPECT_EQ(stuck_, "");
  ExpectStuckAt(150);
}

TEST_F(ExchangesTest, NothingIsStuckBehindItWhereNothingWaits) {
  PushInVain();
  for (const size_t sent : {3u, 4u, 5u}) {
    AdvanceTo(Seconds() + 60);
    RunUntil([&] { return pushes_.size() == sent; });
  }
  Push();
  EXPECT_EQ(stuck_, "");
  ExpectStuckAt(300);
}

TEST_F(ExchangesTest, WhatWaitedBeforeThePushWasLateCountsFromThen) {
  Push();
  RunUntil([&] { return pushes_.size() == 1; });
  Push();
  AdvanceTo(60);
  RunUntil([&] { return pushes_.size() == 2; });
  EXPECT_EQ(stuck_, "");
  ExpectStuckAt(120);
}

TEST_F(ExchangesTest, OnceItIsKnownWhatWaitedHasItsOwnTimeout) {
  PushInVain();
  AdvanceTo(110);
  Push();
  FrameHeader reply = AnswerTo(pushes_[0].header, FrameType::kReply);
  reply.codec = pushes_[0].header.codec;
  Say(MakeFrame(reply, pushes_[0].payload));
  RunUntil([&] { return pushes_.size() == 3; });
  EXPECT_EQ(pushes_[2].header.step, 2u);
  AdvanceTo(170);
  RunUntil([&] { return ends_.size() == 2; });
  EXPECT_TRUE(absl::IsUnknown(ends_[1])) << ends_[1];
  EXPECT_EQ(stuck_, "");
}

TEST_F(ExchangesTest, ARetiredTensorGoesWhenWhatIsInFlightHasItsAnswer) {
  Push();
  RunUntil([&] { return pushes_.size() == 1; });
  Push();  // behind it
  const uint32_t ids[] = {0};
  exchanges_->Retire(ids);
  ASSERT_EQ(ends_.size(), 1u) << "what has not begun ends";
  EXPECT_TRUE(absl::IsCancelled(ends_[0])) << ends_[0];
  PushRequest more{.tensor = 0, .data = {data_.data(), DType::kFloat32, 4}};
  std::vector<TicketId> tickets;
  EXPECT_TRUE(absl::IsNotFound(exchanges_->PushPullAll({&more, 1}, &tickets)));
  {
    MutexLock lock(tensors_.mutex());
    EXPECT_EQ(tensors_.size(), 1u);
  }
  FrameHeader reply = AnswerTo(pushes_[0].header, FrameType::kReply);
  reply.codec = pushes_[0].header.codec;
  Say(MakeFrame(reply, pushes_[0].payload));
  RunUntil([&] { return ends_.size() == 2; });
  EXPECT_TRUE(ends_[1].ok()) << ends_[1];
  EXPECT_EQ(pushes_.size(), 1u);
  MutexLock lock(tensors_.mutex());
  EXPECT_EQ(tensors_.size(), 0u);
  EXPECT_TRUE(tensors_.keys().empty());
}

TEST_F(ExchangesTest, ARetiredTensorGoesAtOnceWhereNothingIsInFlight) {
  const uint32_t ids[] = {0};
  exchanges_->Retire(ids);
  exchanges_->Retire(ids);
  MutexLock lock(tensors_.mutex());
  EXPECT_EQ(tensors_.size(), 0u);
}

}  // namespace
}  // namespace bdn::testing
