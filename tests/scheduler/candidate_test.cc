// Workers that join a job that runs, in the place of lost ones.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "scheduler/job.h"

namespace bdn {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

// Three workers (nodes 1 to 3) and two servers (4 and 5), of which workers may be lost.
class CandidateTest : public ::testing::Test {
 protected:
  void Begin(int min_workers = 1, JobLog* log = nullptr, int processes = 1) {
    SetOptions(min_workers);
    job_.emplace(options_, At(0), log);
    for (Rank rank = 0; rank < 3; ++rank) {
      JoinRequest request = RequestOf(rank);
      request.processes = processes;
      job_->Join(request, kControlVersion, At(kNever), At(0));
    }
    JoinServers();
  }
  void SetOptions(int min_workers) {
    options_.config.job_id = "job";
    options_.config.num_workers = 3;
    options_.config.num_servers = 2;
    options_.config.min_workers = min_workers;
    options_.config.replay_steps = 32;
    options_.data_secret = "secret";
    options_.keeps_history = true;
  }
  void JoinServers() {
    for (Rank rank = 0; rank < 2; ++rank) {
      JoinRequest request = RequestOf(rank);
      request.role = Role::kServer;
      request.endpoints = {EndpointOf("tcp://x")};
      job_->Join(request, kControlVersion, At(kNever), At(0));
    }
    ASSERT_EQ(job_->state(), Job::State::kRunning);
    Collect();
  }
  static JoinRequest RequestOf(Rank rank) {
    JoinRequest request;
    request.wanted_rank = rank;
    request.host = absl::StrFormat("host:%d", rank);
    return request;
  }
  CallId Join(Rank rank, double deadline = kNever, double now = 0) {
    return job_->Join(RequestOf(rank), kControlVersion, At(deadline), At(now));
  }
  // Worker 1 is lost, and this node takes its place as a candidate.
  NodeId LoseAndJoin() {
    job_->Lost(2, "was killed");
    return NodeOf(Join(-1));
  }
  // Declares these with one call, which has the whole list if that is not left out.
  CallId Declare(NodeId node, const std::vector<TensorDeclaration>& tensors, uint64_t number = 0,
                 bool with_list = true) {
    return DeclarePart(node, tensors, 0, with_list ? tensors.size() : 0, number);
  }
  // Sends so many tensors of the list, from the first one on.
  CallId DeclarePart(NodeId node, const std::vector<TensorDeclaration>& tensors, size_t first,
                     size_t count, uint64_t number) {
    DeclarationPart part{.number = number,
                         .digest = DigestOf(tensors),
                         .count = static_cast<uint32_t>(tensors.size()),
                         .first = static_cast<uint32_t>(first)};
    const auto from = tensors.begin() + static_cast<ptrdiff_t>(first);
    part.tensors.assign(from, from + static_cast<ptrdiff_t>(count));
    return job_->Declare(node, std::move(part), At(kNever), At(0));
  }
  void Install() {
    for (const NodeId server : {4, 5}) {
      EXPECT_TRUE(job_->AcknowledgePlacement(server, job_->declarations().version(), At(0)).ok());
    }
  }
  void DeclareByAll(const std::vector<TensorDeclaration>& tensors) {
    std::vector<CallId> calls;
    for (const NodeInfo& worker : Now().workers) calls.push_back(Declare(worker.id, tensors));
    Install();
    for (const CallId call : calls) EXPECT_TRUE(StatusOf(call).ok()) << StatusOf(call);
  }
  CallId Come(NodeId node, uint64_t number = 0, double deadline = kNever, double now = 0) {
    return job_->ArriveAtBarrier(node, {kBoundary, number, number}, At(deadline), At(now));
  }
  // All come to the boundary, and this candidate, too.
  void TakeIn(NodeId node) {
    const CallId own = Come(node);
    const std::vector<NodeInfo> workers = Now().workers;
    for (const NodeInfo& worker : workers) Come(worker.id);
    LetIn();
    EXPECT_TRUE(StatusOf(own).ok()) << StatusOf(own);
  }
  void LetIn() {
    for (const NodeInfo& server : Now().servers) {
      EXPECT_TRUE(job_->AcknowledgePlacement(server.id, {Now().epoch, 0}, At(0)).ok());
    }
  }

  void Collect() {
    for (Job::Completion& completion : job_->TakeCompletions()) {
      EXPECT_EQ(answers_.count(completion.call_id), 0u) << "answered twice";
      answers_[completion.call_id] = std::move(completion);
    }
  }
  bool Answered(CallId call) {
    Collect();
    return answers_.count(call) > 0;
  }
  absl::Status StatusOf(CallId call) {
    return Answered(call) ? answers_[call].status : absl::UnknownError("no answer yet");
  }
  std::string MessageOf(CallId call) { return std::string(StatusOf(call).message()); }
  NodeId NodeOf(CallId call) {
    EXPECT_TRUE(StatusOf(call).ok()) << StatusOf(call);
    return Answered(call) ? answers_[call].join.node : 0;
  }
  // Returns the version of the catalogue that answers a declaration.
  uint32_t VersionOf(CallId call) {
    EXPECT_TRUE(StatusOf(call).ok()) << StatusOf(call);
    EXPECT_FALSE(answers_[call].declared.wanted_from.has_value());
    return answers_[call].declared.version.catalogue;
  }
  std::optional<uint32_t> WantedFrom(CallId call) {
    EXPECT_TRUE(StatusOf(call).ok()) << StatusOf(call);
    return answers_[call].declared.wanted_from;
  }
  const Met& MetOf(CallId call) {
    EXPECT_TRUE(StatusOf(call).ok()) << StatusOf(call);
    return answers_[call].met;
  }
  const Membership& Now() { return *job_->table().membership(); }

  JobOptions options_;
  std::optional<Job> job_;
  std::map<CallId, Job::Completion> answers_;
};

TEST_F(CandidateTest, TakesTheVacantRankAtOnceAndIsInNoRoster) {
  Begin();
  job_->Lost(2, "was killed");
  const Epoch epoch = Now().epoch;
  const CallId call = Join(-1);
  ASSERT_TRUE(StatusOf(call).ok());
  const JoinResult& joined = answers_[call].join;
  EXPECT_TRUE(joined.is_candidate);
  EXPECT_EQ(joined.rank, 1);
  EXPECT_EQ(joined.node, 6u);
  EXPECT_EQ(joined.membership->epoch, epoch);
  EXPECT_THAT(joined.membership->vacant, ElementsAre(1));
  EXPECT_EQ(Now().epoch, epoch);
  EXPECT_EQ(Now().workers.size(), 2u);
  // Nobody waits for it at a barrier.
  const CallId first = job_->ArriveAtBarrier(1, {"b"}, At(kNever), At(0));
  const CallId third = job_->ArriveAtBarrier(3, {"b"}, At(kNever), At(0));
  EXPECT_TRUE(StatusOf(first).ok() && StatusOf(third).ok());
  // Its own end at once.
  EXPECT_TRUE(StatusOf(job_->ArriveAtBarrier(6, {"b"}, At(kNever), At(0))).ok());
}

TEST_F(CandidateTest, MoreComeThanTheJobBeganWith) {
  SetOptions(/*min_workers=*/2);
  options_.config.first_workers = 2;
  ASSERT_TRUE(CheckJobOptions(options_).ok());
  job_.emplace(options_, At(0));
  // Rank 2 is none of those with which the job begins, so its worker waits for that.
  const CallId early = Join(2);
  const CallId gives_up = Join(2, 1);
  const std::vector<CallId> first = {Join(-1), Join(-1)};
  job_->Advance(At(1));
  EXPECT_EQ(MessageOf(gives_up),
            "waiting for the job to begin: for server rank 0, server rank 1 (2 of 4 have joined)");
  JoinServers();
  EXPECT_EQ(NodeOf(first[0]), 1u);
  EXPECT_EQ(NodeOf(first[1]), 2u);
  const NodeId third = NodeOf(early);
  EXPECT_EQ(third, 5u);
  EXPECT_TRUE(answers_[early].join.is_candidate);
  EXPECT_THAT(answers_[early].join.membership->vacant, ElementsAre(2));
  EXPECT_THAT(answers_[first[0]].join.processes, ElementsAre(1, 1, 1));
  EXPECT_EQ(Now().epoch, 1u);
  // The two train, and nobody waits for the third.
  const std::vector<CallId> declared = {Declare(1, {Tensor("a")}), Declare(2, {Tensor("a")})};
  for (const NodeId server : {3, 4}) {
    EXPECT_TRUE(job_->AcknowledgePlacement(server, job_->declarations().version(), At(0)).ok());
  }
  for (const CallId call : declared) EXPECT_TRUE(StatusOf(call).ok());
  EXPECT_TRUE(StatusOf(Declare(third, {Tensor("a")})).ok());
  TakeIn(third);
  EXPECT_EQ(Now().workers.size(), 3u);
  EXPECT_THAT(Now().vacant, IsEmpty());
  // It may go again, and the two with which the job began are needed.
  EXPECT_TRUE(StatusOf(job_->Leave(third, Unavailable("night is over"), At(9), At(0))).ok());
  EXPECT_THAT(Now().vacant, ElementsAre(2));
  job_->Lost(1, "was killed");
  EXPECT_EQ(job_->state(), Job::State::kFailed);
}

TEST_F(CandidateTest, WaitsUntilARankIsVacantAndSaysWhoHasThem) {
  Begin();
  const CallId early = Join(-1, 5);
  const CallId wanted = Join(2, kNever);
  EXPECT_FALSE(Answered(early));
  for (const NodeId node : {1, 2, 3, 4, 5}) EXPECT_TRUE(job_->Heartbeat(node, {}, At(4)).ok());
  job_->Advance(At(5));
  EXPECT_EQ(StatusOf(early).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(MessageOf(early), AllOf(HasSubstr("worker 0 (node 1, host:0)"),
                                      HasSubstr("worker 2 (node 3, host:2) have theirs")));
  job_->Lost(1, "was killed");
  job_->Advance(At(5));
  EXPECT_FALSE(Answered(wanted));
  job_->Lost(3, "was killed");
  EXPECT_LE(job_->NextDeadline(), At(5));
  job_->Advance(At(5));
  EXPECT_EQ(NodeOf(wanted), 6u);
  EXPECT_EQ(answers_[wanted].join.rank, 2);
}

TEST_F(CandidateTest, ARankIsOfOneCandidate) {
  Begin();
  job_->Lost(2, "was killed");
  EXPECT_EQ(NodeOf(Join(-1)), 6u);
  const CallId second = Join(1);
  EXPECT_FALSE(Answered(second));
  job_->Lost(6, "was killed, too");
  job_->Advance(At(0));
  EXPECT_EQ(NodeOf(second), 7u);
  EXPECT_EQ(job_->state(), Job::State::kRunning);
}

TEST_F(CandidateTest, IsRefusedWithOtherProcessesAndWhereNoWorkerMayBeLost) {
  Begin(1, nullptr, 2);
  job_->Lost(2, "was killed");
  EXPECT_EQ(StatusOf(Join(-1)).code(), absl::StatusCode::kInvalidArgument);
  JoinRequest request = RequestOf(1);
  request.processes = 3;
  EXPECT_EQ(MessageOf(job_->Join(request, kControlVersion, At(9), At(0))),
            "host:1 joins with 3 process(es) as worker rank 1, which has 2 in this job");
  request.wanted_rank = 3;
  EXPECT_THAT(MessageOf(job_->Join(request, kControlVersion, At(9), At(0))),
              HasSubstr("worker rank 3: this job has 3 worker(s)"));
  answers_.clear();
  Begin(0);
  EXPECT_THAT(MessageOf(Join(-1)), HasSubstr("has all its nodes and takes no more"));
}

TEST_F(CandidateTest, DeclaresByNameInAnyOrderAndAsMuchAsItLikes) {
  Begin();
  DeclareByAll({Tensor("a")});
  DeclareByAll({Tensor("b"), Tensor("c")});
  DeclareByAll({Tensor("d")});
  const NodeId node = LoseAndJoin();
  // The answer is the first placement that includes all of them.
  EXPECT_EQ(VersionOf(Declare(node, {Tensor("c"), Tensor("a")})), 2u);
  EXPECT_EQ(VersionOf(Declare(node, {Tensor("a")})), 1u);
  EXPECT_EQ(VersionOf(Declare(node, {Tensor("d"), Tensor("b"), Tensor("c")})), 3u);
  // The others go on among themselves.
  DeclareByAll({Tensor("e")});
  EXPECT_EQ(VersionOf(Declare(node, {Tensor("e"), Tensor("a")})), 4u);
  EXPECT_TRUE(StatusOf(Declare(node, {})).ok());
}

TEST_F(CandidateTest, IsToldTheTensorThatDiffersOrIsUnknown) {
  Begin();
  DeclareByAll({Tensor("a"), Tensor("b")});
  const NodeId node = LoseAndJoin();
  EXPECT_EQ(MessageOf(Declare(node, {Tensor("a"), Tensor("x"), Tensor("y")})),
            "tensor 'x': the job has not declared it; this worker joins a job that runs, as worker "
            "1, and declares what the others have declared");
  EXPECT_THAT(
      MessageOf(Declare(node, {Tensor("a"), Tensor("b", 7)})),
      HasSubstr(
          "tensor 'b': the job has declared elements=1000, and worker 1 now says elements=7; this "
          "worker joins a job that runs"));
  TensorDeclaration other = Tensor("b");
  other.push_spec = "onebit";
  EXPECT_THAT(MessageOf(Declare(node, {other})),
              HasSubstr("tensor 'b': the job has declared push=none, and worker 1 now says "
                        "push=onebit"));
  EXPECT_THAT(MessageOf(Declare(node, {Tensor("a"), Tensor("a")})),
              HasSubstr("tensor 'a': worker 1 declares it twice"));
  EXPECT_THAT(MessageOf(Declare(node, {Tensor("a", 0)})), HasSubstr("'a'"));
  // It is not spoilt by that.
  EXPECT_EQ(VersionOf(Declare(node, {Tensor("b"), Tensor("a")})), 1u);
}

TEST_F(CandidateTest, SendsItsListInParts) {
  Begin();
  DeclareByAll({Tensor("a"), Tensor("b"), Tensor("c")});
  const NodeId node = LoseAndJoin();
  const std::vector<TensorDeclaration> all = {Tensor("c"), Tensor("b"), Tensor("a")};
  // Of a digest nothing is known.
  EXPECT_EQ(WantedFrom(DeclarePart(node, all, 0, 0, 5)), 0u);
  EXPECT_EQ(WantedFrom(DeclarePart(node, all, 0, 1, 5)), 1u);
  EXPECT_THAT(MessageOf(DeclarePart(node, all, 2, 1, 5)),
              HasSubstr("worker 1: a part of 1 tensors from 2 of 3, where 1 came before"));
  EXPECT_EQ(WantedFrom(DeclarePart(node, all, 1, 1, 5)), 2u);
  // It begins anew, after an answer that was lost.
  EXPECT_EQ(WantedFrom(DeclarePart(node, all, 0, 2, 5)), 2u);
  EXPECT_EQ(VersionOf(DeclarePart(node, all, 2, 1, 5)), 1u);
  // A repetition of the whole is answered as before, by its number alone.
  EXPECT_EQ(VersionOf(DeclarePart(node, all, 0, 0, 5)), 1u);
  EXPECT_EQ(WantedFrom(DeclarePart(node, all, 0, 0, 6)), 0u);
  // A part of another list does not go on with this one.
  EXPECT_TRUE(
      absl::IsInvalidArgument(StatusOf(DeclarePart(node, {Tensor("a"), Tensor("b")}, 1, 1, 6))));
  DeclarationPart part{.digest = "d", .count = 1, .tensors = all};
  EXPECT_TRUE(absl::IsInvalidArgument(StatusOf(job_->Declare(node, part, At(kNever), At(0)))));
  part.count = 1u << 31;
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(job_->Declare(node, part, At(kNever), At(0)))));
}

TEST_F(CandidateTest, MayDeclareWhatTheOthersAreDoneWith) {
  Begin();
  DeclareByAll({Tensor("a")});
  for (const NodeId node : {1, 2, 3}) EXPECT_TRUE(job_->Retire(node, {0}, At(0)).ok());
  DeclareByAll({Tensor("a", 5)});
  for (const NodeId node : {1, 2, 3}) EXPECT_TRUE(job_->Retire(node, {1}, At(0)).ok());
  DeclareByAll({Tensor("b")});
  const NodeId node = LoseAndJoin();
  // The latest of the name counts.
  EXPECT_THAT(MessageOf(Declare(node, {Tensor("a")})),
              HasSubstr("tensor 'a': the job has declared elements=5, and worker 1 now says"));
  EXPECT_EQ(VersionOf(Declare(node, {Tensor("a", 5)})), 3u);
  EXPECT_EQ(job_->declarations().deltas()[2]->tensors.size(), 1u);
  // A living one is before it.
  DeclareByAll({Tensor("a", 6)});
  EXPECT_FALSE(StatusOf(Declare(node, {Tensor("a", 5)})).ok());
  EXPECT_EQ(VersionOf(Declare(node, {Tensor("a", 6)})), 6u);
  for (const NodeId each : {1, 3}) EXPECT_TRUE(job_->Retire(each, {3}, At(0)).ok());
  // Once it is in, the name is of a new tensor, which all declare.
  TakeIn(node);
  const CallId own = Declare(node, {Tensor("a", 6)});
  EXPECT_FALSE(Answered(own));
  const std::vector<CallId> others = {Declare(1, {Tensor("a", 6)}), Declare(3, {Tensor("a", 6)})};
  Install();
  EXPECT_EQ(VersionOf(own), 8u);
  for (const CallId call : others) EXPECT_EQ(VersionOf(call), 8u);
}

TEST_F(CandidateTest, IsTakenInWhenAllHaveComeAndAnsweredWhenServersLetItIn) {
  Begin();
  const NodeId node = LoseAndJoin();
  const Epoch before = Now().epoch;
  const CallId own = Come(node);
  EXPECT_EQ(job_->ViewOf(1).candidates, 1);
  EXPECT_THAT(job_->WaitsOf(node), HasSubstr("waiting to be taken in: for worker 0, worker 2"));
  const CallId first = Come(1);
  EXPECT_FALSE(Answered(first));
  const CallId third = Come(3);
  EXPECT_EQ(MetOf(first), (Met{{}, before + 1, {1}}));
  EXPECT_EQ(MetOf(third), MetOf(first));
  EXPECT_EQ(Now().epoch, before + 1);
  EXPECT_EQ(Now().unsafe, before + 1);
  EXPECT_THAT(Now().vacant, IsEmpty());
  ASSERT_EQ(Now().workers.size(), 3u);
  EXPECT_EQ(Now().workers[1].id, node);
  EXPECT_EQ(job_->ViewOf(1).candidates, 0);
  EXPECT_FALSE(Answered(own));
  EXPECT_THAT(job_->WaitsOf(node), HasSubstr("waiting for server 0"));
  EXPECT_TRUE(job_->AcknowledgePlacement(4, {before + 1, 0}, At(0)).ok());
  EXPECT_FALSE(Answered(own));
  EXPECT_TRUE(job_->AcknowledgePlacement(5, {before + 1, 0}, At(0)).ok());
  EXPECT_EQ(MetOf(own), MetOf(first));
  EXPECT_THAT(job_->changes().at(before + 1),
              HasSubstr("with 3 of 3 workers: with worker 1 (node 6, host:-1)"));
  // From now on everything waits for it.
  const CallId barrier = job_->ArriveAtBarrier(1, {"b"}, At(kNever), At(0));
  job_->ArriveAtBarrier(3, {"b"}, At(kNever), At(0));
  EXPECT_FALSE(Answered(barrier));
  job_->ArriveAtBarrier(node, {"b"}, At(kNever), At(0));
  EXPECT_TRUE(Answered(barrier));
  const CallId leaving = job_->Leave(1, absl::OkStatus(), At(kNever), At(0));
  job_->Leave(3, absl::OkStatus(), At(kNever), At(0));
  EXPECT_FALSE(Answered(leaving));
  job_->Leave(node, absl::OkStatus(), At(kNever), At(0));
  EXPECT_TRUE(StatusOf(leaving).ok());
  EXPECT_EQ(job_->state(), Job::State::kDone);
}

TEST_F(CandidateTest, ABoundaryWithoutOneEndsAsABarrierDoes) {
  Begin();
  job_->Lost(2, "was killed");
  const Epoch before = Now().epoch;
  const CallId first = Come(1);
  const CallId third = Come(3);
  EXPECT_EQ(MetOf(first), (Met{{1}, 0, {}}));
  EXPECT_EQ(MetOf(third), MetOf(first));
  EXPECT_EQ(Now().epoch, before);
  // One that comes later waits for the next.
  const NodeId node = NodeOf(Join(-1));
  const CallId own = Come(node);
  EXPECT_FALSE(Answered(own));
  EXPECT_EQ(Now().epoch, before);
}

TEST_F(CandidateTest, TwoAreTakenInAtOnceInOneEpoch) {
  Begin();
  job_->Lost(2, "was killed");
  job_->Lost(3, "was killed");
  const Epoch before = Now().epoch;
  const NodeId six = NodeOf(Join(2));
  const NodeId seven = NodeOf(Join(-1));
  const CallId a = Come(six);
  const CallId b = Come(seven);
  const CallId first = Come(1);
  EXPECT_EQ(MetOf(first), (Met{{}, before + 1, {1, 2}}));
  LetIn();
  EXPECT_EQ(MetOf(a), MetOf(first));
  EXPECT_EQ(MetOf(b), MetOf(first));
}

TEST_F(CandidateTest, AWorkerMayLeaveTheJobToTheOthersAndAnotherComes) {
  Begin(/*min_workers=*/2);
  const Epoch before = Now().epoch;
  const absl::Status why = absl::UnavailableError("its machine is wanted back");
  EXPECT_TRUE(StatusOf(job_->Leave(2, why, At(9), At(0))).ok());
  EXPECT_EQ(Now().epoch, before + 1);
  EXPECT_THAT(Now().vacant, ElementsAre(1));
  EXPECT_THAT(std::string(job_->Heartbeat(2, {}, At(0)).message()),
              HasSubstr("which left: its machine is wanted back"));
  // The job does not go on without another one, and nothing changes.
  const CallId refused = job_->Leave(1, why, At(9), At(0));
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(refused)));
  EXPECT_EQ(MessageOf(refused),
            "the job does not go on without worker 0: 1 workers would be left, and min-workers is "
            "2");
  EXPECT_EQ(job_->state(), Job::State::kRunning);
  EXPECT_EQ(Now().epoch, before + 1);
  EXPECT_TRUE(job_->Heartbeat(1, {}, At(0)).ok());
  const NodeId node = NodeOf(Join(-1));
  TakeIn(node);
  EXPECT_TRUE(StatusOf(job_->Leave(1, why, At(9), At(0))).ok());
  EXPECT_THAT(Now().vacant, ElementsAre(0));
}

TEST_F(CandidateTest, ThatGoesAwayIsForgottenBeforeAndAfterItWasReady) {
  Begin();
  const NodeId first = LoseAndJoin();
  EXPECT_TRUE(StatusOf(job_->Leave(first, absl::AbortedError("why"), At(9), At(0))).ok());
  EXPECT_EQ(job_->state(), Job::State::kRunning);
  EXPECT_TRUE(IsEvicted(job_->Heartbeat(first, {}, At(0))));
  const NodeId second = NodeOf(Join(-1));
  const CallId own = Come(second);
  EXPECT_EQ(job_->ViewOf(1).candidates, 1);
  job_->Lost(second, "was killed");
  EXPECT_TRUE(IsEvicted(StatusOf(own)));
  EXPECT_EQ(job_->ViewOf(1).candidates, 0);
  EXPECT_EQ(job_->table().Find(second), nullptr);
  const CallId last = Come(1);
  Come(3);
  EXPECT_EQ(MetOf(last).epoch, 0u);
}

TEST_F(CandidateTest, WhoseLeaseEndsIsForgotten) {
  Begin();
  const NodeId node = LoseAndJoin();
  const CallId own = Come(node, 0, kNever, 0);
  for (const NodeId each : {1, 3, 4, 5}) EXPECT_TRUE(job_->Heartbeat(each, {}, At(4)).ok());
  job_->Advance(At(6));
  EXPECT_TRUE(IsEvicted(StatusOf(own)));
  EXPECT_EQ(job_->state(), Job::State::kRunning);
  EXPECT_THAT(Now().vacant, ElementsAre(1));
}

TEST_F(CandidateTest, WhoseCallIsGivenUpWaitsNoMore) {
  Begin();
  const NodeId node = LoseAndJoin();
  const CallId own = Come(node);
  job_->Cancel(own);
  EXPECT_EQ(job_->ViewOf(1).candidates, 0);
  const CallId late = Come(node, 0, 3);
  job_->Advance(At(3));
  EXPECT_THAT(MessageOf(late), HasSubstr("waiting to be taken in: for worker 0"));
  const CallId first = Come(1, 0, kNever, 3);
  Come(3, 0, kNever, 3);
  EXPECT_EQ(MetOf(first).epoch, 0u);
}

TEST_F(CandidateTest, ALossAtTheBoundaryLetsItIn) {
  Begin();
  const NodeId node = LoseAndJoin();
  const CallId own = Come(node);
  const CallId first = Come(1);
  job_->Lost(3, "was killed");
  EXPECT_THAT(MetOf(first).newcomers, ElementsAre(1));
  EXPECT_THAT(MetOf(first).vacant, ElementsAre(2));
  LetIn();
  EXPECT_EQ(MetOf(own), MetOf(first));
}

TEST_F(CandidateTest, ANewcomerThatIsLostBeforeItIsAnsweredIsOut) {
  Begin();
  const NodeId node = LoseAndJoin();
  const CallId own = Come(node);
  Come(1);
  Come(3);
  job_->Lost(node, "was killed");
  EXPECT_TRUE(IsEvicted(StatusOf(own)));
  EXPECT_THAT(Now().vacant, ElementsAre(1));
  LetIn();
  // The next one may come, and the one after.
  for (int i = 0; i < 2; ++i) {
    const NodeId next = NodeOf(Join(1));
    const CallId again = Come(next);
    const CallId first = Come(1);
    Come(3);
    LetIn();
    EXPECT_THAT(MetOf(again).newcomers, ElementsAre(1));
    EXPECT_TRUE(Answered(first));
    job_->Lost(next, "was killed");
  }
}

TEST_F(CandidateTest, AServerThatIsLostIsNotWaitedFor) {
  Begin();
  const NodeId node = LoseAndJoin();
  const CallId own = Come(node);
  Come(1);
  Come(3);
  EXPECT_TRUE(job_->AcknowledgePlacement(4, {Now().epoch, 0}, At(0)).ok());
  EXPECT_FALSE(Answered(own));
  job_->Lost(5, "was killed");
  EXPECT_TRUE(StatusOf(own).ok());
}

TEST_F(CandidateTest, ServersLetInOnlyEpochsThatAre) {
  Begin();
  EXPECT_TRUE(absl::IsInvalidArgument(job_->AcknowledgePlacement(4, {2, 0}, At(0))));
  EXPECT_TRUE(absl::IsInvalidArgument(job_->AcknowledgePlacement(1, {1, 0}, At(0))));
  EXPECT_TRUE(job_->AcknowledgePlacement(4, {1, 0}, At(0)).ok());
}

TEST_F(CandidateTest, ANewcomerDeclaresTheRestOnceItIsIn) {
  Begin();
  DeclareByAll({Tensor("a")});
  DeclareByAll({Tensor("b")});
  const NodeId node = LoseAndJoin();
  EXPECT_TRUE(StatusOf(Declare(node, {Tensor("a")})).ok());
  TakeIn(node);
  EXPECT_EQ(VersionOf(Declare(node, {Tensor("b"), Tensor("a")})), 2u);
  EXPECT_THAT(MessageOf(Declare(node, {Tensor("b", 7)})),
              HasSubstr("tensor 'b': the job has declared elements=1000, and worker 1 now says"));
  // And then with the others.
  const CallId first = Declare(1, {Tensor("c")});
  Declare(3, {Tensor("c")});
  EXPECT_FALSE(Answered(first));
  const CallId own = Declare(node, {Tensor("c")});
  Install();
  EXPECT_EQ(VersionOf(first), 3u);
  EXPECT_EQ(VersionOf(own), 3u);
}

// What the job knows already is no part of the batch of all, whoever is first.
TEST_F(CandidateTest, ANewcomerDeclaresKnownAndUnknownTensorsAtOnce) {
  for (const bool is_lowest : {true, false}) {
    for (const bool is_early : {true, false}) {
      answers_.clear();
      Begin();
      DeclareByAll({Tensor("a"), Tensor("b")});
      job_->Lost(is_lowest ? 1 : 3, "was killed");
      const NodeId node = NodeOf(Join(-1));
      TakeIn(node);
      std::vector<CallId> calls;
      const auto declare = [&] {
        calls.push_back(Declare(node, {Tensor("n"), Tensor("b"), Tensor("m")}, 9));
      };
      if (is_early) declare();
      for (const NodeInfo& worker : Now().workers) {
        if (worker.id != node) calls.push_back(Declare(worker.id, {Tensor("m"), Tensor("n")}));
      }
      if (!is_early) declare();
      // The call comes again, and is the same one.
      calls.push_back(DeclarePart(node, {Tensor("n"), Tensor("b"), Tensor("m")}, 0, 0, 9));
      Install();
      int given_up = 0;
      for (const CallId call : calls) {
        if (absl::IsCancelled(StatusOf(call))) {
          ++given_up;
        } else {
          EXPECT_EQ(VersionOf(call), 2u);
        }
      }
      EXPECT_EQ(given_up, 1);
      EXPECT_EQ(VersionOf(DeclarePart(node, {Tensor("n"), Tensor("b"), Tensor("m")}, 0, 0, 9)), 2u);
      EXPECT_EQ(job_->declarations().totals().tensors, 4u);
      EXPECT_EQ(job_->declarations().num_batches(), 0u);
    }
  }
}

TEST_F(CandidateTest, ANewcomerThatDeclaresSomethingElseIsNamedWithTheTensor) {
  for (const bool is_lowest : {true, false}) {
    for (const bool is_early : {true, false}) {
      answers_.clear();
      Begin();
      DeclareByAll({Tensor("a")});
      job_->Lost(is_lowest ? 1 : 3, "was killed");
      const NodeId node = NodeOf(Join(-1));
      TakeIn(node);
      std::vector<CallId> calls;
      std::vector<NodeId> others;
      for (const NodeInfo& worker : Now().workers) {
        if (worker.id != node) others.push_back(worker.id);
      }
      const auto declare = [&] { calls.push_back(Declare(node, {Tensor("a"), Tensor("n", 7)})); };
      if (is_early) declare();
      for (const NodeId other : others) calls.push_back(Declare(other, {Tensor("n")}));
      if (!is_early) declare();
      // Of others the list is asked for; the newcomer's is there.
      for (const NodeId other : others) {
        if (Answered(calls.front()) && !StatusOf(calls.front()).ok()) break;
        calls.push_back(Declare(other, {Tensor("n")}));
      }
      std::string message;
      for (const CallId call : calls) {
        if (absl::IsInvalidArgument(StatusOf(call))) message = MessageOf(call);
      }
      EXPECT_THAT(message, AllOf(HasSubstr("tensor 'n': "), HasSubstr("elements=7"),
                                 HasSubstr("elements=1000"),
                                 HasSubstr(is_lowest ? "worker 0 says" : "worker 2 says")));
    }
  }
}

// Where the worker that was to give the list is lost, the newcomer's is there.
TEST_F(CandidateTest, ANewcomersListServesWhereTheLowestRankIsLost) {
  Begin();
  DeclareByAll({Tensor("a")});
  const NodeId node = LoseAndJoin();
  TakeIn(node);
  const CallId own = Declare(node, {Tensor("a"), Tensor("n")});
  const CallId third = Declare(3, {Tensor("n")}, 0, /*with_list=*/false);
  EXPECT_FALSE(Answered(own) || Answered(third));
  job_->Lost(1, "was killed");
  Install();
  EXPECT_EQ(VersionOf(own), 2u);
  EXPECT_EQ(VersionOf(third), 2u);
}

TEST_F(CandidateTest, ANewcomerCannotChangeWhatItSaid) {
  Begin();
  DeclareByAll({Tensor("a")});
  const NodeId node = LoseAndJoin();
  TakeIn(node);
  const CallId own = Declare(node, {Tensor("a"), Tensor("n")});
  job_->Cancel(own);
  EXPECT_THAT(MessageOf(Declare(node, {Tensor("n")})), HasSubstr("declares other tensors before"));
  const CallId again = DeclarePart(node, {Tensor("a"), Tensor("n")}, 0, 0, 0);
  for (const NodeId other : {1, 3}) Declare(other, {Tensor("n")});
  Install();
  EXPECT_EQ(VersionOf(again), 2u);
}

// The batches of the others may be at any point when a newcomer is taken in.
TEST_F(CandidateTest, ANewcomersNextDeclarationIsTheNextOfAll) {
  Begin();
  DeclareByAll({Tensor("a")});
  const NodeId node = LoseAndJoin();
  // This one is planned, and no server has installed it.
  const std::vector<CallId> planned = {Declare(1, {Tensor("b")}), Declare(3, {Tensor("b")})};
  TakeIn(node);
  EXPECT_FALSE(Answered(planned[0]));
  const CallId own = Declare(node, {Tensor("c")});
  Install();
  for (const CallId call : planned) EXPECT_EQ(VersionOf(call), 2u);
  EXPECT_FALSE(Answered(own));
  for (const NodeId other : {1, 3}) Declare(other, {Tensor("c")});
  Install();
  EXPECT_EQ(VersionOf(own), 3u);
  // The next one comes while a batch is open.
  job_->Lost(node, "was killed");
  const NodeId next = NodeOf(Join(-1));
  const CallId open = Declare(1, {Tensor("d")});
  TakeIn(next);
  EXPECT_TRUE(StatusOf(Declare(next, {Tensor("c"), Tensor("a")})).ok());
  Declare(3, {Tensor("d")});
  EXPECT_FALSE(Answered(open));
  Declare(next, {Tensor("d")});
  Install();
  EXPECT_EQ(VersionOf(open), 4u);
}

TEST_F(CandidateTest, RetiredTensorsWaitForANewcomerThatHasThem) {
  Begin();
  DeclareByAll({Tensor("a"), Tensor("b"), Tensor("c")});
  const NodeId node = LoseAndJoin();
  EXPECT_TRUE(StatusOf(Declare(node, {Tensor("a"), Tensor("b")})).ok());
  // Nothing of a candidate counts.
  EXPECT_TRUE(job_->Retire(node, {0, 1, 2}, At(0)).ok());
  TakeIn(node);
  for (const NodeId each : {1, 3}) EXPECT_TRUE(job_->Retire(each, {0, 1, 2}, At(0)).ok());
  EXPECT_EQ(job_->declarations().totals().tensors, 2u) << "it has never had c";
  EXPECT_TRUE(job_->Retire(node, {0, 1}, At(0)).ok());
  EXPECT_EQ(job_->declarations().totals().tensors, 0u);
  // All declare them anew.
  DeclareByAll({Tensor("a", 3), Tensor("c", 3)});
  EXPECT_EQ(job_->declarations().totals().tensors, 2u);
}

TEST_F(CandidateTest, ANewcomerMayTakeUpWhatItHasNotDeclaredBefore) {
  Begin();
  DeclareByAll({Tensor("a"), Tensor("b")});
  const NodeId node = LoseAndJoin();
  TakeIn(node);
  EXPECT_EQ(VersionOf(Declare(node, {Tensor("a")})), 1u);
  for (const NodeId each : {1, 3}) EXPECT_TRUE(job_->Retire(each, {0}, At(0)).ok());
  EXPECT_EQ(job_->declarations().totals().tensors, 2u) << "the newcomer has it now";
  // Where others have closed it the name means what all are going to declare.
  EXPECT_TRUE(job_->Retire(1, {1}, At(0)).ok());
  const CallId own = Declare(node, {Tensor("b")});
  EXPECT_FALSE(Answered(own));
  EXPECT_TRUE(job_->Retire(3, {1}, At(0)).ok());
  for (const NodeId each : {1, 3}) Declare(each, {Tensor("b")});
  Install();
  EXPECT_EQ(VersionOf(own), 3u);
  // What it has closed itself is not taken up again alone.
  EXPECT_TRUE(job_->Retire(node, {2}, At(0)).ok());
  const CallId anew = Declare(node, {Tensor("b")});
  EXPECT_FALSE(Answered(anew));
  for (const NodeId each : {1, 3}) {
    EXPECT_TRUE(job_->Retire(each, {2}, At(0)).ok());
    Declare(each, {Tensor("b")});
  }
  Install();
  EXPECT_EQ(VersionOf(anew), 5u);
}

TEST_F(CandidateTest, WhatOnlyLostWorkersHadIsStillThereForANewcomer) {
  Begin();
  DeclareByAll({Tensor("a"), Tensor("b")});
  const NodeId node = LoseAndJoin();
  EXPECT_TRUE(StatusOf(Declare(node, {Tensor("b")})).ok());
  TakeIn(node);
  EXPECT_TRUE(job_->Retire(node, {1}, At(0)).ok());
  job_->Lost(1, "was killed");
  EXPECT_EQ(job_->declarations().totals().tensors, 2u);
  job_->Lost(3, "was killed");
  EXPECT_EQ(job_->declarations().totals().tensors, 1u) << "b is closed in all that are left";
  EXPECT_EQ(VersionOf(Declare(node, {Tensor("a")})), 1u);
}

TEST_F(CandidateTest, ANameThatANewcomerDeclaresAnewIsNewWhereTheOthersAreLostMeanwhile) {
  Begin();
  DeclareByAll({Tensor("a")});
  const NodeId node = LoseAndJoin();
  TakeIn(node);
  EXPECT_TRUE(job_->Retire(1, {0}, At(0)).ok());
  const CallId own = Declare(node, {Tensor("a")});
  job_->Lost(1, "was killed");
  job_->Lost(3, "was killed");
  Install();
  EXPECT_EQ(VersionOf(own), 3u);
  EXPECT_EQ(job_->declarations().totals().tensors, 1u);
  EXPECT_TRUE(job_->Retire(node, {1}, At(0)).ok());
  EXPECT_EQ(job_->declarations().totals().tensors, 0u);
}

TEST_F(CandidateTest, ANewcomersDeclarationEndsWhereAnotherWorkerLeaves) {
  Begin();
  DeclareByAll({Tensor("a"), Tensor("b")});
  const NodeId node = LoseAndJoin();
  TakeIn(node);
  const CallId own = Declare(node, {Tensor("n"), Tensor("a")});
  job_->Leave(3, absl::OkStatus(), At(kNever), At(0));
  EXPECT_THAT(MessageOf(own), HasSubstr("worker 2 is leaving the job instead"));
  // What the job has is answered all the same.
  EXPECT_EQ(VersionOf(Declare(node, {Tensor("b")})), 1u);
  job_->Leave(node, absl::OkStatus(), At(kNever), At(0));
  EXPECT_TRUE(absl::IsAborted(StatusOf(Declare(node, {Tensor("b")}))));
}

TEST_F(CandidateTest, IsUnneededWhereTheJobIsDoneAndFailsWithIt) {
  Begin();
  const NodeId node = LoseAndJoin();
  const CallId own = Come(node);
  const CallId waiting = Join(-1);
  for (const NodeId each : {1, 3}) job_->Leave(each, absl::OkStatus(), At(kNever), At(0));
  EXPECT_EQ(job_->state(), Job::State::kDone);
  EXPECT_TRUE(IsUnneeded(StatusOf(own))) << StatusOf(own);
  EXPECT_TRUE(IsUnneeded(StatusOf(waiting))) << StatusOf(waiting);
  EXPECT_TRUE(IsUnneeded(job_->ViewOf(node).failure));
  for (const NodeId each : {4, 5}) job_->Leave(each, absl::OkStatus(), At(kNever), At(0));
  EXPECT_TRUE(job_->finished());
  answers_.clear();
  Begin();
  const NodeId other = LoseAndJoin();
  const CallId its = Come(other);
  job_->Leave(1, absl::AbortedError("why"), At(kNever), At(0));
  EXPECT_THAT(MessageOf(its), HasSubstr("left with an error: why"));
  EXPECT_FALSE(job_->ViewOf(other).failure.ok());
}

TEST_F(CandidateTest, WhatItReportsConcernsNobody) {
  Begin();
  const NodeId node = LoseAndJoin();
  EXPECT_TRUE(job_->Report(node, {{"loss", 1, 2.0}}, At(0)).ok());
  EXPECT_THAT(job_->history()->curves(), IsEmpty());
  EXPECT_TRUE(job_->ReportWaits(node, {{4, absl::Seconds(99)}}, At(0)).ok());
  EXPECT_EQ(Now().servers.size(), 2u);
}

TEST_F(CandidateTest, WhatCannotBeLoggedIsTriedAgain) {
  AnyLog log;
  Begin(1, &log);
  job_->Lost(2, "was killed");
  log.refusal = absl::ResourceExhaustedError("no space left");
  const CallId join = Join(-1);
  EXPECT_FALSE(Answered(join));
  EXPECT_EQ(job_->NextDeadline(), At(1));
  log.refusal = absl::OkStatus();
  job_->Advance(At(1));
  const NodeId node = NodeOf(join);
  const CallId own = Come(node, 0, kNever, 1);
  const CallId first = Come(1, 0, kNever, 1);
  log.refusal = absl::ResourceExhaustedError("no space left");
  EXPECT_TRUE(absl::IsUnavailable(StatusOf(Come(3, 0, kNever, 1))));
  EXPECT_TRUE(absl::IsUnavailable(StatusOf(job_->Leave(node, absl::OkStatus(), At(9), At(1)))));
  log.refusal = absl::OkStatus();
  const CallId third = Come(3, 0, kNever, 3);
  EXPECT_TRUE(StatusOf(first).ok());
  EXPECT_TRUE(StatusOf(third).ok());
  LetIn();
  EXPECT_TRUE(StatusOf(own).ok());
}

}  // namespace
}  // namespace bdn
