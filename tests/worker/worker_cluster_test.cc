#include <atomic>
#include <cmath>
#include <future>
#include <limits>
#include <random>
#include <thread>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/normal_values.h"
#include "tests/support/pumped_network.h"
#include "tests/support/rig_parts.h"
#include "tests/support/state_calls.h"
#include "tests/support/worker_rig.h"
#include "worker/error_fields.h"

// Workers against a real scheduler and real servers, in one process over the loopback transport.

namespace bdn::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Floats = std::vector<float>;
constexpr absl::Duration kLong = absl::Minutes(1);

TEST(WorkerCluster, AveragesATensorOfSeveralPartitionsInPlace) {
  ClusterRig rig(3, {"--servers=2", "--partition-bytes=4096"});
  rig.OnEach([](Worker& worker, int rank) {
    const auto ids = worker.Declare({Tensor("w", 5000)}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    for (int step = 1; step <= 5; ++step) {
      Floats data(5000, static_cast<float>(rank * step));
      const auto result = PushPull(worker, ids->at(0), data);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->step, static_cast<Step>(step));
      EXPECT_THAT(data, Each(static_cast<float>(step)));
    }
  });
}

TEST(WorkerCluster, SaysOnceThatTensorsAreTooSmallToBeCompressed) {
  const auto log_of = [](std::vector<TensorDeclaration> tensors) {
    ClusterRig rig(2);
    ::testing::internal::CaptureStderr();
    rig.OnEach([&](Worker& worker, int) {
      EXPECT_TRUE(worker.Declare(tensors, kLong).ok());
      EXPECT_TRUE(worker.Declare({Tensor("one more", 10, "int8")}, kLong).ok());
    });
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string log = log_of({Tensor("w", 9000, "ef(onebit)"), Tensor("dense", 100),
                                  Tensor("b", 600, "none", "ef(onebit)")});
  const std::string fact =
      "2 of 2 tensors with a codec, 38400 of their 38400 bytes, go uncompressed";
  ASSERT_THAT(log, HasSubstr(fact));
  EXPECT_THAT(log, HasSubstr("min-compress-bytes, 65536"));
  EXPECT_EQ(log.find("go uncompressed", log.find(fact) + fact.size()), std::string::npos) << log;
  EXPECT_THAT(log_of({Tensor("w", 1000000, "fp16"), Tensor("b", 100, "fp16")}),
              HasSubstr("1 of 1 tensors with a codec"))
      << "less than a hundredth is not worth a line";
}

TEST(WorkerCluster, GivesTheSameBitsToEveryWorkerForEveryCodec) {
  for (const std::string codec :
       {"none", "fp16", "bf16", "onebit", "onebit(block=64)", "twobit(block=64)",
        "onebit(block=64,scale=bf16)", "topk(ratio=0.05)", "ef(onebit(block=64))",
        "ef(twobit(block=64))", "ef(topk(ratio=0.05))"}) {
    ClusterRig rig(2, {"--servers=2", "--min-compress-bytes=0"});
    Floats results[2];
    rig.OnEach([&](Worker& worker, int rank) {
      const auto ids = worker.Declare({Tensor("w", 3000, codec, codec)}, kLong);
      ASSERT_TRUE(ids.ok()) << ids.status();
      for (int step = 0; step < 3; ++step) {
        results[rank] = Normal(3000, 10 * step + rank);
        ASSERT_TRUE(PushPull(worker, ids->at(0), results[rank]).ok());
      }
    });
    EXPECT_EQ(results[0], results[1]) << codec;
  }
}

TEST(WorkerCluster, GivesTheSameBitsOnAnyNumberOfServersShardsAndThreads) {
  std::vector<Floats> results;
  for (const auto& [servers, shards, threads] :
       {std::tuple{1, 1, 1}, std::tuple{2, 1, 2}, std::tuple{3, 2, 1}, std::tuple{3, 1, 4}}) {
    Worker::Options options;
    options.num_threads = threads;
    ClusterRig rig(2,
                   {"--servers=" + std::to_string(servers), "--shards=" + std::to_string(shards),
                    "--min-compress-bytes=0", "--partition-bytes=4096", "--fusion-bytes=4096"},
                   options);
    Floats result;
    rig.OnEach([&](Worker& worker, int rank) {
      std::vector<TensorDeclaration> tensors = {
          Tensor("a", 5000, "ef(onebit(block=64))", "ef(topk(ratio=0.05))"),
          Tensor("b", 100, "ef(topk(ratio=0.05))", "ef(onebit)"),
          Tensor("c", 300, "ef(topk(ratio=0.05))", "ef(onebit)")};
      for (auto& tensor : tensors) tensor.fuse = true;
      const auto ids = worker.Declare(tensors, kLong);
      ASSERT_TRUE(ids.ok()) << ids.status();
      for (int step = 0; step < 10; ++step) {
        std::vector<Floats> data;
        std::vector<TicketId> tickets;
        for (size_t t = 0; t < 3; ++t) {
          data.push_back(Normal(tensors[t].elements, 100 * step + 10 * t + rank));
          tickets.push_back(*worker.PushPull(
              {.tensor = ids->at(t), .data = {data[t].data(), DType::kFloat32, data[t].size()}}));
        }
        for (const TicketId ticket : tickets) ASSERT_TRUE(worker.Wait(ticket, kLong).ok());
        if (rank != 0) continue;
        for (const Floats& x : data) result.insert(result.end(), x.begin(), x.end());
      }
    });
    results.push_back(result);
  }
  for (const Floats& result : results) EXPECT_EQ(result, results[0]);
}

// The residual of every period of a schedule goes into the next one.
TEST(WorkerCluster, ACodecScheduleKeepsItsResidualFromStageToStage) {
  constexpr size_t kN = 2000;
  const std::string schedule =
      "none for 2; ef(topk(ratio=0.25)) for 3; ef(topk(ratio=0.01)) for 3; ef(onebit)";
  ClusterRig rig(2, {"--min-compress-bytes=0"});
  std::vector<double> given(kN, 0.0);
  Floats received(kN, 0.0f);
  Floats residual[2] = {Floats(kN), Floats(kN)};
  rig.OnEach([&](Worker& worker, int rank) {
    const auto ids = worker.Declare({Tensor("w", kN, schedule, "none")}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    for (int step = 0; step < 12; ++step) {
      Floats data = Normal(kN, 10 * step + rank);
      const Floats input = data;
      ASSERT_TRUE(PushPull(worker, ids->at(0), data).ok());
      if (step < 2) {
        ASSERT_TRUE(GetState(worker, ids->at(0), LinkState::kResidual, residual[rank]).ok());
        EXPECT_THAT(residual[rank], Each(0.0f));
      }
      if (rank == 0) {
        const Floats other = Normal(kN, 10 * step + 1);
        for (size_t i = 0; i < kN; ++i) {
          given[i] += (input[i] + other[i]) / 2;
          received[i] += data[i];
        }
      }
    }
    ASSERT_TRUE(GetState(worker, ids->at(0), LinkState::kResidual, residual[rank]).ok());
  });
  for (size_t i = 0; i < kN; ++i) {
    EXPECT_NEAR(received[i] + (residual[0][i] + residual[1][i]) / 2, given[i], 1e-4);
  }
}

TEST(WorkerCluster, ErrorFeedbackLosesNothingAtEitherEnd) {
  constexpr size_t kN = 2000;
  ClusterRig rig(2, {"--min-compress-bytes=0"});
  std::vector<double> given(kN, 0.0);
  Floats received(kN, 0.0f);
  Floats residual[2] = {Floats(kN), Floats(kN)};
  rig.OnEach([&](Worker& worker, int rank) {
    const auto ids = worker.Declare({Tensor("w", kN, "ef(onebit)", "ef(topk(ratio=0.1))")}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    for (int step = 0; step < 50; ++step) {
      Floats data = Normal(kN, 100 * step + rank);
      ASSERT_TRUE(PushPull(worker, ids->at(0), data).ok());
      if (rank == 0) {
        for (size_t i = 0; i < kN; ++i) received[i] += data[i];
      }
    }
    ASSERT_TRUE(GetState(worker, ids->at(0), LinkState::kResidual, residual[rank]).ok());
  });
  for (int step = 0; step < 50; ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      const Floats data = Normal(kN, 100 * step + rank);
      for (size_t i = 0; i < kN; ++i) given[i] += data[i] / 2;
    }
  }
  // The server keeps the rest; what it and the workers owe stays small beside what was sent.
  double owed = 0;
  double sent = 0;
  for (size_t i = 0; i < kN; ++i) {
    const double workers_owe = (residual[0][i] + residual[1][i]) / 2;
    owed += std::pow(given[i] - received[i] - workers_owe, 2);
    sent += std::pow(given[i], 2);
  }
  EXPECT_LT(owed, sent);
  EXPECT_GT(owed, 0);
}

TEST(WorkerCluster, FusesSmallTensorsAndLetsSomeBeAbsent) {
  ClusterRig rig(2);
  rig.OnEach([](Worker& worker, int rank) {
    std::vector<TensorDeclaration> tensors = {Tensor("a", 3), Tensor("b", 4), Tensor("c", 5)};
    for (auto& tensor : tensors) tensor.fuse = true;
    const auto ids = worker.Declare(tensors, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    Floats a(3, 2.0f), b(4, 8.0f), c(5, 7.0f);
    const auto view = [](Floats& x) { return MutableView{x.data(), DType::kFloat32, x.size()}; };
    const auto ticket_a = worker.PushPull({.tensor = ids->at(0), .data = view(a)});
    const auto ticket_b =
        worker.PushPull({.tensor = ids->at(1), .data = view(b), .absent = rank == 1});
    const auto ticket_c = worker.PushPull({.tensor = ids->at(2), .data = view(c), .absent = true});
    const auto done_a = worker.Wait(*ticket_a, kLong);
    const auto done_b = worker.Wait(*ticket_b, kLong);
    const auto done_c = worker.Wait(*ticket_c, kLong);
    ASSERT_TRUE(done_a.ok() && done_b.ok() && done_c.ok());
    EXPECT_THAT(a, Each(2.0f));
    EXPECT_THAT(b, Each(4.0f));
    EXPECT_FALSE(done_b->absent);
    EXPECT_TRUE(done_c->absent);
    EXPECT_THAT(c, Each(7.0f));
  });
}

TEST(WorkerCluster, ANonFiniteGradientSkipsTheStepForAllAndTheNextIsRight) {
  ClusterRig rig(2, {"--min-compress-bytes=0"});
  rig.OnEach([](Worker& worker, int rank) {
    const auto ids = worker.Declare({Tensor("w", 100, "ef(onebit)", "ef(onebit)")}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    Floats data = Normal(100, rank);
    ASSERT_TRUE(PushPull(worker, ids->at(0), data).ok());
    Floats before(100);
    ASSERT_TRUE(GetState(worker, ids->at(0), LinkState::kResidual, before).ok());

    Floats bad = Normal(100, 7 + rank);
    if (rank == 1) bad[17] = std::numeric_limits<float>::infinity();
    const auto skipped = PushPull(worker, ids->at(0), bad);
    ASSERT_TRUE(skipped.ok());
    EXPECT_TRUE(skipped->nonfinite);
    EXPECT_TRUE(std::isnan(bad[0]));
    Floats after(100);
    ASSERT_TRUE(GetState(worker, ids->at(0), LinkState::kResidual, after).ok());
    for (size_t i = 0; i < 100; ++i) EXPECT_NEAR(after[i], before[i], 1e-6);

    Floats next(100, 0.0f);
    const auto result = PushPull(worker, ids->at(0), next);
    ASSERT_TRUE(result.ok());
    EXPECT_FALSE(result->nonfinite);
    EXPECT_TRUE(std::isfinite(next[0]));
  });
}

TEST(WorkerCluster, ResidualsAreUnscaledWhateverTheLossScale) {
  Floats residuals[2][2];
  for (const int scaled : {0, 1}) {
    ClusterRig rig(2, {"--min-compress-bytes=0"});
    rig.OnEach([&](Worker& worker, int rank) {
      const auto ids = worker.Declare({Tensor("w", 64, "ef(onebit)", "none")}, kLong);
      for (int step = 0; step < 4; ++step) {
        const float scale = scaled ? 1024.0f / static_cast<float>(1 << step) : 1.0f;
        Floats data = Normal(64, step * 2 + rank);
        for (float& x : data) x *= scale;
        ASSERT_TRUE(PushPull(worker, ids->at(0), data, scale).ok());
      }
      residuals[scaled][rank].resize(64);
      ASSERT_TRUE(GetState(worker, ids->at(0), LinkState::kResidual, residuals[scaled][rank]).ok());
    });
  }
  EXPECT_EQ(residuals[0][0], residuals[1][0]);
  EXPECT_EQ(residuals[0][1], residuals[1][1]);
}

TEST(WorkerCluster, MomentumComesBeforeErrorFeedback) {
  ClusterRig rig(1);
  rig.OnEach([](Worker& worker, int) {
    TensorDeclaration tensor = Tensor("w", 2);
    tensor.momentum = 0.5f;
    const auto ids = worker.Declare({tensor}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    // m = 1, p = 1 + 0.5;  m = 1.5, p = 1 + 0.75
    Floats first(2, 1.0f);
    ASSERT_TRUE(PushPull(worker, ids->at(0), first).ok());
    EXPECT_THAT(first, Each(1.5f));
    Floats second(2, 1.0f);
    ASSERT_TRUE(PushPull(worker, ids->at(0), second).ok());
    EXPECT_THAT(second, Each(1.75f));
    Floats momentum(2);
    ASSERT_TRUE(GetState(worker, ids->at(0), LinkState::kMomentum, momentum).ok());
    EXPECT_THAT(momentum, Each(1.5f));
  });
}

TEST(WorkerCluster, BroadcastsTheRootsBytesAgainAndAgain) {
  ClusterRig rig(3, {"--servers=2", "--partition-bytes=4096"});
  rig.OnEach([](Worker& worker, int rank) {
    for (int round = 0; round < 3; ++round) {
      std::vector<uint8_t> data(10000, static_cast<uint8_t>(10 * round + rank));
      const auto status =
          worker.Broadcast("state", std::as_writable_bytes(std::span(data)), 1, kLong);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_THAT(data, Each(static_cast<uint8_t>(10 * round + 1)));
    }
  });
}

TEST(WorkerCluster, ASecondCallOnATensorQueuesBehindTheFirst) {
  ClusterRig rig(2);
  rig.OnEach([](Worker& worker, int rank) {
    const auto ids = worker.Declare({Tensor("w", 10)}, kLong);
    std::vector<Floats> data;
    std::vector<TicketId> tickets;
    for (int i = 0; i < 8; ++i) data.emplace_back(10, static_cast<float>(i + rank));
    for (Floats& x : data) {
      tickets.push_back(
          *worker.PushPull({.tensor = ids->at(0), .data = {x.data(), DType::kFloat32, 10}}));
    }
    for (int i = 0; i < 8; ++i) {
      ASSERT_TRUE(worker.Wait(tickets[i], kLong).ok());
      EXPECT_THAT(data[i], Each(i + 0.5f));
    }
  });
}

TEST(WorkerCluster, AWaitThatTimesOutNamesTheWorkerItWaitsFor) {
  Worker::Options options;
  options.probe_interval = absl::Milliseconds(5);
  ClusterRig rig(2, {}, options);
  std::vector<uint32_t> ids[2];
  rig.OnEach(
      [&](Worker& worker, int rank) { ids[rank] = *worker.Declare({Tensor("w", 10)}, kLong); });
  Floats data(10, 1.0f);
  const auto ticket =
      rig.worker(0).PushPull({.tensor = ids[0][0], .data = {data.data(), DType::kFloat32, 10}});
  absl::Status status;
  do {  // until the server has answered a probe
    status = rig.worker(0).Wait(*ticket, absl::Milliseconds(20)).status();
    ASSERT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  } while (GetErrorField(status, "waiting_for") != "worker 1");
  EXPECT_EQ(GetErrorField(status, "tensor"), "w");
  EXPECT_EQ(GetErrorField(status, "step"), "1");
  EXPECT_EQ(GetErrorField(status, "stage"), "exchange");
  Floats other(10, 3.0f);
  ASSERT_TRUE(PushPull(rig.worker(1), ids[1][0], other).ok());
  ASSERT_TRUE(rig.worker(0).Wait(*ticket, kLong).ok());
  EXPECT_THAT(data, Each(2.0f));
}

TEST(WorkerCluster, AWaitForAWorkerThatIsAliveGoesOnPastTheWaitTimeout) {
  Worker::Options options;
  options.wait_timeout = absl::Seconds(1);
  options.probe_interval = absl::Milliseconds(5);
  ClusterRig rig(2, {}, options);
  std::vector<uint32_t> ids[2];
  rig.OnEach(
      [&](Worker& worker, int rank) { ids[rank] = *worker.Declare({Tensor("w", 10)}, kLong); });
  Floats data(10, 1.0f);
  std::vector<std::byte> value(100, std::byte{7});
  const auto ticket =
      rig.worker(0).PushPull({.tensor = ids[0][0], .data = {data.data(), DType::kFloat32, 10}});
  std::thread broadcasts(
      [&] { EXPECT_TRUE(rig.worker(0).Broadcast("b", std::span(value), 1, kLong).ok()); });
  const absl::Status late = rig.worker(0).Wait(*ticket, absl::Milliseconds(2500)).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;  // this wait's own
  EXPECT_EQ(GetErrorField(late, "waiting_for"), "worker 1");
  Floats other(10, 3.0f);
  ASSERT_TRUE(PushPull(rig.worker(1), ids[1][0], other).ok());
  std::vector<std::byte> of_root(100, std::byte{9});
  ASSERT_TRUE(rig.worker(1).Broadcast("b", std::span(of_root), 1, kLong).ok());
  ASSERT_TRUE(rig.worker(0).Wait(*ticket, kLong).ok());
  broadcasts.join();
  EXPECT_THAT(data, Each(2.0f));
  EXPECT_EQ(value, of_root);
}

TEST(WorkerCluster, AnExchangeWithoutAnAnswerEndsByACodeOfItsOwnAndIsCountedOnce) {
  PumpedNetwork network;
  network.net().Drop(OfType(FrameType::kWaiting));  // the server does not answer who asks
  Worker::Options options;
  // The other's exchange, too, has to have its answer within it, whatever else the machine does.
  options.wait_timeout = absl::Milliseconds(300);
  options.probe_interval = absl::Milliseconds(5);
  ClusterRig rig(2, {"--min-compress-bytes=0"}, options, network.Factory());
  std::vector<uint32_t> ids(2);
  rig.OnEach([&](Worker& worker, int rank) {
    ids[rank] = worker.Declare({Tensor("w", 4, "ef(onebit)")}, kLong).value().at(0);
  });
  Floats early = {1, 2, 3, 6};
  const absl::Status late = PushPull(rig.worker(0), ids[0], early).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(GetErrorField(late, "tensor"), "w");
  EXPECT_EQ(GetErrorField(late, "step"), "1");
  EXPECT_EQ(GetErrorField(late, "stage"), "exchange");
  EXPECT_EQ(GetErrorField(late, "waiting_for"), "server 0");
  EXPECT_EQ(early, Floats({1, 2, 3, 6}));
  Floats owed(4);
  EXPECT_EQ(GetState(rig.worker(0), ids[0], LinkState::kResidual, owed).code(),
            absl::StatusCode::kFailedPrecondition);  // not known yet
  // The other comes after all, and finds the first push in its round.
  Floats other = {0, 0, 0, 0};
  const auto result = PushPull(rig.worker(1), ids[1], other);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(other, Floats({1.5, 1.5, 1.5, 1.5}));
  absl::Status told = FailedPrecondition("");
  while (absl::IsFailedPrecondition(told)) {
    told = GetState(rig.worker(0), ids[0], LinkState::kResidual, owed);
    std::this_thread::yield();
  }
  EXPECT_EQ(owed, Floats({-2, -1, 0, 3}));
}

TEST(WorkerCluster, WhatWaitsBehindAnExchangeWithoutAnAnswerEndsToo) {
  PumpedNetwork network;
  network.net().Drop(OfType(FrameType::kWaiting));
  Worker::Options options;
  options.wait_timeout = absl::Milliseconds(20);
  ClusterRig rig(2, {}, options, network.Factory());
  std::vector<uint32_t> ids(2);
  rig.OnEach([&](Worker& worker, int rank) {
    ids[rank] = worker.Declare({Tensor("w", 4)}, kLong).value().at(0);
  });
  Floats first(4);
  Floats second(4);
  EXPECT_EQ(PushPull(rig.worker(0), ids[0], first).status().code(), absl::StatusCode::kUnknown);
  const absl::Status status = PushPull(rig.worker(0), ids[0], second).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_NE(std::string(status.message()).find("server 0"), std::string::npos) << status;
}

TEST(WorkerCluster, ToCloseAWorkerEndsTheWaitsOfItsOtherThreads) {
  ClusterRig rig(2);
  std::vector<uint32_t> ids(2);
  rig.OnEach([&](Worker& worker, int rank) {
    ids[rank] = worker.Declare({Tensor("w", 4)}, kLong).value().at(0);
  });
  Floats data(4);
  std::thread waits_for_a_push(
      [&] { EXPECT_TRUE(absl::IsCancelled(PushPull(rig.worker(0), ids[0], data).status())); });
  std::thread waits_for_all([&] { EXPECT_FALSE(rig.worker(0).Barrier("b", kLong).ok()); });
  rig.worker(0).Close();
  waits_for_a_push.join();
  waits_for_all.join();
}

TEST(WorkerCluster, ADeadWorkerEndsTheWaitsOfTheOthersByName) {
  ClusterRig rig(2);
  std::vector<uint32_t> ids[2];
  rig.OnEach(
      [&](Worker& worker, int rank) { ids[rank] = *worker.Declare({Tensor("w", 10)}, kLong); });
  Floats data(10, 1.0f);
  const auto ticket =
      rig.worker(0).PushPull({.tensor = ids[0][0], .data = {data.data(), DType::kFloat32, 10}});
  rig.Kill(1);
  const absl::Status status = rig.worker(0).Wait(*ticket, kLong).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker 1"));
  EXPECT_FALSE(rig.worker(0).Declare({Tensor("x", 1)}, kLong).ok());
}

TEST(WorkerCluster, AWorkerThatLeavesEndsTheWaitsForItsPushes) {
  ClusterRig rig(2);
  std::vector<uint32_t> ids[2];
  rig.OnEach(
      [&](Worker& worker, int rank) { ids[rank] = *worker.Declare({Tensor("w", 10)}, kLong); });
  rig.OnEach([&](Worker& worker, int rank) {
    Floats data(10, 1.0f);
    ASSERT_TRUE(PushPull(worker, ids[rank][0], data).ok());
    if (rank == 0) {
      const absl::Status status = PushPull(worker, ids[rank][0], data).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("tensor 'w' step 2"), HasSubstr("worker 1 is leaving")));
      std::vector<std::byte> bytes(3);
      EXPECT_FALSE(worker.Broadcast("late", bytes, 1, kLong).ok());
    }
    EXPECT_TRUE(worker.Leave(kLong).ok());
  });
}

TEST(WorkerCluster, LeavingWaitsUntilTheServersHaveWhatWasPushed) {
  Worker::Options options;
  options.probe_interval = absl::Milliseconds(5);
  ClusterRig rig(2, {}, options);
  std::vector<uint32_t> ids[2];
  rig.OnEach([&](Worker& worker, int rank) {
    ids[rank] = *worker.Declare({Tensor("a", 10), Tensor("b", 3000000)}, kLong);
  });
  Floats data[2] = {Floats(10, 1.0f), Floats(10, 3.0f)};
  Floats large(3000000, 1.0f);
  const auto start = [&](uint32_t id, Floats& floats) {
    return rig.worker(1).PushPull(
        {.tensor = id, .data = {floats.data(), DType::kFloat32, floats.size()}});
  };
  const auto pushed = start(ids[1][0], data[1]);
  const auto vain = start(ids[1][1], large);
  EXPECT_EQ(rig.worker(1).Leave(absl::ZeroDuration()).code(), absl::StatusCode::kDeadlineExceeded);
  auto collected =
      std::async(std::launch::async, [&] { return rig.worker(1).Wait(*pushed, kLong); });
  rig.OnEach([&](Worker& worker, int rank) {
    if (rank == 0) {  // Does not come to push before worker 1 is leaving.
      EXPECT_EQ(worker.Barrier("b", kLong).code(), absl::StatusCode::kAborted);
      EXPECT_TRUE(PushPull(worker, ids[0][0], data[0]).ok());
      EXPECT_TRUE(collected.get().ok());
    }
    EXPECT_TRUE(worker.Leave(kLong).ok());
  });
  EXPECT_THAT(data[1], Each(2.0f));
  EXPECT_EQ(rig.worker(1).Wait(*vain, kLong).status().code(), absl::StatusCode::kAborted);
}

// A clock on which an hour passes, for one thread, between any two looks at it. Thread-safe.
class HurriedClock final : public Clock {
 public:
  // From now on time hurries for the calling thread.
  void Hurry() { hurried_ = std::this_thread::get_id(); }

  absl::Time Now() const override {
    if (std::this_thread::get_id() != hurried_) return steady_.Now();
    return steady_.Now() + ++hours_ * absl::Hours(1);
  }
  bool WaitUntil(CondVar* changed, Mutex* mu, absl::Time deadline) const override {
    return steady_.WaitUntil(changed, mu, deadline);
  }

 private:
  const SteadyClock steady_;
  std::atomic<std::thread::id> hurried_{std::thread::id()};
  mutable std::atomic<int> hours_ = 0;
};

TEST(WorkerCluster, LeavesWithinOneTimeout) {
  HurriedClock clock;
  Registry telemetry;
  const auto cluster = Must(LocalCluster::Create({"--workers=2"}));
  std::unique_ptr<Worker> workers[2];
  AtOnce(2, [&](size_t rank) {
    workers[rank] =
        Must(Worker::Create({}, &clock, &telemetry, cluster->Connect(), cluster->MakeTransport()));
  });
  clock.Hurry();
  // The wait for the servers takes all of the timeout: none is left to wait for the other worker.
  const absl::Time begin = absl::Now();
  EXPECT_EQ(workers[1]->Leave(kLong).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(absl::Now() - begin, kLong / 2);
}

TEST(WorkerCluster, WhoLeavesTakesNoPartAnyMore) {
  ClusterRig rig(1);
  Worker& worker = rig.worker(0);
  const uint32_t id = worker.Declare({Tensor("w", 10)}, kLong)->front();
  ASSERT_TRUE(worker.Leave(kLong).ok());
  Floats data(10, 1.0f);
  std::vector<std::byte> bytes(3);
  for (const absl::Status& status :
       {PushPull(worker, id, data).status(), worker.Barrier("b", kLong),
        worker.Broadcast("x", bytes, 0, kLong), worker.Declare({Tensor("x", 1)}, kLong).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("leaving the job"));
  }
}

TEST(WorkerCluster, RequestsThatDoNotFitTheirDeclarationAreRefused) {
  ClusterRig rig(1);
  Worker& worker = rig.worker(0);
  const auto ids = worker.Declare({Tensor("w", 10)}, kLong);
  Floats data(10, 1.0f);
  const MutableView view{data.data(), DType::kFloat32, 10};
  const auto refuse = [&](PushRequest request, const std::string& why) {
    const absl::Status status = worker.PushPull(std::move(request)).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  refuse({.tensor = 99, .data = view}, "no tensor of id 99");
  refuse({.tensor = ids->at(0)}, "data is null");
  refuse({.tensor = ids->at(0), .data = {data.data(), DType::kFloat16, 10}}, "declared as float32");
  refuse({.tensor = ids->at(0), .data = {data.data(), DType::kFloat32, 9}}, "pushed with 9");
  refuse({.tensor = ids->at(0), .data = view, .weight = -1}, "weight");
  refuse({.tensor = ids->at(0), .data = view, .loss_scale = 0}, "loss_scale");
  EXPECT_THAT(std::string(worker.Declare({Tensor("w", 11)}, kLong).status().message()),
              HasSubstr("was declared as"));
  EXPECT_THAT(std::string(worker.Declare({Tensor("v", 1, "onebot")}, kLong).status().message()),
              HasSubstr("onebit"));
  EXPECT_FALSE(worker.Declare({Tensor("v", 0)}, kLong).ok());
  TensorDeclaration doubles = Tensor("d", 4, "onebit");
  doubles.dtype = DType::kFloat64;
  EXPECT_THAT(std::string(worker.Declare({doubles}, kLong).status().message()),
              HasSubstr("float64"));
  EXPECT_EQ(worker.Wait(12345, absl::ZeroDuration()).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(PushPull(worker, ids->at(0), data).ok());
}

TEST(WorkerCluster, ConflictingDeclarationsNameBothWorkers) {
  ClusterRig rig(2);
  rig.OnEach([](Worker& worker, int rank) {
    const absl::Status status = worker.Declare({Tensor("w", 10 + rank)}, kLong).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("w"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("0"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("1"));
  });
}

TEST(WorkerCluster, EndsATicketByItsCallback) {
  ClusterRig rig(1);
  Worker& worker = rig.worker(0);
  const auto ids = worker.Declare({Tensor("w", 10)}, kLong);
  Floats data(10, 1.0f);
  std::promise<absl::Status> ended;
  const auto ticket = worker.PushPull(
      {.tensor = ids->at(0),
       .data = {data.data(), DType::kFloat32, 10},
       .done = [&](TicketId, const auto& result) { ended.set_value(result.status()); }});
  ASSERT_TRUE(ticket.ok());
  EXPECT_TRUE(ended.get_future().get().ok());
}

TEST(WorkerCluster, StartsAndEndsExchangesTogetherUpToTheFirstThatIsRefused) {
  ClusterRig rig(2);
  rig.OnEach([](Worker& worker, int rank) {
    const std::vector<uint32_t> ids =
        *worker.Declare({Tensor("a", 4), Tensor("b", 4), Tensor("c", 4)}, kLong);
    std::vector<Floats> data(3, Floats(4, 1.0f + rank));
    std::vector<PushRequest> pushes;
    for (int i = 0; i < 3; ++i) {
      pushes.push_back({.tensor = ids[i], .data = {data[i].data(), DType::kFloat32, 4}});
    }
    std::vector<PushRequest> two_of_one = {pushes[0], pushes[0]};
    two_of_one[1].data.data = data[1].data();
    std::vector<TicketId> tickets;
    ASSERT_TRUE(worker.PushPullAll(std::span(two_of_one), &tickets).ok());
    ASSERT_EQ(tickets.size(), 2u);
    std::vector<PushResult> results;
    ASSERT_TRUE(worker.WaitAll(tickets, kLong, &results).ok());
    ASSERT_EQ(results.size(), 2u);
    EXPECT_EQ(results[0].step, 1u);
    EXPECT_EQ(results[1].step, 2u);

    pushes[2].weight = -1;
    const absl::Status refused = worker.PushPullAll(std::span(pushes), &tickets);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("'c': weight"));
    ASSERT_EQ(tickets.size(), 2u) << "those before it are in flight";
    tickets.insert(tickets.begin() + 1, TicketId{98765});
    EXPECT_TRUE(absl::IsNotFound(worker.WaitAll(tickets, kLong, &results)));
    EXPECT_EQ(results.size(), 1u) << "those before it have ended";
    EXPECT_TRUE(worker.Wait(tickets[2], kLong).ok()) << "those behind it are as they were";
    EXPECT_EQ(data[1], Floats(4, 1.5f));
  });
}

TEST(WorkerCluster, TakesHalfPrecisionAndDoubleInPlace) {
  ClusterRig rig(2);
  rig.OnEach([](Worker& worker, int rank) {
    TensorDeclaration half = Tensor("half", 4, "fp16", "fp16");
    half.dtype = DType::kFloat16;
    TensorDeclaration brain = Tensor("brain", 4, "bf16", "bf16");
    brain.dtype = DType::kBFloat16;
    TensorDeclaration wide = Tensor("wide", 4);
    wide.dtype = DType::kFloat64;
    const auto ids = worker.Declare({half, brain, wide}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    std::vector<uint16_t> h(4, FloatToHalf(1.0f + rank));
    std::vector<uint16_t> b(4, FloatToBFloat16(3.0f + rank));
    std::vector<double> d(4, 1.0 / 3 + rank);
    const auto push = [&](uint32_t id, MutableView view) {
      const auto ticket = worker.PushPull({.tensor = id, .data = view});
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      ASSERT_TRUE(worker.Wait(*ticket, kLong).ok());
    };
    push(ids->at(0), {h.data(), DType::kFloat16, 4});
    push(ids->at(1), {b.data(), DType::kBFloat16, 4});
    push(ids->at(2), {d.data(), DType::kFloat64, 4});
    EXPECT_THAT(h, Each(FloatToHalf(1.5f)));
    EXPECT_THAT(b, Each(FloatToBFloat16(3.5f)));
    EXPECT_THAT(d, Each((1.0 / 3 + (1.0 / 3 + 1)) * 0.5));
  });
}

TEST(WorkerCluster, WorkersThatPushInOppositeOrdersWithATinyBudgetBothFinish) {
  Worker::Options options;
  options.max_bytes_in_flight = 1;
  ClusterRig rig(2, {}, options);
  rig.OnEach([](Worker& worker, int rank) {
    std::vector<TensorDeclaration> tensors;
    for (int i = 0; i < 16; ++i) tensors.push_back(Tensor("t" + std::to_string(i), 1000));
    const auto ids = worker.Declare(tensors, kLong);
    std::vector<Floats> data(16, Floats(1000, static_cast<float>(rank)));
    std::vector<TicketId> tickets;
    for (int i = 0; i < 16; ++i) {
      const int at = rank == 0 ? i : 15 - i;
      tickets.push_back(*worker.PushPull({.tensor = ids->at(at),
                                          .data = {data[at].data(), DType::kFloat32, 1000},
                                          .priority = rank == 0 ? -i : i}));
    }
    for (const TicketId ticket : tickets) ASSERT_TRUE(worker.Wait(ticket, kLong).ok());
    for (const Floats& x : data) EXPECT_THAT(x, Each(0.5f));
  });
}

// The order in which tensors go does not change the results.
TEST(WorkerCluster, PrioritiesChangeNoBits) {
  constexpr int kTensors = 12;
  constexpr size_t kN = 3000;
  std::vector<Floats> results;
  for (const int seed : {0, 1, 2}) {
    Worker::Options options;
    options.max_bytes_in_flight = 1;
    ClusterRig rig(2,
                   {"--servers=2", "--max-bytes-in-flight=1", "--min-compress-bytes=0",
                    "--partition-bytes=4096"},
                   options);
    Floats result;
    rig.OnEach([&](Worker& worker, int rank) {
      std::vector<TensorDeclaration> tensors;
      for (int i = 0; i < kTensors; ++i) {
        tensors.push_back(
            Tensor(absl::StrFormat("t%d", i), kN, "ef(onebit(block=64))", "ef(topk(ratio=0.05))"));
      }
      const auto ids = worker.Declare(tensors, kLong);
      ASSERT_TRUE(ids.ok()) << ids.status();
      std::mt19937_64 random(10 * seed + rank);
      for (int step = 0; step < 4; ++step) {
        std::vector<Floats> data;
        for (int i = 0; i < kTensors; ++i) data.push_back(Normal(kN, 100 * step + 2 * i + rank));
        std::vector<TicketId> tickets;
        for (int i = 0; i < kTensors; ++i) {
          const auto priority = seed == 0 ? 0 : static_cast<int32_t>(random());
          tickets.push_back(*worker.PushPull({.tensor = ids->at(i),
                                              .data = {data[i].data(), DType::kFloat32, kN},
                                              .priority = priority}));
        }
        for (const TicketId ticket : tickets) ASSERT_TRUE(worker.Wait(ticket, kLong).ok());
        if (rank != 0) continue;
        for (const Floats& x : data) result.insert(result.end(), x.begin(), x.end());
      }
    });
    results.push_back(result);
  }
  for (const Floats& result : results) EXPECT_EQ(result, results[0]);
}

// ---- Retiring

// Steps of one owner of "w" and "b", which are fused, and of "large"; the last result of all.
Floats StepsOfAnOwner(Worker& worker, int rank, const std::string& codec,
                      std::vector<uint32_t>* ids) {
  TensorDeclaration w = Tensor("w", 700, codec, codec);
  TensorDeclaration b = Tensor("b", 300, codec, codec);
  w.fuse = b.fuse = true;
  TensorDeclaration large = Tensor("large", 4000, codec, codec);
  const auto declared = worker.Declare({w, b, large}, kLong);
  EXPECT_TRUE(declared.ok()) << declared.status();
  *ids = *declared;
  Floats last;
  for (int step = 1; step <= 4; ++step) {
    std::vector<Floats> data;
    std::vector<TicketId> tickets;
    for (const size_t n : {700, 300, 4000}) data.push_back(Normal(n, 10 * step + rank + n));
    for (size_t i = 0; i < data.size(); ++i) {
      tickets.push_back(*worker.PushPull(
          {.tensor = ids->at(i), .data = {data[i].data(), DType::kFloat32, data[i].size()}}));
    }
    last.clear();
    for (size_t i = 0; i < data.size(); ++i) {
      const auto result = worker.Wait(tickets[i], kLong);
      EXPECT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->step, static_cast<Step>(step));
      last.insert(last.end(), data[i].begin(), data[i].end());
    }
  }
  return last;
}

TEST(WorkerCluster, EachOwnerOfANameBeginsAnewAndGivesItsMemoryBack) {
  for (const std::string codec : {"none", "ef(onebit(block=64))", "ef(topk(ratio=0.1))",
                                  "none for 2; ef(dither(levels=4))"}) {
    ClusterRig rig(
        2, {"--servers=2", "--min-compress-bytes=0", "--partition-bytes=4096", "--max-tensors=5"});
    constexpr int kOwners = 30;
    std::vector<Floats> results[2];
    std::vector<uint64_t> held;
    rig.OnEach([&](Worker& worker, int rank) {
      for (int owner = 0; owner < kOwners; ++owner) {
        std::vector<uint32_t> ids;
        results[rank].push_back(StepsOfAnOwner(worker, rank, codec, &ids));
        if (rank == 0) held.push_back(rig.held().total());
        ASSERT_TRUE(worker.Barrier("all have looked", kLong).ok());
        ASSERT_TRUE(worker.Retire(ids).ok());
        EXPECT_TRUE(absl::IsNotFound(GetStep(worker, ids[0]).status()));
      }
      // It waits for servers that have done what came before it.
      ASSERT_TRUE(worker.Declare({Tensor("last", 1)}, kLong).ok());
    });
    for (int owner = 1; owner < kOwners; ++owner) {
      EXPECT_EQ(results[0][owner], results[0][0]) << codec << owner;
      EXPECT_EQ(held[owner], held[0]) << codec << owner;
    }
    EXPECT_EQ(results[0], results[1]) << codec;
    EXPECT_GT(held[0], 0u);
    EXPECT_EQ(rig.held().total(), 0u) << codec;
  }
}

TEST(WorkerCluster, AnExchangeThatOthersNeverJoinEndsOnceAllAreDoneWithItsTensor) {
  ClusterRig rig(2);
  rig.OnEach([](Worker& worker, int rank) {
    const auto ids = worker.Declare({Tensor("w", 100)}, kLong);
    ASSERT_TRUE(ids.ok());
    Floats data(100, 1.0f);
    absl::StatusOr<TicketId> ticket = TicketId{0};
    if (rank == 0) {  // the other's step broke off before it
      ticket = worker.PushPull(
          {.tensor = ids->at(0), .data = {data.data(), DType::kFloat32, data.size()}});
      ASSERT_TRUE(ticket.ok());
    }
    ASSERT_TRUE(worker.Barrier("pushed", kLong).ok());
    ASSERT_TRUE(worker.Retire(*ids).ok());
    if (rank == 0) {
      const absl::Status end = worker.Wait(*ticket, kLong).status();
      EXPECT_FALSE(end.ok());
      EXPECT_FALSE(absl::IsDeadlineExceeded(end)) << end;
    }
    const auto again = worker.Declare({Tensor("w", 100)}, kLong);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_NE(*again, *ids);
    const auto result = PushPull(worker, again->at(0), data);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->step, 1u);
  });
}

TEST(WorkerCluster, NobodyWaitsForAWorkerThatHasLeftToBeDoneWithATensor) {
  ClusterRig rig(2);
  rig.OnEach([&](Worker& worker, int rank) {
    const auto ids = worker.Declare({Tensor("w", 1000)}, kLong);
    ASSERT_TRUE(ids.ok());
    Floats data(1000, 1.0f);
    ASSERT_TRUE(PushPull(worker, ids->at(0), data).ok());
    if (rank == 0) {
      ASSERT_TRUE(worker.Retire(*ids).ok());
    }
    ASSERT_TRUE(worker.Leave(kLong).ok());
  });
}

}  // namespace
}  // namespace bdn::testing
