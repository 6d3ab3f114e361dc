#include "common/transport/zmq/peer_table.h"

#include <algorithm>

#include "gmock/gmock.h"

namespace bdn {
namespace {

using ::testing::ElementsAre;
using Weighed = PeerTable::Weighed;

constexpr absl::Time kStart = absl::UnixEpoch();
absl::Time At(int seconds) { return kStart + absl::Seconds(seconds); }

class PeerTableTest : public testing::Test {
 protected:
  std::vector<ConnectionId> TakeClosed() {
    std::vector<ConnectionId> ids;
    for (const PeerTable::Peer& peer : table_.TakeClosed()) ids.push_back(peer.id);
    return ids;
  }
  PeerTable table_;
};

TEST_F(PeerTableTest, ForgetsAPeerWhenItsConnectionHasEndedAndItsFramesAreRead) {
  table_.OnAccepted(5, At(0));
  EXPECT_EQ(table_.newcomers().size(), 1u);
  PeerTable::Peer* const peer = table_.Add(1, "a", 5, {{1}}, At(0));
  EXPECT_TRUE(table_.newcomers().empty());
  EXPECT_EQ(table_.Find("a"), peer);
  EXPECT_EQ(table_.Find(1), peer);
  EXPECT_TRUE(TakeClosed().empty());

  EXPECT_TRUE(table_.OnClosed(5));
  EXPECT_EQ(table_.Find("a"), peer);  // it may have sent more
  EXPECT_EQ(TakeClosed(), std::vector<ConnectionId>{1});
  EXPECT_EQ(table_.Find("a"), nullptr);
  EXPECT_EQ(table_.Find(1), nullptr);
  EXPECT_EQ(table_.size(), 0u);
}

TEST_F(PeerTableTest, TellsWhetherAConnectionEverBroughtAFrame) {
  table_.OnAccepted(5, At(0));
  EXPECT_FALSE(table_.OnClosed(5));
  EXPECT_TRUE(table_.newcomers().empty());
}

TEST_F(PeerTableTest, APeerWhoseFirstFrameIsReadAfterItsEndGoesAtOnce) {
  table_.OnAccepted(5, At(0));
  table_.OnClosed(5);
  table_.Add(1, "a", 5, {}, At(0));
  EXPECT_EQ(TakeClosed(), std::vector<ConnectionId>{1});
}

TEST_F(PeerTableTest, APeerWhoseConnectionIsToldOfAfterItsFirstFrameStays) {
  PeerTable::Peer* const peer = table_.Add(1, "a", 5, {}, At(0));
  EXPECT_TRUE(table_.has_untold());
  EXPECT_FALSE(peer->is_told_of);
  EXPECT_EQ(table_.OnAccepted(5, At(1)), peer);
  EXPECT_FALSE(table_.has_untold());
  EXPECT_TRUE(peer->is_told_of);
  EXPECT_TRUE(table_.newcomers().empty());
  table_.CloseUntoldBefore(At(100));
  EXPECT_FALSE(table_.has_closed());
  EXPECT_TRUE(table_.OnClosed(5));
  EXPECT_EQ(TakeClosed(), std::vector<ConnectionId>{1});
}

TEST_F(PeerTableTest, SoDoesOneOnADescriptorWhoseEarlierPeerHasGone) {
  table_.OnAccepted(5, At(0));
  table_.Add(1, "a", 5, {}, At(0));
  table_.OnClosed(5);
  table_.Add(2, "b", 5, {}, At(1));
  EXPECT_EQ(TakeClosed(), std::vector<ConnectionId>{1});
  table_.OnAccepted(5, At(1));
  EXPECT_EQ(table_.Find("b")->is_closed, false);
}

TEST_F(PeerTableTest, APeerWhoseConnectionIsNeverToldOfGoesInTime) {
  table_.Add(1, "a", 5, {}, At(1));
  table_.CloseUntoldBefore(At(1));
  EXPECT_FALSE(table_.has_closed());
  table_.CloseUntoldBefore(At(2));
  EXPECT_TRUE(table_.has_closed());
  EXPECT_FALSE(table_.has_untold());
  EXPECT_EQ(TakeClosed(), std::vector<ConnectionId>{1});
  EXPECT_EQ(table_.OnAccepted(5, At(3)), nullptr);  // another connection
}

TEST_F(PeerTableTest, APeerWhoseEndIsToldFirstGoes) {
  table_.Add(1, "a", 5, {}, At(0));
  EXPECT_TRUE(table_.OnClosed(5));
  EXPECT_EQ(TakeClosed(), std::vector<ConnectionId>{1});
  EXPECT_FALSE(table_.has_untold());
}

TEST_F(PeerTableTest, ADescriptorThatIsGivenAgainIsAnotherConnection) {
  table_.OnAccepted(5, At(0));
  table_.Add(1, "a", 5, {}, At(0));
  table_.OnClosed(5);
  table_.OnAccepted(5, At(1));
  table_.Add(2, "b", 5, {}, At(0));
  EXPECT_EQ(TakeClosed(), std::vector<ConnectionId>{1});
  EXPECT_TRUE(table_.OnClosed(5));
  EXPECT_EQ(TakeClosed(), std::vector<ConnectionId>{2});

  // Even where nobody told of the end.
  table_.OnAccepted(5, At(2));
  table_.Add(3, "c", 5, {}, At(0));
  table_.OnAccepted(5, At(3));
  EXPECT_EQ(TakeClosed(), std::vector<ConnectionId>{3});
}

TEST_F(PeerTableTest, CountsNewcomersInTheOrderOfTheirComing) {
  for (int fd = 10; fd > 0; --fd) table_.OnAccepted(fd, At(10 - fd));
  EXPECT_EQ(table_.newcomers().begin()->second.fd, 10);
  table_.ForgetNewcomersBefore(At(4));
  EXPECT_EQ(table_.newcomers().size(), 6u);
  EXPECT_EQ(table_.newcomers().begin()->second.fd, 6);
  table_.Add(1, "a", 6, {}, At(0));
  EXPECT_EQ(table_.newcomers().begin()->second.fd, 5);
}

TEST_F(PeerTableTest, APeerThatHasEndedIsForgottenAfterATurnWithoutAMessageOfIt) {
  table_.OnAccepted(5, At(0));
  PeerTable::Peer* const peer = table_.Add(1, "a", 5, {}, At(0));
  table_.OnRead(peer);
  table_.OnClosed(5);
  EXPECT_TRUE(table_.EndTurn().empty());  // it may have had its place before it was closed
  table_.OnRead(peer);
  EXPECT_TRUE(table_.EndTurn().empty());
  EXPECT_EQ(table_.Find("a"), peer);
  EXPECT_EQ(table_.EndTurn().at(0).id, 1u);
  EXPECT_EQ(table_.size(), 0u);
  EXPECT_TRUE(TakeClosed().empty());
}

TEST_F(PeerTableTest, FindsWhoSendsWithoutEndingAMessage) {
  absl::flat_hash_map<int, uint64_t> received;
  const auto weigh = [&] {
    std::vector<int> fds;
    for (const PeerTable::Weight& weight :
         table_.Weigh(Weighed::kAll, [&](int fd) { return received[fd]; }, {100, 100, 1000})) {
      EXPECT_EQ(weight.peer, weight.fd == 5 ? table_.Find(1) : nullptr);
      EXPECT_EQ(weight.unread, 101u);
      fds.push_back(weight.fd);
    }
    std::sort(fds.begin(), fds.end());
    return fds;
  };
  for (const int fd : {5, 6, 7}) table_.OnAccepted(fd, At(0));
  PeerTable::Peer* const peer = table_.Add(1, "a", 5, {}, At(0));
  table_.OnRead(peer);
  received = {{5, 1000}, {6, 101}, {7, 100}};
  EXPECT_TRUE(weigh().empty());  // what has come just now may be read yet
  received[5] = 1101;
  EXPECT_EQ(weigh(), std::vector<int>{6});  // once
  EXPECT_EQ(weigh(), std::vector<int>{5});
  received[5] = 5000;
  EXPECT_TRUE(weigh().empty());
  table_.OnRead(peer);  // it was the end of a message
  EXPECT_TRUE(weigh().empty());
  EXPECT_TRUE(weigh().empty());
  received.clear();  // the system does not tell any more
  EXPECT_TRUE(weigh().empty());
  EXPECT_TRUE(weigh().empty());
}

TEST_F(PeerTableTest, AFirstMessageMayBeShorterAndAllOfThemTogetherToo) {
  absl::flat_hash_map<int, uint64_t> read;
  const auto weigh = [&] {
    std::vector<int> fds;
    for (const PeerTable::Weight& weight :
         table_.Weigh(Weighed::kAll, [&](int fd) { return read[fd]; }, {1000, 100, 150})) {
      fds.push_back(weight.fd);
    }
    return fds;
  };
  for (const int fd : {5, 6, 7, 8}) table_.OnAccepted(fd, At(0));
  table_.OnRead(table_.Add(1, "a", 5, {}, At(0)));
  EXPECT_TRUE(weigh().empty());
  read = {{5, 1000}, {6, 101}};
  EXPECT_TRUE(weigh().empty());
  EXPECT_EQ(weigh(), std::vector<int>{6}) << "of five a message is known";
  read = {{5, 1000}, {6, 101}, {7, 90}, {8, 70}};
  EXPECT_TRUE(weigh().empty());
  EXPECT_EQ(weigh(), std::vector<int>{7}) << "who sent most, until the others have room";
  EXPECT_TRUE(weigh().empty());
}

TEST_F(PeerTableTest, WatchesWhoHasBroughtNoMessageAndWhoseMessageIsLong) {
  absl::flat_hash_map<int, uint64_t> read;
  std::vector<int> asked;
  const auto weigh = [&](Weighed weighed) {
    asked.clear();
    const auto heavy = table_.Weigh(weighed,
                                    [&](int fd) {
                                      asked.push_back(fd);
                                      return read[fd];
                                    },
                                    {1000, 100, 150});
    std::sort(asked.begin(), asked.end());
    return heavy;
  };
  EXPECT_FALSE(table_.has_watched());
  for (const int fd : {5, 6, 7}) table_.OnAccepted(fd, At(0));
  EXPECT_TRUE(table_.has_watched());
  PeerTable::Peer* const peer = table_.Add(1, "a", 5, {}, At(0));
  PeerTable::Peer* const other = table_.Add(2, "b", 6, {}, At(0));
  EXPECT_TRUE(weigh(Weighed::kWatched).empty());
  EXPECT_THAT(asked, ElementsAre(7));
  table_.Add(3, "c", 7, {}, At(0));
  EXPECT_TRUE(weigh(Weighed::kAll).empty());
  EXPECT_THAT(asked, ElementsAre(5, 6, 7));
  EXPECT_FALSE(table_.has_watched());

  read = {{5, 251}, {6, 250}};
  EXPECT_TRUE(weigh(Weighed::kAll).empty());
  EXPECT_TRUE(table_.has_watched());
  read[5] = 1001;
  EXPECT_TRUE(weigh(Weighed::kWatched).empty());
  EXPECT_THAT(asked, ElementsAre(5));
  table_.OnRead(other);
  const std::vector<PeerTable::Weight> heavy = weigh(Weighed::kWatched);
  ASSERT_EQ(heavy.size(), 1u);
  EXPECT_EQ(heavy[0].peer, peer);
  EXPECT_EQ(heavy[0].unread, 1001u);

  table_.OnRead(peer);
  read[6] = 600;  // of which a message was read
  EXPECT_TRUE(weigh(Weighed::kAll).empty());
  EXPECT_FALSE(table_.has_watched());
}

TEST_F(PeerTableTest, StaysSmallWhileManyComeAndGo) {
  for (ConnectionId id = 1; id <= 10000; ++id) {
    const int fd = static_cast<int>(id % 7);
    table_.OnAccepted(fd, At(0));
    table_.Add(id, std::to_string(id), fd, {}, At(0));
    table_.OnClosed(fd);
    table_.TakeClosed();
  }
  EXPECT_EQ(table_.size(), 0u);
  EXPECT_TRUE(table_.newcomers().empty());
}

}  // namespace
}  // namespace bdn
