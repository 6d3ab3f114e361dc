#include "server/reply_queue.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn::testing {
namespace {

using ::testing::ElementsAre;

constexpr ConnectionId kPeer = 1;
constexpr ConnectionId kOther = 2;
constexpr NodeId kNode = 7;
constexpr uint64_t kReplyBytes = kHeaderBytes + 1000;

// Keeps what it is given until the test says that it has been handed over.
class KeepingTransport final : public Transport {
 public:
  struct Kept {
    ConnectionId to;
    Frame frame;
    SendDone done;
  };

  void Start(FrameHandler, GoneHandler) override {}
  absl::StatusOr<std::vector<Endpoint>> Listen(const std::string&) override {
    return Unavailable("none");
  }
  absl::StatusOr<ConnectionId> Connect(const Peer&) override { return Unavailable("none"); }
  void Disconnect(ConnectionId) override {}
  PublicKey public_key() const override { return {}; }
  LinkSecurity security() const override { return LinkSecurity::kOpen; }
  bool needs_checksums() const override { return true; }
  void Admit(Admission) override {}
  PublicKey KeyOf(ConnectionId) const override { return {}; }
  ConnectionFacts FactsOf(ConnectionId) const override { return {}; }
  void Send(ConnectionId to, Frame frame, SendDone done) override {
    kept.push_back({to, std::move(frame), std::move(done)});
  }
  std::shared_ptr<MemoryDomain> memory() override { return HostMemory(); }
  TransportStats stats() const override { return {}; }
  void Close() override {}
  void Join() override {}

  // Runs the SendDone of the oldest frame.
  void HandOver(const absl::Status& status = absl::OkStatus()) {
    const SendDone done = std::move(kept.at(0).done);
    kept.erase(kept.begin());
    done(status);
  }
  std::vector<uint64_t> keys() const {
    std::vector<uint64_t> keys;
    for (const Kept& one : kept) keys.push_back(one.frame.header.key.value);
    return keys;
  }

  std::vector<Kept> kept;
};

Frame Reply(uint64_t key, Step step = 1, size_t payload_bytes = 1000) {
  FrameHeader header;
  header.type = FrameType::kReply;
  header.key = Key{key};
  header.step = step;
  return MakeFrame(header, Buffer::Allocate(payload_bytes));
}

class ReplyQueueTest : public ::testing::Test {
 protected:
  // The keys of what waits, in the order in which it goes.
  std::vector<uint64_t> Rest() {
    std::vector<uint64_t> keys;
    while (!transport_.kept.empty()) {
      keys.push_back(transport_.keys()[0]);
      transport_.HandOver();
    }
    return keys;
  }

  KeepingTransport transport_;
  ReplyQueue queue_{&transport_, 2 * kReplyBytes, nullptr};
};

TEST_F(ReplyQueueTest, TheTransportHasNoMoreThanTheBudget) {
  for (uint64_t key = 1; key <= 4; ++key) queue_.Send(kPeer, kNode, 0, Reply(key));
  EXPECT_THAT(transport_.keys(), ElementsAre(1, 2));
  EXPECT_EQ(queue_.bytes_waiting(), 2 * kReplyBytes);
  transport_.HandOver();
  EXPECT_THAT(transport_.keys(), ElementsAre(2, 3));
  EXPECT_EQ(queue_.bytes_waiting(), kReplyBytes);
  EXPECT_THAT(Rest(), ElementsAre(2, 3, 4));
  EXPECT_EQ(queue_.bytes_waiting(), 0u);
}

TEST_F(ReplyQueueTest, TheMostUrgentOvertakesABacklogAndEqualsKeepTheirOrder) {
  constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  for (uint64_t key = 1; key <= 6; ++key) queue_.Send(kPeer, kNode, -1, Reply(key));
  queue_.Send(kPeer, kNode, kLeast, Reply(7));
  queue_.Send(kPeer, kNode, 0, Reply(8));
  queue_.Send(kPeer, kNode, kMost, Reply(9));
  queue_.Send(kPeer, kNode, 0, Reply(10));
  queue_.Send(kPeer, kNode, -1, Reply(11));
  EXPECT_THAT(Rest(), ElementsAre(1, 2, 9, 8, 10, 3, 4, 5, 6, 11, 7));
}

TEST_F(ReplyQueueTest, ALongReplyGoesAlone) {
  queue_.Send(kPeer, kNode, 0, Reply(1));
  queue_.Send(kPeer, kNode, 1, Reply(2, 1, 100000));
  EXPECT_THAT(transport_.keys(), ElementsAre(1));
  transport_.HandOver();
  EXPECT_THAT(transport_.keys(), ElementsAre(2));
  queue_.Send(kPeer, kNode, 2, Reply(3));
  EXPECT_THAT(transport_.keys(), ElementsAre(2));
  EXPECT_THAT(Rest(), ElementsAre(2, 3));
}

TEST_F(ReplyQueueTest, NothingShorterOvertakesWhatIsMoreUrgentAndHasNoRoom) {
  queue_.Send(kPeer, kNode, 0, Reply(1));
  queue_.Send(kPeer, kNode, 1, Reply(2, 1, 5000));
  queue_.Send(kPeer, kNode, 0, Reply(3, 1, 10));
  EXPECT_THAT(transport_.keys(), ElementsAre(1));
  EXPECT_THAT(Rest(), ElementsAre(1, 2, 3));
}

TEST_F(ReplyQueueTest, EveryConnectionHasABudgetOfItsOwn) {
  for (uint64_t key = 1; key <= 3; ++key) queue_.Send(kPeer, kNode, 0, Reply(key));
  for (uint64_t key = 1; key <= 3; ++key) queue_.Send(kOther, kNode, 0, Reply(key));
  EXPECT_THAT(transport_.keys(), ElementsAre(1, 2, 1, 2));
}

TEST_F(ReplyQueueTest, AReplyThatIsOnItsWayIsNotSentAgain) {
  for (uint64_t key = 1; key <= 3; ++key) queue_.Send(kPeer, kNode, 0, Reply(key));
  queue_.Send(kPeer, kNode, 0, Reply(1));  // at the transport
  queue_.Send(kPeer, kNode, 5, Reply(3));  // waits
  EXPECT_THAT(Rest(), ElementsAre(1, 2, 3));
  queue_.Send(kPeer, kNode, 0, Reply(1));
  EXPECT_THAT(Rest(), ElementsAre(1));
}

TEST_F(ReplyQueueTest, ALaterStepTakesThePlaceOfOneThatWaits) {
  for (uint64_t key = 1; key <= 3; ++key) queue_.Send(kPeer, kNode, 0, Reply(key));
  queue_.Send(kPeer, kNode, 0, Reply(3, 2));
  queue_.Send(kPeer, kNode, 0, Reply(1, 2));  // whose first step is at the transport
  EXPECT_EQ(queue_.bytes_waiting(), 2 * kReplyBytes);
  transport_.HandOver();
  transport_.HandOver();
  ASSERT_THAT(transport_.keys(), ElementsAre(3, 1));
  for (const auto& kept : transport_.kept) EXPECT_EQ(kept.frame.header.step, 2u);
}

TEST_F(ReplyQueueTest, WhatWaitsForAConnectionThatIsGoneEnds) {
  for (uint64_t key = 1; key <= 4; ++key) queue_.Send(kPeer, kNode, 0, Reply(key));
  int ended = 0;
  while (!transport_.kept.empty()) {
    transport_.HandOver(Unavailable("gone"));
    ++ended;
  }
  EXPECT_EQ(ended, 4);
  EXPECT_EQ(queue_.bytes_waiting(), 0u);
}

TEST_F(ReplyQueueTest, ClosedItSendsNothing) {
  for (uint64_t key = 1; key <= 3; ++key) queue_.Send(kPeer, kNode, 0, Reply(key));
  queue_.Close();
  queue_.Send(kOther, kNode, 0, Reply(1));
  EXPECT_EQ(queue_.bytes_waiting(), 0u);
  EXPECT_THAT(Rest(), ElementsAre(1, 2));
}

}  // namespace
}  // namespace bdn::testing
