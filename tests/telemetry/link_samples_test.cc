#include "common/telemetry/link_samples.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kSecond = 1'000'000'000;

uint8_t KindOf(TraceKind kind) { return static_cast<uint8_t>(kind); }

TEST(LinkSamples, SayWhatWasMovedBetweenTwoCalls) {
  LinkSamples samples;
  EXPECT_THAT(samples.Take(5 * kSecond, {{.peer = 3, .bytes_sent = 100, .busy_ns = 32}}),
              IsEmpty());
  const auto records = samples.Take(6 * kSecond, {{.peer = 3,
                                                   .bytes_sent = 1'100,
                                                   .bytes_received = 70,
                                                   .bytes_sent_again = 9,
                                                   .busy_ns = 32 + 1'600,
                                                   .held_back_ns = 160,
                                                   .round_trip_ns = 4'000'000,
                                                   .least_round_trip_ns = 3'000'000,
                                                   .rate = 77}});
  ASSERT_THAT(records, SizeIs(2));
  const TraceRecord& link = records[0];
  EXPECT_EQ(link.kind, KindOf(TraceKind::kLinkSample));
  EXPECT_EQ(link.begin_ns, 5 * kSecond);
  EXPECT_EQ(link.wall_ns, kSecond);
  EXPECT_EQ(link.key, 1'000);
  EXPECT_EQ(link.step, 70);
  EXPECT_EQ(link.bytes, 9);
  EXPECT_EQ(link.cpu_ticks, 100);
  EXPECT_EQ(link.peer, 3);
  const TraceRecord& path = records[1];
  EXPECT_EQ(path.kind, KindOf(TraceKind::kPathSample));
  EXPECT_EQ(path.begin_ns, 5 * kSecond);
  EXPECT_EQ(path.wall_ns, kSecond);
  EXPECT_EQ(path.key, 77);
  EXPECT_EQ(path.step, 4'000'000);
  EXPECT_EQ(path.bytes, 3'000);
  EXPECT_EQ(path.cpu_ticks, 10);
  EXPECT_EQ(path.peer, 3);
}

TEST(LinkSamples, SayNothingOfALinkThatMovedNothing) {
  LinkSamples samples;
  const std::vector<LinkTotals> idle = {{.peer = 3, .bytes_sent = 5, .bytes_received = 6}};
  samples.Take(1 * kSecond, idle);
  EXPECT_THAT(samples.Take(2 * kSecond, idle), IsEmpty());
}

TEST(LinkSamples, AConnectionThatWasReplacedGivesNoNegativeNumbers) {
  LinkSamples samples;
  samples.Take(1 * kSecond, {{.peer = 3, .bytes_sent = 500, .bytes_received = 10, .busy_ns = 99}});
  const auto records = samples.Take(
      2 * kSecond, {{.peer = 3, .bytes_sent = 20, .bytes_received = 12, .busy_ns = 0}});
  ASSERT_THAT(records, SizeIs(2));
  EXPECT_EQ(records[0].key, 0);
  EXPECT_EQ(records[0].step, 2);
  EXPECT_EQ(records[0].cpu_ticks, 0);
}

TEST(LinkSamples, APeerThatIsNewOrComesBackHasMovedAllSince) {
  LinkSamples samples;
  samples.Take(1 * kSecond, {{.peer = 3, .bytes_sent = 50}});
  auto records = samples.Take(2 * kSecond, {{.peer = 4, .bytes_sent = 7}});
  ASSERT_THAT(records, SizeIs(2));
  EXPECT_EQ(records[0].key, 7);
  records = samples.Take(3 * kSecond, {{.peer = 3, .bytes_sent = 20}});
  ASSERT_THAT(records, SizeIs(2));
  EXPECT_EQ(records[0].key, 20);
}

TEST(LinkSamples, OfManyLinksThoseThatMovedMostAreRecorded) {
  LinkSamples samples;
  std::vector<LinkTotals> links;
  for (NodeId peer = 1; peer <= 1'000; ++peer) links.push_back({.peer = peer});
  samples.Take(1 * kSecond, links);
  for (LinkTotals& link : links) link.bytes_received = link.peer % 500 + 1;
  const auto records = samples.Take(2 * kSecond, links);
  ASSERT_THAT(records, SizeIs(2 * LinkSamples::kMostPeers));
  for (const TraceRecord& record : records) EXPECT_GE(record.peer % 500, 500 - 32);
}

TEST(LinkSamples, NumbersOfMoreThanAFieldHoldsAreTheLargestOne) {
  LinkSamples samples;
  samples.Take(0, {{.peer = 3}});
  const auto records = samples.Take(kSecond, {{.peer = 3,
                                               .bytes_sent = ~uint64_t{0},
                                               .bytes_sent_again = uint64_t{1} << 40,
                                               .busy_ns = ~uint64_t{0}}});
  ASSERT_THAT(records, SizeIs(2));
  EXPECT_EQ(records[0].bytes, UINT32_MAX);
  EXPECT_EQ(records[0].cpu_ticks, UINT32_MAX);
}

}  // namespace
}  // namespace bdn
