#include "scheduler/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace bdn {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

JobOptions Options(int workers, int servers) {
  JobOptions options;
  options.config.job_id = "job";
  options.config.num_workers = workers;
  options.config.num_servers = servers;
  options.join_timeout = absl::Seconds(60);
  return options;
}

TensorDeclaration Tensor(const std::string& name, uint64_t elements = 10) {
  TensorDeclaration tensor;
  tensor.name = name;
  tensor.elements = elements;
  return tensor;
}

class JobTest : public ::testing::Test {
 protected:
  static constexpr double kNever = 1e9;

  void Start(int workers, int servers) { job_.emplace(Options(workers, servers), At(0)); }
  // Nodes 1.. are the workers, then come the servers.
  void Fill(int workers, int servers) {
    Start(workers, servers);
    for (Rank rank = 0; rank < workers; ++rank) Join(Role::kWorker, rank);
    for (Rank rank = 0; rank < servers; ++rank) Join(Role::kServer, rank);
    Collect();
  }
  // Hosts whose daemons push for so many processes, and a server.
  void FillHosts(const std::vector<int>& hosts) {
    const int count = static_cast<int>(hosts.size());
    Start(count, 1);
    for (Rank rank = 0; rank < count; ++rank) Join(Role::kWorker, rank, kNever, 0, hosts[rank]);
    Join(Role::kServer, 0);
    Collect();
  }
  CallId Join(Role role, Rank rank, double deadline = kNever, double now = 0, int processes = 1) {
    JoinRequest request;
    request.role = role;
    request.processes = processes;
    request.wanted_rank = rank;
    request.host = "host:" + std::to_string(rank);
    if (role == Role::kServer) request.endpoints = {EndpointOf("tcp://x")};
    return job_->Join(request, kControlVersion, At(deadline), At(now));
  }
  CallId Declare(NodeId node, std::vector<TensorDeclaration> tensors, double deadline = kNever,
                 double now = 0) {
    DeclarationPart part{.digest = DigestOf(tensors),
                         .count = static_cast<uint32_t>(tensors.size())};
    part.tensors = std::move(tensors);
    return job_->Declare(node, std::move(part), At(deadline), At(now));
  }

  // Declares as a worker of a rank above 0 begins: without its list.
  CallId DeclareDigest(NodeId node, const std::vector<TensorDeclaration>& tensors,
                       double deadline = kNever, double now = 0) {
    return job_->Declare(
        node, {.digest = DigestOf(tensors), .count = static_cast<uint32_t>(tensors.size())},
        At(deadline), At(now));
  }

  // A server has installed the keys of this version of the catalogue, as the first epoch has them.
  absl::Status Install(NodeId node, uint32_t catalogue, double now = 0) {
    return job_->AcknowledgePlacement(node, {.epoch = 1, .catalogue = catalogue}, At(now));
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
  uint32_t Version() { return job_->declarations().version().catalogue; }
  std::string Failure() { return std::string(job_->failure().message()); }

  std::optional<Job> job_;
  std::map<CallId, Job::Completion> answers_;
};

TEST_F(JobTest, AnswersEveryJoinWhenAllNodesHaveJoined) {
  Start(2, 1);
  const CallId first = Join(Role::kWorker, 0);
  const CallId second = Join(Role::kWorker, 1);
  EXPECT_FALSE(Answered(first));
  EXPECT_EQ(job_->state(), Job::State::kWaiting);
  const CallId server = Join(Role::kServer, 0);
  for (const CallId call_id : {first, second, server}) EXPECT_TRUE(StatusOf(call_id).ok());
  EXPECT_EQ(answers_[second].join.rank, 1);
  EXPECT_EQ(job_->state(), Job::State::kRunning);
}

// A program with threads of its own may leave on one and declare on another.
TEST_F(JobTest, WhoLeavesWhileItDeclaresSomethingElseIsAnswered) {
  Fill(3, 1);
  const CallId second = DeclareDigest(2, {Tensor("a")});
  const CallId third = DeclareDigest(3, {Tensor("b")});
  job_->Leave(3, absl::OkStatus(), At(kNever), At(0));
  const CallId first = Declare(1, {Tensor("a")});
  for (const CallId call_id : {first, second, third}) {
    EXPECT_TRUE(absl::IsAborted(StatusOf(call_id))) << StatusOf(call_id);
    EXPECT_THAT(MessageOf(call_id), HasSubstr("worker 2 is leaving the job"));
  }
}

TEST_F(JobTest, EndsWhenNotAllNodesJoinInTime) {
  Start(2, 1);
  const CallId call_id = Join(Role::kWorker, 0);
  EXPECT_EQ(job_->NextDeadline(), At(60));
  job_->Advance(At(59));
  EXPECT_FALSE(Answered(call_id));
  job_->Advance(At(60));
  EXPECT_EQ(MessageOf(call_id),
            "not all nodes joined in time: waiting for worker rank 1, server rank 0 (1 of 3 have "
            "joined)");
  EXPECT_EQ(job_->state(), Job::State::kFailed);
}

TEST_F(JobTest, RefusesAnotherControlVersionNamingBoth) {
  Start(1, 1);
  const CallId call_id = job_->Join({.host = "old"}, kControlVersion + 7, At(9), At(0));
  EXPECT_THAT(MessageOf(call_id),
              AllOf(HasSubstr("version " + std::to_string(kControlVersion)),
                    HasSubstr("speaks " + std::to_string(kControlVersion + 7))));
}

TEST_F(JobTest, RefusesOverlongTextAndAServerWithoutAnEndpoint) {
  Start(1, 1);
  JoinRequest request{.host = std::string(300, 'h')};
  EXPECT_THAT(MessageOf(job_->Join(request, kControlVersion, At(9), At(0))),
              HasSubstr("300 bytes"));
  request = {.role = Role::kServer, .host = "h"};
  EXPECT_THAT(MessageOf(job_->Join(request, kControlVersion, At(9), At(0))),
              HasSubstr("h joined as a server without an endpoint"));
}

TEST_F(JobTest, BoundsTheEndpointsOfANodeAndUnderstandsNone) {
  Start(1, 1);
  const auto refusal = [this](std::vector<Endpoint> endpoints) {
    const JoinRequest request{
        .role = Role::kServer, .endpoints = std::move(endpoints), .host = "h"};
    return MessageOf(job_->Join(request, kControlVersion, At(9), At(0)));
  };
  EXPECT_THAT(refusal(std::vector<Endpoint>(9, EndpointOf("tcp://x"))),
              HasSubstr("h joined with 9 endpoints, at most 8"));
  const std::string longest(255, 'a');
  const std::string longer(300, 'a');
  for (const Endpoint& each :
       {Endpoint{"tcp", longer}, Endpoint{longer, "x"}, Endpoint{"tcp", "x", {}, longer}}) {
    EXPECT_THAT(refusal({EndpointOf("tcp://x"), each}),
                HasSubstr("h joined with an endpoint of 300 bytes, at most 255"));
  }
  EXPECT_THAT(refusal({Endpoint{"", "x"}}), HasSubstr("without a scheme or an address"));
  EXPECT_THAT(refusal({Endpoint{"tcp", ""}}), HasSubstr("without a scheme or an address"));
  // Eight are as many as it takes, of a scheme that nobody knows, twice of one, and of any bytes.
  std::vector<Endpoint> most(8, Endpoint{"pigeon", longest});
  most[3] = {"tcp", "\xff\x01"};
  JoinRequest request{.role = Role::kServer, .endpoints = most, .host = "h"};
  const CallId server = job_->Join(request, kControlVersion, At(9), At(0));
  const CallId worker = job_->Join({.host = "w"}, kControlVersion, At(9), At(0));
  EXPECT_EQ(MessageOf(server), "");
  EXPECT_EQ(MessageOf(worker), "");
}

TEST_F(JobTest, ANodeWhoseJoinIsCancelledIsForgotten) {
  Start(1, 1);
  const CallId call_id = Join(Role::kWorker, 0);
  job_->Cancel(call_id);
  EXPECT_EQ(StatusOf(call_id).code(), absl::StatusCode::kCancelled);
  Join(Role::kServer, 0);
  EXPECT_EQ(job_->state(), Job::State::kWaiting);
  EXPECT_FALSE(Answered(Join(Role::kWorker, 7)) && job_->state() == Job::State::kRunning);
  EXPECT_TRUE(StatusOf(Join(Role::kWorker, 0)).ok());
}

TEST_F(JobTest, ASilentNodeFailsTheJobWhenItsLeaseEnds) {
  Fill(2, 1);
  const CallId barrier = job_->ArriveAtBarrier(1, {"b"}, At(kNever), At(1));
  for (const NodeId node : {1, 3}) EXPECT_TRUE(job_->Heartbeat(node, {}, At(4)).ok());
  EXPECT_EQ(job_->NextDeadline(), At(5));
  job_->Advance(At(4.9));
  EXPECT_TRUE(job_->failure().ok());
  job_->Advance(At(5.2));
  EXPECT_EQ(Failure(), "worker 1 (node 2, host:1) stopped answering 5.2 s ago");
  EXPECT_EQ(MessageOf(barrier), Failure());
  EXPECT_EQ(job_->ViewOf(3).failure, job_->failure());
  EXPECT_EQ(job_->Heartbeat(1, {}, At(6)), job_->failure());
  EXPECT_EQ(job_->NextDeadline(), absl::InfiniteFuture());
}

// Its connection broke before the answer came, so it sends no heartbeat yet.
TEST_F(JobTest, WhoAsksForTheAnswerToItsJoinAgainIsHeard) {
  Start(1, 1);
  Join(Role::kServer, 0);
  const JoinRequest request{.wanted_rank = 0, .host = "host:0", .join_id = 77};
  EXPECT_TRUE(StatusOf(job_->Join(request, kControlVersion, At(kNever), At(0))).ok());
  const CallId again = job_->Join(request, kControlVersion, At(kNever), At(4));
  EXPECT_TRUE(StatusOf(again).ok());
  EXPECT_EQ(answers_[again].join.node, 2);
  EXPECT_TRUE(job_->Heartbeat(1, {}, At(4)).ok());
  job_->Advance(At(6));
  EXPECT_TRUE(job_->failure().ok()) << job_->failure();
  job_->Advance(At(9.1));
  EXPECT_FALSE(job_->failure().ok());
}

TEST_F(JobTest, OfASilentNodeTheLastStepIsSaid) {
  Fill(2, 1);
  EXPECT_TRUE(job_->Heartbeat(2, {.step = 12}, At(1)).ok());
  for (const NodeId node : {1, 3}) EXPECT_TRUE(job_->Heartbeat(node, {}, At(4)).ok());
  job_->Advance(At(6));
  EXPECT_EQ(Failure(), "worker 1 (node 2, host:1) stopped answering 5.0 s ago, after step 12");
}

TEST_F(JobTest, AHostOfSeveralProcessesIsNamedWithTheirRanks) {
  FillHosts({2, 3, 1});
  const CallId barrier = job_->ArriveAtBarrier(1, {"b"}, At(2), At(1));
  job_->Advance(At(2));
  EXPECT_EQ(MessageOf(barrier), "barrier 'b': waiting for host 1 (ranks 2-4), host 2 (rank 5)");
  const CallId declaration = Declare(2, {Tensor("a")}, 3, 2);
  job_->Advance(At(3));
  EXPECT_EQ(MessageOf(declaration),
            "waiting for host 0 (ranks 0-1), host 2 (rank 5) to declare the same tensors");
  for (const NodeId node : {1, 3, 4}) EXPECT_TRUE(job_->Heartbeat(node, {}, At(4)).ok());
  job_->Advance(At(8));
  EXPECT_EQ(Failure(), "host 1 (ranks 2-4; node 2, host:1) stopped answering 8.0 s ago");
  EXPECT_THAT(job_->WhoWent(), ElementsAre("worker 1")) << "as bandoneon run calls its nodes";
}

TEST_F(JobTest, AHostOfOneProcessIsAWorkerWhereTheirRanksAreTheSame) {
  FillHosts({1, 1, 2});
  job_->Lost(2, "vanished");
  EXPECT_EQ(Failure(), "worker 1 (node 2, host:1) vanished");
}

TEST_F(JobTest, ABrokenConnectionShortensTheLeaseUntilTheNodeIsHeardAgain) {
  Fill(1, 1);
  job_->ConnectionBroke(2, At(1));
  EXPECT_EQ(job_->NextDeadline(), At(3));
  EXPECT_TRUE(job_->Heartbeat(2, {}, At(2)).ok());
  EXPECT_TRUE(job_->Heartbeat(1, {}, At(2)).ok());
  job_->Advance(At(3));
  EXPECT_TRUE(job_->failure().ok());
  job_->ConnectionBroke(2, At(4));
  job_->Advance(At(6));
  EXPECT_THAT(Failure(), HasSubstr("server 0 (node 2, host:0) stopped answering 4.0 s ago"));
}

TEST_F(JobTest, WithoutLeasesOnlyALossThatIsReportedCounts) {
  JobOptions options = Options(1, 1);
  options.has_leases = false;
  job_.emplace(options, At(0));
  Join(Role::kWorker, 0);
  Join(Role::kServer, 0);
  EXPECT_EQ(job_->NextDeadline(), absl::InfiniteFuture());
  job_->Advance(At(1e6));
  EXPECT_TRUE(job_->failure().ok());
  job_->Lost(1, "vanished");
  EXPECT_EQ(Failure(), "worker 0 (node 1, host:0) vanished");
}

TEST_F(JobTest, ADeclarationWaitsForAllWorkersAndThenForAllServers) {
  Fill(2, 2);
  const CallId first = Declare(1, {Tensor("a"), Tensor("b")});
  EXPECT_EQ(Version(), 0u);
  const CallId second = Declare(2, {Tensor("b"), Tensor("a")});
  EXPECT_EQ(Version(), 1u);
  EXPECT_EQ(job_->declarations().deltas()[0]->tensors[0].name, "a");
  EXPECT_TRUE(Install(3, 1).ok());
  EXPECT_FALSE(Answered(first));
  EXPECT_TRUE(Install(4, 1).ok());
  EXPECT_TRUE(StatusOf(first).ok());
  EXPECT_TRUE(StatusOf(second).ok());
  EXPECT_EQ(answers_[first].declared.version,
            (PlacementVersion{job_->table().membership()->epoch, 1}));
  const CatalogueDelta& delta = *job_->declarations().deltas().at(0);
  EXPECT_EQ(delta.version, answers_[first].declared.version);
  EXPECT_EQ(delta.keys.size(), 2u);
  EXPECT_TRUE(CheckDelta(delta).ok());
}

TEST_F(JobTest, ALateDeclarationNamesTheWorkerOrTheServerThatItWaitsFor) {
  Fill(2, 1);
  const CallId first = Declare(1, {Tensor("a")}, 1);
  job_->Advance(At(1));
  EXPECT_EQ(MessageOf(first), "waiting for worker 1 to declare the same tensors");
  const CallId second = Declare(2, {Tensor("a")}, 2, 1);
  job_->Advance(At(2));
  EXPECT_EQ(MessageOf(second), "waiting for server 0 (node 3, host:0) to install catalogue 1");
  // Both call again with what they said.
  const CallId third = Declare(1, {Tensor("a")}, kNever, 2);
  const CallId fourth = Declare(2, {Tensor("a")}, kNever, 2);
  EXPECT_TRUE(Install(3, 1, 2).ok());
  EXPECT_TRUE(StatusOf(third).ok());
  EXPECT_TRUE(StatusOf(fourth).ok());
  EXPECT_EQ(Version(), 1u);
}

TEST_F(JobTest, ADeclarationThatIsOpenCannotBeReplacedByAnother) {
  Fill(2, 1);
  const CallId first = Declare(1, {Tensor("a")}, 1);
  EXPECT_THAT(MessageOf(Declare(1, {Tensor("a")})), HasSubstr("twice at once"));
  job_->Advance(At(1));
  EXPECT_TRUE(Answered(first));
  EXPECT_THAT(MessageOf(Declare(1, {Tensor("z")}, kNever, 1)), HasSubstr("other tensors"));
}

TEST_F(JobTest, AFailedDeclarationFailsTheSameCallOfEveryWorkerAndNothingElse) {
  Fill(3, 1);
  const CallId first = Declare(1, {Tensor("w", 5)});
  // Its list is wanted, for its digest is another: it calls again.
  const CallId digest = Declare(2, {Tensor("w", 6)});
  ASSERT_TRUE(StatusOf(digest).ok());
  EXPECT_EQ(answers_[digest].declared.wanted_from, 0u);
  EXPECT_FALSE(Answered(first));
  const CallId second = Declare(2, {Tensor("w", 6)});
  EXPECT_THAT(MessageOf(first), HasSubstr("worker 0 says elements=5, worker 1 says elements=6"));
  EXPECT_EQ(StatusOf(second), StatusOf(first));
  EXPECT_EQ(Version(), 0u);
  const CallId third = Declare(3, {Tensor("w", 5)});
  EXPECT_EQ(StatusOf(third), StatusOf(first));
  for (const NodeId node : {1, 2, 3}) Declare(node, {Tensor("w", 5)});
  EXPECT_EQ(Version(), 1u);
  EXPECT_TRUE(job_->failure().ok());
}

TEST_F(JobTest, ATensorCannotBeDeclaredDifferentlyLater) {
  Fill(1, 1);
  Declare(1, {Tensor("w", 5)});
  ASSERT_TRUE(Install(2, 1).ok());
  EXPECT_THAT(MessageOf(Declare(1, {Tensor("w", 6)})),
              AllOf(HasSubstr("tensor 'w'"), HasSubstr("elements=5 before"),
                    HasSubstr("worker 0 now says elements=6")));
}

TEST_F(JobTest, OnlyServersAcknowledgeAndOnlyWhatExists) {
  Fill(1, 1);
  EXPECT_EQ(Install(1, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Install(2, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Install(77, 0).code(), absl::StatusCode::kNotFound);
}

TEST_F(JobTest, OnlyWorkersDeclareAndMeetAtBarriers) {
  Fill(1, 1);
  EXPECT_EQ(StatusOf(Declare(2, {Tensor("a")})).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(StatusOf(job_->ArriveAtBarrier(2, {"b"}, At(9), At(0))).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(JobTest, ABarrierIsPassedByThoseWhoAreThereAtOnce) {
  Fill(2, 1);
  const CallId early = job_->ArriveAtBarrier(1, {"b"}, At(1), At(0));
  job_->Advance(At(1));
  EXPECT_EQ(MessageOf(early), "barrier 'b': waiting for worker 1");
  const CallId second = job_->ArriveAtBarrier(2, {"b"}, At(kNever), At(1));
  EXPECT_FALSE(Answered(second));
  const CallId again = job_->ArriveAtBarrier(1, {"b"}, At(kNever), At(1));
  EXPECT_TRUE(StatusOf(second).ok());
  EXPECT_TRUE(StatusOf(again).ok());
}

TEST_F(JobTest, OneOfTwoWaitsAtABarrierMayBeGivenUp) {
  Fill(2, 1);
  const CallId first = job_->ArriveAtBarrier(1, {"b"}, At(kNever), At(0));
  const CallId second = job_->ArriveAtBarrier(1, {"b"}, At(kNever), At(0));
  job_->Cancel(first);
  job_->ArriveAtBarrier(2, {"b"}, At(kNever), At(0));
  EXPECT_TRUE(StatusOf(second).ok());
}

TEST_F(JobTest, BarriersAreBounded) {
  Fill(2, 1);
  EXPECT_THAT(MessageOf(job_->ArriveAtBarrier(1, {std::string(256, 'b')}, At(9), At(0))),
              HasSubstr("256 bytes"));
  CallId last = 0;
  for (int i = 0; i <= 4096; ++i) {
    last = job_->ArriveAtBarrier(1, {std::to_string(i)}, At(9), At(0));
  }
  EXPECT_EQ(StatusOf(last).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(JobTest, WorkersLeaveTogetherThenServersAndThenItIsOver) {
  Fill(2, 1);
  const CallId first = job_->Leave(1, absl::OkStatus(), At(kNever), At(0));
  EXPECT_FALSE(Answered(first));
  const CallId second = job_->Leave(2, absl::OkStatus(), At(kNever), At(0));
  EXPECT_TRUE(StatusOf(first).ok());
  EXPECT_TRUE(StatusOf(second).ok());
  EXPECT_EQ(job_->state(), Job::State::kDone);
  EXPECT_TRUE(job_->ViewOf(3).membership->workers.empty());
  EXPECT_EQ(job_->ViewOf(3).membership->epoch, 2u);
  EXPECT_EQ(job_->ViewOf(1).membership->epoch, 1u);
  EXPECT_FALSE(job_->finished());
  EXPECT_TRUE(StatusOf(job_->Leave(3, absl::OkStatus(), At(kNever), At(0))).ok());
  EXPECT_TRUE(job_->finished());
  EXPECT_TRUE(job_->failure().ok());
}

TEST_F(JobTest, ABarrierOrDeclarationDoesNotWaitForAWorkerThatLeaves) {
  Fill(2, 1);
  const CallId declared = Declare(2, {Tensor("a")});
  const CallId passed = Declare(1, {Tensor("a")});
  EXPECT_TRUE(Install(3, 1).ok());
  const CallId early = job_->ArriveAtBarrier(2, {"b"}, At(kNever), At(0));
  job_->Leave(1, absl::OkStatus(), At(kNever), At(0));
  EXPECT_TRUE(StatusOf(declared).ok());
  EXPECT_TRUE(StatusOf(passed).ok());
  EXPECT_EQ(StatusOf(early).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(MessageOf(early), "barrier 'b': worker 0 is leaving the job instead");
  EXPECT_EQ(MessageOf(job_->ArriveAtBarrier(2, {"c"}, At(kNever), At(0))),
            "barrier 'c': worker 0 is leaving the job instead");
  EXPECT_EQ(MessageOf(Declare(2, {Tensor("b")})),
            "declaring tensors: worker 0 is leaving the job instead");
  EXPECT_TRUE(job_->failure().ok());
}

TEST_F(JobTest, ABarrierOfANameWithANulIsRefused) {
  Fill(2, 1);
  const CallId barrier = job_->ArriveAtBarrier(1, {std::string("a\0z", 3)}, At(kNever), At(1));
  EXPECT_EQ(MessageOf(barrier), "barrier 'a\\x00z' contains NUL");
}

TEST_F(JobTest, ADeclarationWhoseAnswerWasLostHasTheSameAnswerAgain) {
  Fill(2, 1);
  const auto declare = [&](NodeId node, uint64_t number, const std::string& tensor) {
    const std::vector<TensorDeclaration> list = {Tensor(tensor)};
    return job_->Declare(node,
                         {.number = number, .digest = DigestOf(list), .count = 1, .tensors = list},
                         At(kNever), At(0));
  };
  const CallId lost = declare(1, 1, "a");
  const CallId broken = declare(2, 7, "a");
  EXPECT_FALSE(Answered(lost));
  // Its connection broke, which the scheduler has not noticed yet.
  const CallId again = declare(2, 7, "a");
  EXPECT_EQ(StatusOf(broken).code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(Install(3, 1).ok());
  EXPECT_TRUE(StatusOf(lost).ok());
  EXPECT_TRUE(StatusOf(again).ok());
  const CallId repeated = declare(1, 1, "a");
  ASSERT_TRUE(StatusOf(repeated).ok()) << "it waits in a batch of its own";
  EXPECT_EQ(answers_[repeated].declared.version.catalogue, 1u);
  // Another number, or list, is another declaration.
  const CallId next = declare(1, 2, "a");
  EXPECT_FALSE(Answered(next));
  const CallId failed = declare(2, 7, "b");
  ASSERT_TRUE(StatusOf(failed).ok());
  EXPECT_EQ(answers_[failed].declared.wanted_from, 0u);
  EXPECT_THAT(MessageOf(declare(2, 7, "b")), HasSubstr("tensor 'b'"));
  EXPECT_EQ(MessageOf(declare(2, 7, "b")), MessageOf(next));
  EXPECT_EQ(MessageOf(declare(1, 2, "a")), MessageOf(next));
  EXPECT_EQ(job_->declarations().num_batches(), 0u);
}

TEST_F(JobTest, ADeclarationThatFailedForWhoIsLeavingIsForgotten) {
  Fill(3, 1);
  const CallId open = Declare(1, {Tensor("a")});
  job_->Leave(2, absl::OkStatus(), At(kNever), At(0));
  EXPECT_EQ(StatusOf(open).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(job_->declarations().num_batches(), 1u);  // the third may ask yet
  EXPECT_EQ(MessageOf(Declare(3, {Tensor("a")})), MessageOf(open));
  EXPECT_EQ(job_->declarations().num_batches(), 0u);
  EXPECT_EQ(MessageOf(Declare(1, {Tensor("b")})), MessageOf(open));
  EXPECT_EQ(job_->declarations().num_batches(), 1u);
  job_->Leave(3, absl::OkStatus(), At(kNever), At(0));
  EXPECT_EQ(job_->declarations().num_batches(), 0u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(MessageOf(Declare(1, {Tensor("b")})), MessageOf(open));
  EXPECT_EQ(job_->declarations().num_batches(), 0u);
  EXPECT_EQ(MessageOf(Declare(2, {Tensor("b")})), "declaring tensors: worker 1 is leaving the job");
  EXPECT_EQ(job_->declarations().num_batches(), 0u);
}

TEST_F(JobTest, ABarrierEndsWhenTheLastWorkerLeaves) {
  Fill(2, 1);
  const CallId waiting = job_->ArriveAtBarrier(1, {"b"}, At(kNever), At(0));
  job_->Leave(1, absl::OkStatus(), At(kNever), At(0));
  EXPECT_FALSE(Answered(waiting));
  job_->Leave(2, absl::OkStatus(), At(kNever), At(0));
  EXPECT_EQ(StatusOf(waiting).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(job_->state(), Job::State::kDone);
}

TEST_F(JobTest, AWorkerThatLeavesMayHaveCome) {
  Fill(2, 1);
  const CallId first = job_->ArriveAtBarrier(1, {"b"}, At(kNever), At(0));
  const CallId declared = Declare(1, {Tensor("a")});
  job_->Leave(1, absl::OkStatus(), At(kNever), At(0));
  EXPECT_TRUE(StatusOf(job_->ArriveAtBarrier(2, {"b"}, At(kNever), At(0))).ok());
  EXPECT_TRUE(StatusOf(first).ok());
  const CallId second = Declare(2, {Tensor("a")});
  EXPECT_TRUE(Install(3, 1).ok());
  EXPECT_TRUE(StatusOf(second).ok());
  EXPECT_TRUE(StatusOf(declared).ok());
}

TEST_F(JobTest, ServersAreToldWhoIsLeaving) {
  Fill(2, 1);
  EXPECT_EQ(job_->ViewOf(3).leaving, 0u);
  const Job::Revision before = job_->revision();
  job_->Leave(2, absl::OkStatus(), At(kNever), At(0));
  EXPECT_NE(job_->revision(), before);
  EXPECT_EQ(job_->ViewOf(3).leaving, 1u);
  EXPECT_EQ(job_->LeavingRanks(), std::vector<Rank>{1});
  EXPECT_EQ(job_->ViewOf(1).leaving, 0u);
  job_->Leave(1, absl::OkStatus(), At(kNever), At(0));
  EXPECT_TRUE(job_->ViewOf(3).done);
}

TEST_F(JobTest, AServerLostAfterTheWorkIsDoneHarmsNobody) {
  Fill(1, 1);
  job_->Leave(1, absl::OkStatus(), At(kNever), At(0));
  job_->Advance(At(100));
  EXPECT_TRUE(job_->failure().ok());
  EXPECT_TRUE(job_->finished());
}

TEST_F(JobTest, AWorkerThatGivesUpWaitingToLeaveFailsTheJob) {
  Fill(2, 1);
  const CallId call_id = job_->Leave(1, absl::OkStatus(), At(3), At(0));
  job_->Advance(At(3));
  EXPECT_EQ(MessageOf(call_id), "waiting to leave with worker 1");
  EXPECT_THAT(Failure(), HasSubstr("worker 0 (node 1, host:0) gave up waiting to leave"));
}

TEST_F(JobTest, AnErrorOnLeavingIsPassedOnToAll) {
  Fill(2, 1);
  const CallId waiting = Declare(1, {Tensor("a")});
  EXPECT_TRUE(StatusOf(job_->Leave(2, absl::InternalError("CUDA died"), At(9), At(0))).ok());
  EXPECT_EQ(MessageOf(waiting), "worker 1 (node 2, host:1) left with an error: CUDA died");
  EXPECT_FALSE(StatusOf(job_->Leave(1, absl::OkStatus(), At(9), At(0))).ok());
}

TEST_F(JobTest, KnowsWhoWentBeforeItFailed) {
  Fill(3, 1);
  EXPECT_THAT(job_->WhoWent(), ::testing::IsEmpty());
  job_->Leave(2, absl::OkStatus(), At(kNever), At(0));
  job_->Leave(1, absl::AbortedError("RuntimeError: worker 1 is leaving"), At(kNever), At(1));
  job_->Lost(4, "closed its connection");
  EXPECT_THAT(job_->WhoWent(), ::testing::ElementsAre("worker 1", "worker 0"));
}

TEST_F(JobTest, KnowsWhatANodeWaitsFor) {
  Fill(2, 1);
  EXPECT_EQ(job_->WaitsOf(1), "");
  const CallId barrier = job_->ArriveAtBarrier(1, {"b"}, At(kNever), At(0));
  Declare(1, {Tensor("w")});
  EXPECT_EQ(job_->WaitsOf(1),
            "barrier 'b': waiting for worker 1; waiting for worker 1 to declare the same tensors");
  EXPECT_EQ(job_->WaitedForBy(barrier), "barrier 'b': waiting for worker 1");
  EXPECT_EQ(job_->WaitsOf(2), "");
  job_->Cancel(barrier);
  EXPECT_EQ(job_->WaitsOf(1), "waiting for worker 1 to declare the same tensors");
  EXPECT_EQ(job_->WaitedForBy(barrier), "");
}

TEST_F(JobTest, WhereAnotherFollowsWhoComesTooEarlyComesAgain) {
  JobOptions options = Options(1, 1);
  options.is_followed = true;
  job_.emplace(options, At(0));
  Join(Role::kServer, 0);
  Join(Role::kWorker, 0);
  EXPECT_EQ(StatusOf(Join(Role::kWorker, 0)).code(), absl::StatusCode::kUnavailable);
  job_->Lost(1, "was lost");
  EXPECT_EQ(StatusOf(Join(Role::kWorker, 0)).code(), absl::StatusCode::kUnavailable);
}

TEST_F(JobTest, WhereAnotherFollowsTheTimeToJoinBeginsWithTheFirstWorker) {
  JobOptions options = Options(2, 1);
  options.is_followed = true;
  job_.emplace(options, At(0));
  Join(Role::kServer, 0);
  job_->Advance(At(1000));
  EXPECT_EQ(job_->state(), Job::State::kWaiting);
  const CallId gone = Join(Role::kWorker, 0, kNever, 1000);
  EXPECT_EQ(job_->NextDeadline(), At(1060));
  job_->Cancel(gone);
  job_->Advance(At(2000));
  EXPECT_EQ(job_->state(), Job::State::kWaiting);
  Join(Role::kWorker, 1, kNever, 2000);
  job_->Advance(At(2060));
  EXPECT_THAT(Failure(), HasSubstr("not all nodes joined in time"));
}

TEST_F(JobTest, StoppingEndsEveryWait) {
  Fill(2, 1);
  const CallId waiting = Declare(1, {Tensor("a")});
  job_->Stop("the scheduler was stopped");
  EXPECT_EQ(MessageOf(waiting), "the scheduler was stopped");
}

TEST_F(JobTest, TheRevisionMovesWithEveryView) {
  Fill(1, 1);
  Job::Revision seen = job_->revision();
  const auto moved = [&] { return std::exchange(seen, job_->revision()) != job_->revision(); };
  EXPECT_TRUE(job_->Heartbeat(1, {5, 6, 7}, At(0)).ok());
  EXPECT_FALSE(moved());
  EXPECT_EQ(job_->table().Find(1)->progress.step, 5u);
  Declare(1, {Tensor("a")});
  EXPECT_TRUE(moved());
  job_->Leave(1, absl::OkStatus(), At(9), At(0));
  EXPECT_TRUE(moved());
}

TEST_F(JobTest, AHeartbeatThatCrossesTheAnswerToLeaveIsHarmless) {
  Fill(2, 1);
  for (const NodeId node : {1, 2}) job_->Leave(node, absl::OkStatus(), At(kNever), At(0));
  EXPECT_TRUE(job_->table().Find(1)->left);
  for (const NodeId node : {1, 2, 3}) EXPECT_TRUE(job_->Heartbeat(node, {}, At(1)).ok());
  EXPECT_TRUE(StatusOf(job_->Leave(3, absl::OkStatus(), At(kNever), At(1))).ok());
  EXPECT_TRUE(job_->Heartbeat(3, {}, At(1)).ok());
  EXPECT_EQ(job_->Heartbeat(77, {}, At(1)).code(), absl::StatusCode::kNotFound);
}

TEST_F(JobTest, WhoHasLeftMayLeaveAgainIfTheAnswerWasLost) {
  Fill(1, 1);
  EXPECT_TRUE(StatusOf(job_->Leave(1, absl::OkStatus(), At(kNever), At(0))).ok());
  EXPECT_TRUE(StatusOf(job_->Leave(1, absl::OkStatus(), At(kNever), At(0))).ok());
  EXPECT_TRUE(StatusOf(job_->Leave(2, absl::OkStatus(), At(kNever), At(0))).ok());
  EXPECT_TRUE(StatusOf(job_->Leave(2, absl::OkStatus(), At(kNever), At(0))).ok());
  EXPECT_TRUE(job_->finished());
}

TEST_F(JobTest, WorkersWithoutAListDeclareByItsDigest) {
  Fill(3, 1);
  const std::vector<TensorDeclaration> list = {Tensor("a"), Tensor("b")};
  const CallId early = DeclareDigest(3, list);
  EXPECT_FALSE(Answered(early));
  Declare(1, list);
  EXPECT_EQ(Version(), 0u);
  DeclareDigest(2, {Tensor("b"), Tensor("a")});
  EXPECT_EQ(Version(), 1u);
  EXPECT_TRUE(Install(4, 1).ok());
  ASSERT_TRUE(StatusOf(early).ok());
  EXPECT_EQ(answers_[early].declared.version.catalogue, 1u);
}

TEST_F(JobTest, TheFirstWorkersListIsAskedForWhereItSentADigestOnly) {
  Fill(2, 1);
  const CallId call_id = DeclareDigest(1, {Tensor("a")});
  ASSERT_TRUE(StatusOf(call_id).ok());
  EXPECT_EQ(answers_[call_id].declared.wanted_from, 0u);
  const CallId late = DeclareDigest(1, {Tensor("a")}, 1);
  ASSERT_TRUE(Answered(late));
  const CallId other = DeclareDigest(2, {Tensor("a")}, 1);
  job_->Advance(At(1));
  EXPECT_EQ(MessageOf(other), "waiting for worker 0 to declare the same tensors");
}

TEST_F(JobTest, WorkersLearnOfTheServersAlone) {
  Fill(2, 1);
  EXPECT_TRUE(job_->ViewOf(1).membership->workers.empty());
  EXPECT_EQ(job_->ViewOf(1).membership->servers, job_->table().membership()->servers);
  EXPECT_EQ(job_->ViewOf(3).membership, job_->table().membership());
  EXPECT_EQ(job_->ViewOf(3).membership->workers.size(), 2u);
}

TEST_F(JobTest, ABarrierThatALeavingWorkerGivesUpEnds) {
  Fill(3, 1);
  const CallId given_up = job_->ArriveAtBarrier(1, {"b"}, At(kNever), At(0));
  const CallId waiting = job_->ArriveAtBarrier(2, {"b"}, At(kNever), At(0));
  job_->Leave(1, absl::OkStatus(), At(kNever), At(0));
  EXPECT_FALSE(Answered(waiting));
  job_->Cancel(given_up);
  EXPECT_EQ(MessageOf(waiting), "barrier 'b': worker 0 is leaving the job instead");
}

// ---- The job goes on without a worker

// Three workers (nodes 1 to 3) and a server (node 4), of which two workers must be left.
class LostWorkerTest : public JobTest {
 protected:
  LostWorkerTest() { Begin(3, 2); }
  void Begin(int workers, int fewest) {
    JobOptions options = Options(workers, 1);
    options.config.min_workers = fewest;
    options.config.stuck_timeout = absl::Seconds(20);
    job_.emplace(options, At(0));
    answers_.clear();
    for (Rank rank = 0; rank < workers; ++rank) Join(Role::kWorker, rank);
    Join(Role::kServer, 0);
    Collect();
  }
  std::vector<Rank> Present() {
    std::vector<Rank> ranks;
    for (const NodeInfo& worker : job_->table().membership()->workers) ranks.push_back(worker.rank);
    return ranks;
  }
};

TEST_F(LostWorkerTest, TheNextEpochLacksItAndEverybodyIsTold) {
  const Job::Revision before = job_->revision();
  job_->Lost(2, "was killed");
  EXPECT_EQ(job_->state(), Job::State::kRunning);
  EXPECT_THAT(Present(), ElementsAre(0, 2));
  EXPECT_NE(job_->revision(), before);
  const Job::View server = job_->ViewOf(4);
  EXPECT_EQ(server.membership->epoch, 2u);
  EXPECT_EQ(server.membership->workers.size(), 2u);
  EXPECT_THAT(server.membership->vacant, ElementsAre(1));
  const Job::View worker = job_->ViewOf(3);
  EXPECT_EQ(worker.membership->epoch, 2u);
  EXPECT_TRUE(worker.membership->workers.empty());
  EXPECT_THAT(worker.membership->vacant, ElementsAre(1));
  EXPECT_TRUE(worker.failure.ok());
}

TEST_F(LostWorkerTest, ItselfIsToldThatTheJobGoesOnWithoutIt) {
  for (const NodeId node : {1, 2, 3, 4}) EXPECT_TRUE(job_->Heartbeat(node, {}, At(4)).ok());
  for (const NodeId node : {1, 3, 4}) EXPECT_TRUE(job_->Heartbeat(node, {}, At(8)).ok());
  job_->Advance(At(9.5));
  const absl::Status told = job_->ViewOf(2).failure;
  EXPECT_TRUE(IsEvicted(told)) << told;
  EXPECT_EQ(std::string(told.message()),
            "the job goes on without worker 1 (node 2, host:1), which stopped answering 5.5 s ago");
  EXPECT_TRUE(IsEvicted(job_->Heartbeat(2, {}, At(10))));
  EXPECT_TRUE(IsEvicted(StatusOf(job_->ArriveAtBarrier(2, {"b"}, At(kNever), At(10)))));
  EXPECT_TRUE(IsEvicted(StatusOf(Declare(2, {Tensor("w")}, kNever, 10))));
  EXPECT_TRUE(IsEvicted(StatusOf(job_->Leave(2, absl::OkStatus(), At(kNever), At(10)))));
  EXPECT_TRUE(IsEvicted(StatusOf(job_->Leave(2, absl::AbortedError("x"), At(kNever), At(10)))));
  job_->Lost(2, "closed its connection without leaving");
  job_->ConnectionBroke(2, At(10));
  EXPECT_EQ(job_->state(), Job::State::kRunning) << "whatever it does harms nobody";
}

TEST_F(LostWorkerTest, FewerThanMinWorkersFailTheJob) {
  job_->Lost(1, "was killed");
  job_->Lost(3, "was killed");
  EXPECT_EQ(job_->state(), Job::State::kFailed);
  EXPECT_EQ(Failure(),
            "worker 2 (node 3, host:2) was killed; 1 worker would be left, and min-workers is 2");
  EXPECT_THAT(job_->WhoWent(), ElementsAre("worker 2"));
  Begin(3, 3);
  job_->Lost(1, "was killed");
  EXPECT_EQ(Failure(),
            "worker 0 (node 1, host:0) was killed; 2 workers would be left, and min-workers is 3");
}

TEST_F(LostWorkerTest, WithoutTheSettingOrOfAServerTheJobFails) {
  job_->Lost(4, "was killed");
  EXPECT_EQ(job_->state(), Job::State::kFailed);
  Begin(3, 0);
  job_->Lost(2, "was killed");
  EXPECT_EQ(Failure(), "worker 1 (node 2, host:1) was killed");
}

TEST_F(LostWorkerTest, AWorkersErrorStillEndsTheJob) {
  (void)job_->Leave(2, absl::AbortedError("ValueError: x"), At(kNever), At(1));
  EXPECT_EQ(job_->state(), Job::State::kFailed);
}

TEST_F(LostWorkerTest, ABarrierThatWaitedForItIsFullAndTellsAllTheSame) {
  const CallId first = job_->ArriveAtBarrier(1, {"b"}, At(kNever), At(0));
  const CallId third = job_->ArriveAtBarrier(3, {"b"}, At(kNever), At(0));
  EXPECT_FALSE(Answered(first));
  job_->Lost(2, "was killed");
  EXPECT_TRUE(StatusOf(first).ok());
  EXPECT_THAT(answers_[first].met.vacant, ElementsAre(1));
  EXPECT_THAT(answers_[third].met.vacant, ElementsAre(1));
}

TEST_F(LostWorkerTest, ItsOwnWaitsEndAndABarrierOfItsAloneIsGone) {
  const CallId alone = job_->ArriveAtBarrier(2, {"alone"}, At(kNever), At(0));
  const CallId declared = Declare(2, {Tensor("w")});
  job_->Lost(2, "was killed");
  EXPECT_TRUE(IsEvicted(StatusOf(alone)));
  EXPECT_TRUE(IsEvicted(StatusOf(declared)));
  const CallId one = job_->ArriveAtBarrier(1, {"alone"}, At(kNever), At(0));
  EXPECT_FALSE(Answered(one));
  (void)job_->ArriveAtBarrier(3, {"alone"}, At(kNever), At(0));
  EXPECT_TRUE(StatusOf(one).ok());
}

TEST_F(LostWorkerTest, ADeclarationGoesOnWithoutIt) {
  const CallId first = Declare(1, {Tensor("w")});
  const CallId third = DeclareDigest(3, {Tensor("w")});
  job_->Lost(2, "was killed");
  EXPECT_EQ(Version(), 1u);
  EXPECT_TRUE(Install(4, 1).ok());
  EXPECT_TRUE(StatusOf(first).ok()) << StatusOf(first);
  EXPECT_TRUE(StatusOf(third).ok()) << StatusOf(third);
}

TEST_F(LostWorkerTest, WhereItWasToGiveTheListTheNextRankGivesIt) {
  const CallId second = DeclareDigest(2, {Tensor("w"), Tensor("x")});
  const CallId third = DeclareDigest(3, {Tensor("x"), Tensor("w")});
  EXPECT_FALSE(Answered(second));
  job_->Lost(1, "was killed");
  ASSERT_TRUE(StatusOf(second).ok()) << StatusOf(second);
  EXPECT_EQ(answers_[second].declared.wanted_from, 0u) << "its list is wanted";
  EXPECT_FALSE(Answered(third));
  const CallId list = Declare(2, {Tensor("w"), Tensor("x")});
  EXPECT_EQ(Version(), 1u);
  EXPECT_TRUE(Install(4, 1).ok());
  EXPECT_TRUE(StatusOf(list).ok());
  EXPECT_TRUE(StatusOf(third).ok());
}

TEST_F(LostWorkerTest, AListThatItHasGivenStaysTheCatalogues) {
  (void)Declare(1, {Tensor("w"), Tensor("x")});
  const CallId second = DeclareDigest(2, {Tensor("w"), Tensor("x")});
  job_->Lost(1, "was killed");
  const CallId third = DeclareDigest(3, {Tensor("w"), Tensor("x")});
  EXPECT_EQ(Version(), 1u);
  EXPECT_TRUE(Install(4, 1).ok());
  EXPECT_TRUE(StatusOf(second).ok());
  EXPECT_TRUE(StatusOf(third).ok());
  EXPECT_EQ(job_->declarations().num_batches(), 0u) << "nobody has still to be told";
}

TEST_F(LostWorkerTest, WhatTheOthersAreDoneWithIsRetired) {
  const std::vector<TensorDeclaration> tensors = {Tensor("w")};
  (void)Declare(1, tensors);
  for (const NodeId node : {2, 3}) (void)DeclareDigest(node, tensors);
  EXPECT_TRUE(Install(4, 1).ok());
  EXPECT_TRUE(job_->Retire(1, {0}, At(0)).ok());
  EXPECT_TRUE(job_->Retire(2, {0}, At(0)).ok());
  job_->Lost(2, "was killed");
  EXPECT_EQ(job_->declarations().totals().tensors, 1u) << "worker 2 still has it";
  EXPECT_TRUE(job_->Retire(3, {0}, At(0)).ok());
  EXPECT_EQ(job_->declarations().totals().tensors, 0u);
}

TEST_F(LostWorkerTest, TheOthersLeaveTogether) {
  const CallId first = job_->Leave(1, absl::OkStatus(), At(kNever), At(0));
  const CallId third = job_->Leave(3, absl::OkStatus(), At(kNever), At(0));
  EXPECT_FALSE(Answered(first));
  job_->Lost(2, "was killed");
  EXPECT_TRUE(StatusOf(first).ok());
  EXPECT_TRUE(StatusOf(third).ok());
  EXPECT_EQ(job_->state(), Job::State::kDone);
  EXPECT_GT(job_->ViewOf(4).membership->epoch, 2u) << "servers hear of the end by another epoch";
  EXPECT_TRUE(StatusOf(job_->Leave(4, absl::OkStatus(), At(kNever), At(0))).ok());
  EXPECT_TRUE(job_->finished());
}

TEST_F(LostWorkerTest, OneThatWasLeavingIsWaitedForNoMore) {
  const CallId leaving = job_->Leave(2, absl::OkStatus(), At(kNever), At(0));
  job_->Lost(2, "was killed");
  EXPECT_TRUE(IsEvicted(StatusOf(leaving)));
  const CallId barrier = job_->ArriveAtBarrier(1, {"b"}, At(kNever), At(0));
  EXPECT_FALSE(Answered(barrier)) << "nobody is leaving any more";
  (void)job_->ArriveAtBarrier(3, {"b"}, At(kNever), At(0));
  EXPECT_TRUE(StatusOf(barrier).ok());
}

TEST_F(LostWorkerTest, TwoAtOneMomentAreTwoEpochs) {
  Begin(4, 2);
  for (const NodeId node : {1, 4, 5}) EXPECT_TRUE(job_->Heartbeat(node, {}, At(4)).ok());
  job_->Advance(At(6));
  EXPECT_THAT(Present(), ElementsAre(0, 3));
  EXPECT_EQ(job_->table().membership()->epoch, 3u);
  EXPECT_THAT(job_->table().membership()->vacant, ElementsAre(1, 2));
}

TEST_F(LostWorkerTest, OneForWhichRoundsWaitForStuckTimeoutCountsAsLost) {
  EXPECT_TRUE(job_->ReportWaits(4, {{2, absl::Seconds(19)}}, At(1)).ok());
  EXPECT_THAT(Present(), ElementsAre(0, 1, 2));
  EXPECT_TRUE(job_->ReportWaits(4, {{2, absl::Seconds(20)}, {7, absl::Hours(1)}}, At(2)).ok());
  EXPECT_THAT(Present(), ElementsAre(0, 2));
  EXPECT_THAT(
      std::string(job_->ViewOf(2).failure.message()),
      HasSubstr("which lives, but rounds at server 0 have waited for its pushes for 20.0 s"));
  EXPECT_TRUE(job_->ReportWaits(4, {{1, absl::Hours(1)}}, At(3)).ok());
  EXPECT_THAT(Present(), ElementsAre(0, 2)) << "the job cannot do without: it is only waited for";
  EXPECT_EQ(job_->state(), Job::State::kRunning);
  // A worker's word is of servers.
  EXPECT_TRUE(job_->ReportWaits(1, {{3, absl::Hours(1)}}, At(3)).ok());
  EXPECT_THAT(Present(), ElementsAre(0, 2));
}

TEST(JobOptions, NamesTheSettingThatIsWrong) {
  const auto expect = [](auto change, const std::string& named) {
    JobOptions options = Options(1, 1);
    change(options);
    EXPECT_THAT(std::string(CheckJobOptions(options).message()), HasSubstr(named));
  };
  EXPECT_TRUE(CheckJobOptions(Options(1, 1)).ok());
  expect([](auto& o) { o.config.num_workers = 0; }, "workers");
  expect([](auto& o) { o.config.num_servers = -1; }, "servers");
  expect([](auto& o) { o.config.min_workers = o.config.num_workers + 1; }, "min-workers");
  expect([](auto& o) { o.config.min_workers = -1; }, "min-workers");
  expect([](auto& o) { o.config.first_workers = 2; }, "max-workers");
  const auto grows = [](auto& o, int fewest) {
    o.config.num_workers = 3;
    o.config.first_workers = 2;
    o.config.min_workers = fewest;
  };
  expect([&](auto& o) { grows(o, 0); }, "begins with 2 of 3 workers");
  expect([&](auto& o) { grows(o, 3); }, "expected 0 (all) to 2");
  expect([](auto& o) { o.config.stuck_timeout = -absl::Seconds(1); }, "stuck-timeout");
  expect([](auto& o) { o.config.link_timeout = -absl::Seconds(1); }, "link-timeout");
  expect([](auto& o) { o.config.partition_bytes = 3; }, "partition-bytes");
  expect([](auto& o) { o.limits.max_job_bytes = 0; }, "max-job-bytes");
  expect([](auto& o) { o.limits.max_tensors = 0; }, "max-tensors");
  expect([](auto& o) { o.config.heartbeat_interval = absl::ZeroDuration(); }, "heartbeat-interval");
  expect([](auto& o) { o.config.lease_timeout = absl::Seconds(1); }, "lease-timeout");
  expect([](auto& o) { o.config.job_id = std::string(300, 'j'); }, "job-id");
}

}  // namespace
}  // namespace bdn
