// A job that goes on without servers, and takes others in their place.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "scheduler/job.h"

namespace bdn {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

constexpr double kNever = 1e9;

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TensorDeclaration Tensor(const std::string& name, uint64_t elements = 1000) {
  TensorDeclaration tensor;
  tensor.name = name;
  tensor.elements = elements;
  return tensor;
}

// A log that keeps nothing, but may refuse.
class AnyLog final : public JobLog {
 public:
  absl::Status Append(const JobEvent&) override { return refusal; }
  State state() const override { return {}; }
  bool IsLong() const override { return false; }
  void Shorten(const std::vector<JobEvent>&) override {}
  absl::Status refusal;
};

// Two workers (nodes 1 and 2), and servers (node 3 and following).
class LostServerTest : public ::testing::Test {
 protected:
  LostServerTest() {
    options_.config.job_id = "job";
    options_.config.num_workers = 2;
    options_.config.min_workers = 1;
    options_.config.replay_steps = 32;
    options_.data_secret = "secret";
    options_.join_timeout = absl::Seconds(60);
    options_.keeps_history = true;
  }
  void Begin(int servers, JobLog* log = nullptr) {
    options_.config.num_servers = servers;
    job_.emplace(options_, At(0), log);
    answers_.clear();
    for (Rank rank = 0; rank < 2; ++rank) Join(Role::kWorker, rank);
    for (Rank rank = 0; rank < servers; ++rank) Join(Role::kServer, rank);
    ASSERT_EQ(job_->state(), Job::State::kRunning);
    Collect();
  }
  static JoinRequest RequestOf(Role role, Rank rank, uint64_t join_id = 0) {
    JoinRequest request;
    request.role = role;
    request.wanted_rank = rank;
    request.join_id = join_id;
    request.host = absl::StrFormat("host:%d", rank);
    if (role == Role::kServer) request.endpoints = {EndpointOf("tcp://x")};
    return request;
  }
  CallId Join(Role role, Rank rank, double deadline = kNever, double now = 0,
              uint64_t join_id = 0) {
    return job_->Join(RequestOf(role, rank, join_id), kControlVersion, At(deadline), At(now));
  }
  CallId JoinAsServer(Rank rank, double now = 0, uint64_t join_id = 0) {
    return Join(Role::kServer, rank, kNever, now, join_id);
  }
  CallId Declare(NodeId node, const std::string& name, double deadline = kNever) {
    std::vector<TensorDeclaration> tensors = {Tensor(name)};
    DeclarationPart part{.digest = DigestOf(tensors), .count = 1};
    part.tensors = std::move(tensors);
    return job_->Declare(node, std::move(part), At(deadline), At(0));
  }
  void Install(NodeId node) {
    EXPECT_TRUE(job_->AcknowledgePlacement(node, job_->declarations().version(), At(0)).ok());
  }
  void HearAll(double now) {
    for (const auto& [id, member] : job_->table().members()) {
      if (!member.is_here()) continue;
      EXPECT_TRUE(job_->Heartbeat(id, {}, At(now)).ok());
    }
  }

  void Collect() {
    for (Job::Completion& completion : job_->TakeCompletions()) {
      EXPECT_EQ(answers_.count(completion.call_id), 0u) << "answered twice";
      answers_[completion.call_id] = std::move(completion);
    }
  }
  bool Answered(CallId call_id) {
    Collect();
    return answers_.count(call_id) > 0;
  }
  absl::Status StatusOf(CallId call_id) {
    return Answered(call_id) ? answers_[call_id].status : absl::UnknownError("no answer yet");
  }
  std::string MessageOf(CallId call_id) { return std::string(StatusOf(call_id).message()); }
  // The node as which this call has joined; 0: it has not.
  NodeId NodeOf(CallId call_id) {
    EXPECT_TRUE(StatusOf(call_id).ok()) << StatusOf(call_id);
    return Answered(call_id) ? answers_[call_id].join.node : 0;
  }
  std::string Failure() { return std::string(job_->failure().message()); }
  const Membership& Now() { return *job_->table().membership(); }
  std::vector<NodeId> Servers() {
    std::vector<NodeId> nodes;
    for (const NodeInfo& server : Now().servers) nodes.push_back(server.id);
    return nodes;
  }
  // Every slot of the home belongs to that server, since that epoch.
  void ExpectAllAt(NodeId home, NodeId server, Epoch since) {
    ASSERT_EQ(Now().moved.count(home), 1u);
    EXPECT_THAT(Now().moved.at(home), Each((SlotOwner{server, since})));
  }
  std::vector<std::string> Events() {
    std::vector<std::string> texts;
    for (const History::Event& event : job_->history()->events()) {
      texts.push_back(absl::StrFormat("%s: %s", event.kind, event.text));
    }
    return texts;
  }

  JobOptions options_;
  std::optional<Job> job_;
  std::map<CallId, Job::Completion> answers_;
};

// ---- servers that do not answer workers

class UnheardServerTest : public LostServerTest {
 protected:
  void BeginWith(int fewest) {
    options_.config.min_workers = fewest;
    options_.config.link_timeout = absl::Seconds(10);
    Begin(2);
  }
  // Worker 1 or 2 had no answer of the server that had this rank at the beginning.
  void Say(NodeId worker, Rank server, double seconds, double now) {
    const auto node = static_cast<NodeId>(3 + server);
    EXPECT_TRUE(job_->ReportWaits(worker, {{node, absl::Seconds(seconds)}}, At(now)).ok());
  }
};

TEST_F(UnheardServerTest, WhereAllWorkersAreNeededOneIsEnough) {
  BeginWith(0);
  Say(1, 0, 11, 20);
  EXPECT_THAT(Servers(), ElementsAre(4));
}

TEST_F(UnheardServerTest, TheServerIsOutWhereMostWorkersSaySo) {
  BeginWith(1);
  Say(2, 0, 6, 20);
  Say(1, 0, 9, 20);
  EXPECT_THAT(Servers(), ElementsAre(3, 4)) << "not for long enough yet";
  Say(1, 0, 11, 21);
  EXPECT_THAT(Servers(), ElementsAre(4));
  EXPECT_EQ(Now().workers.size(), 2u);
  EXPECT_THAT(Events().back(),
              HasSubstr("has not answered 2 of 2 workers for 11.0 s, and link-timeout is 10s"));
}

TEST_F(UnheardServerTest, AWorkerThatAloneHearsNothingIsOut) {
  BeginWith(1);
  Say(1, 1, 11, 20);
  EXPECT_THAT(Servers(), ElementsAre(3, 4));
  ASSERT_EQ(Now().workers.size(), 1u);
  EXPECT_EQ(Now().workers[0].id, 2u);
  EXPECT_THAT(Events().back(), HasSubstr("alone has had no answer of server 1 for 11.0 s"));
}

TEST_F(UnheardServerTest, WhatAnotherSaidLongAgoDoesNotCount) {
  BeginWith(1);
  Say(2, 0, 9, 10);
  Say(1, 0, 11, 30);
  EXPECT_THAT(Servers(), ElementsAre(3, 4));
  EXPECT_EQ(Now().workers.size(), 1u);
}

TEST_F(UnheardServerTest, TheOnlyServerStays) {
  BeginWith(0);
  job_->Lost(3, "was killed");
  Say(1, 1, 50, 70);
  Say(2, 1, 50, 70);
  EXPECT_THAT(Servers(), ElementsAre(4));
  EXPECT_EQ(job_->state(), Job::State::kRunning);
}

TEST_F(UnheardServerTest, OneThatHasJustComeIsNotBlamedForTheOneBefore) {
  BeginWith(0);
  HearAll(20);
  job_->Lost(3, "was killed");
  const CallId joined = JoinAsServer(0, 20);
  ASSERT_EQ(NodeOf(joined), 5u);
  Say(1, 0, 15, 21);
  EXPECT_THAT(Servers(), ElementsAre(5, 4));
}

TEST_F(UnheardServerTest, WithoutALinkTimeoutNobodyIsOut) {
  BeginWith(1);
  options_.config.link_timeout = absl::ZeroDuration();
  Begin(2);
  Say(1, 0, 1000, 20);
  EXPECT_THAT(Servers(), ElementsAre(3, 4));
  EXPECT_EQ(Now().workers.size(), 2u);
}

TEST_F(LostServerTest, TheOthersAnswerForItsKeysAndEverybodyIsTold) {
  Begin(2);
  const Job::Revision before = job_->revision();
  job_->Lost(4, "was killed");
  EXPECT_EQ(job_->state(), Job::State::kRunning);
  EXPECT_NE(job_->revision().all, before.all);
  EXPECT_EQ(Now().epoch, 2u);
  EXPECT_THAT(Servers(), ElementsAre(3));
  ExpectAllAt(4, 3, 2);
  EXPECT_EQ(Now().OwnerOf(Key{1}, 4).server, 3u);
  EXPECT_EQ(Now().unsafe, 0u);
  for (const NodeId node : {1, 3}) {
    const Job::View view = job_->ViewOf(node);
    EXPECT_EQ(view.membership->epoch, 2u);
    EXPECT_EQ(view.membership->servers.size(), 1u);
    EXPECT_EQ(view.membership->moved, Now().moved);
    EXPECT_NE(view.membership->Find(3), nullptr);
    EXPECT_EQ(view.membership->Find(4), nullptr);
  }
  EXPECT_EQ(Events().back(),
            "goes on: epoch 2, with 1 of 2 servers: without server 1, which was killed");
}

TEST_F(LostServerTest, ItselfIsToldThatTheJobGoesOnWithoutIt) {
  Begin(2);
  HearAll(4);
  for (const NodeId node : {1, 2, 3}) EXPECT_TRUE(job_->Heartbeat(node, {}, At(8)).ok());
  job_->Advance(At(9.5));
  const absl::Status told = job_->ViewOf(4).failure;
  EXPECT_TRUE(IsEvicted(told)) << told;
  EXPECT_EQ(std::string(told.message()),
            "the job goes on without server 1 (node 4, host:1), which stopped answering 5.5 s ago");
  EXPECT_TRUE(IsEvicted(job_->Heartbeat(4, {}, At(10))));
  EXPECT_TRUE(IsEvicted(job_->AcknowledgePlacement(4, {.epoch = 1}, At(10))));
  EXPECT_TRUE(IsEvicted(StatusOf(job_->Leave(4, absl::OkStatus(), At(kNever), At(10)))));
  EXPECT_TRUE(IsEvicted(StatusOf(job_->Leave(4, absl::AbortedError("x"), At(kNever), At(10)))));
  job_->Lost(4, "closed its connection without leaving");
  job_->ConnectionBroke(4, At(10));
  EXPECT_EQ(job_->state(), Job::State::kRunning) << "whatever it does harms nobody";
  EXPECT_EQ(Now().epoch, 2u);
}

TEST_F(LostServerTest, OneThatLeavesTooEarlyIsLost) {
  Begin(2);
  EXPECT_TRUE(StatusOf(job_->Leave(4, absl::OkStatus(), At(kNever), At(1))).ok());
  ExpectAllAt(4, 3, 2);
  EXPECT_THAT(std::string(job_->ViewOf(4).failure.message()),
              HasSubstr("which left before the workers were done"));
  // The job ends when all that are left have left.
  for (const NodeId node : {1, 2}) job_->Leave(node, absl::OkStatus(), At(kNever), At(2));
  EXPECT_EQ(job_->state(), Job::State::kDone);
  EXPECT_FALSE(job_->finished());
  job_->Leave(3, absl::OkStatus(), At(kNever), At(3));
  EXPECT_TRUE(job_->finished());
}

TEST_F(LostServerTest, AServersErrorStillEndsTheJob) {
  Begin(2);
  (void)job_->Leave(4, absl::InternalError("out of memory"), At(kNever), At(1));
  EXPECT_EQ(job_->state(), Job::State::kFailed);
}

TEST_F(LostServerTest, WithoutReplayStepsTheJobFailsAndTakesNoServer) {
  options_.config.replay_steps = 0;
  Begin(2);
  EXPECT_EQ(MessageOf(JoinAsServer(-1)), "job 'job' has all its nodes and takes no more");
  job_->Lost(4, "was killed");
  EXPECT_EQ(Failure(), "server 1 (node 4, host:1) was killed");
  EXPECT_THAT(job_->WhoWent(), ElementsAre("server 1"));
}

TEST_F(LostServerTest, WithoutALogTheLastServerEndsTheJob) {
  Begin(2);
  job_->Lost(3, "was killed");
  job_->Lost(4, "was killed");
  EXPECT_EQ(Failure(), "server 1 (node 4, host:1) was killed; no server is left");
  Begin(1);
  job_->Lost(3, "was killed");
  EXPECT_EQ(Failure(), "server 0 (node 3, host:0) was killed");
}

TEST_F(LostServerTest, WithALogTheJobWaitsForAnotherAndThenFails) {
  AnyLog log;
  Begin(2, &log);
  HearAll(9);
  job_->Advance(At(10));
  job_->Lost(4, "was killed");
  job_->Lost(3, "was killed");
  ExpectAllAt(3, 0, 3);
  ExpectAllAt(4, 0, 3);
  EXPECT_EQ(job_->ViewOf(1).membership->servers.size(), 0u);
  for (double now = 13; now < 70; now += 3) {
    HearAll(now);
    job_->Advance(At(now));
    EXPECT_LE(job_->NextDeadline(), At(70));
  }
  EXPECT_EQ(job_->state(), Job::State::kRunning) << Failure();
  job_->Advance(At(70));
  EXPECT_EQ(Failure(),
            "no server is left, and none has joined for 1m: the job has lost "
            "server 0 (node 3, host:0), server 1 (node 4, host:1)");
  EXPECT_THAT(job_->WhoWent(), ElementsAre("server 1"));
}

TEST_F(LostServerTest, WhoComesWhileNobodyAnswersHasAllSlots) {
  AnyLog log;
  Begin(2, &log);
  job_->Lost(4, "was killed");
  job_->Lost(3, "was killed");
  const NodeId node = NodeOf(JoinAsServer(1, 1));
  EXPECT_EQ(node, 5u);
  EXPECT_EQ(Now().epoch, 4u);
  ExpectAllAt(3, 5, 4);
  ExpectAllAt(4, 5, 4);
  HearAll(4);
  EXPECT_EQ(job_->NextDeadline(), At(9)) << "of leases, and of nothing else";
  EXPECT_EQ(Events().back(), "goes on: epoch 4, with 1 of 2 servers: with server 1");
  // The next one is a spare, which the loads favour when a server is lost.
  EXPECT_EQ(NodeOf(JoinAsServer(-1, 4)), 6u);
  EXPECT_EQ(Now().servers.front().rank, 0);
  ExpectAllAt(3, 5, 4);
  job_->Lost(5, "was killed");
  ExpectAllAt(3, 6, 6);
  EXPECT_EQ(Now().moved.size(), 2u) << "a server that joined later is no home";
}

TEST_F(LostServerTest, OneThatAsksBeforeItsPredecessorIsLostTakesItsPlaceInTheSameEpoch) {
  Begin(2);
  const CallId early = JoinAsServer(1, 0, 77);
  EXPECT_FALSE(Answered(early));
  EXPECT_EQ(job_->WaitedForBy(early), "waiting for a server of the job to be lost: all 2 are here");
  job_->Lost(4, "was killed");
  EXPECT_EQ(NodeOf(early), 5u);
  const JoinResult& joined = answers_[early].join;
  EXPECT_EQ(joined.rank, 1);
  EXPECT_EQ(joined.data_secret, "secret");
  EXPECT_EQ(joined.membership->epoch, 2u);
  EXPECT_EQ(joined.processes, std::vector<int>(2, 1));
  EXPECT_THAT(Servers(), ElementsAre(3, 5));
  ExpectAllAt(4, 5, 2);
  EXPECT_TRUE(IsEvicted(job_->ViewOf(4).failure));
  EXPECT_EQ(Events().back(),
            "goes on: epoch 2, with 2 of 2 servers: with server 1 in the place of node 4, which "
            "was killed");
  // Its answer may be lost, until it is heard.
  const CallId again = JoinAsServer(1, 1, 77);
  EXPECT_EQ(NodeOf(again), 5u);
  EXPECT_TRUE(job_->Heartbeat(5, {}, At(1)).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(StatusOf(JoinAsServer(1, 1, 77))));
}

TEST_F(LostServerTest, TheLastServerMayBeReplacedWithoutALog) {
  Begin(1);
  const CallId early = JoinAsServer(-1);
  EXPECT_TRUE(StatusOf(job_->Leave(3, absl::OkStatus(), At(kNever), At(1))).ok());
  EXPECT_EQ(NodeOf(early), 4u);
  ExpectAllAt(3, 4, 2);
}

TEST_F(LostServerTest, WhoWantsARankWaitsForThatRank) {
  Begin(2);
  const CallId first = JoinAsServer(0);
  const CallId any = JoinAsServer(-1);
  job_->Lost(4, "was killed");
  EXPECT_FALSE(Answered(first));
  EXPECT_EQ(NodeOf(any), 5u);
  job_->Lost(3, "was killed");
  EXPECT_EQ(NodeOf(first), 6u);
  EXPECT_THAT(Servers(), ElementsAre(6, 5));
}

TEST_F(LostServerTest, WhoGivesUpOrWaitsInVainIsForgotten) {
  Begin(2);
  const CallId late = Join(Role::kServer, -1, 2, 1);
  const CallId cancelled = JoinAsServer(-1, 1);
  EXPECT_EQ(job_->NextDeadline(), At(2));
  job_->Advance(At(2));
  EXPECT_TRUE(absl::IsDeadlineExceeded(StatusOf(late)));
  EXPECT_EQ(MessageOf(late), "waiting for a server of the job to be lost: all 2 are here");
  job_->Cancel(cancelled);
  EXPECT_TRUE(absl::IsCancelled(StatusOf(cancelled)));
  job_->Lost(4, "was killed");
  EXPECT_THAT(Servers(), ElementsAre(3));
}

TEST_F(LostServerTest, TwoCallsOfOneServerAreOneServer) {
  Begin(3);
  const CallId first = JoinAsServer(-1, 0, 9);
  const CallId second = JoinAsServer(-1, 0, 9);
  const CallId other = JoinAsServer(-1, 0, 10);
  job_->Lost(4, "was killed");
  EXPECT_EQ(NodeOf(first), 6u);
  EXPECT_EQ(NodeOf(second), 6u);
  EXPECT_FALSE(Answered(other));
  EXPECT_EQ(Now().servers.size(), 3u);
}

TEST_F(LostServerTest, WhatIsWrongWithAServerIsSaidAtOnce) {
  Begin(2);
  EXPECT_THAT(MessageOf(JoinAsServer(2)), HasSubstr("server rank 2: this job has 2 server(s)"));
  JoinRequest request = RequestOf(Role::kServer, 0);
  request.processes = 2;
  EXPECT_THAT(MessageOf(job_->Join(request, kControlVersion, At(9), At(0))),
              HasSubstr("as a server with 2 processes"));
}

TEST_F(LostServerTest, APublicKeyIsOfOneNodeForEver) {
  Begin(2);
  JoinRequest request = RequestOf(Role::kServer, -1);
  request.public_key = {{1, 2, 3}};
  const CallId first = job_->Join(request, kControlVersion, At(kNever), At(0));
  const CallId second = job_->Join(request, kControlVersion, At(kNever), At(0));
  job_->Lost(4, "was killed");
  EXPECT_EQ(NodeOf(first), 5u);
  job_->Lost(5, "was killed");
  EXPECT_FALSE(Answered(second));
  EXPECT_THAT(MessageOf(job_->Join(request, kControlVersion, At(kNever), At(0))),
              HasSubstr("joined with the public key of node 5"));
  EXPECT_EQ(NodeOf(JoinAsServer(-1)), 6u) << "another is not kept by it";
}

TEST_F(LostServerTest, ThoseThatWaitAreSentAwayWhenTheJobEnds) {
  Begin(1);
  CallId waiting = JoinAsServer(-1);
  job_->Stop("it is enough");
  EXPECT_EQ(MessageOf(waiting), "it is enough");
  Begin(1);
  waiting = JoinAsServer(-1);
  for (const NodeId node : {1, 2}) job_->Leave(node, absl::OkStatus(), At(kNever), At(0));
  EXPECT_EQ(MessageOf(waiting), "job 'job' is done and takes no more");
  EXPECT_TRUE(IsUnneeded(StatusOf(waiting)));
  EXPECT_TRUE(IsUnneeded(StatusOf(JoinAsServer(-1)))) << "started again while the job ended";
  EXPECT_FALSE(IsUnneeded(StatusOf(Join(Role::kWorker, -1))));
  options_.is_followed = true;
  Begin(1);
  waiting = JoinAsServer(-1);
  for (const NodeId node : {1, 2}) job_->Leave(node, absl::OkStatus(), At(kNever), At(0));
  EXPECT_TRUE(absl::IsUnavailable(StatusOf(waiting))) << "it is to come again for the next job";
}

TEST_F(LostServerTest, ALogThatRefusesKeepsAServerWaiting) {
  AnyLog log;
  Begin(2, &log);
  job_->Lost(4, "was killed");
  log.refusal = absl::ResourceExhaustedError("no space left");
  const CallId waiting = JoinAsServer(1, 1);
  EXPECT_FALSE(Answered(waiting));
  EXPECT_EQ(job_->NextDeadline(), At(2));
  log.refusal = absl::OkStatus();
  job_->Advance(At(2));
  EXPECT_EQ(NodeOf(waiting), 5u);
}

TEST_F(LostServerTest, ADeclarationWaitsForThoseThatAreThere) {
  Begin(2);
  const CallId first = Declare(1, "a");
  const CallId second = Declare(2, "a");
  Install(3);
  EXPECT_FALSE(Answered(first));
  job_->Lost(4, "was killed");
  EXPECT_TRUE(StatusOf(first).ok()) << StatusOf(first);
  EXPECT_TRUE(StatusOf(second).ok());
  // A server that is new installs everything first.
  EXPECT_EQ(NodeOf(JoinAsServer(-1)), 5u);
  EXPECT_EQ(job_->ViewOf(5).placed.catalogue, 1u);
  const CallId third = Declare(1, "b");
  Declare(2, "b");
  EXPECT_EQ(job_->declarations().version(), (PlacementVersion{3, 2}));
  Install(3);
  EXPECT_FALSE(Answered(third));
  EXPECT_EQ(job_->WaitedForBy(third),
            "waiting for server 1 (node 5, host:-1) to install catalogue 2");
  EXPECT_TRUE(job_->AcknowledgePlacement(5, {.epoch = 1, .catalogue = 1}, At(0)).ok());
  EXPECT_FALSE(Answered(third));
  Install(5);
  EXPECT_TRUE(StatusOf(third).ok());
}

TEST_F(LostServerTest, ADeclarationWaitsWhileThereIsNoServer) {
  AnyLog log;
  Begin(1, &log);
  job_->Lost(3, "was killed");
  const CallId first = Declare(1, "a", 3);
  const CallId second = Declare(2, "a");
  EXPECT_FALSE(Answered(second));
  job_->Advance(At(3));
  EXPECT_EQ(MessageOf(first), "waiting for a server to join, because all are lost");
  // Its keys are placed at home all the same.
  EXPECT_THAT(job_->declarations().deltas().at(0)->owners, ElementsAre(3));
  EXPECT_EQ(NodeOf(JoinAsServer(0, 3)), 4u);
  EXPECT_FALSE(Answered(second));
  Install(4);
  EXPECT_TRUE(StatusOf(second).ok());
}

TEST_F(LostServerTest, TheLoadsDecideAndAreShownOfThoseThatAnswer) {
  Begin(3);
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
    for (const NodeId node : {1, 2}) Declare(node, name);
    for (const NodeId node : {3, 4, 5}) Install(node);
  }
  EXPECT_EQ(job_->LoadOf(3).key_bytes, 8000u);
  job_->Lost(5, "was killed");
  EXPECT_EQ(job_->LoadOf(3).key_bytes, 12000u);
  EXPECT_EQ(job_->LoadOf(3).keys, 3u);
  EXPECT_EQ(job_->LoadOf(5).key_bytes, 0u);
  job_->Lost(3, "was killed");
  EXPECT_EQ(job_->LoadOf(4).key_bytes, 24000u);
  EXPECT_EQ(job_->LoadOf(4).keys, 6u);
}

TEST_F(LostServerTest, ALostWorkerMakesItsEpochUnsafe) {
  Begin(2);
  job_->Lost(4, "was killed");
  job_->Lost(2, "was killed");
  EXPECT_EQ(Now().epoch, 3u);
  EXPECT_EQ(Now().unsafe, 3u);
  EXPECT_EQ(job_->ViewOf(1).membership->unsafe, 3u);
  EXPECT_EQ(job_->ViewOf(1).membership->moved, Now().moved);
  EXPECT_EQ(NodeOf(JoinAsServer(-1)), 5u);
  EXPECT_EQ(Now().unsafe, 3u);
}

TEST_F(LostServerTest, AfterTheWorkIsDoneALossChangesNothing) {
  Begin(2);
  for (const NodeId node : {1, 2}) job_->Leave(node, absl::OkStatus(), At(kNever), At(0));
  job_->Lost(4, "was killed");
  job_->Lost(3, "was killed");
  EXPECT_TRUE(job_->finished());
  EXPECT_TRUE(Now().moved.empty());
  EXPECT_FALSE(StatusOf(JoinAsServer(-1)).ok());
}

}  // namespace
}  // namespace bdn
