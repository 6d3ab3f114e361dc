#include <cmath>
#include <map>
#include <mutex>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/normal_values.h"
#include "tests/support/state_calls.h"
#include "tests/support/worker_rig.h"
#include "worker/error_fields.h"

// Workers and servers where the servers hold the weights: everybody has the same bits, and a job
// that was saved goes on as if nothing had happened.

namespace bdn::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

using Floats = std::vector<float>;
constexpr absl::Duration kLong = absl::Minutes(1);

void Must(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

struct Links {
  std::string rule;
  std::string push = "none";
  std::string pull = "none";
};

// One tensor of several partitions, whose last is too small to be compressed, and a fused group.
const std::vector<size_t> kSizes = {5000, 100, 300};
const std::vector<std::string> kFlags = {"--servers=2", "--partition-bytes=4096",
                                         "--fusion-bytes=4096", "--min-compress-bytes=1500"};

std::vector<TensorDeclaration> Tensors(const Links& links) {
  std::vector<TensorDeclaration> tensors;
  for (size_t t = 0; t < kSizes.size(); ++t) {
    TensorDeclaration tensor =
        Tensor(std::string(1, static_cast<char>('a' + t)), kSizes[t], links.push, links.pull);
    tensor.rule = links.rule;
    tensor.fuse = true;
    tensors.push_back(tensor);
  }
  return tensors;
}

std::vector<uint32_t> Declare(Worker& worker, const Links& links) {
  const auto ids = worker.Declare(Tensors(links), kLong);
  Must(ids.status());
  return *ids;
}

std::vector<Floats> StartingWeights() {
  std::vector<Floats> weights;
  for (size_t t = 0; t < kSizes.size(); ++t) weights.push_back(Normal(kSizes[t], 900 + t));
  return weights;
}

// Rank 0 sets them, everybody fetches them.
void ShareWeights(Worker& worker, const std::vector<uint32_t>& ids, bool fetch = true) {
  const std::vector<Floats> start = StartingWeights();
  if (worker.rank() == 0) {
    for (size_t t = 0; t < ids.size(); ++t) {
      Must(SetServerState(worker, ids[t], StatePart::kWeights, start[t], 0, kLong));
    }
  }
  Must(worker.Barrier("weights are set", kLong));
  for (size_t t = 0; fetch && t < ids.size(); ++t) {
    Floats fetched(kSizes[t]);
    Must(FetchWeights(worker, ids[t], fetched, kLong));
    EXPECT_EQ(fetched, start[t]);
  }
}

// Every seventh element never has a gradient.
Floats Gradient(size_t t, int step, int rank) {
  Floats g = Normal(kSizes[t], 1000 * step + 10 * t + rank);
  for (size_t i = 0; i < g.size(); i += 7) g[i] = 0;
  return g;
}

// One step of all tensors; returns what came back.
std::vector<Floats> Step(Worker& worker, const std::vector<uint32_t>& ids, int step) {
  std::vector<Floats> data;
  std::vector<TicketId> tickets;
  for (size_t t = 0; t < ids.size(); ++t) {
    data.push_back(Gradient(t, step, worker.rank()));
    const auto ticket = worker.PushPull({.tensor = ids[t],
                                         .data = {data[t].data(), DType::kFloat32, data[t].size()},
                                         .learning_rate = 0.1f / static_cast<float>(step)});
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    if (!ticket.ok()) return {};
    tickets.push_back(*ticket);
  }
  for (const TicketId ticket : tickets) Must(worker.Wait(ticket, kLong).status());
  return data;
}

using Results = std::vector<std::vector<Floats>>;  // [rank][tensor]

Results Train(const Links& links, int steps, bool fetch = true) {
  ClusterRig rig(3, kFlags);
  Results results(3);
  rig.OnEach([&](Worker& worker, int rank) {
    const auto ids = Declare(worker, links);
    ShareWeights(worker, ids, fetch);
    for (int step = 1; step <= steps; ++step) results[rank] = Step(worker, ids, step);
  });
  return results;
}

// In each step another worker does without the result, and fetches what it lacks when it wants the
// next.
TEST(WeightsCluster, WhoDoesWithoutAResultHasTheSameBitsAsAllAtTheNext) {
  for (const Links& links : {Links{"sgd", "int8"}, Links{"adamw", "int4", "delta(int4)"},
                             Links{"sign_momentum", "int8", "sign"}}) {
    ClusterRig rig(3, kFlags);
    std::vector<Results> results(7, Results(3));  // [step][rank]
    rig.OnEach([&](Worker& worker, int rank) {
      const auto ids = Declare(worker, links);
      ShareWeights(worker, ids);
      for (int step = 1; step <= 6; ++step) {
        if (step % 3 != rank) {
          results[step][rank] = Step(worker, ids, step);
          continue;
        }
        std::vector<PushRequest> pushes(ids.size());
        for (size_t t = 0; t < ids.size(); ++t) {
          pushes[t] = {.tensor = ids[t],
                       .absent = true,
                       .weight = 0,
                       .learning_rate = 0.1f / static_cast<float>(step)};
        }
        std::vector<TicketId> tickets;
        Must(worker.PushPullAll(pushes, &tickets));
        std::vector<PushResult> ended;
        Must(worker.WaitAll(tickets, kLong, &ended));
      }
    });
    for (int step = 1; step <= 6; ++step) {
      const int without = step % 3;
      EXPECT_EQ(results[step][(without + 1) % 3], results[step][(without + 2) % 3])
          << links.pull << " " << step;
      EXPECT_NE(results[step][(without + 1) % 3], StartingWeights());
    }
  }
}

TEST(WeightsCluster, AllWorkersGetTheSameBitsOfEveryRule) {
  for (const Links& links : {Links{"sgd(momentum=0.9)"}, Links{"adamw", "ef(onebit)", "int8"},
                             Links{"adamw", "int4", "delta(int4)"}, Links{"average", "int8"},
                             Links{"average", "ef(twobit)", "delta(twobit(block=64))"},
                             Links{"sign_momentum", "int8", "sign"}}) {
    const Results results = Train(links, 5);
    for (const int rank : {1, 2}) EXPECT_EQ(results[rank], results[0]) << links.rule;
    EXPECT_NE(results[0], StartingWeights()) << links.rule;
  }
}

TEST(WeightsCluster, SignsGiveTheBitsOfWholeWeights) {
  for (const char* rule : {"sign_momentum", "sign_momentum(decay=0,eta=2)"}) {
    const Results whole = Train({rule, "int8", "none"}, 6);
    const Results signs = Train({rule, "int8", "sign"}, 6);
    EXPECT_EQ(signs, whole);
    const bool stays = std::string(rule) != "sign_momentum";
    EXPECT_EQ(signs[2][0][7] == StartingWeights()[0][7], stays);
  }
}

TEST(WeightsCluster, AWorkerThatNeverFetchedGetsItsReplicaWithTheFirstReply) {
  for (const Links& links :
       {Links{"sgd", "none", "delta(int4)"}, Links{"sign_momentum", "none", "sign"}}) {
    EXPECT_EQ(Train(links, 3, /*fetch=*/false), Train(links, 3)) << links.rule;
  }
}

TEST(WeightsCluster, EveryReplicaIsTheServersAfterEveryStep) {
  ClusterRig rig(3, kFlags);
  std::mutex mu;
  std::map<int, std::vector<Floats>> replicas;  // by step; of the servers
  rig.OnEach([&](Worker& worker, int rank) {
    const auto ids = Declare(worker, {"adamw", "int4", "delta(int4)"});
    ShareWeights(worker, ids);
    for (int step = 1; step <= 5; ++step) {
      const std::vector<Floats> result = Step(worker, ids, step);
      for (size_t t = 0; t < ids.size(); ++t) {
        Floats mine(kSizes[t]);
        Floats servers(kSizes[t]);
        Must(GetState(worker, ids[t], LinkState::kReplica, mine));
        Must(GetServerState(worker, ids[t], StatePart::kReplica, servers, kLong));
        EXPECT_EQ(mine, servers) << step;
        // The last partition is too small for a delta, and its weights come whole.
        const size_t compressed = t == 0 ? 4096 / sizeof(float) * 4 : kSizes[t];
        EXPECT_TRUE(std::equal(mine.begin(), mine.begin() + compressed, result[t].begin()));
        Floats weights(kSizes[t]);
        Must(FetchWeights(worker, ids[t], weights, kLong));
        EXPECT_EQ(weights, result[t]);
        std::lock_guard<std::mutex> lock(mu);
        if (rank == 0) replicas[step].push_back(servers);
      }
      Must(worker.Barrier("looked at step " + std::to_string(step), kLong));
    }
  });
  EXPECT_NE(replicas[5], replicas[4]);
}

TEST(WeightsCluster, WhatNobodyHadStaysAndSaysSoAlsoWhereTheReplicaWasFetched) {
  ClusterRig rig(2, {"--min-compress-bytes=0"});
  rig.OnEach([](Worker& worker, int rank) {
    const auto ids = Declare(worker, {"sgd", "none", "delta(int4)"});
    ShareWeights(worker, ids, /*fetch=*/rank == 0);
    std::vector<Floats> data;
    std::vector<TicketId> tickets;
    for (size_t t = 0; t < 3; ++t) data.emplace_back(kSizes[t], 5.0f);
    for (size_t t = 0; t < 3; ++t) {
      tickets.push_back(*worker.PushPull({.tensor = ids[t],
                                          .data = {data[t].data(), DType::kFloat32, data[t].size()},
                                          .absent = t == 1,
                                          .learning_rate = 0.1f}));
    }
    for (size_t t = 0; t < 3; ++t) {
      const auto result = worker.Wait(tickets[t], kLong);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->absent, t == 1);
    }
    EXPECT_THAT(data[1], Each(5.0f));
    EXPECT_NE(data[2][0], 5.0f);
    const std::vector<Floats> next = Step(worker, ids, 1);  // builds on what was fetched
    for (size_t t = 0; t < 3; ++t) {
      Floats servers(kSizes[t]);
      Must(GetServerState(worker, ids[t], StatePart::kReplica, servers, kLong));
      EXPECT_EQ(next[t], servers);
    }
  });
}

// b and c share a key: a replica of b from before and of c from after they were set again is none.
TEST(WeightsCluster, SegmentsFetchedAroundASetMakeNoReplica) {
  ClusterRig rig(1, {"--min-compress-bytes=0"});
  Worker& worker = rig.worker(0);
  const auto ids = Declare(worker, {"sgd", "none", "delta(int4)"});
  ShareWeights(worker, ids, /*fetch=*/false);
  Floats b(kSizes[1]);
  Must(FetchWeights(worker, ids[1], b, kLong));
  for (size_t t = 0; t < 3; ++t) {
    const Floats again = Normal(kSizes[t], 50 + t);
    Must(SetServerState(worker, ids[t], StatePart::kWeights, again, 5, kLong));
    Must(SetStep(worker, ids[t], 5));
  }
  Floats c(kSizes[2]);
  Must(FetchWeights(worker, ids[2], c, kLong));
  const std::vector<Floats> result = Step(worker, ids, 6);
  Floats servers(kSizes[1]);
  Must(GetServerState(worker, ids[1], StatePart::kReplica, servers, kLong));
  EXPECT_EQ(result[1], servers);
}

// A saved job: each worker's links, and the state that the servers hold.
struct Saved {
  struct Link {
    Floats residual;
    float learning_rate;
  };
  std::vector<std::vector<Link>> links;              // [rank][tensor]
  std::vector<std::map<StatePart, Floats>> servers;  // [tensor]
  std::vector<StateCounters> counters;               // [tensor]
};

constexpr StatePart kParts[] = {StatePart::kWeights, StatePart::kReplica, StatePart::kResidual,
                                StatePart::kMoment0, StatePart::kMoment1};

void Save(Worker& worker, const std::vector<uint32_t>& ids, Saved* saved) {
  for (size_t t = 0; t < ids.size(); ++t) {
    Saved::Link& link = saved->links[worker.rank()].emplace_back();
    link.residual.resize(kSizes[t]);
    Must(GetState(worker, ids[t], LinkState::kResidual, link.residual));
    Must(GetState(worker, ids[t], LinkState::kLearningRate, {&link.learning_rate, 1}));
    if (worker.rank() != 0) continue;
    saved->counters.push_back(GetServerCounters(worker, ids[t], kLong).value());
    saved->servers.emplace_back();
    for (const StatePart part : kParts) {
      Floats values(kSizes[t]);
      const absl::Status status = GetServerState(worker, ids[t], part, values, kLong);
      if (status.ok()) saved->servers[t][part] = values;
      if (!status.ok()) {
        EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
      }
    }
  }
}

void Restore(Worker& worker, const std::vector<uint32_t>& ids, const Saved& saved, bdn::Step step) {
  for (size_t t = 0; t < ids.size(); ++t) {
    Saved::Link link = saved.links[worker.rank()][t];
    Must(SetStep(worker, ids[t], step));
    Must(SetState(worker, ids[t], LinkState::kResidual, link.residual));
    Must(SetState(worker, ids[t], LinkState::kLearningRate, {&link.learning_rate, 1}));
    if (worker.rank() != 0) continue;
    for (const auto& [part, values] : saved.servers[t]) {
      Must(SetServerState(worker, ids[t], part, values, step, kLong));
    }
    Must(SetServerCounters(worker, ids[t], saved.counters[t], step, kLong));
  }
  Must(worker.Barrier("restored", kLong));
}

TEST(WeightsCluster, ASavedJobGoesOnAsIfNothingHadHappened) {
  for (const Links& links : {Links{"sgd(momentum=0.9)", "ef(onebit)", "delta(int4)"},
                             Links{"adamw", "int4(hadamard=32)", "delta(int4)"},
                             Links{"mean", "ef(onebit)", "ef(topk(ratio=0.1),correction=lr)"},
                             Links{"sign_momentum", "ef(onebit)", "sign"}}) {
    SCOPED_TRACE(links.rule + " " + links.pull);
    Saved saved{.links = std::vector<std::vector<Saved::Link>>(3)};
    Results undisturbed(3);
    {
      ClusterRig rig(3, kFlags);
      rig.OnEach([&](Worker& worker, int rank) {
        const auto ids = Declare(worker, links);
        if (links.rule != "mean") ShareWeights(worker, ids);
        for (int step = 1; step <= 6; ++step) {
          undisturbed[rank] = Step(worker, ids, step);
          if (step != 3) continue;
          Save(worker, ids, &saved);
          Must(worker.Barrier("saved", kLong));
        }
      });
    }
    Results restored(3);
    ClusterRig rig(3, kFlags);
    rig.OnEach([&](Worker& worker, int rank) {
      const auto ids = Declare(worker, links);
      Restore(worker, ids, saved, 3);
      for (int step = 4; step <= 6; ++step) restored[rank] = Step(worker, ids, step);
      EXPECT_EQ(GetStep(worker, ids[0]).value(), 6u);
    });
    EXPECT_EQ(restored, undisturbed);
  }
}

TEST(WeightsCluster, ToldWhatACodecLeavesOutUnlessThePushKeepsIt) {
  ClusterRig rig(1, {"--min-compress-bytes=0", "--partition-bytes=4096"});
  Worker& worker = rig.worker(0);
  const size_t n = 3000;
  for (const std::string codec : {"onebit", "topk(ratio=0.05)", "int4", "fp16", "none"}) {
    const uint32_t id = worker.Declare({Tensor(codec, n, codec)}, kLong)->at(0);
    for (int step = 1; step <= 2; ++step) {
      const Floats data = Normal(n, step);
      Floats result = data;
      Floats left_out(n, 99.0f);
      const auto ticket = worker.PushPull(
          {.tensor = id, .data = {result.data(), DType::kFloat32, n}, .left_out = left_out.data()});
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      Must(worker.Wait(*ticket, kLong).status());
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(left_out[i], data[i] - result[i]) << codec;
    }
  }
  TensorDeclaration with_momentum = Tensor("momentum", n, "onebit");
  with_momentum.momentum = 0.9f;
  const auto ids =
      worker.Declare({Tensor("feedback", n, "ef(onebit)"), with_momentum}, kLong).value();
  for (const uint32_t id : ids) {
    Floats data(n);
    const absl::Status refused =
        worker
            .PushPull(
                {.tensor = id, .data = {data.data(), DType::kFloat32, n}, .left_out = data.data()})
            .status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("declare push without ef(...)"));
  }
}

TEST(WeightsCluster, StatesThatDoNotFitAreRefused) {
  using Code = absl::StatusCode;
  ClusterRig rig(2, kFlags);
  std::vector<uint32_t> ids;
  rig.OnEach([&](Worker& worker, int rank) {
    const auto declared = Declare(worker, {"sgd(momentum=0.9)", "none", "delta(int4)"});
    if (rank == 0) ids = declared;
    ShareWeights(worker, declared);
    Step(worker, declared, 1);
  });
  Worker& root = rig.worker(0);
  Floats values(kSizes[0], 1.0f);
  const auto refuse = [](const absl::Status& status, Code code, const std::string& why) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  const auto set = [&](Worker& worker, StatePart part, bdn::Step step) {
    return SetServerState(worker, ids[0], part, values, step, kLong);
  };
  refuse(SetStep(root, ids[0], 0), Code::kInvalidArgument, "start a new job to go back");
  refuse(set(root, StatePart::kWeights, 0), Code::kInvalidArgument, "stands at step 1");
  refuse(set(root, StatePart::kMoment1, 1), Code::kNotFound, "none by this rule");
  refuse(set(root, StatePart::kResidual, 1), Code::kNotFound, "none by its rule");
  refuse(set(rig.worker(1), StatePart::kWeights, 1), Code::kAlreadyExists, "one root only");
  refuse(GetServerState(root, ids[0], StatePart::kMoment1, values, kLong), Code::kNotFound,
         "no moment1");
  refuse(GetServerState(root, ids[0], StatePart::kWeights, {values.data(), 3}, kLong),
         Code::kInvalidArgument, "has 5000 elements, not 3");
  refuse(SetServerState(root, ids[0], StatePart::kWeights, {values.data(), 3}, 1, kLong),
         Code::kInvalidArgument, "has 5000 elements, not 3");
  refuse(set(root, StatePart::kWeights, kMaxStep + 1), Code::kInvalidArgument, "is over");
  values[4999] = std::nanf("");
  refuse(set(root, StatePart::kMoment0, 1), Code::kInvalidArgument, "is nan");
  EXPECT_EQ(GetServerState(root, 99, StatePart::kWeights, values, kLong).code(), Code::kNotFound);

  Floats data = Gradient(0, 2, 0);
  const auto ticket = root.PushPull(
      {.tensor = ids[0], .data = {data.data(), DType::kFloat32, data.size()}, .learning_rate = 1});
  refuse(SetStep(root, ids[0], 5), Code::kFailedPrecondition, "in flight");
  refuse(set(root, StatePart::kMoment0, 5), Code::kFailedPrecondition, "in flight");
  refuse(FetchWeights(root, ids[0], values, kLong), Code::kFailedPrecondition, "in flight");
  refuse(GetServerCounters(root, ids[0], kLong).status(), Code::kFailedPrecondition, "in flight");
  Floats other = Gradient(0, 2, 1);
  const auto others = rig.worker(1).PushPull({.tensor = ids[0],
                                              .data = {other.data(), DType::kFloat32, other.size()},
                                              .learning_rate = 1});
  Must(rig.worker(1).Wait(*others, kLong).status());
  Must(root.Wait(*ticket, kLong).status());
  EXPECT_EQ(data, other);
}

// Small tensors share a key, whose inits are numbered.
TEST(WeightsCluster, ThreadsThatSetTensorsOfOneKeyLoseNothing) {
  ClusterRig rig(1, {"--fusion-bytes=65536"});
  Worker& worker = rig.worker(0);
  std::vector<TensorDeclaration> tensors;
  for (const std::string name : {"a", "b", "c"}) {
    tensors.push_back(Tensor(name, 10));
    tensors.back().rule = "sgd";
    tensors.back().fuse = true;
  }
  const auto ids = worker.Declare(tensors, kLong);
  ASSERT_TRUE(ids.ok()) << ids.status();
  std::vector<std::thread> threads;
  for (const uint32_t id : *ids) {
    threads.emplace_back([&worker, id] {
      Floats held(10);
      for (int i = 1; i <= 200; ++i) {
        const Floats values(10, static_cast<float>(i));
        absl::Status status;
        do {  // Another tensor of the key is being set.
          status = SetServerState(worker, id, StatePart::kWeights, values, 0, kLong);
        } while (absl::IsFailedPrecondition(status));
        Must(status);
        do {
          status = GetServerState(worker, id, StatePart::kWeights, {held.data(), 10}, kLong);
        } while (absl::IsFailedPrecondition(status));
        Must(status);
        ASSERT_EQ(held, values);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(WeightsCluster, AFetchThatFindsNoWeightsNamesTheRootAndMayBeRepeated) {
  ClusterRig rig(1);
  Worker& worker = rig.worker(0);
  const auto ids = Declare(worker, {"sgd"});
  Floats weights(kSizes[0]);
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = FetchWeights(worker, ids[0], weights, absl::Milliseconds(20));
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_EQ(GetErrorField(status, "tensor"), "a");
  }
  ShareWeights(worker, ids);
  EXPECT_NE(Step(worker, ids, 1), StartingWeights());
}

TEST(WeightsCluster, APushWithoutWeightsFailsAndNamesTheTensor) {
  ClusterRig rig(1);
  Worker& worker = rig.worker(0);
  TensorDeclaration tensor = Tensor("w", 10);
  tensor.rule = "sgd";
  const uint32_t id = worker.Declare({tensor}, kLong)->at(0);
  Floats data(10, 1.0f);
  const absl::Status status = PushPull(worker, id, data).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("has no weights to update"));
  EXPECT_EQ(GetErrorField(status, "tensor"), "w");
}

}  // namespace
}  // namespace bdn::testing
