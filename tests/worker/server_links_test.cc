#include "worker/pipeline/server_links.h"

#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn::testing {
namespace {

using ::testing::ElementsAre;

constexpr NodeId kServer = 100;
constexpr ConnectionFacts kMemory;
const absl::Time kStart = absl::UnixEpoch();

ConnectionFacts Far(uint64_t sent, uint64_t received,
                    absl::Duration round_trip = absl::Milliseconds(100)) {
  return {
      .is_network = true, .round_trip = round_trip, .bytes_sent = sent, .bytes_received = received};
}

// Links to one server, whose first connection, 1, was heard.
ServerLinks Heard(int connections = 0) {
  ServerLinks links(connections);
  EXPECT_TRUE(links.Set(kServer, 1).empty());
  links.OnHeard(1);
  return links;
}

// Looks at one connection that moves `bytes` each second for `seconds`; returns those to be added.
int Look(ServerLinks* links, uint64_t bytes, absl::Duration round_trip, int seconds = 4) {
  int more = 0;
  for (int i = 0; i < seconds; ++i) {
    const absl::Time now = kStart + absl::Seconds(i);
    if (!links->IsDue(kServer, now)) continue;
    const uint64_t moved = bytes * static_cast<uint64_t>(i);
    more += links->WantsMore(kServer, std::vector{Far(moved, moved / 2, round_trip)}, now);
  }
  return more;
}

TEST(ServerLinks, KnowItsServerByEachConnection) {
  ServerLinks links = Heard();
  EXPECT_TRUE(links.Add(kServer, 1, 2));
  EXPECT_EQ(links.ServerOf(1), kServer);
  EXPECT_EQ(links.ServerOf(2), kServer);
  EXPECT_EQ(links.ServerOf(3), 0u);
  EXPECT_THAT(links.Of(kServer), ElementsAre(1, 2));
  EXPECT_EQ(links.size(), 2u);
  EXPECT_EQ(links.Choose(77), 0u);
  EXPECT_THAT(links.Remove(kServer), ElementsAre(1, 2));
  EXPECT_FALSE(links.Has(kServer));
  EXPECT_EQ(links.ServerOf(2), 0u);
  links.OnSent(2, 5);  // a frame's end comes late
  EXPECT_EQ(links.size(), 0u);
}

TEST(ServerLinks, ChooseTheShortestQueueOnWhichTheServerWasHeard) {
  ServerLinks links;
  links.Set(kServer, 1);
  links.Add(kServer, 1, 2);
  links.Add(kServer, 1, 3);
  EXPECT_EQ(links.Choose(kServer), 1u) << "nothing was heard: the first";
  links.OnHeard(1);
  links.OnQueued(1, 1000);
  EXPECT_EQ(links.Choose(kServer), 1u) << "2 and 3 may lead nowhere";
  links.OnHeard(2);
  EXPECT_EQ(links.Choose(kServer), 2u);
  links.OnQueued(2, 2000);
  EXPECT_EQ(links.Choose(kServer), 1u);
  links.OnHeard(3);
  links.OnQueued(3, 500);
  EXPECT_EQ(links.Choose(kServer), 3u);
  links.OnSent(2, 2000);
  EXPECT_EQ(links.Choose(kServer), 2u);
}

TEST(ServerLinks, TakeTurnsWhereNothingWaits) {
  ServerLinks links = Heard();
  for (const ConnectionId more : {2, 3}) {
    links.Add(kServer, 1, more);
    links.OnHeard(more);
  }
  std::map<ConnectionId, int> frames;
  for (int i = 0; i < 30; ++i) {
    const ConnectionId chosen = links.Choose(kServer);
    ++frames[chosen];
    links.OnQueued(chosen, 96);
    links.OnSent(chosen, 96);
  }
  EXPECT_THAT(frames, ElementsAre(std::pair(1, 10), std::pair(2, 10), std::pair(3, 10)));
}

TEST(ServerLinks, AServerNearbyKeepsItsOneConnection) {
  ServerLinks links = Heard();
  EXPECT_EQ(Look(&links, uint64_t{5} << 30, absl::Milliseconds(4)), 0);
  EXPECT_FALSE(links.IsDue(kServer, kStart + absl::Hours(1))) << "it does not move away";
}

TEST(ServerLinks, AFastNetworkGetsAsManyAsARoundTripsBytesAskFor) {
  for (const auto& [bytes, more] : std::map<uint64_t, int>{{10'000'000, 0},      // 0.1 MB
                                                           {150'000'000, 0},     // 1.5 MB
                                                           {160'000'000, 1},     // 1.6 MB
                                                           {840'000'000, 5},     // 8.4 MB
                                                           {5'000'000'000, 7}})  // the most
  {
    ServerLinks links = Heard();
    EXPECT_EQ(Look(&links, bytes, absl::Milliseconds(10)), more) << bytes;
  }
}

TEST(ServerLinks, AskForMoreOnceMoreIsMovedAndNeverForLess) {
  ServerLinks links = Heard();
  EXPECT_EQ(Look(&links, 300'000'000, absl::Milliseconds(10)), 1);  // 3 MB
  links.Add(kServer, 1, 2);
  const auto look = [&](absl::Duration at, uint64_t each) {
    const absl::Time now = kStart + at;
    EXPECT_TRUE(links.IsDue(kServer, now));
    const ConnectionFacts facts = Far(0, each, absl::Milliseconds(10));
    return links.WantsMore(kServer, std::vector{facts, facts}, now);
  };
  EXPECT_EQ(look(absl::Minutes(2), 1'000'000'000), 0) << "a long pause says nothing";
  EXPECT_EQ(look(absl::Seconds(121), 1'270'000'000), 2) << "5.4 MB of both in a round trip";
  EXPECT_EQ(look(absl::Seconds(122), 1'270'000'000), 0);
}

TEST(ServerLinks, AServerFarAwayGetsConnectionsByItsDistanceAtOnce) {
  for (const auto& [milliseconds, more] :
       std::map<int, int>{{4, 0}, {12, 0}, {30, 2}, {50, 3}, {100, 7}, {400, 7}}) {
    ServerLinks links = Heard();
    ASSERT_TRUE(links.IsDue(kServer, kStart));
    const std::vector facts{Far(0, 0, absl::Milliseconds(milliseconds))};
    EXPECT_EQ(links.WantsMore(kServer, facts, kStart), more) << milliseconds;
    EXPECT_EQ(links.IsDue(kServer, kStart + absl::Seconds(1)), milliseconds > 4);
  }
}

TEST(ServerLinks, ServersFarAwayShareTheConnectionsOfTheirDistance) {
  for (const auto& [servers, more] : std::map<int, int>{{1, 7}, {2, 3}, {3, 2}, {8, 0}, {20, 0}}) {
    ServerLinks links = Heard();
    for (NodeId other = 1; other < static_cast<NodeId>(servers); ++other) {
      links.Set(kServer + other, 100 + other);
    }
    ASSERT_TRUE(links.IsDue(kServer, kStart));
    const std::vector facts{Far(0, 0, absl::Milliseconds(150))};
    EXPECT_EQ(links.WantsMore(kServer, facts, kStart), more) << servers;
  }
}

TEST(ServerLinks, ANewFirstConnectionGetsTheOthersAgain) {
  ServerLinks links = Heard();
  EXPECT_EQ(Look(&links, 300'000'000, absl::Milliseconds(10)), 1);
  EXPECT_TRUE(links.Add(kServer, 1, 2));
  EXPECT_THAT(links.Set(kServer, 3), ElementsAre(1, 2));
  EXPECT_FALSE(links.Add(kServer, 1, 4)) << "it was made for the former";
  EXPECT_FALSE(links.IsDue(kServer, kStart)) << "nothing was heard on it";
  links.OnHeard(3);
  ASSERT_TRUE(links.IsDue(kServer, kStart));
  const std::vector facts{Far(0, 0, absl::Milliseconds(10))};
  EXPECT_EQ(links.WantsMore(kServer, facts, kStart), 1);
}

TEST(ServerLinks, OneLookRunsAtATime) {
  ServerLinks links = Heard();
  EXPECT_TRUE(links.IsDue(kServer, kStart));
  EXPECT_FALSE(links.IsDue(kServer, kStart + absl::Minutes(1)));
  links.WantsMore(kServer, std::vector{Far(0, 0)}, kStart);
  EXPECT_FALSE(links.IsDue(kServer, kStart + absl::Milliseconds(10))) << "too early";
  EXPECT_TRUE(links.IsDue(kServer, kStart + absl::Seconds(1)));
  EXPECT_FALSE(links.IsDue(77, kStart));
}

TEST(ServerLinks, ANumberThatWasSetIsMadeOverANetworkAndOnlyThere) {
  ServerLinks links = Heard(3);
  ASSERT_TRUE(links.IsDue(kServer, kStart));
  EXPECT_EQ(links.WantsMore(kServer, std::vector{Far(0, 0, absl::ZeroDuration())}, kStart), 2);
  EXPECT_FALSE(links.IsDue(kServer, kStart + absl::Hours(1)));
  ServerLinks near = Heard(3);
  ASSERT_TRUE(near.IsDue(kServer, kStart));
  EXPECT_EQ(near.WantsMore(kServer, std::vector{kMemory}, kStart), 0);
  EXPECT_FALSE(near.IsDue(kServer, kStart + absl::Hours(1)));
}

}  // namespace
}  // namespace bdn::testing
