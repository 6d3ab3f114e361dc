#include "trace/clock_alignment.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kSecond = 1'000'000'000;

// A clock of a test: ahead of the common one by `offset`, and by `drift` more each second.
struct TestClock {
  int64_t offset_ns = 0;
  double drift = 0;
  int64_t At(int64_t common) const {
    return common + offset_ns + std::llround(drift * static_cast<double>(common));
  }
};

// Numbers that look drawn, and are the same in each run.
class Numbers {
 public:
  explicit Numbers(uint64_t seed = 12345) : state_(seed) {}
  // Returns a number of [0, most).
  int64_t Below(int64_t most) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<int64_t>((state_ >> 33) % static_cast<uint64_t>(most));
  }

 private:
  uint64_t state_;
};

// Adds the bounds of an exchange of two clocks that begins at a common time.
void AddExchangeOf(const std::vector<TestClock>& clocks, uint32_t worker, uint32_t server,
                   int64_t at, int64_t there_ns, int64_t back_ns, std::vector<ClockBound>* bounds) {
  const int64_t arrived = at + there_ns;
  const int64_t replied = arrived + 300'000;
  bounds->push_back({worker, server, clocks[worker].At(at), clocks[server].At(arrived)});
  bounds->push_back(
      {server, worker, clocks[server].At(replied), clocks[worker].At(replied + back_ns)});
}

// Exchanges of all workers (the even clocks) with all servers (the odd ones) for so many seconds,
// each way at least `least_ns` long.
struct TestExchanges {
  std::vector<ClockBound> bounds;
  int64_t least_round_trip_ns;
};
TestExchanges ExchangesOf(const std::vector<TestClock>& clocks, int seconds, int64_t least_ns,
                          uint64_t seed = 1) {
  std::vector<ClockBound> bounds;
  int64_t least_round_trip_ns = kSecond;
  Numbers numbers(seed);
  for (int64_t at = kSecond; at < (1 + seconds) * kSecond; at += kSecond / 20) {
    for (uint32_t worker = 0; worker < clocks.size(); worker += 2) {
      for (uint32_t server = 1; server < clocks.size(); server += 2) {
        const int64_t there = least_ns + numbers.Below(2'000'000);
        const int64_t back = least_ns + numbers.Below(2'000'000);
        least_round_trip_ns = std::min(least_round_trip_ns, there + back);
        AddExchangeOf(clocks, worker, server, at + (there + back) % 1'000'000, there, back,
                      &bounds);
      }
    }
  }
  return {bounds, least_round_trip_ns};
}
std::vector<ClockBound> Exchanges(const std::vector<TestClock>& clocks, int seconds,
                                  int64_t least_ns) {
  return ExchangesOf(clocks, seconds, least_ns).bounds;
}

std::vector<ClockMap> Align(const std::vector<TestClock>& clocks,
                            const std::vector<ClockBound>& bounds) {
  const std::vector<std::optional<int64_t>> nothing(clocks.size());
  return AlignClocks(static_cast<uint32_t>(clocks.size()), bounds, nothing);
}

TEST(ClockAlignment, FindsOffsetsAndDriftWithinHalfTheLeastRoundTrip) {
  for (const int seconds : {2, 9, 30, 600}) {
    for (int i = 0; i < 12; ++i) {
      const double drift = (i % 3 - 1) * 50e-6;
      const std::vector<TestClock> clocks = {
          {}, {5 * kSecond, drift}, {-3600 * kSecond, -drift / 2}, {77 * kSecond, drift / 3}};
      const TestExchanges exchanges =
          ExchangesOf(clocks, seconds, 200'000, static_cast<uint64_t>(i));
      const auto maps = Align(clocks, exchanges.bounds);
      for (size_t clock = 0; clock < clocks.size(); ++clock) {
        EXPECT_THAT(maps[clock].jumps(), IsEmpty());
        for (int64_t at = kSecond; at <= (1 + seconds) * kSecond; at += kSecond / 3) {
          const int64_t error = maps[clock].ToCommon(clocks[clock].At(at)) - at;
          ASSERT_LE(std::abs(error), exchanges.least_round_trip_ns / 2)
              << "clock " << clock << " at " << at << ", " << seconds << " s, drift " << drift;
          ASSERT_LE(std::abs(error), maps[clock].UncertaintyNs() + 20'000);
        }
      }
    }
  }
}

TEST(ClockAlignment, NamesAClockThatStoodWhileItsHostSlept) {
  // It sleeps from second 31.3 to 71.3 of the common clock.
  const std::vector<TestClock> before = {{}, {kSecond, 20e-6}};
  const std::vector<TestClock> after = {{}, {kSecond - 40 * kSecond, 20e-6}};
  std::vector<ClockBound> bounds = Exchanges(before, 30, 100'000);
  Numbers numbers;
  for (int64_t at = 71 * kSecond + 300'000'000; at < 100 * kSecond; at += kSecond / 20) {
    AddExchangeOf(after, 0, 1, at, 100'000 + numbers.Below(90'000), 100'000, &bounds);
  }

  const auto maps = Align(before, bounds);

  ASSERT_THAT(maps[1].jumps(), SizeIs(1));
  EXPECT_NEAR(static_cast<double>(maps[1].ToCommon(maps[1].jumps()[0])), 71.3e9, 1e8);
  EXPECT_THAT(maps[0].jumps(), IsEmpty());
  for (const int64_t at : {10, 25, 30}) {
    EXPECT_NEAR(static_cast<double>(maps[1].ToCommon(before[1].At(at * kSecond))),
                static_cast<double>(at * kSecond), 2e6);
  }
  for (const int64_t at : {72, 80, 99}) {
    EXPECT_NEAR(static_cast<double>(maps[1].ToCommon(after[1].At(at * kSecond))),
                static_cast<double>(at * kSecond), 2e6);
  }
}

TEST(ClockAlignment, NamesAClockThatWasSetAhead) {
  const std::vector<TestClock> before = {{}, {kSecond, 0}};
  const std::vector<TestClock> after = {{}, {kSecond + kSecond / 2, 0}};
  std::vector<ClockBound> bounds = Exchanges(before, 14, 100'000);
  Numbers numbers;
  for (int64_t at = 15 * kSecond + 500'000'000; at < 30 * kSecond; at += kSecond / 20) {
    AddExchangeOf(after, 0, 1, at, 100'000 + numbers.Below(90'000), 100'000, &bounds);
  }

  const auto maps = Align(before, bounds);

  ASSERT_FALSE(maps[1].jumps().empty());
  EXPECT_NEAR(static_cast<double>(maps[1].ToCommon(before[1].At(8 * kSecond))), 8e9, 2e6);
  EXPECT_NEAR(static_cast<double>(maps[1].ToCommon(after[1].At(25 * kSecond))), 25e9, 2e6);
}

TEST(ClockAlignment, GoesByTheTimeOfDayWithoutExchanges) {
  const auto maps = AlignClocks(3, {}, std::vector<std::optional<int64_t>>{500, 200, {}});

  EXPECT_EQ(maps[0].basis(), ClockMap::Basis::kSameClock);
  EXPECT_EQ(maps[1].basis(), ClockMap::Basis::kTimeOfDay);
  // At the time of day 1000 the common clock has 500, and clock 1 has 800.
  EXPECT_EQ(maps[1].ToCommon(800), 500);
  EXPECT_EQ(maps[2].ToCommon(800), 800);
}

TEST(ClockAlignment, GoesOverAThirdClock) {
  // Workers 0 and 2 never meet but at server 1.
  const std::vector<TestClock> clocks = {{}, {7 * kSecond, 10e-6}, {-9 * kSecond, -30e-6}};
  const auto maps = Align(clocks, Exchanges(clocks, 20, 50'000));

  const int64_t error = maps[2].ToCommon(clocks[2].At(10 * kSecond)) - 10 * kSecond;
  EXPECT_LE(std::abs(error), 2 * 300'000);
  EXPECT_GT(maps[2].UncertaintyNs(), 0);
}

TEST(ClockAlignment, TakesAnythingForABound) {
  Numbers numbers;
  std::vector<ClockBound> bounds;
  for (int i = 0; i < 2000; ++i) {
    bounds.push_back(
        {static_cast<uint32_t>(numbers.Below(4)), static_cast<uint32_t>(numbers.Below(4)),
         numbers.Below(int64_t{1} << 30) << 29, numbers.Below(int64_t{1} << 30) << 29});
  }

  EXPECT_THAT(AlignClocks(4, bounds, std::vector<std::optional<int64_t>>(4)), SizeIs(4));
}

}  // namespace
}  // namespace bdn
