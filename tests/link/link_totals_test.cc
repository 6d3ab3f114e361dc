#include "link/link_totals.h"

#include "common/transport/forwarding.h"
#include "common/transport/loopback.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

// A transport whose connections have these facts, by their numbers.
class KnownConnections : public ForwardingTransport {
 public:
  explicit KnownConnections(std::vector<ConnectionFacts> facts)
      : ForwardingTransport(nullptr), facts_(std::move(facts)) {}
  ConnectionFacts FactsOf(ConnectionId connection) const override { return facts_.at(connection); }

 private:
  const std::vector<ConnectionFacts> facts_;
};

TEST(LinkTotals, AddUpTheConnectionsOfANodeOverTheNetwork) {
  const KnownConnections transport({{.is_network = true,
                                     .round_trip = absl::Milliseconds(3),
                                     .bytes_sent = 10,
                                     .bytes_received = 20,
                                     .bytes_sent_again = 1,
                                     .busy = absl::Seconds(5),
                                     .held_back = absl::Seconds(1),
                                     .round_trip_now = absl::Milliseconds(4),
                                     .rate = 100},
                                    {.is_network = false, .bytes_sent = 1'000},
                                    {.is_network = true,
                                     .round_trip = absl::Milliseconds(2),
                                     .bytes_sent = 30,
                                     .bytes_received = 40,
                                     .bytes_sent_again = 2,
                                     .busy = absl::Seconds(4),
                                     .held_back = absl::Seconds(2),
                                     .round_trip_now = absl::Milliseconds(9),
                                     .rate = 50}});
  const std::vector<ConnectionId> connections = {0, 1, 2};
  const LinkTotals totals = TotalsOf(7, connections, transport);
  EXPECT_EQ(totals.peer, 7);
  EXPECT_EQ(totals.bytes_sent, 40);
  EXPECT_EQ(totals.bytes_received, 60);
  EXPECT_EQ(totals.bytes_sent_again, 3);
  EXPECT_EQ(totals.rate, 150);
  EXPECT_EQ(totals.busy_ns, 5'000'000'000);
  EXPECT_EQ(totals.held_back_ns, 2'000'000'000);
  EXPECT_EQ(totals.round_trip_ns, 9'000'000);
  EXPECT_EQ(totals.least_round_trip_ns, 3'000'000);
}

}  // namespace
}  // namespace bdn
