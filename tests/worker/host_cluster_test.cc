#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <limits>
#include <thread>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/host_rig.h"
#include "tests/support/normal_values.h"
#include "tests/support/state_calls.h"
#include "tests/support/worker_rig.h"
#include "worker/error_fields.h"

// Processes that take part through host daemons, against real servers, over real sockets and shared
// memory, in one process.

namespace bdn::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

using Floats = std::vector<float>;
constexpr absl::Duration kLong = absl::Minutes(1);
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(HostCluster, AveragesOverProcessesAlsoWhereHostsHaveDifferentNumbersOfThem) {
  HostRig rig(std::vector<int>{1, 3, 0}, {"--servers=2", "--partition-bytes=4096"});
  ASSERT_EQ(rig.size(), 5);
  rig.OnEach([](Client& client, int rank) {
    EXPECT_EQ(client.rank(), rank);
    EXPECT_EQ(client.joined_size(), 5);
    EXPECT_EQ(client.presence(), (Presence{.size = 5, .first_rank = 0}));
    const auto ids = client.Declare({Tensor("w", 5000)}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    for (int step = 1; step <= 5; ++step) {
      Floats data(5000, static_cast<float>(rank * step));
      const auto result = PushPull(client, ids->at(0), data);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->step, static_cast<Step>(step));
      EXPECT_THAT(data, Each(2.0f * step));
    }
    EXPECT_EQ(*GetStep(client, ids->at(0)), 5u);
  });
}

// ---- Who is left of a job that has lost a host

// Exchanges the ranks of those who are left: a round without the lost, whose end they hear last.
void ExchangeRanks(Client& client, float mean) {
  const auto ids = client.Declare({Tensor("w", 10)}, kLong);
  ASSERT_TRUE(ids.ok()) << ids.status();
  Floats data(10, static_cast<float>(client.rank()));
  const auto result = PushPull(client, ids->at(0), data);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(data, Each(mean));
}

TEST(HostCluster, ProcessesHearWhoIsLeftBeforeTheFirstResultOfThose) {
  HostRig rig({1, 2, 2, 0}, {"--min-workers=1"});
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(rig.client(rank).presence(), (Presence{.size = 6, .first_rank = 0})) << rank;
  }
  const auto lose = [&](int host, const std::vector<int>& left, float mean) {
    rig.LoseHost(host);
    rig.OnEach([&](Client& client, int rank) {
      if (std::ranges::find(left, rank) == left.end()) return;
      ExchangeRanks(client, mean);
      const Presence expected = {.size = static_cast<int>(left.size()), .first_rank = left[0]};
      EXPECT_EQ(client.presence(), expected) << rank;
      EXPECT_EQ(client.joined_size(), 6);
      EXPECT_EQ(rig.Counter(rank, "size"), left.size());
    });
  };
  lose(1, {0, 3, 4, 5}, 12 / 4.0f);  // the first rank is left
  lose(0, {3, 4, 5}, 12 / 3.0f);
  lose(3, {3, 4}, 7 / 2.0f);
}

TEST(HostCluster, ProcessesThatAttachAfterALossHearOfItInTheirWelcome) {
  std::promise<void> heard;
  HostRig::Options options{.hosts = {2, 2}, .flags = {"--min-workers=1"}, .attaches_later = 1};
  options.worker.presence_changed = [&](const Presence&, int) { heard.set_value(); };
  HostRig rig(options);
  rig.LoseHost(0);
  ASSERT_EQ(heard.get_future().wait_for(std::chrono::minutes(1)), std::future_status::ready);
  rig.AttachProcesses(1);
  for (const int rank : {2, 3}) {
    EXPECT_EQ(rig.client(rank).rank(), rank);
    EXPECT_EQ(rig.client(rank).presence(), (Presence{.size = 2, .first_rank = 2})) << rank;
    EXPECT_EQ(rig.client(rank).joined_size(), 4);
  }
  rig.OnEach([](Client& client, int rank) {
    if (rank < 2) return;
    std::vector<std::byte> data(1, static_cast<std::byte>(rank));
    const absl::Status status = client.Broadcast("a rank", data, 3, kLong);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(data[0], std::byte{3});
    ExchangeRanks(client, 5 / 2.0f);
  });
}

// Returns the results of two workers without a daemon, with which those of hosts are compared, by
// codec and by whatever else a push may say.
Floats RunPlain(const std::string& codec, int steps) {
  ClusterRig rig(2, {"--servers=2", "--min-compress-bytes=0", "--partition-bytes=4096"});
  Floats results[2];
  rig.OnEach([&](Worker& worker, int rank) {
    const auto ids = worker.Declare({Tensor("w", 3000, codec, codec)}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    for (int step = 0; step < steps; ++step) {
      results[rank] = Normal(3000, 10 * step + rank);
      ASSERT_TRUE(PushPull(worker, ids->at(0), results[rank]).ok());
    }
  });
  EXPECT_EQ(results[0], results[1]) << codec;
  return results[0];
}

Floats RunHosts(const std::vector<int>& hosts, const std::string& codec, int steps) {
  HostRig rig(hosts, {"--servers=2", "--min-compress-bytes=0", "--partition-bytes=4096"});
  std::vector<Floats> results(rig.size());
  rig.OnEach([&](Client& client, int rank) {
    const auto ids = client.Declare({Tensor("w", 3000, codec, codec)}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    for (int step = 0; step < steps; ++step) {
      results[rank] = Normal(3000, 10 * step + rank);
      const auto result = PushPull(client, ids->at(0), results[rank]);
      ASSERT_TRUE(result.ok()) << result.status();
    }
  });
  for (const Floats& result : results) EXPECT_EQ(result, results[0]) << codec;
  return results[0];
}

class HostClusterCodecs : public ::testing::TestWithParam<const char*> {};

TEST_P(HostClusterCodecs, AHostOfOneProcessGivesTheBitsOfAWorkerWithoutADaemon) {
  EXPECT_EQ(RunHosts({1, 1}, GetParam(), 4), RunPlain(GetParam(), 4));
}

TEST_P(HostClusterCodecs, GivesTheSameBitsToAllProcessesAndInEachRun) {
  const Floats first = RunHosts({2, 2}, GetParam(), 4);
  for (int run = 0; run < 3; ++run) EXPECT_EQ(RunHosts({2, 2}, GetParam(), 4), first);
}

INSTANTIATE_TEST_SUITE_P(All, HostClusterCodecs,
                         ::testing::Values("none", "fp16", "onebit(block=64)", "topk(ratio=0.05)",
                                           "int4(group=64,hadamard=32)", "dither(levels=4)",
                                           "ef(onebit(block=64))", "ef(twobit(block=64))",
                                           "ef(topk(ratio=0.05))"));

TEST(HostCluster, SumsWhatWorkersOfTheirOwnWouldToRounding) {
  constexpr size_t kN = 3000;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    HostRig rig({2, 2}, {"--partition-bytes=4096"});
    rig.OnEach([&](Client& client, int rank) {
      TensorDeclaration tensor = Tensor("w", kN);
      tensor.dtype = dtype;
      const auto ids = client.Declare({tensor}, kLong);
      ASSERT_TRUE(ids.ok()) << ids.status();
      const auto narrow = [&](float x) {
        return dtype == DType::kFloat16 ? FloatToHalf(x) : FloatToBFloat16(x);
      };
      const auto widen = [&](uint16_t x) {
        return dtype == DType::kFloat16 ? HalfToFloat(x) : BFloat16ToFloat(x);
      };
      std::vector<double> mean(kN, 0.0);
      Floats mine;
      std::vector<uint16_t> mine16;
      for (int other = 0; other < 4; ++other) {
        Floats theirs = Normal(kN, other);
        std::vector<uint16_t> theirs16;
        for (float& x : theirs) {
          if (dtype == DType::kFloat32) break;
          theirs16.push_back(narrow(x));
          x = widen(theirs16.back());
        }
        for (size_t i = 0; i < kN; ++i) mean[i] += theirs[i] / 4.0;
        if (other == rank) mine = theirs, mine16 = theirs16;
      }
      void* const data = dtype == DType::kFloat32 ? static_cast<void*>(mine.data()) : mine16.data();
      const auto ticket = client.PushPull({.tensor = ids->at(0), .data = {data, dtype, kN}});
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      ASSERT_TRUE(client.Wait(*ticket, kLong).ok());
      const double unit = dtype == DType::kFloat32 ? 1e-6 : dtype == DType::kFloat16 ? 1e-3 : 8e-3;
      for (size_t i = 0; i < kN; ++i) {
        const float got = dtype == DType::kFloat32 ? mine[i] : widen(mine16[i]);
        ASSERT_NEAR(got, mean[i], unit * (1 + std::abs(mean[i]))) << i;
      }
    });
  }
}

TEST(HostCluster, AveragesFloat64InFloat64) {
  HostRig rig({2, 2});
  rig.OnEach([](Client& client, int rank) {
    TensorDeclaration tensor = Tensor("w", 3);
    tensor.dtype = DType::kFloat64;
    const auto ids = client.Declare({tensor}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    std::vector<double> data(3, 1.0 + rank * 0x1p-40);
    const auto ticket =
        client.PushPull({.tensor = ids->at(0), .data = {data.data(), DType::kFloat64, 3}});
    ASSERT_TRUE(client.Wait(*ticket, kLong).ok());
    EXPECT_DOUBLE_EQ(data[1], 1.0 + 1.5 * 0x1p-40);
  });
}

TEST(HostCluster, WeightsLossScalesAndAbsenceMeanWhatTheyMeanWithoutADaemon) {
  HostRig rig({2, 2});
  rig.OnEach([](Client& client, int rank) {
    const auto ids = client.Declare({Tensor("w", 4), Tensor("v", 4)}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    // Weights 1, 2, 3, 4; loss scales 1, 2, 4, 8; the gradient of rank r is r.
    const float loss_scale = static_cast<float>(1 << rank);
    Floats data(4, static_cast<float>(rank) * loss_scale);
    auto result =
        PushPull(client, ids->at(0), data, {.weight = rank + 1.0f, .loss_scale = loss_scale});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_THAT(data, Each(loss_scale * (0 + 2 + 6 + 12) / 10.0f));

    // Rank 1 has none, and takes part in the mean all the same.
    data.assign(4, static_cast<float>(rank));
    result = PushPull(client, ids->at(0), data, {.absent = rank == 1});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_FALSE(result->absent);
    EXPECT_THAT(data, Each((0 + 2 + 3) / 4.0f));

    // A whole host has none, and does not want the result.
    data.assign(4, static_cast<float>(rank));
    PushRequest request{.tensor = ids->at(0), .absent = rank < 2};
    if (rank >= 2) request.data = {data.data(), DType::kFloat32, data.size()};
    const auto ticket = client.PushPull(std::move(request));
    ASSERT_TRUE(client.Wait(*ticket, kLong).ok());
    EXPECT_THAT(data, Each(rank < 2 ? static_cast<float>(rank) : 5 / 4.0f));

    // Nobody has one: the data is as it was.
    data.assign(4, 7.0f);
    result = PushPull(client, ids->at(1), data, {.absent = true});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->absent);
    EXPECT_THAT(data, Each(7.0f));

    // One is not finite: it is NaN for all, and the next step is right.
    data.assign(4, rank == 3 ? std::numeric_limits<float>::infinity() : 1.0f);
    result = PushPull(client, ids->at(1), data);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->nonfinite);
    EXPECT_TRUE(std::isnan(data[0]) && std::isnan(data[3]));
    data.assign(4, static_cast<float>(rank));
    ASSERT_TRUE(PushPull(client, ids->at(1), data).ok());
    EXPECT_THAT(data, Each(1.5f));
  });
}

TEST(HostCluster, PushesOfATensorQueueAndFusedOnesWaitForEachOther) {
  HostRig rig({2, 2}, {"--min-compress-bytes=0"});
  rig.OnEach([](Client& client, int rank) {
    std::vector<TensorDeclaration> tensors = {Tensor("a", 300, "ef(onebit)", "ef(onebit)"),
                                              Tensor("b", 200, "ef(onebit)", "ef(onebit)")};
    for (auto& tensor : tensors) tensor.fuse = true;
    // Each process lists them in an order of its own, and pushes them so.
    if (rank % 2 == 1) std::swap(tensors[0], tensors[1]);
    const auto ids = client.Declare(tensors, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    std::vector<Floats> data;
    std::vector<TicketId> tickets;
    for (int step = 0; step < 6; ++step) {
      for (int t = 0; t < 2; ++t) data.emplace_back(tensors[t].elements, 1.0f + step);
    }
    std::vector<PushRequest> requests;
    for (size_t i = 0; i < data.size(); ++i) {
      requests.push_back({.tensor = ids->at(i % 2),
                          .data = {data[i].data(), DType::kFloat32, data[i].size()},
                          .priority = static_cast<int32_t>(i)});
    }
    ASSERT_TRUE(client.PushPullAll(requests, &tickets).ok());
    std::vector<PushResult> results;
    ASSERT_TRUE(client.WaitAll(tickets, kLong, &results).ok());
    ASSERT_EQ(results.size(), 12u);
    for (int i = 0; i < 12; ++i) {
      EXPECT_EQ(results[i].step, static_cast<Step>(i / 2 + 1));
      EXPECT_THAT(data[i], Each(1.0f + i / 2)) << i;
    }
  });
}

TEST(HostCluster, CallbacksRunOnceWithTheResultInPlace) {
  HostRig rig({2});
  rig.OnEach([](Client& client, int rank) {
    const auto ids = client.Declare({Tensor("w", 10)}, kLong);
    Floats data(10, static_cast<float>(rank));
    std::promise<float> done;
    const auto ticket = client.PushPull({.tensor = ids->at(0),
                                         .data = {data.data(), DType::kFloat32, 10},
                                         .done = [&](TicketId, const auto& result) {
                                           EXPECT_TRUE(result.ok()) << result.status();
                                           done.set_value(data[9]);
                                         }});
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    EXPECT_EQ(done.get_future().get(), 0.5f);
  });
}

TEST(HostCluster, WhatLiesInItsMemoryIsNotCopiedBeforeTheSum) {
  constexpr size_t kN = 20000;
  HostRig rig({2});
  rig.OnEach([](Client& client, int rank) {
    const auto ids = client.Declare({Tensor("w", kN), Tensor("v", kN)}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    const auto memory = client.memory();
    auto* const data = reinterpret_cast<float*>(memory->Allocate(2 * kN * sizeof(float)));
    ASSERT_NE(data, nullptr);
    for (int step = 0; step < 3; ++step) {
      std::fill_n(data, 2 * kN, static_cast<float>(rank + step));
      std::vector<PushRequest> requests;
      for (int t = 0; t < 2; ++t) {
        requests.push_back({.tensor = ids->at(t), .data = {data + t * kN, DType::kFloat32, kN}});
      }
      std::vector<TicketId> tickets;
      std::vector<PushResult> results;
      ASSERT_TRUE(client.PushPullAll(requests, &tickets).ok());
      ASSERT_TRUE(client.WaitAll(tickets, kLong, &results).ok());
      EXPECT_EQ(data[0], 0.5f + step);
      EXPECT_EQ(data[2 * kN - 1], 0.5f + step);
    }
    memory->Free(reinterpret_cast<std::byte*>(data), 2 * kN * sizeof(float));
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(rig.Counter(rank, "bytes_staged"), 0u);
    EXPECT_EQ(rig.Counter(rank, "bytes_results"), 3 * 2 * kN * sizeof(float));
  }
}

TEST(HostCluster, MemoryOfOnesOwnIsCopiedOnceEachWay) {
  constexpr size_t kN = 20000;
  HostRig rig({2});
  rig.OnEach([](Client& client, int) {
    const auto ids = client.Declare({Tensor("w", kN)}, kLong);
    Floats data(kN, 1.0f);
    ASSERT_TRUE(PushPull(client, ids->at(0), data).ok());
  });
  EXPECT_EQ(rig.Counter(0, "bytes_staged"), kN * sizeof(float));
  EXPECT_EQ(rig.Counter(0, "bytes_results"), kN * sizeof(float));
}

// Two-level compression (SDP4Bit, arXiv 2410.15526): int8 inside a host, another codec between
// hosts.
TEST(HostCluster, PushesGoByACodecOfTheirOwnInsideAHost) {
  constexpr size_t kN = 200000;  // chunks of 65536, partitions of 50000 and not at their ends
  const auto run = [&](const std::string& codec, DType dtype) {
    HostRig rig(HostRig::Options{
        .hosts = {2, 2}, .flags = {"--partition-bytes=200000", "--servers=2"}, .codec = codec});
    std::vector<std::vector<float>> results(4, Floats(kN));
    rig.OnEach([&](Client& client, int rank) {
      TensorDeclaration tensor = Tensor("w", kN);
      tensor.dtype = dtype;
      const auto ids = client.Declare({tensor}, kLong);
      ASSERT_TRUE(ids.ok()) << ids.status();
      for (int step = 0; step < 2; ++step) {
        Floats data = Normal(kN, 10 * step + rank);
        std::vector<uint16_t> half(kN);
        for (size_t i = 0; i < kN; ++i) half[i] = FloatToHalf(data[i]);
        void* const at = dtype == DType::kFloat32 ? static_cast<void*>(data.data()) : half.data();
        const auto ticket =
            client.PushPull({.tensor = ids->at(0), .data = {at, dtype, kN}, .weight = rank + 1.0f});
        ASSERT_TRUE(ticket.ok()) << ticket.status();
        ASSERT_TRUE(client.Wait(*ticket, kLong).ok());
        for (size_t i = 0; i < kN; ++i) {
          results[rank][i] = dtype == DType::kFloat32 ? data[i] : HalfToFloat(half[i]);
        }
      }
    });
    for (const Floats& result : results) EXPECT_EQ(result, results[0]);
    const uint64_t staged = rig.Counter(0, "bytes_staged");
    if (!codec.empty()) {
      EXPECT_LT(staged, 2 * kN * (codec == "fp16" ? 2.1 : 1.2)) << "as the codec has it";
    }
    return results[0];
  };
  const Floats exact = run("", DType::kFloat32);
  struct Coded {
    const char* codec;
    double most;  // of the error, beside the size
  };
  for (const auto& [codec, most] :
       {Coded{"int8(group=128)", 0.03}, Coded{"int8(group=128,hadamard=32)", 0.03},
        Coded{"int8(group=128,round=stochastic)", 0.03}, Coded{"twobit(block=64)", 0.4},
        Coded{"onebit(block=64,scale=bf16)", 0.7}}) {
    const Floats coded = run(codec, DType::kFloat32);
    EXPECT_EQ(run(codec, DType::kFloat32), coded) << "bit for bit";
    double error = 0, size = 0;
    for (size_t i = 0; i < kN; ++i) {
      error += (coded[i] - exact[i]) * (coded[i] - exact[i]);
      size += exact[i] * exact[i];
    }
    EXPECT_LT(std::sqrt(error / size), most) << codec;
    EXPECT_GT(error, 0) << codec << " was not used";
  }
  EXPECT_EQ(run("fp16", DType::kFloat16), run("", DType::kFloat16)) << "loses nothing of halves";
}

TEST(HostCluster, WhatACodecInsideAHostDoesNotTakeGoesAsItIs) {
  HostRig rig(HostRig::Options{.hosts = {2}, .codec = "int8"});
  rig.OnEach([](Client& client, int rank) {
    TensorDeclaration wide = Tensor("wide", 3);
    wide.dtype = DType::kFloat64;
    const auto ids = client.Declare({Tensor("w", 1000), wide}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    Floats data(1000, rank == 1 ? kNaN : 1.0f);
    const auto result = PushPull(client, ids->at(0), data);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->nonfinite);
    data.assign(1000, 1.0f);
    ASSERT_TRUE(PushPull(client, ids->at(0), data).ok());
    EXPECT_THAT(data, Each(::testing::FloatNear(1.0f, 0.01f)));
    std::vector<double> doubles(3, 0x1p-60 * (rank + 1));
    const auto ticket =
        client.PushPull({.tensor = ids->at(1), .data = {doubles.data(), DType::kFloat64, 3}});
    ASSERT_TRUE(client.Wait(*ticket, kLong).ok());
    EXPECT_THAT(doubles, Each(1.5 * 0x1p-60));
  });
}

TEST(HostCluster, EachKeyCrossesTheNetworkOnceAHost) {
  constexpr size_t kN = 100000;
  uint64_t plain = 0;
  {
    Registry telemetry;
    HostRig rig({0, 0, 0, 0});
    rig.OnEach([](Client& client, int) {
      const auto ids = client.Declare({Tensor("w", kN)}, kLong);
      Floats data(kN, 1.0f);
      ASSERT_TRUE(PushPull(client, ids->at(0), data).ok());
    });
    for (int rank = 0; rank < 4; ++rank) {
      plain += rig.Counter(rank, "bytes_pushed") + rig.Counter(rank, "bytes_pulled");
    }
  }
  HostRig rig({4});
  rig.OnEach([](Client& client, int) {
    const auto ids = client.Declare({Tensor("w", kN)}, kLong);
    Floats data(kN, 1.0f);
    ASSERT_TRUE(PushPull(client, ids->at(0), data).ok());
  });
  const uint64_t through = rig.Counter(0, "bytes_pushed") + rig.Counter(0, "bytes_pulled");
  EXPECT_EQ(through, rig.Counter(3, "bytes_pushed") + rig.Counter(3, "bytes_pulled"));
  EXPECT_NEAR(static_cast<double>(through), plain / 4.0, plain / 1000.0);
}

TEST(HostCluster, BroadcastsFromAnyProcessAndBarriersAreOfAll) {
  HostRig rig({2, 0, 2});
  std::atomic<int> arrived = 0;
  rig.OnEach([&](Client& client, int rank) {
    for (int root = 0; root < 5; ++root) {
      std::vector<std::byte> data(1000, static_cast<std::byte>(rank));
      ASSERT_TRUE(client.Broadcast("state", data, root, kLong).ok());
      EXPECT_THAT(data, Each(static_cast<std::byte>(root)));
    }
    EXPECT_TRUE(absl::IsInvalidArgument(client.Broadcast("state", {}, 5, kLong)));
    // A value in two places; one process does without it.
    std::vector<std::byte> first(10, static_cast<std::byte>(rank)), second = first;
    const std::vector<MutableByteSpan> parts = {std::span(first), std::span(second)};
    const Holding holding = rank == 1 ? Holding::kValue : Holding::kNothing;
    const BroadcastCall call{.name = "parts", .data = parts, .root = 3, .holding = holding};
    ASSERT_TRUE(client.BroadcastParts(call, kLong).ok());
    EXPECT_THAT(first, Each(static_cast<std::byte>(rank == 1 ? 1 : 3)));
    EXPECT_EQ(first, second);
    ++arrived;
    ASSERT_TRUE(client.Barrier("all", kLong).ok());
    EXPECT_EQ(arrived, 5);
  });
}

TEST(HostCluster, ValuesThatWereBroadcastBeforeAreBroadcastInAnyOrder) {
  HostRig rig({2, 2, 0});
  rig.OnEach([](Client& client, int rank) {
    const auto broadcast = [&](const std::string& name, Rank root, float value) {
      Floats data(100, rank == root ? value : 0.0f);
      const absl::Status status =
          client.Broadcast(name, std::as_writable_bytes(std::span(data)), root, kLong);
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_THAT(data, Each(value)) << name << " of " << rank;
    };
    broadcast("a", 0, 1.0f);
    broadcast("b", 3, 2.0f);
    for (int time = 0; time < 50; ++time) {
      const auto a = [&] { broadcast("a", 1, 3.0f + static_cast<float>(time)); };
      const auto b = [&] { broadcast("b", 2, 4.0f + static_cast<float>(time)); };
      // On threads of their own, which begin in another order at each.
      std::thread first = rank % 2 == 0 ? std::thread(a) : std::thread(b);
      std::thread second = rank % 2 == 0 ? std::thread(b) : std::thread(a);
      first.join();
      second.join();
    }
  });
}

TEST(HostCluster, ProcessesOfAHostThatCallDifferentThingsAreTold) {
  HostRig rig({2, 1});
  rig.OnEach([](Client& client, int rank) {
    if (rank == 2) return;
    const auto ids = client.Declare({Tensor("w", rank == 0 ? 10 : 11)}, kLong);
    EXPECT_TRUE(absl::IsInvalidArgument(ids.status())) << ids.status();
    EXPECT_THAT(std::string(ids.status().message()),
                AllOf(HasSubstr("'w'"), HasSubstr("worker 0 says elements=10"),
                      HasSubstr("worker 1 says elements=11")));
    std::vector<std::byte> data(rank == 0 ? 3 : 4);
    const absl::Status status = client.Broadcast("x", data, 0, kLong);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("in the same order"));
  });
}

TEST(HostCluster, AWaitThatEndsNamesTheProcessThatHasNotPushed) {
  HostRig rig({3});
  std::vector<uint32_t> ids;
  rig.OnEach([&](Client& client, int rank) {
    const auto declared = client.Declare({Tensor("w", 10)}, kLong);
    ASSERT_TRUE(declared.ok());
    if (rank == 0) ids = *declared;
  });
  Floats data(10, 1.0f);
  const auto ticket =
      rig.client(0).PushPull({.tensor = ids[0], .data = {data.data(), DType::kFloat32, 10}});
  ASSERT_TRUE(ticket.ok());
  const absl::Status status = rig.client(0).Wait(*ticket, absl::Milliseconds(20)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(GetErrorField(status, "waiting_for"), "worker 1, worker 2");
  EXPECT_EQ(GetErrorField(status, "tensor"), "w");
  EXPECT_EQ(GetErrorField(status, "step"), "1");
  const absl::Status barrier = rig.client(0).Barrier("b", absl::Milliseconds(20));
  EXPECT_TRUE(absl::IsDeadlineExceeded(barrier)) << barrier;
  EXPECT_THAT(std::string(barrier.message()), HasSubstr("worker 1, worker 2"));
  rig.OnEach([&](Client& client, int rank) {
    ASSERT_TRUE(client.Barrier("b", kLong).ok());
    if (rank == 0) {
      ASSERT_TRUE(client.Wait(*ticket, kLong).ok());
      return;
    }
    Floats mine(10, 1.0f);
    ASSERT_TRUE(PushPull(client, ids[0], mine).ok());
  });
}

TEST(HostCluster, WhatTheLinkRemembersIsTheFirstProcesssToSave) {
  constexpr size_t kN = 500;
  const auto run = [&](HostRig* rig, int from, int to, std::vector<Floats>* residuals,
                       std::vector<Floats>* results) {
    rig->OnEach([&](Client& client, int rank) {
      const auto ids = client.Declare({Tensor("w", kN, "ef(onebit)", "none")}, kLong);
      ASSERT_TRUE(ids.ok()) << ids.status();
      if (from > 0) {
        ASSERT_TRUE(SetState(client, ids->at(0), LinkState::kResidual, (*residuals)[rank]).ok());
        ASSERT_TRUE(SetStep(client, ids->at(0), from).ok());
      }
      for (int step = from; step < to; ++step) {
        (*results)[rank] = Normal(kN, 10 * step + rank);
        ASSERT_TRUE(PushPull(client, ids->at(0), (*results)[rank]).ok());
      }
      ASSERT_TRUE(GetState(client, ids->at(0), LinkState::kResidual, (*residuals)[rank]).ok());
    });
  };
  std::vector<Floats> whole(2, Floats(kN)), residuals(2, Floats(kN)), results(2);
  {
    HostRig rig({2}, {"--min-compress-bytes=0"});
    std::vector<Floats> ignored(2, Floats(kN));
    run(&rig, 0, 8, &ignored, &whole);
  }
  {
    HostRig rig({2}, {"--min-compress-bytes=0"});
    run(&rig, 0, 5, &residuals, &results);
  }
  EXPECT_THAT(residuals[1], Each(0.0f));
  EXPECT_THAT(residuals[0], ::testing::Contains(::testing::Ne(0.0f)));
  HostRig rig({2}, {"--min-compress-bytes=0"});
  run(&rig, 5, 8, &residuals, &results);
  EXPECT_EQ(results, whole);
}

// This happens where a checkpoint of more workers is taken up.
TEST(HostCluster, WhatItsProcessesSetOfTheLinkAddsUp) {
  constexpr size_t kN = 50;
  HostRig rig({2}, {"--min-compress-bytes=0"});
  std::vector<uint32_t> ids;
  rig.OnEach([&](Client& client, int rank) {
    const auto declared = client.Declare({Tensor("w", kN, "ef(onebit)", "none")}, kLong);
    ASSERT_TRUE(declared.ok()) << declared.status();
    if (rank == 0) ids = *declared;
  });
  const auto set = [&](int rank, float value) {
    const Floats values(kN, value);
    EXPECT_TRUE(SetState(rig.client(rank), ids[0], LinkState::kResidual, values).ok());
  };
  const auto residual = [&] {
    Floats values(kN);
    EXPECT_TRUE(GetState(rig.client(0), ids[0], LinkState::kResidual, values).ok());
    return values;
  };
  set(1, 2.0f);
  set(0, 1.0f);
  EXPECT_THAT(residual(), Each(3.0f));
  set(0, 5.0f);  // once more: begins anew
  EXPECT_THAT(residual(), Each(5.0f));
  set(1, 0.5f);
  EXPECT_THAT(residual(), Each(5.5f));
  // All of it goes with the next push: a mean over two of 0 and 0, and what is owed.
  rig.OnEach([&](Client& client, int) {
    Floats data(kN, 0.0f);
    ASSERT_TRUE(PushPull(client, ids[0], data).ok());
    EXPECT_THAT(data, Each(2.75f));
  });
  set(1, 4.0f);  // the first since the exchange
  EXPECT_THAT(residual(), Each(4.0f));
  const Floats bad(kN, kNaN);
  EXPECT_TRUE(absl::IsInvalidArgument(SetState(rig.client(1), ids[0], LinkState::kResidual, bad)));
  const Floats few(kN - 1);
  EXPECT_TRUE(absl::IsInvalidArgument(SetState(rig.client(1), ids[0], LinkState::kResidual, few)));
}

TEST(HostCluster, EveryProcessFetchesWeightsThatOneHasSet) {
  constexpr size_t kN = 300;
  HostRig rig({2, 2}, {"--min-compress-bytes=0"});
  std::vector<Floats> weights(4, Floats(kN));
  rig.OnEach([&](Client& client, int rank) {
    TensorDeclaration tensor = Tensor("w", kN, "none", "delta(int8)");
    tensor.rule = "sgd";
    tensor.fuse = true;  // with one that nobody sets until all have this one
    TensorDeclaration other = tensor;
    other.name = "v";
    const auto ids = client.Declare({tensor, other}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    if (rank == 3) {
      const Floats first(kN, 2.0f);
      ASSERT_TRUE(SetServerState(client, ids->at(0), StatePart::kWeights, first, 0, kLong).ok());
      const absl::Status part =
          SetServerState(client, ids->at(0), StatePart::kMoment1, first, 0, kLong);
      EXPECT_TRUE(absl::IsNotFound(part)) << part;
    }
    ASSERT_TRUE(FetchWeights(client, ids->at(0), weights[rank], kLong).ok());
    EXPECT_THAT(weights[rank], Each(2.0f));
    if (rank == 3) {
      ASSERT_TRUE(
          SetServerState(client, ids->at(1), StatePart::kWeights, Floats(kN, 1.0f), 0, kLong).ok());
    }
    Floats of_other(kN);
    ASSERT_TRUE(FetchWeights(client, ids->at(1), of_other, kLong).ok());
    for (int step = 0; step < 3; ++step) {
      Floats data(kN, 1.0f);
      const auto ticket =
          client.PushPull({.tensor = ids->at(1), .absent = true, .learning_rate = 0.5f});
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      const auto result =
          PushPull(client, ids->at(0), data, {.loss_scale = 1024.0f, .learning_rate = 0.5f});
      ASSERT_TRUE(result.ok()) << result.status();
      weights[rank] = data;
    }
    const auto counters = GetServerCounters(client, ids->at(0), kLong);
    ASSERT_TRUE(counters.ok()) << counters.status();
    EXPECT_EQ(counters->updates, 3u);
    Floats on_servers(kN);
    ASSERT_TRUE(GetServerState(client, ids->at(0), StatePart::kReplica, on_servers, kLong).ok());
    EXPECT_EQ(on_servers, weights[rank]);
    ASSERT_TRUE(client.Barrier("three steps", kLong).ok());
    if (rank == 3) {
      EXPECT_TRUE(SetServerRule(client, *ids, "sgd(momentum=0.5)", kLong).ok());
      EXPECT_TRUE(absl::IsInvalidArgument(SetServerRule(client, *ids, "adamw", kLong)));
      EXPECT_TRUE(absl::IsInvalidArgument(SetServerRule(client, *ids, "sgd(mass=1)", kLong)));
    }
  });
  for (const Floats& one : weights) EXPECT_EQ(one, weights[0]);
  EXPECT_NEAR(weights[0][0], 2.0f - 3 * 0.5f / 1024.0f, 1e-3);
}

TEST(HostCluster, WhatACodecLeavesOutIsSharedByTheProcessesWeights) {
  constexpr size_t kN = 400;
  HostRig rig({2}, {"--min-compress-bytes=0"});
  std::vector<Floats> left_out(2, Floats(kN));
  Floats result(kN);
  rig.OnEach([&](Client& client, int rank) {
    const auto ids = client.Declare({Tensor("w", kN, "topk(ratio=0.1)", "none")}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    Floats data = Normal(kN, rank);
    const auto pushed =
        PushPull(client, ids->at(0), data,
                 {.weight = rank == 0 ? 3.0f : 1.0f, .left_out = left_out[rank].data()});
    ASSERT_TRUE(pushed.ok()) << pushed.status();
    if (rank == 0) result = data;
  });
  const Floats a = Normal(kN, 0), b = Normal(kN, 1);
  for (size_t i = 0; i < kN; ++i) {
    EXPECT_NEAR(left_out[0][i], 3 * left_out[1][i], 1e-5);
    EXPECT_NEAR(left_out[0][i] + left_out[1][i] + 4 * result[i], 3 * a[i] + b[i], 1e-4);
  }
}

// ---- Trouble

TEST(HostCluster, AProcessThatDiesEndsTheJobForAllAndIsNamed) {
  HostRig rig({2, 2});
  std::vector<uint32_t> ids(4);
  rig.OnEach([&](Client& client, int rank) {
    const auto declared = client.Declare({Tensor("w", 10)}, kLong);
    ASSERT_TRUE(declared.ok());
    ids[rank] = declared->at(0);
  });
  rig.OnEach([&](Client& client, int rank) {
    if (rank == 1) return client.Close();  // without leaving
    Floats data(10, 1.0f);
    const absl::Status status = PushPull(client, ids[rank], data).status();
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("worker 1 (process"), HasSubstr("ended without leaving the job")));
  });
  EXPECT_FALSE(rig.daemon(0).Wait().ok());
}

TEST(HostCluster, ProcessesHearThatTheirDaemonHasGone) {
  HostRig rig({2});
  std::vector<uint32_t> ids(2);
  rig.OnEach([&](Client& client, int rank) {
    const auto declared = client.Declare({Tensor("w", 10)}, kLong);
    ASSERT_TRUE(declared.ok());
    ids[rank] = declared->at(0);
  });
  Floats data(10, 1.0f);
  const auto ticket =
      rig.client(0).PushPull({.tensor = ids[0], .data = {data.data(), DType::kFloat32, 10}});
  ASSERT_TRUE(ticket.ok());
  rig.StopDaemon(0);
  const absl::Status status = rig.client(0).Wait(*ticket, kLong).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("bandoneon-worker at unix:@test, has gone"));
  EXPECT_TRUE(absl::IsUnavailable(rig.client(1).Barrier("b", kLong)));
}

TEST(HostCluster, ProcessesOfALostDaemonAreOutWhereTheJobGoesOn) {
  HostRig rig({1, 1}, {"--min-workers=1"});
  rig.StopDaemon(0);
  const absl::Status status = rig.client(0).Barrier("b", kLong);
  EXPECT_TRUE(IsEvicted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("bandoneon-worker at unix:@test, has gone"));
}

TEST(HostCluster, AProcessThatLeavesEndsWhatOthersWaitForItIn) {
  HostRig rig({2});
  std::vector<uint32_t> ids(2);
  rig.OnEach([&](Client& client, int rank) {
    const auto declared = client.Declare({Tensor("w", 10)}, kLong);
    ASSERT_TRUE(declared.ok());
    ids[rank] = declared->at(0);
  });
  rig.OnEach([&](Client& client, int rank) {
    if (rank == 0) {
      EXPECT_TRUE(client.Leave(kLong).ok());
      EXPECT_TRUE(client.Leave(kLong).ok());
      EXPECT_FALSE(client.Barrier("b", kLong).ok());
      return;
    }
    Floats data(10, 1.0f);
    const absl::Status pushed = PushPull(client, ids[rank], data).status();
    EXPECT_TRUE(absl::IsAborted(pushed)) << pushed;
    EXPECT_THAT(std::string(pushed.message()), HasSubstr("worker 0 is leaving"));
    const absl::Status barrier = client.Barrier("b", kLong);
    EXPECT_TRUE(absl::IsAborted(barrier)) << barrier;
    EXPECT_TRUE(client.Leave(kLong).ok());
  });
}

TEST(HostCluster, ProcessesThatPushUnequallyOftenEndTheJob) {
  HostRig rig({2});
  rig.OnEach([](Client& client, int rank) {
    const auto ids = client.Declare({Tensor("w", 10)}, kLong);
    ASSERT_TRUE(ids.ok());
    if (rank == 0) {
      ASSERT_TRUE(SetStep(client, ids->at(0), 5).ok());
    }
    ASSERT_TRUE(client.Barrier("b", kLong).ok());
    Floats data(10, kNaN);
    const absl::Status status = PushPull(client, ids->at(0), data).status();
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("worker 1 pushed step 1 where its host stands at step 5"));
  });
}

// The pushes are of one host, whose daemon compares them, or of two, where a server does: all four
// hear of it.
TEST(HostCluster, PushesOfDifferentStepsOfTheProgramEndTheJobForAll) {
  for (const int behind : {1, 3}) {
    for (const bool is_of_host : {true, false}) {
      HostRig rig({2, 2});
      rig.OnEach([&](Client& client, int rank) {
        const auto ids = client.Declare({Tensor("w", 4)}, kLong);
        ASSERT_TRUE(ids.ok()) << ids.status();
        const bool is_behind = is_of_host ? rank == behind : rank / 2 == behind / 2;
        Floats data(4, static_cast<float>(rank));
        ASSERT_TRUE(PushPull(client, ids->at(0), data, {.program_steps = 1}).ok());
        EXPECT_THAT(data, Each(1.5f));
        // The job ends for all at once: nobody may be waiting for the first mean then.
        const absl::Status met = client.Barrier("all have the first mean", kLong);
        const uint32_t steps = is_behind ? 1 : 2;
        // The others may have ended the job before this one has the answer of the barrier.
        const absl::Status status =
            met.ok() ? PushPull(client, ids->at(0), data, {.program_steps = steps}).status() : met;
        ASSERT_FALSE(status.ok());
        const std::string message(status.message());
        EXPECT_THAT(message, HasSubstr("tensor 'w' step 2: rank "));
        EXPECT_THAT(message, HasSubstr(" pushed it after "));
        EXPECT_THAT(message, HasSubstr("backward()"));
      });
    }
  }
}

TEST(HostCluster, ARoundWhoseLearningRatesDifferFailsAndIsPushedAgain) {
  HostRig rig({2, 2});
  rig.OnEach([](Client& client, int rank) {
    const auto ids = client.Declare({Tensor("w", 4)}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    Floats data(4, static_cast<float>(rank));
    if (rank < 2) {  // twice: the second push waits for the first
      std::vector<PushRequest> requests(2, {.tensor = ids->at(0),
                                            .data = {data.data(), DType::kFloat32, data.size()},
                                            .learning_rate = rank == 1 ? 0.25f : 0.5f});
      std::vector<TicketId> tickets;
      ASSERT_TRUE(client.PushPullAll(requests, &tickets).ok());
      for (const TicketId ticket : tickets) {
        const absl::Status status = client.Wait(ticket, kLong).status();
        EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
        EXPECT_THAT(
            std::string(status.message()),
            HasSubstr("tensor 'w' step 1: worker 0 (local rank 0) pushed with learning rate "
                      "0.5, and worker 1 (local rank 1) with 0.25"));
        EXPECT_EQ(GetErrorField(status, "tensor"), "w");
        EXPECT_EQ(GetErrorField(status, "step"), "1");
      }
      EXPECT_THAT(data, Each(static_cast<float>(rank)));
      EXPECT_EQ(*GetStep(client, ids->at(0)), 0u);
    }
    for (int step = 1; step <= 3; ++step) {
      data.assign(4, static_cast<float>(rank * step));
      const auto result = PushPull(client, ids->at(0), data, {.learning_rate = 0.5f});
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->step, static_cast<Step>(step));
      EXPECT_THAT(data, Each(1.5f * step));
    }
  });
}

TEST(HostCluster, APushThatDoesNotFitItsFusedGroupFailsAndIsPushedAgain) {
  HostRig rig({2});
  rig.OnEach([](Client& client, int rank) {
    std::vector<TensorDeclaration> tensors = {Tensor("a", 3), Tensor("b", 2)};
    for (auto& tensor : tensors) tensor.fuse = true;
    const auto ids = client.Declare(tensors, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    Floats a(3, static_cast<float>(rank)), b(2, static_cast<float>(rank));
    const auto first = client.PushPull({.tensor = ids->at(0),
                                        .data = {a.data(), DType::kFloat32, a.size()},
                                        .learning_rate = 0.5f});
    ASSERT_TRUE(first.ok()) << first.status();
    const absl::Status status =
        PushPull(client, ids->at(1), b, {.weight = 1.0f + rank, .learning_rate = 0.5f}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("tensor 'b': weight 3 and learning rate 0.5, where others of its "
                                "fused group have 2 and 0.5 in step 1"),
                      HasSubstr("worker 1: weight 2, learning rate 0.5")));
    const auto again = PushPull(client, ids->at(1), b, {.learning_rate = 0.5f});
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->step, 1u);
    EXPECT_THAT(b, Each(0.5f));
    ASSERT_TRUE(client.Wait(*first, kLong).ok());
    EXPECT_THAT(a, Each(0.5f));
  });
}

TEST(HostCluster, AHostThatIsWaitedForIsNamedWithItsRanks) {
  HostRig rig({2, 2});
  std::vector<uint32_t> ids(4);
  rig.OnEach([&](Client& client, int rank) {
    ids[rank] = client.Declare({Tensor("w", 10)}, kLong).value().at(0);
  });
  std::vector<Floats> data(4, Floats(10, 1.0f));
  const auto push = [&](int rank) {
    return rig.client(rank)
        .PushPull({.tensor = ids[rank], .data = {data[rank].data(), DType::kFloat32, 10}})
        .value();
  };
  std::vector<TicketId> tickets = {push(0), push(1)};
  // At first it is the server that is waited for, which has not said whom it waits for.
  std::string waiting_for;
  do {
    const absl::Status late = rig.client(0).Wait(tickets[0], absl::Milliseconds(1)).status();
    waiting_for = GetErrorField(late, "waiting_for");
  } while (waiting_for == "server 0");
  EXPECT_EQ(waiting_for, "host 1 (ranks 2-3)");
  tickets.push_back(push(2));
  tickets.push_back(push(3));
  rig.OnEach([&](Client& client, int rank) {
    EXPECT_TRUE(client.Wait(tickets[rank], kLong).ok());
    EXPECT_TRUE(client.Leave(kLong).ok());
  });
}

TEST(HostCluster, OneThatIsAliveIsWaitedForPastTheWaitTimeoutAndNamed) {
  HostRig::Options options{.hosts = {2, 2}};
  options.worker.wait_timeout = absl::Seconds(1);
  options.worker.probe_interval = absl::Milliseconds(5);
  HostRig rig(options);
  std::vector<uint32_t> ids(4);
  rig.OnEach([&](Client& client, int rank) {
    ids[rank] = client.Declare({Tensor("w", 10)}, kLong).value().at(0);
  });
  std::vector<Floats> data;
  std::vector<TicketId> tickets(4);
  for (int rank = 0; rank < 4; ++rank) data.emplace_back(10, static_cast<float>(rank));
  const auto push = [&](int rank) {
    tickets[rank] = *rig.client(rank).PushPull(
        {.tensor = ids[rank], .data = {data[rank].data(), DType::kFloat32, 10}});
  };
  for (const int rank : {0, 1, 2}) push(rank);
  // Of its own host, and of the other.
  const absl::Status late = rig.client(2).Wait(tickets[2], absl::Milliseconds(2500)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_EQ(GetErrorField(late, "waiting_for"), "worker 3");
  EXPECT_EQ(
      GetErrorField(rig.client(0).Wait(tickets[0], absl::ZeroDuration()).status(), "waiting_for"),
      "host 1 (ranks 2-3)");
  push(3);
  rig.OnEach([&](Client& client, int rank) {
    EXPECT_TRUE(client.Wait(tickets[rank], kLong).ok());
    EXPECT_THAT(data[rank], Each(1.5f));
    EXPECT_TRUE(client.Leave(kLong).ok());
  });
}

TEST(HostCluster, EachOwnerOfANameBeginsAnewAndGivesItsMemoryBack) {
  for (const std::string codec : {"none", "ef(onebit(block=64))"}) {
    HostRig rig(std::vector<int>{2, 1, 0}, {"--servers=2", "--min-compress-bytes=0",
                                            "--partition-bytes=4096", "--max-tensors=5"});
    constexpr int kOwners = 30;
    std::vector<std::vector<Floats>> results(rig.size());
    std::vector<uint64_t> held, tensors;
    rig.OnEach([&](Client& client, int rank) {
      for (int owner = 0; owner < kOwners; ++owner) {
        const auto ids = client.Declare({Tensor("w", 3000, codec, codec), Tensor("b", 10)}, kLong);
        ASSERT_TRUE(ids.ok()) << ids.status();
        Floats data;
        for (int step = 1; step <= 3; ++step) {
          data = Normal(3000, 10 * step + rank);
          Floats small(10, static_cast<float>(rank));
          const auto result = PushPull(client, ids->at(0), data);
          ASSERT_TRUE(result.ok()) << result.status();
          EXPECT_EQ(result->step, static_cast<Step>(step));
          ASSERT_TRUE(PushPull(client, ids->at(1), small).ok());
        }
        results[rank].push_back(data);
        if (rank == 0) {
          held.push_back(rig.held().total());
          tensors.push_back(rig.Counter(0, "tensors"));
        }
        ASSERT_TRUE(client.Barrier("all have looked", kLong).ok());
        ASSERT_TRUE(client.Retire(*ids).ok());
        EXPECT_TRUE(absl::IsNotFound(GetStep(client, ids->at(0)).status()));
      }
      ASSERT_TRUE(client.Declare({Tensor("last", 1)}, kLong).ok());
    });
    for (int owner = 1; owner < kOwners; ++owner) {
      EXPECT_EQ(results[0][owner], results[0][0]) << codec << owner;
      EXPECT_EQ(held[owner], held[0]) << codec << owner;
      EXPECT_EQ(tensors[owner], tensors[0]) << codec << owner;
    }
    EXPECT_EQ(tensors[0], 2u);
    EXPECT_EQ(rig.held().total(), 0u) << codec;
  }
}

TEST(HostCluster, WhatAProcessPushesInVainEndsOnceItsHostIsDoneWithTheTensor) {
  HostRig rig(std::vector<int>{2});
  rig.OnEach([](Client& client, int rank) {
    const auto ids = client.Declare({Tensor("w", 100)}, kLong);
    ASSERT_TRUE(ids.ok());
    Floats data(100, 1.0f);
    absl::StatusOr<TicketId> ticket = TicketId{0};
    if (rank == 0) {
      ticket = client.PushPull(
          {.tensor = ids->at(0), .data = {data.data(), DType::kFloat32, data.size()}});
      ASSERT_TRUE(ticket.ok());
    }
    ASSERT_TRUE(client.Barrier("pushed", kLong).ok());
    ASSERT_TRUE(client.Retire(*ids).ok());
    if (rank == 0) {
      EXPECT_TRUE(absl::IsCancelled(client.Wait(*ticket, kLong).status()));
    }
    const auto again = client.Declare({Tensor("w", 100)}, kLong);
    ASSERT_TRUE(again.ok()) << again.status();
    const auto result = PushPull(client, again->at(0), data);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->step, 1u);
  });
}

TEST(HostCluster, AProcessThatStillHasATensorIsNamedWhereAnotherDeclaresItAnew) {
  HostRig rig(std::vector<int>{2});
  rig.OnEach([](Client& client, int rank) {
    const auto ids = client.Declare({Tensor("w", 100)}, kLong);
    ASSERT_TRUE(ids.ok());
    if (rank == 0) {
      ASSERT_TRUE(client.Retire(*ids).ok());
    }
    const auto again = client.Declare({Tensor("w", 100), Tensor("v", 1)}, kLong);
    EXPECT_THAT(std::string(again.status().message()),
                AllOf(HasSubstr("tensor 'w': worker 0 declared it, worker 1 did not"),
                      HasSubstr("call its close() in all workers")));
  });
}

}  // namespace
}  // namespace bdn::testing
