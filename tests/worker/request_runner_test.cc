#include "worker/pipeline/request_runner.h"

#include <latch>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "common/base/status.h"
#include "common/transport/forwarding.h"
#include "common/wire/headers.h"
#include "common/wire/message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "tests/support/scripted_loopback.h"
#include "tests/support/shard_rig.h"

namespace bdn::testing {
namespace {

using ::testing::HasSubstr;

constexpr Key kKey = Key::Of(1, 0);

// A transport whose servers are so far away.
class FarTransport final : public ForwardingTransport {
 public:
  FarTransport(std::unique_ptr<Transport> inner, absl::Duration round_trip)
      : ForwardingTransport(std::move(inner)), round_trip_(round_trip) {}
  ConnectionFacts FactsOf(ConnectionId) const override {
    return {.is_network = true, .round_trip = round_trip_};
  }

 private:
  const absl::Duration round_trip_;
};

// A runner, and a server that a test plays by hand, over a network that it steps.
class RequestRunnerTest : public ::testing::Test {
 protected:
  explicit RequestRunnerTest(int connections = 0, absl::Duration round_trip = absl::ZeroDuration())
      : transport_(std::make_unique<FarTransport>(network_.MakeTransport(), round_trip)) {
    server_->Start([this](ConnectionId from, Frame frame) {
      worker_ = from;
      from_.push_back(from);
      received_.push_back(std::move(frame));
    });
    EXPECT_TRUE(server_->Listen("loopback://server").ok());
    transport_->Start([this](ConnectionId from, Frame frame) { runner_->OnFrame(from, frame); });
    runner_.emplace(
        RequestTable::Options{.self = WorkerNode(0), .job_id = "job", .timeout = absl::Minutes(1)},
        transport_.get(), &clock_, nullptr, nullptr, connections);
    EXPECT_TRUE(runner_->SetMembership(MakeMembership(2)).ok());
    network_.DeliverAll();
    received_.clear();
    from_.clear();
    // From here on the timer's thread may make more connections, whose hellos are to be seen.
    Answer(HelloHeader(kServerNode));
  }
  ~RequestRunnerTest() override {
    runner_->Stop();
    transport_->Close();
    transport_->Join();
    server_->Close();
    server_->Join();
  }

  // Submits a push of `step`; what is told of it is counted.
  absl::Status Submit(Step step) {
    const Frame push = MakePush(kKey, step, 0, {1, 2, 3, 4});
    return runner_->Submit(
        {.frame = push, .server = kServerNode, .tensor = "w"},
        {.sent = [this] { ++sent_; },
         .answered = [this](auto outcome) { answers_.push_back(outcome.frame); }});
  }
  void Answer(FrameHeader header, Buffer payload = {}) {
    header.sender = kServerNode;
    header.epoch = 1;
    server_->Send(worker_, MakeFrame(header, std::move(payload)), [](const absl::Status&) {});
    network_.DeliverAll();
  }

  ManualClock clock_;
  ScriptedLoopback network_;
  std::unique_ptr<Transport> server_ = network_.MakeTransport();
  const std::unique_ptr<Transport> transport_;
  std::optional<RequestRunner> runner_;
  ConnectionId worker_ = 0;  // as the server knows it
  std::vector<Frame> received_;
  std::vector<ConnectionId> from_;  // the connection of each of these
  int sent_ = 0;
  std::vector<absl::StatusOr<Frame>> answers_;
};

TEST_F(RequestRunnerTest, AwaitsTheServersThatHaveNotAnswered) {
  EXPECT_TRUE(runner_->AwaitServers(clock_.Now()).ok()) << "it has greeted";
  Membership more = *MakeMembership(2);
  ++more.epoch;
  more.servers.push_back({.id = 77,
                          .role = Role::kServer,
                          .rank = 1,
                          .endpoints = {{"loopback", "nowhere", LinkSecurity::kOpen, "elsewhere"}},
                          .host = "h:9"});
  more.MakeIndex();
  ASSERT_TRUE(runner_->SetMembership(std::make_shared<const Membership>(more)).ok());
  const absl::Status late = runner_->AwaitServers(clock_.Now());
  EXPECT_EQ(late.code(), absl::StatusCode::kUnavailable);
  for (const char* fact : {"server 1 (node 77, h:9)", "loopback://nowhere", "loopback://elsewhere",
                           "--advertise", "firewall"}) {
    EXPECT_THAT(late.message(), HasSubstr(fact));
  }
  // A waiting caller hears of the job's end.
  std::thread end([this] { runner_->Fail(Aborted("worker 1 is lost")); });
  EXPECT_EQ(runner_->AwaitServers(absl::InfiniteFuture()), Aborted("worker 1 is lost"));
  end.join();
}

TEST_F(RequestRunnerTest, TellsThatARequestIsSentThenItsAnswer) {
  ASSERT_TRUE(Submit(1).ok());
  EXPECT_EQ(sent_, 0);
  network_.DeliverAll();
  EXPECT_EQ(sent_, 1);
  ASSERT_EQ(received_.size(), 1u);
  Answer(AnswerTo(received_[0].header, FrameType::kReply));
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0]->header.step, 1u);
  EXPECT_EQ(sent_, 1);
}

TEST_F(RequestRunnerTest, AnAnswerBeforeTheSendersCompletionTellsBothOnce) {
  ASSERT_TRUE(Submit(1).ok());
  ASSERT_TRUE(network_.StepFrame(OfType(FrameType::kPush)));
  FrameHeader reply = AnswerTo(received_[0].header, FrameType::kReply);
  reply.sender = kServerNode;
  server_->Send(worker_, Frame{reply, {}}, [](const absl::Status&) {});
  ASSERT_TRUE(network_.StepFrame(OfType(FrameType::kReply)));
  EXPECT_EQ(answers_.size(), 1u);
  EXPECT_EQ(sent_, 1);
  network_.DeliverAll();
  EXPECT_EQ(sent_, 1);
}

TEST_F(RequestRunnerTest, ASecondRequestOfAKeyIsRefusedAndTellsNothing) {
  ASSERT_TRUE(Submit(1).ok());
  EXPECT_EQ(Submit(2).code(), absl::StatusCode::kAlreadyExists);
  network_.DeliverAll();
  Answer(AnswerTo(received_[0].header, FrameType::kReply));
  EXPECT_EQ(answers_.size(), 1u);
  EXPECT_EQ(sent_, 1);
}

TEST_F(RequestRunnerTest, AskedAgainInItsOwnAnswerAKeyIsFree) {
  std::latch both(2);
  const Frame first = MakePush(kKey, 1, 0, {1, 2, 3, 4});
  const Frame second = MakePush(kKey, 2, 0, {1, 2, 3, 4});
  const auto last = [&both](const auto&) { both.count_down(); };
  ASSERT_TRUE(runner_
                  ->Submit({.frame = first, .server = kServerNode},
                           {.answered =
                                [&](const auto&) {
                                  EXPECT_TRUE(runner_
                                                  ->Submit({.frame = second, .server = kServerNode},
                                                           {.answered = last})
                                                  .ok());
                                  both.count_down();
                                }})
                  .ok());
  network_.DeliverAll();
  Answer(AnswerTo(received_[0].header, FrameType::kReply));
  ASSERT_EQ(received_.size(), 2u);
  Answer(AnswerTo(received_[1].header, FrameType::kReply));
  EXPECT_TRUE(both.try_wait());
}

TEST_F(RequestRunnerTest, AWithdrawnRequestTellsNothing) {
  ASSERT_TRUE(
      runner_
          ->Submit({.frame = MakePush(kKey, 1, 0, {1, 2, 3, 4}), .server = kServerNode},
                   {.answered = [this](auto outcome) { answers_.push_back(outcome.frame); }})
          .ok());
  network_.DeliverAll();
  EXPECT_FALSE(runner_->Withdraw(kKey, 2));
  EXPECT_TRUE(runner_->Withdraw(kKey, 1));
  Answer(AnswerTo(received_[0].header, FrameType::kReply));
  EXPECT_TRUE(answers_.empty());
  EXPECT_FALSE(runner_->Withdraw(kKey, 1));
}

TEST_F(RequestRunnerTest, AFailureEndsWhatIsOpenAndWhatComes) {
  ASSERT_TRUE(Submit(1).ok());
  runner_->Fail(Aborted("worker 1 was lost"));
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(sent_, 1);  // no budget waits for the send of what is over
  ASSERT_TRUE(Submit(2).ok());
  ASSERT_EQ(answers_.size(), 2u);
  EXPECT_EQ(answers_[1].status().code(), absl::StatusCode::kAborted);
}

TEST_F(RequestRunnerTest, TheTimerEndsARequestAtItsDeadlineByTheClockThatItWasGiven) {
  std::latch ended(1);
  ASSERT_TRUE(runner_
                  ->Submit({.frame = MakePush(kKey, 1, 0, {1, 2, 3, 4}), .server = kServerNode},
                           {.answered =
                                [&](const auto& outcome) {
                                  EXPECT_TRUE(absl::IsDeadlineExceeded(outcome.frame.status()));
                                  ended.count_down();
                                }})
                  .ok());
  clock_.Advance(absl::Minutes(1));
  ended.wait();
}

// A completion that comes late is not that of the next request of the key.
TEST_F(RequestRunnerTest, ALateProbesCompletionSaysNothingOfTheNextRequest) {
  ASSERT_TRUE(Submit(1).ok());
  network_.DeliverAll();
  clock_.Advance(absl::Seconds(1));  // the timer's thread sends the probe
  while (received_.size() < 2) ASSERT_TRUE(network_.WaitAndStep());
  FrameHeader reply = AnswerTo(received_[0].header, FrameType::kReply);
  reply.sender = kServerNode;
  server_->Send(worker_, Frame{reply, {}}, [](const absl::Status&) {});
  ASSERT_TRUE(network_.StepFrame(OfType(FrameType::kReply)));  // before the probe's completion
  ASSERT_EQ(answers_.size(), 1u);
  ASSERT_EQ(sent_, 1);
  ASSERT_TRUE(Submit(2).ok());
  ASSERT_TRUE(network_.Step());  // the probe's completion
  EXPECT_EQ(sent_, 1);
  network_.DeliverAll();
  EXPECT_EQ(sent_, 2);
}

TEST_F(RequestRunnerTest, ASilentServerIsConnectedToAnew) {
  ASSERT_TRUE(Submit(1).ok());
  network_.DeliverAll();
  const ConnectionId before = worker_;
  received_.clear();
  network_.Cut(OfType(FrameType::kProbe), 1);
  for (const int seconds : {1, 2, 4}) {
    clock_.Advance(absl::Seconds(seconds));
    ASSERT_TRUE(network_.WaitAndStep());  // a probe could not be sent
  }
  clock_.Advance(absl::Seconds(8));
  while (worker_ == before) ASSERT_TRUE(network_.WaitAndStep());
  ASSERT_FALSE(received_.empty());
  EXPECT_EQ(received_.back().header.type, FrameType::kHello);
  Answer(HelloHeader(kServerNode));
  EXPECT_EQ(received_.back().header.type, FrameType::kPush);
}

// A runner with three connections to the server, on each of which the server has greeted.
class RequestRunnerOfThreeTest : public RequestRunnerTest {
 protected:
  RequestRunnerOfThreeTest() : RequestRunnerTest(3) {
    // The timer's thread makes the other two once the first is heard.
    while (received_.size() < 2) EXPECT_TRUE(network_.WaitAndStep());
    EXPECT_EQ(runner_->Connections(), 3u);
    for (size_t i = 0; i < received_.size(); ++i) {
      EXPECT_EQ(received_[i].header.type, FrameType::kHello);
      worker_ = from_[i];
      Answer(HelloHeader(kServerNode));
    }
    received_.clear();
    from_.clear();
  }

  absl::Status SubmitKey(uint32_t tensor, Step step) {
    return runner_->Submit(
        {.frame = MakePush(Key::Of(tensor, 0), step, 0, {1, 2, 3, 4}),
         .server = kServerNode,
         .tensor = "w"},
        {.answered = [this](auto outcome) { answers_.push_back(outcome.frame); }});
  }
};

TEST_F(RequestRunnerOfThreeTest, DividesItsPushesAmongThem) {
  for (uint32_t tensor = 1; tensor <= 30; ++tensor) ASSERT_TRUE(SubmitKey(tensor, 1).ok());
  network_.DeliverAll();
  std::map<ConnectionId, int> pushes;
  for (const ConnectionId from : from_) ++pushes[from];
  EXPECT_THAT(pushes, ::testing::SizeIs(3));
  for (const auto& [from, count] : pushes) EXPECT_NEAR(count, 10, 1) << from;
  // Answers come on any of them.
  for (size_t i = 0; i < 30; ++i) {
    worker_ = from_[(i + 1) % from_.size()];
    Answer(AnswerTo(received_[i].header, FrameType::kReply));
  }
  EXPECT_EQ(answers_.size(), 30u);
}

TEST_F(RequestRunnerOfThreeTest, AProbeFollowsItsPush) {
  for (uint32_t tensor = 1; tensor <= 7; ++tensor) ASSERT_TRUE(SubmitKey(tensor, 1).ok());
  network_.DeliverAll();
  std::map<Key, ConnectionId> pushed_on;
  for (size_t i = 0; i < 7; ++i) pushed_on[received_[i].header.key] = from_[i];
  clock_.Advance(absl::Seconds(1));
  while (received_.size() < 14) ASSERT_TRUE(network_.WaitAndStep());
  for (size_t i = 7; i < 14; ++i) {
    EXPECT_EQ(received_[i].header.type, FrameType::kProbe);
    EXPECT_EQ(from_[i], pushed_on.at(received_[i].header.key));
  }
}

TEST_F(RequestRunnerOfThreeTest, AServerThatForgotOneIsGreetedOnAll) {
  ASSERT_TRUE(SubmitKey(1, 1).ok());
  network_.DeliverAll();
  const Frame push = received_.back();
  Answer(AnswerTo(push.header, FrameType::kError),
         EncodeError(absl::UnauthenticatedError("say hello first")));
  ASSERT_EQ(received_.size(), 4u);
  std::set<ConnectionId> greeted(from_.begin() + 1, from_.end());
  EXPECT_THAT(greeted, ::testing::SizeIs(3));
  Answer(HelloHeader(kServerNode));
  EXPECT_EQ(received_.back().header.type, FrameType::kPush);
  Answer(AnswerTo(push.header, FrameType::kReply));
  EXPECT_EQ(answers_.size(), 1u);
}

TEST_F(RequestRunnerOfThreeTest, AServerThatIsOutIsLetGoWithAll) {
  auto membership = std::make_shared<Membership>(*MakeMembership(2, /*epoch=*/2));
  membership->servers.clear();
  membership->MakeIndex();
  ASSERT_TRUE(runner_->SetMembership(membership).ok());
  EXPECT_EQ(runner_->Connections(), 0u);
}

class RequestRunnerFarAwayTest : public RequestRunnerTest {
 protected:
  RequestRunnerFarAwayTest() : RequestRunnerTest(0, absl::Milliseconds(40)) {}
};

TEST_F(RequestRunnerFarAwayTest, GreetsAServerOnConnectionsByItsDistance) {
  while (received_.size() < 3) ASSERT_TRUE(network_.WaitAndStep());
  EXPECT_EQ(runner_->Connections(), 4u);
  std::set<ConnectionId> greeted(from_.begin(), from_.end());
  EXPECT_THAT(greeted, ::testing::SizeIs(3));
  for (const Frame& frame : received_) EXPECT_EQ(frame.header.type, FrameType::kHello);
  // Before they are answered, only the first takes requests.
  received_.clear();
  ASSERT_TRUE(Submit(1).ok());
  network_.DeliverAll();
  ASSERT_EQ(received_.size(), 1u);
  EXPECT_FALSE(greeted.contains(from_.back()));
}

TEST_F(RequestRunnerTest, NamesTheAddressThatItCannotConnectTo) {
  auto membership = std::make_shared<Membership>(*MakeMembership(2, /*epoch=*/2));
  membership->servers.push_back(
      {.id = 101, .role = Role::kServer, .rank = 1, .endpoints = {EndpointOf("nowhere")}});
  const absl::Status status = runner_->SetMembership(membership);
  EXPECT_NE(std::string(status.message()).find("server 1 at nowhere"), std::string::npos) << status;
}

}  // namespace
}  // namespace bdn::testing
