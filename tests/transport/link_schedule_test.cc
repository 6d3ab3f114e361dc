#include "common/transport/link_schedule.h"

#include "common/transport/loopback.h"
#include "common/transport/throttled.h"
#include "gtest/gtest.h"
#include "tests/transport/transport_fixture.h"

namespace bdn {
namespace {

absl::Time At(int64_t milliseconds) { return absl::UnixEpoch() + absl::Milliseconds(milliseconds); }
constexpr double kBytesAMillisecond = 1000;  // a second

TEST(LinkScheduleTest, TakesAFramesTimeOnAnIdleLink) {
  LinkSchedule link(kBytesAMillisecond);
  EXPECT_EQ(link.Depart(At(100), 5), At(105));
  EXPECT_EQ(link.Depart(At(200), 7), At(207));
}

TEST(LinkScheduleTest, QueuesFramesBehindEachOther) {
  LinkSchedule link(kBytesAMillisecond);
  EXPECT_EQ(link.Depart(At(0), 10), At(10));
  EXPECT_EQ(link.Depart(At(0), 10), At(20));
  EXPECT_EQ(link.Depart(At(15), 10), At(30));
  EXPECT_EQ(link.Depart(At(31), 10), At(41));
}

TEST(LinkScheduleTest, LetsAFrameThroughThatFlowedInAlready) {
  LinkSchedule link(kBytesAMillisecond);
  EXPECT_EQ(link.Arrive(At(100), 50), At(100));
  EXPECT_EQ(link.Arrive(At(150), 50), At(150));  // back to back at the link's rate: no delay
}

TEST(LinkScheduleTest, DelaysFramesThatComeFasterThanTheLink) {
  LinkSchedule link(kBytesAMillisecond);
  // Two senders at once, each at the link's full rate.
  EXPECT_EQ(link.Arrive(At(100), 50), At(100));
  EXPECT_EQ(link.Arrive(At(100), 50), At(150));
  EXPECT_EQ(link.Arrive(At(150), 50), At(200));
  EXPECT_EQ(link.Arrive(At(150), 50), At(250));
}

TEST(ThrottledTest, IsTheTransportItselfWithoutARate) {
  LoopbackNetwork network;
  auto inner = network.MakeTransport();
  Transport* const before = inner.get();
  EXPECT_EQ(MakeThrottled(std::move(inner), 0, nullptr).get(), before);
}

TEST(ThrottledTest, LetsNothingThroughFasterThanItsRate) {
  const SteadyClock clock;
  LoopbackNetwork network;
  Inbox inbox;
  Completions completions;
  auto server = network.MakeTransport();
  server->Start(inbox.Handler());
  const std::string address = ListenAt(server.get(), "loopback://server");
  auto client = MakeThrottled(network.MakeTransport(), 1e7, &clock);
  client->Start([](ConnectionId, Frame) {});
  const ConnectionId to_server = *client->Connect(PeerAt(address));

  const absl::Time start = clock.Now();
  for (Step step = 0; step < 10; ++step) {
    client->Send(to_server, FrameOf(step, 100000), completions.Expect());
  }
  const auto arrived = inbox.WaitFor(10);
  const absl::Duration took = clock.Now() - start;
  EXPECT_GE(took, absl::Milliseconds(100));
  for (Step step = 0; step < 10; ++step) EXPECT_EQ(arrived.at(step).frame.header.step, step);
  completions.WaitForAll();
}

TEST(ThrottledTest, EndsWhatHasNotLeftInUnavailableWhenItIsClosed) {
  const SteadyClock clock;
  LoopbackNetwork network;
  Inbox inbox;
  Completions completions;
  auto server = network.MakeTransport();
  server->Start(inbox.Handler());
  auto client = MakeThrottled(network.MakeTransport(), 1, &clock);  // a byte a second
  client->Start([](ConnectionId, Frame) {});
  const ConnectionId to_server =
      *client->Connect(PeerAt(ListenAt(server.get(), "loopback://server")));
  for (Step step = 0; step < 10; ++step) {
    client->Send(to_server, FrameOf(step, 1000), completions.Expect());
  }
  client->Close();
  for (const absl::Status& status : completions.WaitForAll()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  }
  client->Join();
  EXPECT_EQ(inbox.size(), 0u);
}

}  // namespace
}  // namespace bdn
