#include "tests/support/scripted_loopback.h"

#include "gmock/gmock.h"
#include "tests/transport/transport_fixture.h"

namespace bdn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ScriptedLoopbackTest : public testing::Test {
 protected:
  ScriptedLoopbackTest() {
    server_->Start([this](ConnectionId from, Frame frame) {
      to_client_ = from;
      arrived_.push_back(frame.header.step);
      payloads_.push_back(frame.payload);
    });
    client_->Start([this](ConnectionId, Frame frame) { back_.push_back(frame.header.step); });
    EXPECT_TRUE(server_->Listen("loopback://server").ok());
    to_server_ = *client_->Connect(PeerAt("loopback://server"));
  }

  void Push(Step step, size_t payload_bytes = 8) {
    client_->Send(to_server_, FrameOf(step, payload_bytes),
                  [this](const absl::Status& status) { done_.push_back(status.code()); });
  }

  ConnectionId to_server_ = 0;
  ConnectionId to_client_ = 0;
  std::vector<Step> arrived_;
  std::vector<Step> back_;
  std::vector<Buffer> payloads_;
  std::vector<absl::StatusCode> done_;
  // Last: what is pending when they go still runs.
  ScriptedLoopback net_;
  std::unique_ptr<Transport> server_ = net_.MakeTransport();
  std::unique_ptr<Transport> client_ = net_.MakeTransport();
};

TEST_F(ScriptedLoopbackTest, DoesNothingUntilSomebodySteps) {
  Push(1);
  EXPECT_THAT(arrived_, IsEmpty());
  EXPECT_THAT(done_, IsEmpty());
  EXPECT_EQ(net_.num_pending(), 2u);

  EXPECT_TRUE(net_.Step());
  EXPECT_THAT(arrived_, ElementsAre(1));
  EXPECT_THAT(done_, IsEmpty());
  EXPECT_TRUE(net_.Step());
  EXPECT_THAT(done_, ElementsAre(absl::StatusCode::kOk));
  EXPECT_FALSE(net_.Step());
}

TEST_F(ScriptedLoopbackTest, DeliversInOrderAndSharesThePayload) {
  const Frame frame = FrameOf(1, 100);
  client_->Send(to_server_, frame, [](const absl::Status&) {});
  Push(2);
  Push(3);
  EXPECT_EQ(net_.DeliverAll(), 6u);
  EXPECT_THAT(arrived_, ElementsAre(1, 2, 3));
  EXPECT_EQ(payloads_[0].data(), frame.payload.data());
}

TEST_F(ScriptedLoopbackTest, StopsDeliveringAtTheGivenNumber) {
  Push(1);
  Push(2);
  EXPECT_EQ(net_.DeliverAll(3), 3u);
  EXPECT_THAT(arrived_, ElementsAre(1, 2));
  EXPECT_EQ(net_.num_pending(), 1u);
}

TEST_F(ScriptedLoopbackTest, DropsWhatMatchesAsOftenAsSaid) {
  net_.Drop(OfType(FrameType::kPush), 2);
  for (Step step = 1; step <= 4; ++step) Push(step);
  net_.DeliverAll();
  EXPECT_THAT(arrived_, ElementsAre(3, 4));
  EXPECT_THAT(done_, SizeIs(4));  // nobody tells the sender
}

TEST_F(ScriptedLoopbackTest, DuplicatesWhatMatches) {
  net_.Duplicate(OfStep(2));
  for (Step step = 1; step <= 3; ++step) Push(step);
  net_.DeliverAll();
  EXPECT_THAT(arrived_, ElementsAre(1, 2, 2, 3));
  EXPECT_THAT(done_, SizeIs(3));
}

TEST_F(ScriptedLoopbackTest, HoldsWhatMatchesUntilItIsReleased) {
  net_.Hold(OfStep(1), 1);
  Push(1);
  Push(2);
  net_.DeliverAll();
  EXPECT_THAT(arrived_, ElementsAre(2));
  EXPECT_THAT(done_, SizeIs(2));

  EXPECT_EQ(net_.Release(), 1u);
  net_.DeliverAll();
  EXPECT_THAT(arrived_, ElementsAre(2, 1));
}

TEST_F(ScriptedLoopbackTest, DeliversOutOfTurn) {
  Push(1);
  Push(2);
  EXPECT_TRUE(net_.StepFrame(OfStep(2)));
  EXPECT_FALSE(net_.StepFrame(OfStep(7)));
  EXPECT_THAT(net_.PendingFrames(), SizeIs(1));
  net_.DeliverAll();
  EXPECT_THAT(arrived_, ElementsAre(2, 1));
}

TEST_F(ScriptedLoopbackTest, CorruptsACopyOfThePayload) {
  const Frame frame = FrameOf(1, 100);
  net_.CorruptPayload(AnyFrame(), 1);
  client_->Send(to_server_, frame, [](const absl::Status&) {});
  net_.DeliverAll();
  EXPECT_EQ(CheckPayload({frame.header, payloads_.at(0)}).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(CheckPayload(frame).ok());
}

TEST_F(ScriptedLoopbackTest, CutsAConnectionBothWays) {
  Push(1);
  net_.DeliverAll();
  net_.Cut(OfStep(2));
  Push(2);
  Push(3);
  std::vector<absl::StatusCode> server_done;
  server_->Send(to_client_, FrameOf(9, 8),
                [&](const absl::Status& status) { server_done.push_back(status.code()); });
  net_.DeliverAll();
  EXPECT_THAT(arrived_, ElementsAre(1));
  EXPECT_THAT(back_, IsEmpty());
  EXPECT_THAT(done_, ElementsAre(absl::StatusCode::kOk, absl::StatusCode::kUnavailable,
                                 absl::StatusCode::kUnavailable));
  EXPECT_THAT(server_done, ElementsAre(absl::StatusCode::kUnavailable));

  to_server_ = *client_->Connect(PeerAt("loopback://server"));  // a new one works
  Push(4);
  net_.DeliverAll();
  EXPECT_THAT(arrived_, ElementsAre(1, 4));
}

TEST_F(ScriptedLoopbackTest, LetsTheFirstMatchingRuleDecide) {
  net_.Drop(OfStep(1));
  net_.Duplicate(AnyFrame());
  Push(1);
  Push(2);
  net_.DeliverAll();
  EXPECT_THAT(arrived_, ElementsAre(2, 2));
  net_.ClearFaults();
  Push(1);
  net_.DeliverAll();
  EXPECT_THAT(arrived_, ElementsAre(2, 2, 1));
}

TEST_F(ScriptedLoopbackTest, CombinesMatches) {
  net_.Drop(Both(FromNode(3), Both(OfKey(Key::Of(7, 2)), OfStep(1))));
  net_.Drop(Both(FromNode(4), OfStep(2)));
  Push(1);
  Push(2);
  net_.DeliverAll();
  EXPECT_THAT(arrived_, ElementsAre(2));
}

TEST_F(ScriptedLoopbackTest, RepeatsRandomFaultsFromTheirSeed) {
  const auto run = [this](uint64_t seed) {
    net_.Randomize(seed, {.drop = 0.2, .duplicate = 0.2, .corrupt = 0.2, .reorder = true});
    arrived_.clear();
    for (Step step = 1; step <= 200; ++step) Push(step);
    net_.DeliverAll();
    return arrived_;
  };
  const std::vector<Step> first = run(1);
  EXPECT_EQ(run(1), first);
  EXPECT_NE(run(2), first);
  EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
  EXPECT_THAT(done_, SizeIs(600));
}

TEST_F(ScriptedLoopbackTest, DeliversWhatWasSentBeforeClose) {
  Push(1);
  client_->Close();
  client_->Join();  // runs the completion here
  EXPECT_THAT(done_, ElementsAre(absl::StatusCode::kUnavailable));
  net_.DeliverAll();
  EXPECT_THAT(arrived_, ElementsAre(1));
}

TEST_F(ScriptedLoopbackTest, DeliversNothingToAClosedTransport) {
  Push(1);
  server_->Close();
  net_.DeliverAll();
  EXPECT_THAT(arrived_, IsEmpty());
  Push(2);
  net_.DeliverAll();
  EXPECT_EQ(done_.back(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace bdn
