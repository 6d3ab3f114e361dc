// Tensors that some of the workers exchange, in a whole cluster in this process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "tests/support/state_calls.h"
#include "tests/support/worker_rig.h"

namespace bdn::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Floats = std::vector<float>;
constexpr absl::Duration kLong = absl::Minutes(1);

TensorDeclaration Among(TensorDeclaration tensor, std::vector<Rank> ranks) {
  tensor.ranks = *RankGroup::Of(std::move(ranks));
  return tensor;
}

std::string NameOfShard(int shard) { return "w/shard " + std::to_string(shard); }

// Two islands of two shards: ranks 0 and 2 exchange one shard, ranks 1 and 3 the other, and all of
// them a tensor besides.
TEST(GroupCluster, TakesTheMeanOfItsOwnWorkers) {
  ClusterRig rig(4, {"--servers=2", "--partition-bytes=4096"});
  rig.OnEach([](Worker& worker, int rank) {
    const int shard = rank % 2;
    const auto ids = worker.Declare(
        {Among(Tensor(NameOfShard(shard), 3000), {shard, shard + 2}), Tensor("all", 10)}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    for (int step = 1; step <= 5; ++step) {
      Floats data(3000, static_cast<float>(rank * step));
      ASSERT_TRUE(PushPull(worker, ids->at(0), data).ok());
      EXPECT_THAT(data, Each(static_cast<float>((shard + 1) * step)));
      Floats all(10, static_cast<float>(rank));
      ASSERT_TRUE(PushPull(worker, ids->at(1), all).ok());
      EXPECT_THAT(all, Each(1.5f));
    }
  });
}

TEST(GroupCluster, TellsTheServersOfATensor) {
  ClusterRig rig(2, {"--servers=3", "--partition-bytes=4096"});
  rig.OnEach([](Worker& worker, int rank) {
    const auto ids = worker.Declare(
        {Among(Tensor("mine " + std::to_string(rank), 3072), {rank}), Tensor("all", 1)}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    const auto parts = worker.ServersOf(ids->at(0));
    ASSERT_TRUE(parts.ok()) << parts.status();
    // Three parts of 4 KiB, one at each server, as the scheduler levels their bytes.
    EXPECT_THAT(*parts, ::testing::UnorderedElementsAre(0, 1, 2));
    const auto one = worker.ServersOf(ids->at(1));
    ASSERT_TRUE(one.ok()) << one.status();
    EXPECT_THAT(*one, ElementsAre(::testing::AllOf(::testing::Ge(0), ::testing::Lt(3))));
    ASSERT_TRUE(worker.Retire({ids->data(), 1}).ok());
    EXPECT_TRUE(absl::IsNotFound(worker.ServersOf(ids->at(0)).status()));
    EXPECT_TRUE(absl::IsNotFound(worker.ServersOf(12345).status()));
  });
}

TEST(GroupCluster, LeavesWorkersOutsideAGroupAlone) {
  ClusterRig rig(3, {"--servers=1"});
  rig.OnEach([&](Worker& worker, int rank) {
    const auto before = worker.counts();
    if (rank < 2) {
      const auto ids = worker.Declare({Among(Tensor("w", 100000), {0, 1})}, kLong);
      ASSERT_TRUE(ids.ok()) << ids.status();
      Floats data(100000, 1.0f);
      ASSERT_TRUE(PushPull(worker, ids->at(0), data).ok());
    }
    ASSERT_TRUE(worker.Barrier("done", kLong).ok());
    if (rank < 2) return;
    EXPECT_EQ(worker.counts().tensors, 0u);
    EXPECT_EQ(worker.counts().traffic.bytes_received, before.traffic.bytes_received);
    EXPECT_EQ(worker.counts().traffic.bytes_sent, before.traffic.bytes_sent);
    // What it has not declared it does not have.
    Floats data(100000);
    EXPECT_TRUE(absl::IsNotFound(PushPull(worker, 0, data).status()));
    const auto after = worker.Declare({Tensor("mine", 10)}, absl::ZeroDuration());
    EXPECT_FALSE(after.ok());
  });
}

TEST(GroupCluster, ARankOutsideMayDeclareAfterManyOfOthers) {
  ClusterRig rig(3, {"--servers=1"});
  rig.OnEach([&](Worker& worker, int rank) {
    for (int i = 0; rank < 2 && i < 20; ++i) {
      const std::string name = "w" + std::to_string(i);
      const auto ids = worker.Declare({Among(Tensor(name, 10), {0, 1})}, kLong);
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_THAT(*ids, ElementsAre(i));
    }
    const auto ids = worker.Declare({Tensor("all", 10)}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_THAT(*ids, ElementsAre(20));
    Floats data(10, static_cast<float>(rank));
    ASSERT_TRUE(PushPull(worker, ids->at(0), data).ok());
    EXPECT_THAT(data, Each(1.0f));
  });
}

// Each of them declares in three groups at once, in another order.
TEST(GroupCluster, GroupsOfOneCallAreDeclaredInOneOrder) {
  ClusterRig rig(3, {"--servers=1"});
  rig.OnEach([&](Worker& worker, int rank) {
    std::vector<TensorDeclaration> tensors;
    for (int i = 0; i < 3; ++i) {
      const Rank first = (rank + i) % 3;
      const Rank second = (first + 1) % 3;
      if (rank != first && rank != second) continue;
      tensors.push_back(Among(Tensor("of " + std::to_string(first), 10), {first, second}));
    }
    const auto ids = worker.Declare(tensors, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    std::vector<Floats> data(tensors.size(), Floats(10, static_cast<float>(rank)));
    std::vector<TicketId> tickets;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto ticket = worker.PushPull({.tensor = ids->at(i), .data = {.data = data[i].data()}});
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      tickets.push_back(*ticket);
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      ASSERT_TRUE(worker.Wait(tickets[i], kLong).ok());
      const auto& ranks = tensors[i].ranks.ranks();
      EXPECT_THAT(data[i], Each(static_cast<float>(ranks[0] + ranks[1]) / 2));
    }
  });
}

TEST(GroupCluster, SmallTensorsOfOverlappingGroupsAreExchangedApart) {
  ClusterRig rig(3, {"--servers=1"});
  rig.OnEach([&](Worker& worker, int rank) {
    std::vector<TensorDeclaration> tensors;
    for (const std::vector<Rank>& ranks : {std::vector<Rank>{0, 1}, {1, 2}, {0, 1, 2}}) {
      TensorDeclaration tensor = Among(Tensor("of " + RankGroup::Of(ranks)->ToString(), 5), ranks);
      tensor.fuse = true;
      if (tensor.ranks.Has(rank)) tensors.push_back(tensor);
    }
    const auto ids = worker.Declare(tensors, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    // One after the other: what shared a frame would wait for the others' pushes.
    for (size_t i = 0; i < tensors.size(); ++i) {
      Floats data(5, 1.0f);
      ASSERT_TRUE(PushPull(worker, ids->at(i), data).ok());
    }
  });
}

TEST(GroupCluster, KeepsWeightsAndTheirRuleInAGroup) {
  ClusterRig rig(3, {"--servers=2"});
  rig.OnEach([](Worker& worker, int rank) {
    if (rank == 1) return;
    TensorDeclaration tensor = Among(Tensor("w", 4, "none", "delta(int8)"), {0, 2});
    tensor.rule = "sgd";
    const auto ids = worker.Declare({tensor}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    if (rank == 2) {
      const Floats start(4, 8.0f);
      ASSERT_TRUE(SetServerState(worker, ids->at(0), StatePart::kWeights, start, 0, kLong).ok());
    }
    // A state is set between steps, so the other's push must not be there yet.
    ASSERT_TRUE(worker.Meet(NameAmong("weights are set", tensor.ranks), kLong).ok());
    Floats weights(4, 1.0f);
    PushRequest request{.tensor = ids->at(0), .data = {.data = weights.data()}};
    request.learning_rate = 1.0f;
    const auto ticket = worker.PushPull(std::move(request));
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    ASSERT_TRUE(worker.Wait(*ticket, kLong).ok());
    EXPECT_THAT(weights, Each(7.0f));
  });
}

TEST(GroupCluster, BroadcastsAndMeetsAmongItsOwn) {
  ClusterRig rig(4, {"--servers=1"});
  rig.OnEach([](Worker& worker, int rank) {
    const RankGroup group = *RankGroup::Of({rank % 2, rank % 2 + 2});
    const std::string start = NameAmong("start", group);
    Floats data(3, static_cast<float>(rank));
    const auto bytes = std::as_writable_bytes(std::span(data));
    ASSERT_TRUE(worker.Broadcast(start, bytes, rank % 2 + 2, kLong).ok());
    EXPECT_THAT(data, Each(static_cast<float>(rank % 2 + 2)));
    const auto met = worker.Meet(NameAmong("epoch", group), kLong);
    ASSERT_TRUE(met.ok()) << met.status();
    EXPECT_EQ(*met, group.ranks());
    EXPECT_EQ(worker.Broadcast(start, bytes, 1 - rank % 2, kLong).message(),
              "broadcast '" + start + "': root " + std::to_string(1 - rank % 2) +
                  " is none of these ranks");
    const RankGroup others = *RankGroup::Of({1 - rank % 2});
    EXPECT_THAT(std::string(worker.Meet(NameAmong("epoch", others), kLong).status().message()),
                HasSubstr("and is none of these"));
  });
}

TEST(GroupCluster, RefusesGroupsThatCannotBe) {
  ClusterRig rig(2, {"--servers=1"});
  EXPECT_EQ(rig.worker(0).Declare({Among(Tensor("w", 10), {1})}, kLong).status().message(),
            "tensor 'w': it is of ranks 1, and this worker's rank is 0");
  EXPECT_EQ(rig.worker(0).Declare({Among(Tensor("w", 10), {0, 2})}, kLong).status().message(),
            "tensor 'w': it is of ranks 0, 2, and the job has 2 workers");
  ASSERT_TRUE(rig.worker(0).Declare({Among(Tensor("w", 10), {0})}, kLong).ok());
  EXPECT_THAT(std::string(rig.worker(0).Declare({Tensor("w", 10)}, kLong).status().message()),
              AllOf(HasSubstr("'w'"), HasSubstr("ranks 0")));
}

TEST(GroupCluster, TellsWorkersThatNameOtherGroups) {
  ClusterRig rig(3, {"--servers=1"});
  rig.OnEach([](Worker& worker, int rank) {
    if (rank == 2) return;
    const std::vector<Rank> ranks =
        rank == 0 ? std::vector<Rank>{0, 1} : std::vector<Rank>{0, 1, 2};
    const auto ids = worker.Declare({Among(Tensor("w", 10), ranks)}, kLong);
    EXPECT_THAT(
        std::string(ids.status().message()),
        AllOf(HasSubstr("ranks 0, 1 wait for worker 1"), HasSubstr("ranks 0-2 wait for worker 0")));
  });
}

TEST(GroupCluster, AWorkerThatLeavesEndsRoundsOfItsOwnGroupsAlone) {
  ClusterRig rig(3, {"--servers=1"});
  std::vector<uint32_t> ids(3);
  rig.OnEach([&](Worker& worker, int rank) {
    const std::vector<Rank> ranks = {rank == 2 ? 2 : 0, rank == 2 ? 2 : 1};
    if (rank == 2) {
      EXPECT_TRUE(worker.Declare({Tensor("all", 10)}, kLong).ok());
      return;
    }
    const auto declared = worker.Declare({Tensor("all", 10), Among(Tensor("w", 10), ranks)}, kLong);
    ASSERT_TRUE(declared.ok()) << declared.status();
    ids[rank] = declared->at(1);
  });
  rig.OnEach([&](Worker& worker, int rank) {
    if (rank == 2) {
      EXPECT_TRUE(worker.Leave(kLong).ok());
      return;
    }
    for (int step = 0; step < 50; ++step) {
      Floats data(10, static_cast<float>(rank));
      const auto result = PushPull(worker, ids[rank], data);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_THAT(data, Each(0.5f));
    }
    EXPECT_TRUE(worker.Leave(kLong).ok());
  });
}

}  // namespace
}  // namespace bdn::testing
