#ifndef BANDONEON_TESTS_CLUSTER_CONTROL_PLANE_SUITE_H_
#define BANDONEON_TESTS_CLUSTER_CONTROL_PLANE_SUITE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/cluster/control_plane.h"
#include "scheduler/job.h"

// The tests that every ControlPlane must pass. An implementation adds one INSTANTIATE line.

namespace bdn {

// A scheduler of some kind; it outlives the controls to it.
class SchedulerUnderTest {
 public:
  virtual ~SchedulerUnderTest() = default;
  virtual std::unique_ptr<ControlPlane> Connect(const Credentials& credentials = {}) = 0;
};

// A kind of scheduler, with a function that makes one.
struct SchedulerKind {
  const char* name;
  std::unique_ptr<SchedulerUnderTest> (*make)(const JobOptions& options);
};
inline void PrintTo(const SchedulerKind& kind, std::ostream* out) { *out << kind.name; }

// The events that were delivered, for which a test can wait. Thread-safe.
class RecordedEvents {
 public:
  ControlPlane::Events Callbacks() {
    return {.on_membership =
                [this](auto view) {
                  MutexLock lock(&mu_);
                  membership_ = std::move(view);
                  changed_.SignalAll();
                },
            .on_catalogue =
                [this](SharedDelta delta) {
                  MutexLock lock(&mu_);
                  EXPECT_EQ(delta->version.catalogue, deltas_.size() + 1) << "not in order";
                  deltas_.push_back(std::move(delta));
                  changed_.SignalAll();
                },
            .on_leaving =
                [this](const std::vector<Rank>& leaving) {
                  MutexLock lock(&mu_);
                  leaving_.insert(leaving.begin(), leaving.end());
                  changed_.SignalAll();
                },
            .on_failure =
                [this](absl::Status failure) {
                  MutexLock lock(&mu_);
                  EXPECT_TRUE(failure_.ok()) << "a second failure";
                  failure_ = std::move(failure);
                  changed_.SignalAll();
                }};
  }

  absl::Status AwaitFailure() {
    Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !failure_.ok(); });
    MutexLock lock(&mu_);
    return failure_;
  }
  std::set<Rank> AwaitLeaving(size_t count) {
    Await([this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return leaving_.size() >= count; });
    MutexLock lock(&mu_);
    return leaving_;
  }
  std::shared_ptr<const Membership> AwaitEpoch(Epoch epoch) {
    Await([this, epoch]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return membership_ != nullptr && membership_->epoch >= epoch;
    });
    MutexLock lock(&mu_);
    return membership_;
  }
  // Returns the addition of each version.
  DeclareResult AwaitCatalogue(uint32_t version) {
    Await([this, version]()
              ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return deltas_.size() >= version; });
    MutexLock lock(&mu_);
    return deltas_;
  }

 private:
  template <typename Condition>
  void Await(Condition condition) {
    const absl::Time deadline = clock_.Now() + absl::Seconds(30);
    MutexLock lock(&mu_);
    while (!condition()) {
      if (!clock_.WaitUntil(&changed_, &mu_, deadline) && clock_.Now() >= deadline) {
        ADD_FAILURE() << "the event never came";
        return;
      }
    }
  }

  const SteadyClock clock_;
  Mutex mu_;
  CondVar changed_;
  std::shared_ptr<const Membership> membership_ ABSL_GUARDED_BY(mu_);
  DeclareResult deltas_ ABSL_GUARDED_BY(mu_);
  std::set<Rank> leaving_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

// The fixture of these tests: a scheduler and the nodes of a job.
class ControlPlaneSuite : public ::testing::TestWithParam<SchedulerKind> {
 protected:
  static constexpr absl::Duration kLong = absl::Seconds(30);
  static constexpr absl::Duration kShort = absl::Milliseconds(100);

  // A node of the job, with the events that it was told.
  struct Node {
    std::unique_ptr<RecordedEvents> events = std::make_unique<RecordedEvents>();
    std::unique_ptr<ControlPlane> control;  // goes first: it delivers into `events`
    JoinResult joined;
  };

  void Start(int workers, int servers) {
    options_.config.job_id = "suite";
    options_.config.num_workers = workers;
    options_.config.num_servers = servers;
    options_.config.heartbeat_interval = absl::Milliseconds(50);
    options_.config.lease_timeout = absl::Seconds(3);
    options_.broken_connection_grace = absl::Milliseconds(300);
    scheduler_ = GetParam().make(options_);
  }

  static JoinRequest Request(Role role, Rank rank) {
    JoinRequest request;
    request.role = role;
    request.wanted_rank = rank;
    request.job_id = "suite";
    request.host = std::string("here:") + RoleName(role) + std::to_string(rank);
    if (role == Role::kServer)
      request.endpoints = {EndpointOf("tcp://127.0.0.1:" + std::to_string(rank))};
    return request;
  }

  // Everybody joins and watches; servers acknowledge each placement.
  void JoinAll(int workers, int servers) {
    Start(workers, servers);
    workers_.resize(static_cast<size_t>(workers));
    servers_.resize(static_cast<size_t>(servers));
    std::vector<std::future<absl::StatusOr<JoinResult>>> joins;
    const auto join = [&](std::vector<Node>& nodes, Role role) {
      for (size_t rank = 0; rank < nodes.size(); ++rank) {
        nodes[rank].control = scheduler_->Connect();
        joins.push_back(std::async(std::launch::async, [&node = nodes[rank], role, rank] {
          return node.control->Join(Request(role, static_cast<Rank>(rank)), kLong);
        }));
      }
    };
    join(workers_, Role::kWorker);
    join(servers_, Role::kServer);
    size_t next = 0;
    for (std::vector<Node>* nodes : {&workers_, &servers_}) {
      for (Node& node : *nodes) {
        auto joined = joins[next++].get();
        ASSERT_TRUE(joined.ok()) << joined.status();
        node.joined = *joined;
        ControlPlane::Events events = node.events->Callbacks();
        if (nodes == &servers_) Acknowledging(node.control.get(), &events);
        node.control->Watch(std::move(events));
      }
    }
  }

  // A test that closes the connection, or ends, may cancel an acknowledgement whose answer is still
  // on its way; whether the scheduler got it is seen in the declarations that wait for it.
  static void Acknowledging(ControlPlane* control, ControlPlane::Events* events) {
    events->on_catalogue = [control, record = std::move(events->on_catalogue)](SharedDelta delta) {
      const PlacementVersion version = delta->version;
      record(std::move(delta));
      const absl::Status status = control->AcknowledgePlacement(version);
      EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
    };
  }

  static TensorDeclaration Tensor(const std::string& name, uint64_t elements = 1000) {
    TensorDeclaration tensor;
    tensor.name = name;
    tensor.elements = elements;
    return tensor;
  }

  using Declared = absl::StatusOr<DeclareResult>;
  std::future<Declared> Declare(size_t worker, std::vector<TensorDeclaration> tensors,
                                absl::Duration timeout = kLong) {
    return std::async(std::launch::async,
                      [control = workers_[worker].control.get(), tensors = std::move(tensors),
                       timeout] { return control->Declare(tensors, timeout); });
  }
  std::future<absl::Status> Leave(Node& node, absl::Status reason = absl::OkStatus()) {
    return std::async(std::launch::async, [control = node.control.get(), reason] {
      return control->Leave(reason, kLong);
    });
  }

  static std::string Text(const absl::Status& status) { return std::string(status.ToString()); }

  JobOptions options_;
  std::unique_ptr<SchedulerUnderTest> scheduler_;
  std::vector<Node> servers_;
  std::vector<Node> workers_;
};

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST_P(ControlPlaneSuite, EveryoneJoinsWithTheirRanksAndSeesTheSameMembership) {
  options_.config.run_seed = 42;
  JoinAll(2, 2);
  for (const std::vector<Node>* nodes : {&workers_, &servers_}) {
    for (size_t rank = 0; rank < nodes->size(); ++rank) {
      const JoinResult& joined = (*nodes)[rank].joined;
      EXPECT_EQ(joined.rank, static_cast<Rank>(rank));
      EXPECT_EQ(joined.config, options_.config);
      ASSERT_NE(joined.membership, nullptr);
      EXPECT_EQ(*joined.membership, *(*nodes)[0].joined.membership);
      const NodeInfo* self = servers_[0].joined.membership->Find(joined.node);
      ASSERT_NE(self, nullptr);
      EXPECT_EQ(self->rank, joined.rank);
    }
  }
  // Workers are told of the servers, servers of everybody.
  const Membership& all = *servers_[0].joined.membership;
  EXPECT_TRUE(workers_[0].joined.membership->workers.empty());
  EXPECT_EQ(workers_[0].joined.membership->servers, all.servers);
  EXPECT_EQ(all.epoch, 1u);
  ASSERT_EQ(all.servers.size(), 2u);
  EXPECT_EQ(all.servers[1].endpoints, std::vector<Endpoint>{EndpointOf("tcp://127.0.0.1:1")});
  EXPECT_EQ(all.workers.size(), 2u);
  EXPECT_EQ(*servers_[1].events->AwaitEpoch(1), all);
  EXPECT_EQ(*workers_[1].events->AwaitEpoch(1), *workers_[0].joined.membership);
}

TEST_P(ControlPlaneSuite, EveryoneGetsTheKeysOfAllAndTheSameSecret) {
  Start(1, 1);
  JoinRequest request = Request(Role::kServer, 0);
  request.public_key = {{1, 2, 3}};
  // Any of them: a scheme that nobody knows here, and one twice.
  request.endpoints = {{"shm", "name", LinkSecurity::kAuthenticated},
                       {"pigeon", "\xff\x01", LinkSecurity::kOpen},
                       {"tcp", "10.0.0.2:7100", LinkSecurity::kEncrypted, "0.0.0.0:7100"},
                       {"tcp", "10.1.0.2:7100", LinkSecurity::kEncrypted, "0.0.0.0:7101"}};
  auto server = scheduler_->Connect();
  auto worker = scheduler_->Connect();
  auto joining = std::async(std::launch::async, [&] { return server->Join(request, kLong); });
  JoinRequest other = Request(Role::kWorker, 0);
  other.public_key = {{4, 5, 6}};
  const auto of_worker = worker->Join(other, kLong);
  const auto of_server = joining.get();
  ASSERT_TRUE(of_worker.ok() && of_server.ok());
  EXPECT_EQ(of_worker->membership->servers[0].public_key, request.public_key);
  EXPECT_EQ(of_worker->membership->servers[0].endpoints, request.endpoints);
  EXPECT_EQ(of_server->membership->workers[0].public_key, other.public_key);
  EXPECT_EQ(of_server->data_secret.size(), 32u);
  EXPECT_EQ(of_server->data_secret, of_worker->data_secret);
}

TEST_P(ControlPlaneSuite, AServerThatEncryptsNeedsAKey) {
  Start(1, 1);
  JoinRequest request = Request(Role::kServer, 0);
  request.endpoints[0].security = LinkSecurity::kEncrypted;
  const absl::Status refused = scheduler_->Connect()->Join(request, kLong).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Text(refused), HasSubstr("public key"));
}

TEST_P(ControlPlaneSuite, NodesThatWantAnyRankGetTheFreeOnes) {
  Start(2, 1);
  auto any = scheduler_->Connect();
  auto zero = scheduler_->Connect();
  auto server = scheduler_->Connect();
  auto any_join =
      std::async(std::launch::async, [&] { return any->Join(Request(Role::kWorker, -1), kLong); });
  auto zero_join =
      std::async(std::launch::async, [&] { return zero->Join(Request(Role::kWorker, 0), kLong); });
  auto server_join = server->Join(Request(Role::kServer, -1), kLong);
  ASSERT_TRUE(server_join.ok()) << server_join.status();
  EXPECT_EQ(any_join.get()->rank, 1);
  EXPECT_EQ(zero_join.get()->rank, 0);
  EXPECT_EQ(server_join->rank, 0);
}

TEST_P(ControlPlaneSuite, AJoinThatTimesOutNamesWhoIsMissingAndFreesItsRank) {
  Start(1, 1);
  auto control = scheduler_->Connect();
  const auto late = control->Join(Request(Role::kWorker, 0), kShort);
  EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Text(late.status()), HasSubstr("server rank 0 (1 of 2 have joined)"));

  auto again = scheduler_->Connect();
  auto server = scheduler_->Connect();
  auto joining = std::async(std::launch::async,
                            [&] { return server->Join(Request(Role::kServer, 0), kLong); });
  EXPECT_TRUE(again->Join(Request(Role::kWorker, 0), kLong).ok());
  EXPECT_TRUE(joining.get().ok());
}

TEST_P(ControlPlaneSuite, AJoinIsRefusedForAWrongRankJobOrToken) {
  options_.credentials = Credentials("open sesame");
  Start(1, 1);
  const auto refused = [&](const JoinRequest& request, const char* token = "open sesame") {
    return scheduler_->Connect(Credentials(token))->Join(request, kLong).status();
  };
  JoinRequest request = Request(Role::kWorker, 5);
  EXPECT_THAT(Text(refused(request)), HasSubstr("worker rank 5"));
  request.wanted_rank = 0;
  EXPECT_EQ(refused(request, "open barley").code(), absl::StatusCode::kPermissionDenied);
  request.job_id = "other";
  EXPECT_THAT(Text(refused(request)), AllOf(HasSubstr("'suite'"), HasSubstr("'other'")));
}

TEST_P(ControlPlaneSuite, ASecondClaimToARankNamesTheHolder) {
  Start(1, 1);
  std::promise<absl::Status> refused;
  std::vector<std::future<bool>> claims;
  std::vector<std::unique_ptr<ControlPlane>> controls;
  for (int i = 0; i < 2; ++i) {
    controls.push_back(scheduler_->Connect());
    claims.push_back(std::async(std::launch::async, [&refused, control = controls.back().get()] {
      const auto joined = control->Join(Request(Role::kServer, 0), kLong);
      if (!joined.ok()) refused.set_value(joined.status());
      return joined.ok();
    }));
  }
  const absl::Status status = refused.get_future().get();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(Text(status), AllOf(HasSubstr("server rank 0"), HasSubstr("here:server0")));
  auto worker = scheduler_->Connect();
  EXPECT_TRUE(worker->Join(Request(Role::kWorker, 0), kLong).ok());
  EXPECT_NE(claims[0].get(), claims[1].get());
}

TEST_P(ControlPlaneSuite, AJobWithAllItsNodesTakesNoMore) {
  JoinAll(1, 1);
  const auto third = scheduler_->Connect()->Join(Request(Role::kWorker, -1), kLong);
  EXPECT_EQ(third.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(ControlPlaneSuite, WorkersDeclareInAnyOrderAndRankZeroOrdersTheCatalogue) {
  JoinAll(2, 2);
  auto second = Declare(1, {Tensor("b"), Tensor("a")});
  auto first = Declare(0, {Tensor("a"), Tensor("b")});
  const Declared a = first.get();
  const Declared b = second.get();
  ASSERT_TRUE(a.ok()) << a.status();
  ASSERT_TRUE(b.ok()) << b.status();
  ASSERT_EQ(a->size(), 1u);
  ASSERT_EQ(b->size(), 1u);
  const CatalogueDelta& delta = *a->front();
  EXPECT_EQ(delta, *b->front());
  EXPECT_TRUE(CheckDelta(delta).ok());
  EXPECT_EQ(delta.version, (PlacementVersion{1, 1}));
  ASSERT_EQ(delta.tensors.size(), 2u);
  EXPECT_EQ(delta.tensors[0].name, "a");
  ASSERT_EQ(delta.keys.size(), 2u);
  EXPECT_NE(delta.owners[0], delta.owners[1]);
  for (Node& server : servers_) EXPECT_EQ(*server.events->AwaitCatalogue(1)[0], delta);
}

TEST_P(ControlPlaneSuite, DeclaringAgainChangesNothingAndMoreOnlyAdds) {
  JoinAll(2, 1);
  const auto declare = [&](const std::vector<TensorDeclaration>& tensors) {
    auto other = Declare(1, tensors);
    const Declared mine = Declare(0, tensors).get();
    EXPECT_TRUE(mine.ok()) << mine.status();
    EXPECT_TRUE(other.get().ok());
    return *mine;
  };
  EXPECT_EQ(declare({Tensor("a")}).size(), 1u);
  EXPECT_TRUE(declare({Tensor("a")}).empty());
  const DeclareResult more = declare({Tensor("a"), Tensor("b")});
  ASSERT_EQ(more.size(), 1u);
  EXPECT_EQ(more[0]->version.catalogue, 2u);
  EXPECT_EQ(more[0]->first_tensor, 1u);
  ASSERT_EQ(more[0]->tensors.size(), 1u);
  EXPECT_EQ(more[0]->tensors[0].name, "b");
  EXPECT_EQ(more[0]->keys.size(), 1u);
}

// Far more than one message takes, both ways.
TEST_P(ControlPlaneSuite, ALongListComesThroughWholeAndInOrder) {
  JoinAll(3, 2);
  std::vector<TensorDeclaration> tensors;
  for (int i = 0; i < 30000; ++i) {
    tensors.push_back(Tensor(std::to_string(i) + std::string(200, 'n')));
  }
  auto second = Declare(1, {tensors.rbegin(), tensors.rend()});
  auto third = Declare(2, tensors);
  const Declared first = Declare(0, tensors).get();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)[0]->tensors, tensors);
  const Declared others[] = {second.get(), third.get()};
  for (const Declared& other : others) {
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_EQ(*(*other)[0], *(*first)[0]);
  }
  for (Node& server : servers_) EXPECT_EQ(*server.events->AwaitCatalogue(1)[0], *(*first)[0]);
}

TEST_P(ControlPlaneSuite, WhatADeclarationThatTimedOutAddedIsNotLost) {
  JoinAll(1, 1);
  ASSERT_TRUE(Declare(0, {Tensor("a")}).get().ok());
  const auto late = Declare(0, {Tensor("b")}, absl::ZeroDuration()).get();
  const Declared again = Declare(0, {Tensor("b"), Tensor("c")}).get();
  const Declared both = again.ok() ? again : Declare(0, {Tensor("b")}).get();
  ASSERT_TRUE(both.ok()) << both.status();
  uint32_t tensors = late.ok() ? 2 : 1;
  for (const SharedDelta& delta : *both) {
    EXPECT_EQ(delta->first_tensor, tensors);
    tensors += static_cast<uint32_t>(delta->tensors.size());
  }
}

TEST_P(ControlPlaneSuite, MoreThanTheJobMayDeclareIsRefusedForAll) {
  options_.limits.max_job_bytes = 10000;
  JoinAll(2, 1);
  auto second = Declare(1, {Tensor("w", 5000)});
  const absl::Status first = Declare(0, {Tensor("w", 5000)}).get().status();
  EXPECT_EQ(first.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Text(first), AllOf(HasSubstr("'w'"), HasSubstr("max-job-bytes")));
  EXPECT_EQ(second.get().status(), first);
}

TEST_P(ControlPlaneSuite, AConflictNamesBothWorkersTheTensorAndWhatDiffers) {
  JoinAll(2, 1);
  auto wrong = Tensor("w", 7);
  wrong.push_spec = "fp16";
  auto first = Declare(0, {Tensor("w", 5)});
  auto second = Declare(1, {wrong});
  for (const absl::Status& status : {first.get().status(), second.get().status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Text(status),
                AllOf(HasSubstr("tensor 'w'"), HasSubstr("worker 0 says elements=5, push=none"),
                      HasSubstr("worker 1 says elements=7, push=fp16")));
  }
  // The next declaration is a new beginning.
  auto other = Declare(1, {Tensor("w", 5)});
  EXPECT_TRUE(Declare(0, {Tensor("w", 5)}).get().ok());
  EXPECT_TRUE(other.get().ok());
}

TEST_P(ControlPlaneSuite, ATensorThatOneWorkerLacksIsNamed) {
  JoinAll(2, 1);
  auto first = Declare(0, {Tensor("a"), Tensor("extra")});
  auto second = Declare(1, {Tensor("a")});
  for (const absl::Status& status : {first.get().status(), second.get().status()}) {
    EXPECT_THAT(Text(status), HasSubstr("'extra': worker 0 declared it, worker 1 did not"));
  }
}

TEST_P(ControlPlaneSuite, ADeclarationThatWaitsNamesWhoIsMissingAndMayBeRepeated) {
  JoinAll(2, 1);
  const auto late = Declare(0, {Tensor("a")}, kShort).get();
  EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Text(late.status()), HasSubstr("worker 1"));
  auto other = Declare(1, {Tensor("a")});
  EXPECT_TRUE(Declare(0, {Tensor("a")}).get().ok());
  EXPECT_TRUE(other.get().ok());
}

TEST_P(ControlPlaneSuite, ABadDeclarationIsRefusedAtOnce) {
  JoinAll(2, 1);
  EXPECT_THAT(Text(Declare(0, {Tensor("none", 0)}).get().status()), HasSubstr("'none'"));
  EXPECT_THAT(Text(Declare(0, {Tensor("a"), Tensor("a")}).get().status()), HasSubstr("twice"));
}

TEST_P(ControlPlaneSuite, ABarrierWaitsForAllAndItsNameServesAgain) {
  JoinAll(2, 1);
  for (int round = 0; round < 3; ++round) {
    auto other = std::async(std::launch::async,
                            [&] { return workers_[1].control->Barrier("epoch end", kLong); });
    EXPECT_TRUE(workers_[0].control->Barrier("epoch end", kLong).ok());
    EXPECT_TRUE(other.get().ok());
  }
  const absl::Status late = workers_[0].control->Barrier("alone", kShort);
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Text(late), AllOf(HasSubstr("'alone'"), HasSubstr("worker 1")));
}

TEST_P(ControlPlaneSuite, AValueIsTakenUnlessItsNameIsWrong) {
  JoinAll(1, 1);
  EXPECT_TRUE(workers_[0].control->ReportValue({"loss", 1, 2.5}).ok());
  EXPECT_TRUE(workers_[0].control->ReportValue({"loss", 0, HUGE_VAL}).ok());
  EXPECT_EQ(workers_[0].control->ReportValue({"two words", 1, 2.5}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(ControlPlaneSuite, ALostNodeEndsEveryWaitWithItsName) {
  JoinAll(2, 1);
  auto waiting =
      std::async(std::launch::async, [&] { return workers_[0].control->Barrier("never", kLong); });
  workers_[1].events->AwaitEpoch(1);  // its connection is up
  workers_[1].control->Close();
  for (Node* node : {&workers_[0], &servers_[0]}) {
    EXPECT_THAT(Text(node->events->AwaitFailure()),
                AllOf(HasSubstr("worker 1"), HasSubstr("here:worker1")));
  }
  EXPECT_THAT(Text(waiting.get()), HasSubstr("worker 1"));
  EXPECT_THAT(Text(Declare(0, {Tensor("a")}).get().status()), HasSubstr("worker 1"));
}

TEST_P(ControlPlaneSuite, ANodeThatLeavesWithAnErrorEndsTheJobForAll) {
  JoinAll(2, 1);
  EXPECT_TRUE(Leave(workers_[1], absl::InternalError("out of memory")).get().ok());
  EXPECT_THAT(Text(workers_[0].events->AwaitFailure()),
              AllOf(HasSubstr("worker 1"), HasSubstr("out of memory")));
  EXPECT_THAT(Text(servers_[0].events->AwaitFailure()), HasSubstr("worker 1"));
}

TEST_P(ControlPlaneSuite, AServerThatLeavesEarlyEndsTheJob) {
  JoinAll(1, 2);
  EXPECT_FALSE(Leave(servers_[1]).get().ok());
  EXPECT_THAT(Text(workers_[0].events->AwaitFailure()), HasSubstr("server 1"));
}

TEST_P(ControlPlaneSuite, ALostServersKeysMoveToAnother) {
  options_.config.replay_steps = 8;
  JoinAll(2, 2);
  auto first = Declare(0, {Tensor("a")});
  ASSERT_TRUE(Declare(1, {Tensor("a")}).get().ok());
  ASSERT_TRUE(first.get().ok());
  servers_[1].events->AwaitCatalogue(1);  // its connection is up
  servers_[1].control->Close();
  const NodeId lost = servers_[1].joined.node;
  for (Node* node : {&workers_[0], &workers_[1], &servers_[0]}) {
    const auto now = node->events->AwaitEpoch(2);
    ASSERT_EQ(now->servers.size(), 1u);
    EXPECT_EQ(now->servers[0].id, servers_[0].joined.node);
    ASSERT_EQ(now->moved.count(lost), 1u);
    EXPECT_THAT(now->moved.at(lost), ::testing::Each((SlotOwner{servers_[0].joined.node, 2})));
  }
  // The job goes on: a declaration waits for the server that is there.
  first = Declare(0, {Tensor("b")});
  EXPECT_TRUE(Declare(1, {Tensor("b")}).get().ok());
  EXPECT_TRUE(first.get().ok());
}

TEST_P(ControlPlaneSuite, AServerThatLeavesEarlyIsLostAndHearsItIfItGoesOn) {
  options_.config.replay_steps = 8;
  JoinAll(1, 2);
  EXPECT_TRUE(Leave(servers_[1]).get().ok());
  EXPECT_EQ(workers_[0].events->AwaitEpoch(2)->servers.size(), 1u);
  EXPECT_TRUE(IsEvicted(servers_[1].control->AcknowledgePlacement({.epoch = 1})));
}

TEST_P(ControlPlaneSuite, AServerThatIsToGoLeavesItsKeysToAnotherAtOnce) {
  options_.config.replay_steps = 8;
  options_.config.lease_timeout = absl::Minutes(10);
  JoinAll(1, 2);
  ASSERT_TRUE(Declare(0, {Tensor("a")}).get().ok());
  const absl::Status why = absl::UnavailableError("it was stopped by SIGTERM");
  EXPECT_EQ(servers_[1].control->TryToLeave(why, kLong), absl::OkStatus());
  for (Node* node : {&workers_[0], &servers_[0]}) {
    const auto now = node->events->AwaitEpoch(2);
    ASSERT_EQ(now->servers.size(), 1u);
    EXPECT_EQ(now->servers[0].id, servers_[0].joined.node);
    EXPECT_EQ(now->moved.count(servers_[1].joined.node), 1u);
  }
  // It asks again, as the answer was lost: it is out.
  EXPECT_EQ(servers_[1].control->TryToLeave(why, kLong), absl::OkStatus());
  // Nobody is left who could do the work of the other one, which stays.
  const absl::Status refused = servers_[0].control->TryToLeave(why, kLong);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(Text(refused), HasSubstr("no other server can answer for the keys of server 0"));
  ASSERT_TRUE(Declare(0, {Tensor("b")}).get().ok());
  // A worker has another way.
  EXPECT_EQ(workers_[0].control->TryToLeave(why, kLong).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Leave(workers_[0]).get().ok());
  EXPECT_EQ(servers_[0].control->TryToLeave(why, kLong).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Leave(servers_[0]).get().ok());
}

TEST_P(ControlPlaneSuite, AServerThatTheJobNeedsIsToldSoAndStays) {
  options_.config.replay_steps = 0;
  JoinAll(1, 2);
  const absl::Status refused =
      servers_[1].control->TryToLeave(absl::UnavailableError("it was stopped"), kLong);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(Text(refused), HasSubstr("replay-steps is 0"));
  EXPECT_TRUE(Declare(0, {Tensor("a")}).get().ok());
}

TEST_P(ControlPlaneSuite, AServerThatAsksInAJobThatRunsTakesAVacantRank) {
  options_.config.replay_steps = 8;
  JoinAll(1, 2);
  for (const char* name : {"a", "b"}) ASSERT_TRUE(Declare(0, {Tensor(name)}).get().ok());
  // While all ranks are taken, it waits, and says so.
  auto impatient = scheduler_->Connect();
  const auto early = impatient->Join(Request(Role::kServer, 1), kShort);
  EXPECT_EQ(early.status().code(), absl::StatusCode::kDeadlineExceeded) << early.status();
  EXPECT_THAT(Text(early.status()), HasSubstr("waiting for a server of the job to be lost"));
  Node next;
  next.control = scheduler_->Connect();
  auto joining = std::async(std::launch::async,
                            [&] { return next.control->Join(Request(Role::kServer, 1), kLong); });
  servers_[1].events->AwaitCatalogue(2);
  servers_[1].control->Close();
  const auto joined = joining.get();
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(joined->rank, 1);
  EXPECT_NE(joined->node, servers_[1].joined.node);
  EXPECT_EQ(joined->data_secret, servers_[0].joined.data_secret);
  EXPECT_GE(joined->membership->epoch, 2u);
  // It hears of everything that there is, from the first version on.
  ControlPlane::Events events = next.events->Callbacks();
  Acknowledging(next.control.get(), &events);
  next.control->Watch(std::move(events));
  const DeclareResult all = next.events->AwaitCatalogue(2);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]->tensors.at(0).name, "a");
  EXPECT_EQ(all[1]->tensors.at(0).name, "b");
  const auto now = workers_[0].events->AwaitEpoch(joined->membership->epoch);
  EXPECT_NE(now->Find(joined->node), nullptr);
  EXPECT_THAT(next.events->AwaitEpoch(1)->workers, ::testing::SizeIs(1));
  // A declaration waits for it, too, and the end is as ever.
  ASSERT_TRUE(Declare(0, {Tensor("c")}).get().ok());
  EXPECT_EQ(next.events->AwaitCatalogue(3).size(), 3u);
  EXPECT_TRUE(Leave(workers_[0]).get().ok());
  EXPECT_TRUE(next.events->AwaitEpoch(joined->membership->epoch + 1)->workers.empty());
  EXPECT_TRUE(Leave(next).get().ok());
}

TEST_P(ControlPlaneSuite, AWorkerStillCannotJoinAJobThatRuns) {
  options_.config.replay_steps = 8;
  JoinAll(1, 1);
  const auto third = scheduler_->Connect()->Join(Request(Role::kWorker, -1), kLong);
  EXPECT_EQ(third.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(ControlPlaneSuite, WorkersLeaveTogetherAndThenTheServersMayGo) {
  JoinAll(2, 1);
  auto first = Leave(workers_[0]);
  auto second = Leave(workers_[1]);
  EXPECT_TRUE(first.get().ok());
  EXPECT_TRUE(second.get().ok());
  workers_.clear();
  const auto last = servers_[0].events->AwaitEpoch(2);
  EXPECT_TRUE(last->workers.empty());
  EXPECT_EQ(last->servers.size(), 1u);
  EXPECT_TRUE(Leave(servers_[0]).get().ok());
}

TEST_P(ControlPlaneSuite, NobodyWaitsForAWorkerThatIsLeaving) {
  JoinAll(3, 1);
  auto declaring = Declare(0, {Tensor("a")});
  auto first = Leave(workers_[2]);
  EXPECT_EQ(servers_[0].events->AwaitLeaving(1), std::set<Rank>{2});
  EXPECT_EQ(declaring.get().status().code(), absl::StatusCode::kAborted);
  const absl::Status barrier = workers_[0].control->Barrier("b", kLong);
  EXPECT_EQ(barrier.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(Text(barrier), AllOf(HasSubstr("'b'"), HasSubstr("worker 2")));
  auto second = Leave(workers_[0]);
  EXPECT_EQ(servers_[0].events->AwaitLeaving(2), (std::set<Rank>{0, 2}));
  EXPECT_TRUE(Leave(workers_[1]).get().ok());
  EXPECT_TRUE(first.get().ok());
  EXPECT_TRUE(second.get().ok());
}

TEST_P(ControlPlaneSuite, CloseEndsWaitsAndMayBeCalledTwice) {
  JoinAll(2, 1);
  std::promise<void> started;
  auto waiting = std::async(std::launch::async, [&] {
    started.set_value();
    return workers_[0].control->Barrier("never", kLong);
  });
  started.get_future().get();
  workers_[0].control->Close();
  EXPECT_FALSE(waiting.get().ok());
  workers_[0].control->Close();
  EXPECT_FALSE(workers_[0].control->Barrier("closed", kLong).ok());
}

TEST_P(ControlPlaneSuite, CloseEndsAJoin) {
  Start(2, 1);
  auto control = scheduler_->Connect();
  std::promise<void> started;
  auto joining = std::async(std::launch::async, [&] {
    started.set_value();
    return control->Join(Request(Role::kWorker, 0), kLong).status();
  });
  started.get_future().get();
  control->Close();
  EXPECT_FALSE(joining.get().ok());
}

}  // namespace bdn

#endif  // BANDONEON_TESTS_CLUSTER_CONTROL_PLANE_SUITE_H_
