#include <algorithm>
#include <thread>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/host_rig.h"
#include "tests/support/state_calls.h"
#include "tests/support/worker_rig.h"

// Hosts whose processes take part through a daemon, which leave a job, are lost and come back:
// against real servers, over real sockets and shared memory, in one process.

namespace bdn::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;

using Floats = std::vector<float>;
constexpr absl::Duration kLong = absl::Minutes(1);
constexpr size_t kElements = 3000;

// Exchanges the ranks in some steps, and checks their numbers and means.
void Steps(Client& client, int first, int last, float mean) {
  const auto ids = client.Declare({Tensor("w", kElements), Tensor("small", 3)}, kLong);
  ASSERT_TRUE(ids.ok()) << ids.status();
  for (int step = first; step <= last; ++step) {
    for (const uint32_t id : *ids) {
      Floats data(id == ids->front() ? kElements : 3, static_cast<float>(client.rank()));
      const auto result = PushPull(client, id, data);
      ASSERT_TRUE(result.ok()) << client.rank() << ": " << result.status();
      EXPECT_EQ(result->step, static_cast<Step>(step)) << client.rank();
      EXPECT_THAT(data, Each(FloatEq(mean))) << client.rank();
    }
  }
}

void StepsOf(HostRig* rig, const std::vector<int>& ranks, int first, int last, float mean) {
  rig->OnEach([&](Client& client, int rank) {
    if (std::ranges::find(ranks, rank) != ranks.end()) Steps(client, first, last, mean);
  });
}

// All come to the boundary, those who are in the job once they have heard of one who waits there.
void TakeIn(HostRig* rig, const std::vector<Rank>& newcomers) {
  rig->OnEach([&](Client& client, int rank) {
    while (!client.is_candidate() && client.standing().num_candidates == 0) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    const auto met = client.Boundary(kLong);
    ASSERT_TRUE(met.ok()) << met.status();
    EXPECT_EQ(*met, newcomers) << rank;
    EXPECT_FALSE(client.is_candidate());
  });
}

TEST(ReturningHost, TakesPartInExactSumsFromTheNextStepOn) {
  HostRig rig({2, 2, 0}, {"--min-workers=1", "--servers=2", "--partition-bytes=4096"});
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_THAT(rig.client(rank).processes(), ElementsAre(2, 2, 1));
  }
  const auto broadcast = [](Client& client, Rank root) {
    Floats data(64, client.rank() == root ? 40.0f + static_cast<float>(root) : 0.0f);
    const absl::Status status =
        client.Broadcast("x", std::as_writable_bytes(std::span(data)), root, kLong);
    EXPECT_TRUE(status.ok()) << status;
    return data;
  };
  rig.OnEach([&](Client& client, int) { EXPECT_THAT(broadcast(client, 0), Each(40.0f)); });
  StepsOf(&rig, {0, 1, 2, 3, 4}, 1, 3, 2.0f);
  for (int time = 0; time < 3; ++time) {
    // Also the host of the lowest rank.
    const int host = time == 1 ? 0 : 1;
    const std::vector<int> left = host == 0 ? std::vector<int>{2, 3, 4} : std::vector<int>{0, 1, 4};
    const std::vector<Rank> gone = host == 0 ? std::vector<Rank>{0, 1} : std::vector<Rank>{2, 3};
    const int first = 4 + 4 * time;
    rig.LoseHost(host);
    StepsOf(&rig, left, first, first + 1, host == 0 ? 3.0f : 5 / 3.0f);
    rig.StartAgain(host);
    rig.OnEach([&](Client& client, int rank) {
      if (std::ranges::find(gone, rank) == gone.end()) return;
      EXPECT_TRUE(client.is_candidate());
      EXPECT_EQ(client.rank(), rank);
      EXPECT_EQ(client.presence(), (Presence{.size = 3, .first_rank = left.front()}));
      const auto ids = client.Declare({Tensor("w", kElements), Tensor("small", 3)}, kLong);
      ASSERT_TRUE(ids.ok()) << ids.status();
      // Its first broadcast leaves the data as it is, its barriers end at once, and its pushes are
      // refused before others have pushed.
      EXPECT_THAT(broadcast(client, left.front()), Each(0.0f));
      EXPECT_EQ(*client.Meet("b", kLong), std::vector<Rank>(left.begin(), left.end()));
      Floats data(kElements, 1.0f);
      if (rank == gone.front()) {
        EXPECT_THAT(std::string(PushPull(client, ids->at(0), data).status().message()),
                    HasSubstr("this worker is not in the job yet"));
      }
      EXPECT_TRUE(SetServerState(client, ids->at(0), StatePart::kWeights, data, 9, kLong).ok());
    });
    TakeIn(&rig, gone);
    rig.OnEach([&](Client& client, int rank) {
      while (client.presence().size < 5) absl::SleepFor(absl::Milliseconds(1));
      EXPECT_THAT(broadcast(client, gone.front()), Each(40.0f + gone.front())) << rank;
    });
    StepsOf(&rig, {0, 1, 2, 3, 4}, first + 2, first + 3, 2.0f);
  }
}

TEST(ReturningHost, IsNotWaitedForBeforeItComesAndMayGoAgain) {
  HostRig rig({2, 2}, {"--min-workers=1"});
  StepsOf(&rig, {0, 1, 2, 3}, 1, 2, 1.5f);
  rig.LoseHost(1);
  StepsOf(&rig, {0, 1}, 3, 3, 0.5f);
  rig.StartAgain(1);
  StepsOf(&rig, {0, 1}, 4, 6, 0.5f);
  // A process of it ends: nobody else hears of that.
  rig.client(2).Close();
  EXPECT_TRUE(IsEvicted(rig.client(3).Barrier("b", kLong)));
  StepsOf(&rig, {0, 1}, 7, 8, 0.5f);
  rig.StartAgain(1);
  TakeIn(&rig, {2, 3});
  StepsOf(&rig, {0, 1, 2, 3}, 9, 10, 1.5f);
}

TEST(ReturningHost, AProcessThatDiesTakesItsHostWithItAndNobodyElse) {
  HostRig rig({2, 2}, {"--min-workers=1"});
  StepsOf(&rig, {0, 1, 2, 3}, 1, 2, 1.5f);
  rig.client(1).Close();  // without leaving
  const absl::Status status = rig.client(0).Barrier("b", kLong);
  EXPECT_TRUE(IsEvicted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("the job goes on without"), HasSubstr("worker 1 (process"),
                    HasSubstr("ended without leaving the job")));
  EXPECT_TRUE(IsEvicted(rig.daemon(0).Wait()));
  StepsOf(&rig, {2, 3}, 3, 4, 2.5f);
  rig.StartAgain(0);
  TakeIn(&rig, {0, 1});
  StepsOf(&rig, {0, 1, 2, 3}, 5, 6, 1.5f);
}

TEST(ReturningHost, LeavesAsAWholeByWhoeverAsks) {
  HostRig rig({2, 2, 0}, {"--min-workers=1"});
  StepsOf(&rig, {0, 1, 2, 3, 4}, 1, 2, 2.0f);
  // Both ask, as they have agreed to.
  rig.OnEach([](Client& client, int rank) {
    if (rank < 2) {
      EXPECT_EQ(client.Depart("of the test"), absl::OkStatus());
    }
  });
  EXPECT_FALSE(rig.client(0).Barrier("b", kLong).ok());
  EXPECT_EQ(rig.daemon(0).Wait(), absl::OkStatus());
  StepsOf(&rig, {2, 3, 4}, 3, 4, 3.0f);
  // One asks, and the other hears of it, and may ask then, too.
  EXPECT_EQ(rig.client(3).Depart("of the test"), absl::OkStatus());
  const absl::Status status = rig.client(2).Barrier("b", kLong);
  EXPECT_TRUE(IsEvicted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("of the test"));
  EXPECT_EQ(rig.client(2).Depart("of the test"), absl::OkStatus());
  StepsOf(&rig, {4}, 5, 6, 4.0f);
}

TEST(ReturningHost, StaysWhereTheJobNeedsIt) {
  HostRig rig({2, 0}, {"--min-workers=2"});
  StepsOf(&rig, {0, 1, 2}, 1, 2, 1.0f);
  const absl::Status status = rig.client(0).Depart("of the test");
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  StepsOf(&rig, {0, 1, 2}, 3, 4, 1.0f);
}

TEST(ReturningHost, NothingMayBeInFlightAtTheBoundary) {
  HostRig rig({2}, {});
  rig.OnEach([](Client& client, int rank) {
    const auto ids = client.Declare({Tensor("w", 10)}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    if (rank == 1) {
      ASSERT_TRUE(client.Barrier("pushed", kLong).ok());
      Floats data(10, 1.0f);
      EXPECT_EQ(PushPull(client, ids->at(0), data).status(), absl::OkStatus());
      return;
    }
    Floats data(10, 1.0f);
    const auto ticket =
        client.PushPull({.tensor = ids->at(0), .data = {data.data(), DType::kFloat32, 10}});
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    const absl::Status status = client.Boundary(kLong).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("tensor 'w' is in flight"));
    ASSERT_TRUE(client.Barrier("pushed", kLong).ok());
    EXPECT_EQ(client.Wait(*ticket, kLong).status(), absl::OkStatus());
  });
  // A boundary at which nobody waits is a meeting.
  rig.OnEach([](Client& client, int) {
    const auto met = client.Boundary(kLong);
    ASSERT_TRUE(met.ok()) << met.status();
    EXPECT_TRUE(met->empty());
  });
}

}  // namespace
}  // namespace bdn::testing
