// Workers that are lost, and others that take their ranks, in a whole cluster in this process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "tests/support/normal_values.h"
#include "tests/support/rig_parts.h"
#include "tests/support/state_calls.h"
#include "tests/support/worker_rig.h"

namespace bdn::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Floats = std::vector<float>;
constexpr absl::Duration kLong = absl::Minutes(1);
const std::vector<std::string> kFlags = {"--servers=2", "--partition-bytes=4096",
                                         "--fusion-bytes=2048", "--min-compress-bytes=0"};

void Expect(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }

// A control plane whose node goes without a word when its worker is destroyed.
class SilentEnd final : public ControlPlane {
 public:
  explicit SilentEnd(std::unique_ptr<ControlPlane> to) : to_(std::move(to)) {}
  absl::StatusOr<JoinResult> Join(const JoinRequest& request, absl::Duration timeout) override {
    return to_->Join(request, timeout);
  }
  void Watch(Events events) override { to_->Watch(std::move(events)); }
  absl::StatusOr<DeclareResult> Declare(const std::vector<TensorDeclaration>& tensors,
                                        absl::Duration timeout) override {
    return to_->Declare(tensors, timeout);
  }
  void Retire(const std::vector<uint32_t>& tensors) override { to_->Retire(tensors); }
  absl::Status AcknowledgePlacement(PlacementVersion version) override {
    return to_->AcknowledgePlacement(version);
  }
  absl::StatusOr<std::vector<Rank>> Meet(const std::string& name, absl::Duration timeout) override {
    return to_->Meet(name, timeout);
  }
  absl::StatusOr<Met> MeetAtBoundary(absl::Duration timeout) override {
    return to_->MeetAtBoundary(timeout);
  }
  void ReportProgress(const NodeProgress& progress) override { to_->ReportProgress(progress); }
  void ReportStages(std::function<StageCounts()> read) override {
    to_->ReportStages(std::move(read));
  }
  void ReportWork(std::function<WorkCounts()> read) override { to_->ReportWork(std::move(read)); }
  void ReportQuality(std::function<std::vector<QualityGroup>()> read) override {
    to_->ReportQuality(std::move(read));
  }
  void ReportWaits(std::function<std::vector<NodeWait>()> read) override {
    to_->ReportWaits(std::move(read));
  }
  void ReportTables(std::function<std::vector<TableCounts>()> read) override {
    to_->ReportTables(std::move(read));
  }
  absl::Status ReportValue(const ReportedValue& value) override { return to_->ReportValue(value); }
  absl::Status Leave(const absl::Status& reason, absl::Duration timeout) override {
    const bool is_told = reason.ok() || absl::IsUnavailable(reason);
    return is_told ? to_->Leave(reason, timeout) : absl::OkStatus();
  }
  absl::Status TryToLeave(const absl::Status& reason, absl::Duration timeout) override {
    return to_->TryToLeave(reason, timeout);
  }
  void Close() override { to_->Close(); }

 private:
  const std::unique_ptr<ControlPlane> to_;
};

class ReturnRig {
 public:
  explicit ReturnRig(std::vector<std::string> flags = kFlags, size_t num_workers = 3) {
    flags.push_back("--workers=" + std::to_string(num_workers));
    flags.push_back("--min-workers=1");
    cluster_ = Must(LocalCluster::Create(flags));
    workers_.resize(num_workers);
    AtOnce(num_workers, [this](size_t rank) { workers_[rank] = Make(static_cast<Rank>(rank)); });
  }
  ~ReturnRig() { LeaveAll(&workers_); }

  std::unique_ptr<Worker> Make(Rank rank) {
    Worker::Options options;
    options.join.wanted_rank = rank;
    options.join.host = "a worker of the test";
    return Must(Worker::Create(options, &clock_, &telemetry_,
                               std::make_unique<SilentEnd>(cluster_->Connect()),
                               cluster_->MakeTransport()));
  }
  Worker& worker(Rank rank) { return *workers_[static_cast<size_t>(rank)]; }
  void Lose(Rank rank) { workers_[static_cast<size_t>(rank)].reset(); }
  void Put(Rank rank, std::unique_ptr<Worker> worker) {
    workers_[static_cast<size_t>(rank)] = std::move(worker);
  }
  void OnEach(const std::function<void(Worker&, int)>& body) { OnEachOf(&workers_, body); }
  // All come to the boundary, these candidates too, which have their ranks then.
  void TakeIn(std::vector<std::unique_ptr<Worker>> candidates) {
    std::vector<Rank> ranks;
    for (const auto& each : candidates) ranks.push_back(each->rank());
    std::vector<std::thread> threads;
    for (const auto& each : candidates) {
      threads.emplace_back([&each, &ranks] {
        const auto met = each->Boundary(kLong);
        ASSERT_TRUE(met.ok()) << met.status();
        EXPECT_EQ(*met, ranks);
      });
    }
    OnEach([&](Worker& worker, int) {
      while (worker.standing().num_candidates < static_cast<int>(candidates.size())) {
        absl::SleepFor(absl::Milliseconds(1));
      }
      const auto met = worker.Boundary(kLong);
      ASSERT_TRUE(met.ok()) << met.status();
      EXPECT_EQ(*met, ranks);
    });
    for (std::thread& thread : threads) thread.join();
    for (auto& each : candidates) {
      const Rank rank = each->rank();
      EXPECT_FALSE(each->is_candidate());
      Put(rank, std::move(each));
    }
  }

 private:
  const SteadyClock clock_;
  Registry telemetry_;
  std::unique_ptr<LocalCluster> cluster_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

std::vector<std::unique_ptr<Worker>> Just(std::unique_ptr<Worker> one,
                                          std::unique_ptr<Worker> other = nullptr) {
  std::vector<std::unique_ptr<Worker>> all;
  all.push_back(std::move(one));
  if (other != nullptr) all.push_back(std::move(other));
  return all;
}

// ---- sums

// A tensor of several partitions, and a group of small ones.
const std::vector<size_t> kSizes = {5000, 100, 7, 300};

std::vector<uint32_t> DeclareAll(Worker& worker, const std::string& push = "none",
                                 const std::string& pull = "none", const std::string& rule = "") {
  std::vector<TensorDeclaration> tensors;
  for (size_t t = 0; t < kSizes.size(); ++t) {
    TensorDeclaration tensor =
        Tensor(std::string(1, static_cast<char>('a' + t)), kSizes[t], push, pull);
    if (!rule.empty()) tensor.rule = rule;
    tensor.fuse = true;
    tensors.push_back(tensor);
  }
  return Must(worker.Declare(tensors, kLong));
}

// One step of all tensors; returns what came back, and checks the step's number.
std::vector<Floats> StepOf(Worker& worker, const std::vector<uint32_t>& ids, int step,
                           bool is_normal) {
  std::vector<Floats> data;
  std::vector<TicketId> tickets;
  for (size_t t = 0; t < ids.size(); ++t) {
    data.push_back(is_normal ? Normal(kSizes[t], 1000 * step + 10 * t + worker.rank())
                             : Floats(kSizes[t], static_cast<float>(12 * (worker.rank() + 1))));
  }
  for (size_t t = 0; t < ids.size(); ++t) {
    const auto ticket = worker.PushPull({.tensor = ids[t],
                                         .data = {data[t].data(), DType::kFloat32, data[t].size()},
                                         .learning_rate = 0.1f});
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    if (!ticket.ok()) return {};
    tickets.push_back(*ticket);
  }
  for (const TicketId ticket : tickets) {
    const auto result = worker.Wait(ticket, kLong);
    EXPECT_TRUE(result.ok()) << result.status();
    if (result.ok()) {
      EXPECT_EQ(result->step, static_cast<Step>(step));
    }
  }
  return data;
}

TEST(ReturningWorker, TakesPartInExactSumsFromTheNextStepOn) {
  ReturnRig rig(kFlags);
  std::vector<uint32_t> ids;
  const auto steps = [&](int first, int last, float mean) {
    rig.OnEach([&](Worker& worker, int) {
      for (int step = first; step <= last; ++step) {
        for (const Floats& data : StepOf(worker, ids, step, false)) EXPECT_THAT(data, Each(mean));
      }
    });
  };
  const auto broadcast = [&](Worker& worker, Rank root) {
    Floats data(64, worker.rank() == root ? 40.0f + static_cast<float>(root) : 0.0f);
    const absl::Status status =
        worker.Broadcast("x", std::as_writable_bytes(std::span(data)), root, kLong);
    EXPECT_TRUE(status.ok()) << status;
    return data;
  };
  rig.OnEach([&](Worker& worker, int rank) {
    const auto mine = DeclareAll(worker);
    if (rank == 0) ids = mine;
    for (int i = 0; i < 3; ++i) EXPECT_THAT(broadcast(worker, i), Each(40.0f + i));
  });
  steps(1, 3, 24);
  rig.Lose(1);
  steps(4, 5, 24);  // of 12 and 36
  for (int time = 0; time < 2; ++time) {
    auto candidate = rig.Make(-1);
    EXPECT_TRUE(candidate->is_candidate());
    EXPECT_EQ(candidate->rank(), 1);
    EXPECT_EQ(candidate->presence().size, 2);
    EXPECT_EQ(DeclareAll(*candidate), ids);
    // Its first broadcast leaves the data as it is, and its barriers end at once.
    EXPECT_THAT(broadcast(*candidate, 0), Each(0.0f));
    EXPECT_THAT(*candidate->Meet("b", kLong), ElementsAre(0, 2));
    Floats data(kSizes[0], 1.0f);
    EXPECT_THAT(std::string(PushPull(*candidate, ids[0], data).status().message()),
                HasSubstr("this worker is not in the job yet"));
    EXPECT_TRUE(absl::IsFailedPrecondition(
        GetServerState(*candidate, ids[0], StatePart::kResidual, data, kLong)));
    EXPECT_TRUE(SetServerState(*candidate, ids[0], StatePart::kWeights, data, 9, kLong).ok());
    const int first = 6 + 4 * time;
    rig.TakeIn(Just(std::move(candidate)));
    EXPECT_EQ(*GetStep(rig.worker(1), ids[0]), static_cast<Step>(first - 1));
    rig.OnEach([&](Worker& worker, int) {
      while (worker.presence().size < 3) absl::SleepFor(absl::Milliseconds(1));
      EXPECT_THAT(*worker.Meet("b", kLong), ElementsAre(0, 1, 2));
      for (int i = 2; i >= 0; --i) EXPECT_THAT(broadcast(worker, i), Each(40.0f + i));
      // What the newcomer lacks, and then something that is new to all.
      if (time == 1) {
        EXPECT_TRUE(worker.Declare({Tensor("new 0", 9)}, kLong).ok());
      }
      EXPECT_TRUE(worker.Declare({Tensor("new " + std::to_string(time), 9)}, kLong).ok());
    });
    steps(first, first + 1, 24);
    rig.Lose(1);
    steps(first + 2, first + 3, 24);
    // The next one has to declare what came since, too.
    if (time == 0) {
      auto next = rig.Make(1);
      EXPECT_EQ(DeclareAll(*next), ids);
      EXPECT_THAT(broadcast(*next, 0), Each(0.0f));
      EXPECT_FALSE(next->Declare({Tensor("another", 9)}, kLong).ok());
      EXPECT_TRUE(next->Declare({Tensor("new 0", 9)}, kLong).ok());
      EXPECT_TRUE(next->Leave(kLong).ok());
    }
  }
}

// Two islands of two shards: the one of ranks 2 and 3 is lost and comes back.
TEST(ReturningWorker, TakesPartInTheSumsOfItsGroup) {
  ReturnRig rig(kFlags, 4);
  const auto declare = [](Worker& worker) {
    const int shard = worker.rank() % 2;
    std::vector<TensorDeclaration> tensors;
    for (const size_t elements : {size_t{3000}, size_t{50}, size_t{7}}) {
      TensorDeclaration tensor = Tensor(absl::StrFormat("%d of shard %d", elements, shard),
                                        elements, "ef(onebit)", "ef(onebit)");
      tensor.ranks = *RankGroup::Of({shard, shard + 2});
      tensor.fuse = true;
      tensors.push_back(tensor);
    }
    std::vector<uint32_t> ids = Must(worker.Declare(tensors, kLong));
    ids.push_back(Must(worker.Declare({Tensor("of all", 10)}, kLong)).front());
    return ids;
  };
  // The mean of a shard is shard + 1 with both islands, and shard with the first one alone.
  const auto steps = [&](int first, int last, bool is_alone) {
    rig.OnEach([&](Worker& worker, int rank) {
      const std::vector<uint32_t> ids = declare(worker);
      for (int step = first; step <= last; ++step) {
        std::vector<Floats> data;
        std::vector<TicketId> tickets;
        for (const size_t elements : {3000, 50, 7, 10}) {
          data.emplace_back(elements, static_cast<float>(rank));
        }
        for (size_t t = 0; t < data.size(); ++t) {
          tickets.push_back(Must(worker.PushPull(
              {.tensor = ids[t], .data = {data[t].data(), DType::kFloat32, data[t].size()}})));
        }
        for (size_t t = 0; t < data.size(); ++t) {
          const auto result = worker.Wait(tickets[t], kLong);
          ASSERT_TRUE(result.ok()) << result.status();
          EXPECT_EQ(result->step, static_cast<Step>(step));
          const float of_all = is_alone ? 0.5f : 1.5f;
          const float of_shard = static_cast<float>(rank % 2) + (is_alone ? 0.0f : 1.0f);
          EXPECT_THAT(data[t], Each(t == 3 ? of_all : of_shard)) << rank << ", " << t;
        }
      }
    });
  };
  steps(1, 3, false);
  for (int time = 0; time < 2; ++time) {
    const int first = 4 + 4 * time;
    rig.Lose(2);
    rig.Lose(3);
    steps(first, first + 1, true);
    auto two = rig.Make(2);
    auto three = rig.Make(3);
    EXPECT_EQ(two->rank(), 2);
    EXPECT_EQ(three->rank(), 3);
    EXPECT_EQ(declare(*two), declare(rig.worker(0)));
    EXPECT_EQ(declare(*three), declare(rig.worker(1)));
    const RankGroup group = *RankGroup::Of({0, 2});
    EXPECT_THAT(*two->Meet(NameAmong("b", group), kLong), ElementsAre(0));
    rig.TakeIn(Just(std::move(two), std::move(three)));
    EXPECT_EQ(rig.worker(2).PresenceAmong(group), (Presence{.size = 2, .first_rank = 0}));
    rig.OnEach([&](Worker& worker, int rank) {
      const int shard = rank % 2;
      const RankGroup mine = *RankGroup::Of({shard, shard + 2});
      EXPECT_THAT(*worker.Meet(NameAmong("b", mine), kLong), ElementsAre(shard, shard + 2));
      Floats data(64, static_cast<float>(rank));
      Expect(worker.Broadcast(NameAmong("x", mine), std::as_writable_bytes(std::span(data)), shard,
                              kLong));
      EXPECT_THAT(data, Each(static_cast<float>(shard)));
    });
    steps(first + 2, first + 3, false);
  }
}

std::vector<uint32_t> DeclareByName(Worker& worker, const std::vector<std::string>& names,
                                    size_t elements = 100) {
  std::vector<TensorDeclaration> tensors;
  for (const std::string& name : names) tensors.push_back(Tensor(name, elements));
  return Must(worker.Declare(tensors, kLong));
}

// Expects that all exchange this tensor, in this step of it.
void ExpectMean(Worker& worker, uint32_t id, Step step, size_t elements = 100) {
  Floats data(elements, static_cast<float>(12 * (worker.rank() + 1)));
  const auto result = PushPull(worker, id, data);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(data, Each(24.0f));
  EXPECT_EQ(result->step, step);
}

TEST(ReturningWorker, NeedNotHaveMadeTheSameCalls) {
  ReturnRig rig(kFlags);
  std::vector<uint32_t> ids;
  const auto broadcast = [](Worker& worker, size_t size) {
    Floats data(size, static_cast<float>(worker.rank()));
    const absl::Status status =
        worker.Broadcast("state", std::as_writable_bytes(std::span(data)), 0, kLong);
    EXPECT_TRUE(status.ok()) << status;
    return data;
  };
  rig.OnEach([&](Worker& worker, int rank) {
    const auto mine = DeclareAll(worker);
    if (rank == 0) ids = mine;
    EXPECT_THAT(broadcast(worker, 64), Each(0.0f));
    ExpectMean(worker, DeclareByName(worker, {"first loss"})[0], 1);
    StepOf(worker, mine, 1, false);
  });
  rig.Lose(1);
  rig.OnEach([&](Worker& worker, int) { StepOf(worker, ids, 2, false); });
  auto candidate = rig.Make(1);
  // Its state is a larger one, and it is at no first step.
  EXPECT_THAT(broadcast(*candidate, 72), Each(1.0f));
  EXPECT_EQ(candidate->counts().tensors, 0u);
  // Tensors of one declaration of the others in two of its own, and in another order.
  const std::vector<uint32_t> all = DeclareAll(*candidate);
  EXPECT_EQ(all, ids);
  EXPECT_THAT(std::string(candidate->Declare({Tensor("unknown", 9)}, kLong).status().message()),
              HasSubstr("tensor 'unknown': the job has not declared it"));
  EXPECT_THAT(
      std::string(candidate->Declare({Tensor("first loss", 9)}, kLong).status().message()),
      HasSubstr("tensor 'first loss': the job has declared elements=100, and worker 1 now says"));
  rig.TakeIn(Just(std::move(candidate)));
  rig.OnEach([&](Worker& worker, int) {
    // New to all, and new to the newcomer.
    EXPECT_THAT(broadcast(worker, 72), Each(0.0f));
    EXPECT_THAT(broadcast(worker, 64), Each(0.0f));
    for (const Floats& data : StepOf(worker, ids, 3, false)) EXPECT_THAT(data, Each(24.0f));
    if (worker.rank() == 1) {
      // By itself, for the others have it.
      EXPECT_EQ(*GetStep(worker, DeclareByName(worker, {"first loss"})[0]), 1u);
    }
    EXPECT_TRUE(worker.Barrier("both have it", kLong).ok());
    ExpectMean(worker, DeclareByName(worker, {"first loss"})[0], 2);
    // What the job has, and what it has not, in one call of the newcomer.
    const std::vector<std::string> names = {"first loss", "second loss"};
    ExpectMean(worker, DeclareByName(worker, names)[1], 1);
  });
}

TEST(ReturningWorker, DeclaresItsTensorsInOtherCalls) {
  ReturnRig rig(kFlags);
  const std::vector<std::string> names = {"a", "b", "c"};
  std::vector<uint32_t> ids;
  rig.OnEach([&](Worker& worker, int rank) {
    const auto mine = DeclareByName(worker, names);
    if (rank == 0) ids = mine;
    for (const uint32_t id : mine) ExpectMean(worker, id, 1);
  });
  rig.Lose(2);
  auto candidate = rig.Make(2);
  EXPECT_THAT(DeclareByName(*candidate, {"c"}), ElementsAre(ids[2]));
  EXPECT_THAT(DeclareByName(*candidate, {"b", "c", "a"}), ElementsAre(ids[1], ids[2], ids[0]));
  rig.TakeIn(Just(std::move(candidate)));
  rig.OnEach([&](Worker& worker, int) {
    for (const uint32_t id : ids) ExpectMean(worker, id, 2);
  });
}

// Objects that exchange tensors may be closed and made again, before a newcomer is in and after.
TEST(ReturningWorker, ClosesObjectsAndMakesThemAgain) {
  ReturnRig rig(kFlags);
  const auto close = [](Worker& worker, const std::vector<uint32_t>& ids) {
    Expect(worker.Retire(ids));
  };
  const auto declare_kept = [](Worker& worker) {
    return Must(worker.Declare({Tensor("kept", 100, "none", "ef(onebit)")}, kLong));
  };
  std::vector<uint32_t> open, once, kept;  // ids that all have
  std::vector<uint32_t> left;              // of what nobody but the others has
  rig.OnEach([&](Worker& worker, int rank) {
    close(worker, DeclareByName(worker, {"optimizer"}));
    close(worker, DeclareByName(worker, {"trial"}));
    const auto mine = DeclareByName(worker, {"optimizer"});
    const auto another = DeclareByName(worker, {"once"});
    const auto others = DeclareByName(worker, {"accuracy"});
    const auto last = declare_kept(worker);
    ExpectMean(worker, mine[0], 1);
    if (rank != 0) return;
    kept = last;
    open = mine;
    once = another;
    left = others;
  });
  rig.Lose(1);
  auto candidate = rig.Make(1);
  const auto first = DeclareByName(*candidate, {"optimizer"});
  EXPECT_EQ(first, open);
  close(*candidate, first);
  EXPECT_TRUE(absl::IsNotFound(GetStep(*candidate, first[0]).status()));
  // The others are done with it.
  close(*candidate, DeclareByName(*candidate, {"trial"}));
  EXPECT_EQ(DeclareByName(*candidate, {"optimizer"}), open);
  close(*candidate, DeclareByName(*candidate, {"once"}));
  close(*candidate, declare_kept(*candidate));
  EXPECT_EQ(declare_kept(*candidate), kept);
  rig.TakeIn(Just(std::move(candidate)));
  rig.OnEach([&](Worker& worker, int) {
    ExpectMean(worker, open[0], 2);
    if (worker.rank() != 1) {
      close(worker, once);
      close(worker, left);
      close(worker, kept);
    }
    // All begin anew, with other facts.
    close(worker, open);
    for (const char* name : {"optimizer", "trial", "once"}) {
      ExpectMean(worker, DeclareByName(worker, {name}, 50)[0], 1, 50);
    }
    // Servers have what only the newcomer has not closed.
    if (worker.rank() == 1) {
      Floats residual(100);
      Expect(GetServerState(worker, kept[0], StatePart::kResidual, residual, kLong));
    }
    Expect(worker.Barrier("the others have closed it", kLong));
    ExpectMean(worker, DeclareByName(worker, {"accuracy"}, 50)[0], 1, 50);
  });
}

TEST(ReturningWorker, TwoAtOnceAndOneAfterTheOther) {
  ReturnRig rig(kFlags);
  std::vector<uint32_t> ids;
  rig.OnEach([&](Worker& worker, int rank) {
    const auto mine = DeclareAll(worker);
    if (rank == 0) ids = mine;
    StepOf(worker, mine, 1, false);
  });
  rig.Lose(0);
  rig.Lose(2);
  auto zero = rig.Make(0);
  auto two = rig.Make(2);
  DeclareAll(*zero);
  DeclareAll(*two);
  rig.TakeIn(Just(std::move(zero), std::move(two)));
  rig.OnEach([&](Worker& worker, int) {
    for (const Floats& data : StepOf(worker, ids, 2, false)) EXPECT_THAT(data, Each(24.0f));
  });
  rig.Lose(1);
  auto one = rig.Make(1);
  DeclareAll(*one);
  rig.TakeIn(Just(std::move(one)));
  rig.OnEach([&](Worker& worker, int) {
    for (const Floats& data : StepOf(worker, ids, 3, false)) EXPECT_THAT(data, Each(24.0f));
  });
}

TEST(ReturningWorker, MayLeaveAgainBetweenTwoSteps) {
  ReturnRig rig(kFlags);
  std::vector<uint32_t> ids;
  rig.OnEach([&](Worker& worker, int rank) {
    const auto mine = DeclareAll(worker);
    if (rank == 0) ids = mine;
    StepOf(worker, mine, 1, false);
  });
  Expect(rig.worker(1).Depart("its part is done"));
  EXPECT_TRUE(absl::IsAborted(rig.worker(1).Boundary(kLong).status()));
  rig.Lose(1);
  rig.OnEach([&](Worker& worker, int) { StepOf(worker, ids, 2, false); });
  auto candidate = rig.Make(1);
  EXPECT_EQ(DeclareAll(*candidate), ids);
  std::vector<std::unique_ptr<Worker>> candidates;
  candidates.push_back(std::move(candidate));
  rig.TakeIn(std::move(candidates));
  rig.OnEach([&](Worker& worker, int) { StepOf(worker, ids, 3, false); });
}

TEST(ReturningWorker, MayGoBeforeItIsTakenIn) {
  ReturnRig rig(kFlags);
  std::vector<uint32_t> ids;
  rig.OnEach([&](Worker& worker, int rank) {
    const auto mine = DeclareAll(worker);
    if (rank == 0) ids = mine;
    StepOf(worker, mine, 1, false);
  });
  rig.Lose(1);
  rig.Make(1).reset();  // not ready yet
  {
    auto ready = rig.Make(1);
    std::thread thread([&] {
      EXPECT_EQ(ready->Boundary(absl::Milliseconds(200)).status().code(),
                absl::StatusCode::kDeadlineExceeded);
    });
    thread.join();
    EXPECT_TRUE(ready->is_candidate());
  }
  rig.OnEach([&](Worker& worker, int) {
    const auto met = worker.Boundary(kLong);
    ASSERT_TRUE(met.ok()) << met.status();
    EXPECT_THAT(*met, IsEmpty());
    for (const Floats& data : StepOf(worker, ids, 2, false)) EXPECT_THAT(data, Each(24.0f));
  });
  auto last = rig.Make(1);
  DeclareAll(*last);
  rig.TakeIn(Just(std::move(last)));
  rig.OnEach([&](Worker& worker, int) {
    for (const Floats& data : StepOf(worker, ids, 3, false)) EXPECT_THAT(data, Each(24.0f));
  });
}

TEST(ReturningWorker, ABoundaryIsBetweenTwoSteps) {
  ReturnRig rig(kFlags);
  rig.OnEach([&](Worker& worker, int rank) {
    const auto ids = DeclareAll(worker);
    Floats data(kSizes[0], 1.0f);
    const auto push = [&] {
      return Must(
          worker.PushPull({.tensor = ids[0], .data = {data.data(), DType::kFloat32, data.size()}}));
    };
    TicketId ticket = 0;
    if (rank == 0) {
      ticket = push();
      EXPECT_THAT(std::string(worker.Boundary(kLong).status().message()),
                  HasSubstr("tensor 'a' is in flight; wait for it before the boundary"));
    }
    EXPECT_TRUE(worker.Barrier("b", kLong).ok());
    if (rank != 0) ticket = push();
    EXPECT_TRUE(worker.Wait(ticket, kLong).ok());
    EXPECT_TRUE(worker.Boundary(kLong).ok());
  });
}

// ---- codecs

struct Links {
  std::string push, pull, rule;
};

class ReturningLinks : public ::testing::TestWithParam<Links> {};

// All have the same bits in each step, and the newcomer's too.
TEST_P(ReturningLinks, HaveTheSameBitsInAllWorkers) {
  const Links links = GetParam();
  ReturnRig rig(kFlags);
  std::vector<uint32_t> ids;
  rig.OnEach([&](Worker& worker, int rank) {
    const auto mine = DeclareAll(worker, links.push, links.pull, links.rule);
    if (rank == 0) ids = mine;
    if (!links.rule.empty() && worker.rank() == 0) {
      for (size_t t = 0; t < mine.size(); ++t) {
        Expect(SetServerState(worker, mine[t], StatePart::kWeights, Normal(kSizes[t], 900 + t), 0,
                              kLong));
      }
    }
    Expect(worker.Barrier("weights are set", kLong));
  });
  int step = 0;
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) {
      ++step;
      std::vector<std::vector<Floats>> results(3);
      rig.OnEach([&](Worker& worker, int rank) {
        results[static_cast<size_t>(rank)] = StepOf(worker, ids, step, true);
      });
      const auto& last = results[2];
      for (const auto& each : results) {
        if (!each.empty()) {
          EXPECT_EQ(each, last) << "step " << step;
        }
      }
    }
  };
  steps(3);
  for (const Rank rank : {1, 0}) {
    rig.Lose(rank);
    steps(2);
    auto candidate = rig.Make(rank);
    DeclareAll(*candidate, links.push, links.pull, links.rule);
    rig.TakeIn(Just(std::move(candidate)));
    steps(3);
  }
  // The state may be set by the newcomer, whose numbers of requests begin anew.
  if (links.rule.empty()) return;
  rig.OnEach([&](Worker& worker, int) {
    Expect(worker.Barrier("before", kLong));
    if (worker.rank() == 0) {
      for (size_t t = 0; t < ids.size(); ++t) {
        Expect(SetServerState(worker, ids[t], StatePart::kWeights, Floats(kSizes[t], 5.0f),
                              static_cast<Step>(step + 1), kLong));
      }
    }
    for (size_t t = 0; t < ids.size(); ++t) {
      Expect(SetStep(worker, ids[t], static_cast<Step>(step + 1)));
    }
    Expect(worker.Barrier("after", kLong));
    for (size_t t = 0; t < ids.size(); ++t) {
      Floats fetched(kSizes[t]);
      Expect(FetchWeights(worker, ids[t], fetched, kLong));
      EXPECT_THAT(fetched, Each(5.0f));
    }
  });
  ++step;
  steps(1);
}

INSTANTIATE_TEST_SUITE_P(ReturningWorker, ReturningLinks,
                         ::testing::Values(Links{"ef(onebit)", "ef(onebit)", ""},
                                           Links{"ef(topk(ratio=0.1))", "none", ""},
                                           Links{"none", "delta(int4)", "sgd"},
                                           Links{"ef(onebit)", "delta(int8)", "adamw"},
                                           Links{"none", "none", "sgd(momentum=0.9)"}),
                         [](const auto& info) { return "Links" + std::to_string(info.index); });

}  // namespace
}  // namespace bdn::testing
