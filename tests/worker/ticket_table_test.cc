#include "worker/ticket_table.h"

#include <future>
#include <thread>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "worker/error_fields.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;

class TicketTableTest : public ::testing::Test {
 protected:
  // An exchange with a segment for each of the tickets.
  static Exchange ExchangeOf(const std::vector<TicketId>& tickets, bool absent = false) {
    Exchange exchange;
    for (const TicketId ticket : tickets) {
      exchange.segments.push_back({.filled = true, .ticket = ticket, .absent_everywhere = absent});
    }
    return exchange;
  }
  void End(const Exchange& exchange, const absl::Status& status = absl::OkStatus()) {
    std::vector<TicketTable::Ended> ended;
    table_.EndParts(exchange, status, &ended);
    table_.Deliver(ended);
  }
  absl::StatusOr<PushResult> Result(TicketId ticket) {
    auto result = table_.Wait(ticket, clock_.Now());
    EXPECT_TRUE(result.has_value()) << "ticket " << ticket << " is in flight";
    return result.has_value() ? *result : absl::UnknownError("in flight");
  }
  bool IsInFlight(TicketId ticket) { return !table_.Wait(ticket, clock_.Now()).has_value(); }

  ManualClock clock_;
  TicketTable table_{&clock_};
};

TEST_F(TicketTableTest, ATicketEndsWithTheLastOfItsParts) {
  const TicketId ticket = table_.Open({.tensor = 3, .step = 7, .parts = 2});
  End(ExchangeOf({ticket}));
  EXPECT_TRUE(IsInFlight(ticket));
  EXPECT_EQ(table_.Find(ticket)->tensor, 3u);
  EXPECT_EQ(table_.Find(ticket)->step, 7u);
  End(ExchangeOf({ticket}));
  const auto result = Result(ticket);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->step, 7u);
  EXPECT_FALSE(result->absent);
  EXPECT_EQ(table_.num_ended(), 1u);
}

TEST_F(TicketTableTest, OneExchangeMayEndSeveralTickets) {
  const TicketId a = table_.Open({.parts = 1});
  const TicketId b = table_.Open({.parts = 1});
  End(ExchangeOf({a, b}));
  EXPECT_TRUE(Result(a).ok());
  EXPECT_TRUE(Result(b).ok());
}

TEST_F(TicketTableTest, WaitingGivesATicketUp) {
  const TicketId ticket = table_.Open({.parts = 1});
  End(ExchangeOf({ticket}));
  EXPECT_TRUE(Result(ticket).ok());
  EXPECT_EQ(Result(ticket).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Result(99).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(TicketTableTest, TheFirstErrorOfAPartIsTheTickets) {
  const TicketId ticket = table_.Open({.parts = 3});
  End(ExchangeOf({ticket}));
  End(ExchangeOf({ticket}), Aborted("first"));
  End(ExchangeOf({ticket}), Internal("second"));
  EXPECT_EQ(Result(ticket).status(), Aborted("first"));
}

TEST_F(TicketTableTest, IsAbsentOnlyWhereAllPartsAre) {
  const TicketId mixed = table_.Open({.parts = 2});
  End(ExchangeOf({mixed}, /*absent=*/true));
  End(ExchangeOf({mixed}, /*absent=*/false));
  EXPECT_FALSE(Result(mixed)->absent);
  const TicketId absent = table_.Open({.parts = 1});
  End(ExchangeOf({absent}, /*absent=*/true));
  EXPECT_TRUE(Result(absent)->absent);
}

TEST_F(TicketTableTest, IsNonfiniteWhereOnePartIs) {
  const TicketId ticket = table_.Open({.parts = 2});
  Exchange exchange = ExchangeOf({ticket}, /*absent=*/true);
  End(exchange);
  exchange.nonfinite = true;
  End(exchange);
  const auto result = Result(ticket);
  EXPECT_TRUE(result->nonfinite);
  EXPECT_FALSE(result->absent);
}

TEST_F(TicketTableTest, ACallbackRunsOnceAndGivesTheTicketUp) {
  std::vector<std::pair<TicketId, absl::Status>> calls;
  const TicketId ticket = table_.Open({.parts = 2, .done = [&](TicketId id, const auto& result) {
                                         calls.emplace_back(id, result.status());
                                       }});
  End(ExchangeOf({ticket}));
  EXPECT_TRUE(calls.empty());
  End(ExchangeOf({ticket}), Aborted("because"));
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0], std::make_pair(ticket, Aborted("because")));
  EXPECT_EQ(table_.Find(ticket).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(TicketTableTest, AnEndWakesWhoWaitsOnAnotherThread) {
  const TicketId ticket = table_.Open({.step = 5, .parts = 1});
  std::thread waiter([&] {
    const auto result = table_.Wait(ticket, absl::InfiniteFuture());
    ASSERT_TRUE(result.has_value());
    EXPECT_EQ((*result)->step, 5u);
  });
  End(ExchangeOf({ticket}));
  waiter.join();
}

TEST_F(TicketTableTest, AWaitEndsAtItsDeadlineByTheClockThatItWasGiven) {
  const TicketId ticket = table_.Open({.parts = 1});
  const absl::Time deadline = clock_.Now() + absl::Hours(1);
  std::thread waiter([&] { EXPECT_FALSE(table_.Wait(ticket, deadline).has_value()); });
  clock_.Advance(absl::Hours(1));
  waiter.join();
}

TEST_F(TicketTableTest, AWaitForAWorkerSaysInTheLogWhomItWaitsForAndWhyItGoesOn) {
  const TicketId ticket = table_.Open({.tensor = 3, .step = 7, .parts = 1});
  ::testing::internal::CaptureStderr();
  std::promise<void> asked;
  std::vector<PushResult> results;
  absl::Status waited;
  std::thread waits([&] {
    waited = table_.WaitAll(
        {&ticket, 1}, absl::InfiniteDuration(),
        [&](TicketId) {
          asked.set_value();
          return WithFields(absl::DeadlineExceededError("still in flight"),
                            {.tensor = "w", .step = "7", .waiting_for = "worker 1, worker 3"});
        },
        &results);
  });
  std::future<void> is_asked = asked.get_future();
  while (is_asked.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    clock_.Advance(absl::Seconds(1));  // until it has waited long
  }
  End(ExchangeOf({ticket}));
  waits.join();
  EXPECT_TRUE(waited.ok()) << waited;
  EXPECT_EQ(results.size(), 1u);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("still waiting: tensor 'w' step 7"));
  EXPECT_THAT(log, HasSubstr("waiting for worker 1, worker 3, which the job holds for alive"));
  EXPECT_THAT(log, HasSubstr("setting wait-timeout is for answers that a server owes"));
  EXPECT_THAT(log, HasSubstr("barrier()"));
}

}  // namespace
}  // namespace bdn
