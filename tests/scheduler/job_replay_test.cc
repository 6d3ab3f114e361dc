// A scheduler may be lost at any moment: the next one takes the job up from the log, and nodes
// whose calls have no answer make them again.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "common/base/status.h"
#include "scheduler/job.h"
#include "scheduler/job_journal.h"

namespace bdn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kWorkers = 3;
constexpr int kServers = 2;

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

JobOptions Options(int min_workers = 0, uint32_t replay_steps = 0, int first_workers = kWorkers) {
  JobOptions options;
  options.config.replay_steps = replay_steps;
  options.config.job_id = "job";
  options.config.num_workers = kWorkers;
  options.config.first_workers = first_workers;
  options.config.num_servers = kServers;
  options.config.min_workers = min_workers;
  options.config.scheduler_timeout = absl::Minutes(10);
  options.data_secret = "secret";
  return options;
}

// Keeps the events as a journal does, as records.
class MemoryLog final : public JobLog {
 public:
  absl::Status Append(const JobEvent& event) override {
    ++attempts;
    if (!refusal.ok()) return refusal;
    records.push_back(ToRecord(event));
    is_of_barriers.push_back(
        std::holds_alternative<BarrierReached>(event) ||
        (std::holds_alternative<BoundaryEnded>(event) &&
         std::get<BoundaryEnded>(event).taken_in.empty()) ||
        (std::holds_alternative<CallEnded>(event) &&
         std::get<CallEnded>(event).subject.kind == WaitSubject::Kind::kBarrier));
    ++since_shortened;
    return absl::OkStatus();
  }
  State state() const override { return {}; }
  bool IsLong() const override { return since_shortened > most; }
  void Shorten(const std::vector<JobEvent>& barriers) override {
    std::vector<JournalRecord> kept;
    std::vector<bool> marks;
    for (size_t i = 0; i < records.size(); ++i) {
      if (is_of_barriers[i]) continue;
      kept.push_back(records[i]);
      marks.push_back(false);
    }
    for (const JobEvent& event : barriers) {
      kept.push_back(ToRecord(event));
      marks.push_back(true);
    }
    records = std::move(kept);
    is_of_barriers = std::move(marks);
    since_shortened = 0;
  }

  std::vector<JobEvent> Events() const {
    std::vector<JobEvent> events;
    for (const JournalRecord& record : records) {
      absl::StatusOr<JobEvent> event = FromRecord(record);
      EXPECT_TRUE(event.ok()) << event.status();
      events.push_back(*std::move(event));
    }
    return events;
  }

  std::vector<JournalRecord> records;
  std::vector<bool> is_of_barriers;
  absl::Status refusal;
  size_t since_shortened = 0;
  size_t attempts = 0;
  size_t most = 1000000;
};

JoinRequest JoinOf(Role role, Rank rank) {
  JoinRequest request;
  request.role = role;
  request.wanted_rank = rank;
  request.host = absl::StrFormat("host:%d", rank);
  request.join_id = static_cast<uint64_t>(100 + rank) + (role == Role::kServer ? 50 : 0);
  if (role == Role::kServer) request.endpoints = {EndpointOf("tcp://x")};
  return request;
}

TensorDeclaration Tensor(const std::string& name) {
  TensorDeclaration tensor;
  tensor.name = name;
  tensor.elements = 10;
  return tensor;
}

// The declaration of these names, from one of them on: all that follow, or so many.
DeclarationPart PartOf(const std::vector<std::string>& names, uint64_t number, size_t first = 0,
                       size_t count = SIZE_MAX) {
  std::vector<TensorDeclaration> tensors;
  for (const std::string& name : names) tensors.push_back(Tensor(name));
  DeclarationPart part{.number = number,
                       .digest = DigestOf(tensors),
                       .count = static_cast<uint32_t>(tensors.size()),
                       .first = static_cast<uint32_t>(first)};
  for (size_t i = first; i < tensors.size() && i - first < count; ++i) {
    part.tensors.push_back(tensors[i]);
  }
  return part;
}

DeclarationPart PartOf(const std::string& name, uint64_t number) {
  return PartOf(std::vector<std::string>{name}, number);
}

class JobReplayTest : public ::testing::Test {
 protected:
  void Begin(int min_workers = 0, uint32_t replay_steps = 0) {
    min_workers_ = min_workers;
    replay_steps_ = replay_steps;
    job_.emplace(Options(min_workers, replay_steps), At(0), &log_);
    std::vector<CallId> joins;
    for (Rank rank = 0; rank < kWorkers; ++rank) {
      joins.push_back(job_->Join(JoinOf(Role::kWorker, rank), kControlVersion, At(1e9), At(now_)));
    }
    for (Rank rank = 0; rank < kServers; ++rank) {
      joins.push_back(job_->Join(JoinOf(Role::kServer, rank), kControlVersion, At(1e9), At(now_)));
    }
    for (const Job::Completion& done : job_->TakeCompletions()) {
      ASSERT_TRUE(done.status.ok());
    }
  }
  // The scheduler is lost, and another one takes the job up.
  void Crash() {
    log_.records.push_back(ToRecord(JobResumed()));
    log_.is_of_barriers.push_back(false);
    job_.emplace(Options(min_workers_, replay_steps_), At(now_), &log_);
    job_->Resume(log_.Events(), At(now_));
  }
  void HearAll(double now) {
    now_ = now;
    for (NodeId node = 1; node <= kWorkers + kServers; ++node) {
      (void)job_->Heartbeat(node, {}, At(now));
    }
  }
  absl::Status Answer(CallId call_id) {
    for (Job::Completion& done : job_->TakeCompletions()) answers_[done.call_id] = done;
    const auto found = answers_.find(call_id);
    return found == answers_.end() ? absl::UnknownError("no answer yet") : found->second.status;
  }

  MemoryLog log_;
  std::optional<Job> job_;
  std::map<CallId, Job::Completion> answers_;
  double now_ = 0;
  int min_workers_ = 0;
  uint32_t replay_steps_ = 0;
};

TEST_F(JobReplayTest, HasTheMembershipAndRenewsTheLeases) {
  Begin();
  const Membership before = *job_->table().membership();
  now_ = 4;
  Crash();
  EXPECT_EQ(job_->state(), Job::State::kRunning);
  EXPECT_EQ(*job_->table().membership(), before);
  job_->Advance(At(8.9));
  EXPECT_TRUE(job_->failure().ok()) << job_->failure();
  job_->Advance(At(9.1));
  EXPECT_THAT(std::string(job_->failure().message()), HasSubstr("stopped answering 5.1 s ago"));
}

TEST_F(JobReplayTest, AnswersAJoinAgainUntilTheNodeWasHeard) {
  Begin();
  Crash();
  const CallId again = job_->Join(JoinOf(Role::kWorker, 1), kControlVersion, At(9), At(0));
  ASSERT_TRUE(Answer(again).ok()) << Answer(again);
  EXPECT_EQ(answers_[again].join.rank, 1);
  EXPECT_EQ(answers_[again].join.node, 2u);
  EXPECT_EQ(answers_[again].join.data_secret, "secret");
  EXPECT_EQ(answers_[again].join.processes, std::vector<int>(kWorkers, 1));
  // Another node may not come with that number, and not this one once it has its answer.
  JoinRequest other = JoinOf(Role::kWorker, 1);
  other.host = "another";
  EXPECT_TRUE(absl::IsAlreadyExists(Answer(job_->Join(other, kControlVersion, At(9), At(0)))));
  ASSERT_TRUE(job_->Heartbeat(2, {}, At(0)).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(
      Answer(job_->Join(JoinOf(Role::kWorker, 1), kControlVersion, At(9), At(0)))));
}

TEST_F(JobReplayTest, AnAttemptToJoinThatIsMadeAgainIsTheSameNode) {
  job_.emplace(Options(), At(0), &log_);
  const CallId first = job_->Join(JoinOf(Role::kWorker, 0), kControlVersion, At(9), At(0));
  const CallId second = job_->Join(JoinOf(Role::kWorker, 0), kControlVersion, At(9), At(0));
  EXPECT_EQ(job_->MissingNodes(),
            "worker rank 1, worker rank 2, server rank 0, server rank 1 (1 of 5 have joined)");
  job_->Cancel(first);
  EXPECT_EQ(job_->MissingNodes(),
            "worker rank 1, worker rank 2, server rank 0, server rank 1 (1 of 5 have joined)");
  job_->Cancel(second);
  EXPECT_THAT(job_->MissingNodes(), HasSubstr("(0 of 5 have joined)"));
}

TEST_F(JobReplayTest, ABarrierGoesOnWithThoseWhoHadCome) {
  Begin();
  job_->ArriveAtBarrier(1, {"b", 1, 1}, At(1e9), At(0));
  job_->ArriveAtBarrier(2, {"b", 1, 1}, At(1e9), At(0));
  Crash();
  // Worker 3 had not come, and is the last. Workers 1 and 2 come again, before and after it.
  const CallId first = job_->ArriveAtBarrier(1, {"b", 1, 1}, At(1e9), At(0));
  const CallId third = job_->ArriveAtBarrier(3, {"b", 1, 1}, At(1e9), At(0));
  EXPECT_TRUE(Answer(first).ok());
  EXPECT_TRUE(Answer(third).ok());
  // Its answer is kept, although the barrier has begun anew.
  const CallId next = job_->ArriveAtBarrier(1, {"b", 2, 2}, At(1e9), At(0));
  EXPECT_TRUE(Answer(job_->ArriveAtBarrier(2, {"b", 1, 1}, At(1e9), At(0))).ok());
  EXPECT_TRUE(absl::IsUnknown(Answer(next)));
}

TEST_F(JobReplayTest, TheAnswerOfABarrierOutlivesTheScheduler) {
  Begin();
  for (NodeId node = 1; node <= 3; ++node) {
    job_->ArriveAtBarrier(node, {"b", 7, 7}, At(1e9), At(0));
  }
  Crash();
  for (NodeId node = 1; node <= 3; ++node) {
    EXPECT_TRUE(Answer(job_->ArriveAtBarrier(node, {"b", 7, 7}, At(1e9), At(0))).ok());
  }
  EXPECT_TRUE(absl::IsUnknown(Answer(job_->ArriveAtBarrier(1, {"b", 8, 8}, At(1e9), At(0)))));
}

TEST_F(JobReplayTest, WhoGaveUpABarrierHasNotCome) {
  Begin();
  const CallId given_up = job_->ArriveAtBarrier(1, {"b", 1, 1}, At(1e9), At(0));
  job_->ArriveAtBarrier(2, {"b", 1, 1}, At(1e9), At(0));
  job_->Cancel(given_up);
  Crash();
  const CallId third = job_->ArriveAtBarrier(3, {"b", 1, 1}, At(1e9), At(0));
  EXPECT_TRUE(absl::IsUnknown(Answer(third)));
}

TEST_F(JobReplayTest, OneOfTwoCallsThatIsGivenUpTakesNothingBack) {
  Begin(1);
  // A connection has broken, and the node has made its calls again before that was noticed.
  const CallId old_barrier = job_->ArriveAtBarrier(1, {"b", 1, 1}, At(1e9), At(0));
  job_->ArriveAtBarrier(1, {"b", 1, 1}, At(1e9), At(0));
  job_->Cancel(old_barrier);
  Crash();
  EXPECT_FALSE(job_->BarrierEvents().empty()) << "the barrier has forgotten who had come";
  const CallId old_leave = job_->Leave(1, absl::OkStatus(), At(1e9), At(0));
  job_->Leave(1, absl::OkStatus(), At(1e9), At(0));
  job_->Cancel(old_leave);
  Crash();
  EXPECT_EQ(job_->table().membership()->epoch, 1u);
  EXPECT_THAT(job_->LeavingRanks(), ElementsAre(0));
}

TEST_F(JobReplayTest, ACallToLeaveThatBreaksIsMadeAgain) {
  Begin();
  const CallId broken = job_->Leave(1, absl::OkStatus(), At(1e9), At(0));
  job_->Cancel(broken);
  EXPECT_TRUE(job_->failure().ok()) << job_->failure();
  Crash();
  EXPECT_TRUE(job_->failure().ok()) << job_->failure();
  std::vector<CallId> calls;
  for (const NodeId node : {1, 2, 3}) {
    calls.push_back(job_->Leave(node, absl::OkStatus(), At(1e9), At(0)));
  }
  for (const CallId call : calls) EXPECT_TRUE(Answer(call).ok()) << Answer(call);
}

TEST_F(JobReplayTest, AWorkerWhoseCallToLeaveWasLostHasNotLeft) {
  Begin();
  job_->Leave(1, absl::OkStatus(), At(1e9), At(0));
  Crash();
  // The others are back first, and the work is done with them.
  EXPECT_TRUE(absl::IsUnknown(Answer(job_->Leave(2, absl::OkStatus(), At(1e9), At(0)))));
  EXPECT_TRUE(Answer(job_->Leave(3, absl::OkStatus(), At(1e9), At(0))).ok());
  for (const NodeId server : {4, 5}) {
    EXPECT_TRUE(Answer(job_->Leave(server, absl::OkStatus(), At(1e9), At(0))).ok());
  }
  EXPECT_FALSE(job_->finished()) << "worker 0 would find no scheduler";
  EXPECT_TRUE(Answer(job_->Leave(1, absl::OkStatus(), At(1e9), At(1))).ok());
  EXPECT_TRUE(job_->finished());
  // Nor may the next scheduler end before all have had time to ask again.
  Crash();
  EXPECT_EQ(job_->state(), Job::State::kDone);
  EXPECT_FALSE(job_->finished());
  EXPECT_TRUE(Answer(job_->Leave(1, absl::OkStatus(), At(1e9), At(1))).ok());
  job_->Advance(At(10));
  EXPECT_TRUE(job_->finished());
  EXPECT_TRUE(job_->failure().ok());
}

TEST_F(JobReplayTest, TwoThreadsOfAWorkerAreBothAnswered) {
  Begin();
  job_->ArriveAtBarrier(1, {"b", 1, 1}, At(1e9), At(0));
  job_->ArriveAtBarrier(1, {"b", 2, 1}, At(1e9), At(0));
  job_->ArriveAtBarrier(2, {"b", 1, 1}, At(1e9), At(0));
  job_->ArriveAtBarrier(3, {"b", 1, 1}, At(1e9), At(0));
  Crash();
  EXPECT_TRUE(Answer(job_->ArriveAtBarrier(1, {"b", 1, 1}, At(1e9), At(0))).ok());
  EXPECT_TRUE(Answer(job_->ArriveAtBarrier(1, {"b", 2, 1}, At(1e9), At(0))).ok());
}

TEST_F(JobReplayTest, AnArrivalOfAShortenedLogCanBeGivenUp) {
  Begin();
  const CallId given_up = job_->ArriveAtBarrier(1, {"b", 1, 1}, At(1e9), At(0));
  log_.Shorten(job_->BarrierEvents());
  job_->Cancel(given_up);
  Crash();
  job_->ArriveAtBarrier(2, {"b", 1, 1}, At(1e9), At(0));
  const CallId third = job_->ArriveAtBarrier(3, {"b", 1, 1}, At(1e9), At(0));
  EXPECT_TRUE(absl::IsUnknown(Answer(third))) << "it passes without worker 0";
}

TEST_F(JobReplayTest, NobodyIsTakenOutByWhatCannotBeLogged) {
  Begin(1);
  job_->Leave(1, absl::OkStatus(), At(2), At(0));
  HearAll(1.5);
  log_.refusal = absl::ResourceExhaustedError("no space left");
  job_->Advance(At(2.5));
  EXPECT_EQ(job_->table().membership()->epoch, 1u);
  EXPECT_EQ(job_->state(), Job::State::kRunning);
}

TEST_F(JobReplayTest, WhatChangesNothingIsNotLogged) {
  Begin();
  job_->Declare(1, PartOf("a", 1), At(1e9), At(0));
  job_->Declare(2, PartOf("a", 1), At(1e9), At(0));
  job_->Declare(3, PartOf("a", 1), At(1e9), At(0));
  const PlacementVersion version = job_->declarations().version();
  EXPECT_TRUE(job_->AcknowledgePlacement(4, version, At(0)).ok());
  EXPECT_TRUE(job_->Retire(1, {0}, At(0)).ok());
  const size_t before = log_.records.size();
  EXPECT_TRUE(job_->AcknowledgePlacement(4, version, At(0)).ok());
  EXPECT_TRUE(job_->Retire(1, {0}, At(0)).ok());
  EXPECT_FALSE(job_->Retire(1, {7}, At(0)).ok());
  EXPECT_FALSE(job_->AcknowledgePlacement(4, {.epoch = 1, .catalogue = 9}, At(0)).ok());
  EXPECT_EQ(log_.records.size(), before);
  log_.refusal = absl::ResourceExhaustedError("no space left");
  EXPECT_TRUE(absl::IsUnavailable(job_->Retire(2, {0}, At(0))));
  EXPECT_TRUE(job_->Retire(1, {0}, At(0)).ok());
}

TEST_F(JobReplayTest, ALostWorkerStaysLost) {
  Begin(1);
  HearAll(1);
  job_->Lost(2, "went away");
  Crash();
  EXPECT_EQ(job_->state(), Job::State::kRunning);
  EXPECT_EQ(job_->table().membership()->epoch, 2u);
  EXPECT_THAT(job_->table().membership()->vacant, ElementsAre(1));
  EXPECT_TRUE(IsEvicted(job_->Heartbeat(2, {}, At(1))));
  EXPECT_TRUE(job_->Heartbeat(1, {}, At(1)).ok());
}

// A server that joins the job that runs, whatever its rank.
JoinRequest NewServer(uint64_t join_id) {
  JoinRequest request = JoinOf(Role::kServer, -1);
  request.join_id = join_id;
  return request;
}

TEST_F(JobReplayTest, SlotsOfLostServersStayWhereTheyAre) {
  Begin(1, 32);
  for (NodeId node = 1; node <= 3; ++node) {
    job_->Declare(node, PartOf("a", 1), At(1e9), At(0));
  }
  job_->Lost(4, "went away");
  job_->Lost(2, "went away");
  const CallId joined = job_->Join(NewServer(1000), kControlVersion, At(1e9), At(0));
  ASSERT_TRUE(Answer(joined).ok());
  const CallId waiting = job_->Join(NewServer(1001), kControlVersion, At(1e9), At(0));
  job_->Lost(5, "went away, too");
  ASSERT_TRUE(Answer(waiting).ok());
  const Membership before = *job_->table().membership();
  EXPECT_EQ(before.servers.size(), 2u);
  EXPECT_EQ(before.moved.size(), 2u);
  EXPECT_EQ(before.unsafe, 3u);
  Crash();
  EXPECT_EQ(*job_->table().membership(), before);
  EXPECT_EQ(job_->ViewOf(1).membership->moved, before.moved);
  EXPECT_TRUE(IsEvicted(job_->Heartbeat(4, {}, At(0))));
  // The answer of the last one was lost with the scheduler.
  const CallId again = job_->Join(NewServer(1001), kControlVersion, At(9), At(0));
  ASSERT_TRUE(Answer(again).ok()) << Answer(again);
  EXPECT_EQ(answers_[again].join.node, answers_[waiting].join.node);
  EXPECT_EQ(*answers_[again].join.membership, before);
  EXPECT_EQ(*job_->table().membership(), before) << "it has not joined twice";
}

TEST_F(JobReplayTest, AJobWithoutAServerGoesOnWaitingForOne) {
  Begin(0, 32);
  job_->Lost(4, "went away");
  job_->Lost(5, "went away");
  Crash();
  EXPECT_EQ(job_->state(), Job::State::kRunning);
  ASSERT_TRUE(Answer(job_->Join(NewServer(1000), kControlVersion, At(9), At(0))).ok());
  for (const auto& [home, slots] : job_->table().membership()->moved) {
    for (const SlotOwner& owner : slots) EXPECT_EQ(owner, (SlotOwner{6, 4}));
  }
}

TEST_F(JobReplayTest, AJobThatWaitedInVainForAServerStaysFailed) {
  JobOptions options = Options(0, 32);
  options.config.lease_timeout = absl::Hours(1);
  options.join_timeout = absl::Seconds(30);
  Begin(0, 32);
  job_.emplace(options, At(0), &log_);
  job_->Resume(log_.Events(), At(0));
  job_->Lost(4, "went away");
  job_->Lost(5, "went away");
  job_->Advance(At(29));
  // The next scheduler gives the servers as much time.
  job_.emplace(options, At(1), &log_);
  job_->Resume(log_.Events(), At(20));
  job_->Advance(At(49));
  EXPECT_TRUE(job_->failure().ok());
  log_.refusal = absl::ResourceExhaustedError("no space left");
  job_->Advance(At(50));
  EXPECT_TRUE(job_->failure().ok());
  EXPECT_EQ(job_->NextDeadline(), At(51));
  log_.refusal = absl::OkStatus();
  job_->Advance(At(51));
  const absl::Status before = job_->failure();
  EXPECT_THAT(std::string(before.message()), HasSubstr("no server is left"));
  job_.emplace(options, At(60), &log_);
  job_->Resume(log_.Events(), At(60));
  EXPECT_EQ(job_->failure(), before);
}

TEST_F(JobReplayTest, ASilentServerIsOutAlsoWhereTheSchedulerIsLostAgainAndAgain) {
  JobOptions options = Options(1, 32);
  options.config.link_timeout = absl::Seconds(10);
  Begin(1, 32);
  const auto say = [this](NodeId worker, double now) {
    // A heartbeat does both: the worker is heard, and says what it waits for.
    EXPECT_TRUE(job_->Heartbeat(worker, {}, At(now)).ok());
    EXPECT_TRUE(job_->ReportWaits(worker, {{4, absl::Seconds(11)}}, At(now)).ok());
  };
  for (int i = 0; i < 2; ++i) {
    job_.emplace(options, At(20 + i), &log_);
    job_->Resume(log_.Events(), At(20 + i));
    say(1, 20.2 + i);
    EXPECT_EQ(job_->table().membership()->workers.size(), 3u)
        << "what the others have is not known";
  }
  say(2, 21.4);
  ASSERT_EQ(job_->table().membership()->servers.size(), 1u);
  EXPECT_EQ(job_->table().membership()->workers.size(), 3u);
  // The same once servers have changed. What is said of one that is gone is of no other.
  ASSERT_TRUE(Answer(job_->Join(NewServer(1000), kControlVersion, At(99), At(21.5))).ok());
  job_.emplace(options, At(22), &log_);
  job_->Resume(log_.Events(), At(22));
  for (const NodeId worker : {1, 2, 3}) say(worker, 22.1);
  EXPECT_EQ(job_->table().membership()->servers.size(), 2u);
  EXPECT_TRUE(job_->ReportWaits(1, {{5, absl::Seconds(11)}}, At(22.3)).ok());
  EXPECT_EQ(job_->table().membership()->workers.size(), 2u) << "it is alone: all were heard";
}

TEST_F(JobReplayTest, AFailedJobStaysFailedByTheSameReason) {
  Begin();
  job_->Leave(2, absl::InternalError("out of memory"), At(1e9), At(0));
  const absl::Status before = job_->failure();
  Crash();
  EXPECT_EQ(job_->failure(), before);
  EXPECT_THAT(std::string(before.message()), HasSubstr("out of memory"));
}

TEST_F(JobReplayTest, WhatCannotBeLoggedHasNotHappened) {
  Begin(1);
  log_.refusal = absl::ResourceExhaustedError("no space left");
  const CallId declared = job_->Declare(1, PartOf("a", 1), At(1e9), At(0));
  EXPECT_TRUE(absl::IsUnavailable(Answer(declared)));
  EXPECT_THAT(std::string(Answer(declared).message()), HasSubstr("no space left"));
  EXPECT_TRUE(absl::IsUnavailable(Answer(job_->ArriveAtBarrier(1, {"b", 1, 1}, At(1e9), At(0)))));
  EXPECT_TRUE(absl::IsUnavailable(Answer(job_->Leave(1, absl::OkStatus(), At(1e9), At(0)))));
  // A lease that is over is looked at again in a second, and not all the time.
  const size_t attempts_before = log_.attempts;
  job_->Advance(At(5));
  EXPECT_EQ(job_->state(), Job::State::kRunning);
  EXPECT_EQ(job_->NextDeadline(), At(6));
  EXPECT_EQ(log_.attempts, attempts_before + 1);
  job_->Advance(At(5.9));
  EXPECT_EQ(log_.attempts, attempts_before + 1);
  HearAll(5.5);
  EXPECT_EQ(job_->table().membership()->epoch, 1u);
  log_.refusal = absl::OkStatus();
  EXPECT_TRUE(absl::IsUnknown(Answer(job_->Declare(1, PartOf("a", 1), At(1e9), At(5.5)))));
}

TEST_F(JobReplayTest, AJobThatAnotherSchedulerHasTakenOverSaysSo) {
  Begin();
  EXPECT_TRUE(job_->superseded().ok());
  log_.refusal = absl::FailedPreconditionError("generation 3 is newer");
  job_->Leave(1, absl::OkStatus(), At(1e9), At(0));
  EXPECT_EQ(job_->superseded(), log_.refusal);
  EXPECT_TRUE(job_->failure().ok());
}

TEST(JobRecordTest, RefusesRecordsThatNobodyWrites) {
  EXPECT_FALSE(FromRecord({0, ""}).ok());
  EXPECT_FALSE(FromRecord({99, ""}).ok());
  EXPECT_FALSE(FromRecord({1, ""}).ok());
  EXPECT_FALSE(FromRecord({2, "\xff\xff"}).ok());
  EXPECT_FALSE(FromRecord({8, ""}).ok());  // a call that joins is none of a job that has begun
}

// A journal whose records are whole, but tell of things that cannot have been.
TEST(JobReplaySearch, AnyEventsLeaveAJobThatAnswers) {
  MemoryLog log;
  Job first(Options(), At(0), &log);
  for (Rank rank = 0; rank < kWorkers; ++rank) {
    first.Join(JoinOf(Role::kWorker, rank), kControlVersion, At(9), At(0));
  }
  for (Rank rank = 0; rank < kServers; ++rank) {
    first.Join(JoinOf(Role::kServer, rank), kControlVersion, At(9), At(0));
  }
  const JobEvent begun = log.Events().at(0);
  for (uint64_t seed = 1; seed <= 20000; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&random](uint64_t most) { return random() % most; };
    const auto node = [&] { return static_cast<NodeId>(below(kWorkers + kServers + 2)); };
    const auto name = [&] { return std::string(1, static_cast<char>('a' + below(3))); };
    const auto barrier = [&] { return below(2) == 0 ? name() : std::string(kBoundary); };
    std::vector<JobEvent> events = {begun};
    for (int i = 0; i < 40; ++i) {
      switch (below(15)) {
        case 12: {
          NodeInfo worker{.id = node() + static_cast<NodeId>(below(4)),
                          .role = below(8) == 0 ? Role::kServer : Role::kWorker,
                          .rank = static_cast<Rank>(below(kWorkers + 1)),
                          .processes = below(8) == 0 ? 2 : 1};
          if (below(16) == 0) worker.rank = -1;
          events.push_back(CandidateJoined{worker, below(4)});
          break;
        }
        case 13:
          events.push_back(CandidateGone{node() + static_cast<NodeId>(below(3))});
          break;
        case 14:
          events.push_back(BoundaryEnded{
              barrier(), {{node() + static_cast<NodeId>(below(3)), {below(3)}}, {node(), {}}}});
          break;
        case 0: {
          DeclarationPart part = PartOf(name(), below(4));
          part.count = static_cast<uint32_t>(below(3));
          part.first = static_cast<uint32_t>(below(3));
          events.push_back(PartDeclared{node(), std::move(part)});
          break;
        }
        case 1:
          events.push_back(PartDeclared{node(), PartOf(name(), below(4))});
          break;
        case 2:
          events.push_back(BarrierReached{node(), barrier(), below(4)});
          break;
        case 3:
          events.push_back(
              NodeLeft{node(), below(8) == 0 ? absl::AbortedError("why") : absl::OkStatus()});
          break;
        case 4:
          events.push_back(PlacementInstalled{node(),
                                              {.epoch = static_cast<Epoch>(below(3)),
                                               .catalogue = static_cast<uint32_t>(below(4))}});
          break;
        case 5:
          events.push_back(TensorsRetired{node(), {static_cast<uint32_t>(below(4))}});
          break;
        case 6:
          events.push_back(NodeLost{node(), "went"});
          break;
        case 7: {
          using WaitKind = WaitSubject::Kind;
          const WaitKind kinds[] = {WaitKind::kDeclare, WaitKind::kBarrier, WaitKind::kLeave};
          const WaitKind kind = kinds[below(3)];
          WaitSubject subject{kind};
          if (kind == WaitKind::kDeclare) subject.batch = below(3);
          if (kind == WaitKind::kBarrier) subject.barrier = barrier();
          events.push_back(CallEnded{node(), subject});
          break;
        }
        case 8:
          events.push_back(JobResumed());
          break;
        case 9:
          events.push_back(BarrierState{barrier(), {{node(), {below(3)}}, {node(), {}}}});
          break;
        case 10:
          events.push_back(ArrivalsAnswered{node(), {{below(4), {}}}});
          break;
        case 11: {
          NodeInfo server{.id = node() + static_cast<NodeId>(below(4)),
                          .role = below(8) == 0 ? Role::kWorker : Role::kServer,
                          .rank = static_cast<Rank>(below(kServers + 1))};
          if (below(16) == 0) server.id = ~NodeId{0};
          if (below(16) == 0) server.rank = -1;
          events.push_back(ServerJoined{server, below(4), below(2) == 0 ? 0 : node(), "went"});
          break;
        }
      }
    }
    Job job(Options(static_cast<int>(below(3)), static_cast<uint32_t>(below(3))), At(0));
    job.Resume(events, At(1));
    std::vector<CallId> calls;
    for (uint64_t join_id = 0; join_id < 3; ++join_id) {
      calls.push_back(job.Join(NewServer(join_id), kControlVersion, At(2), At(1)));
    }
    calls.push_back(job.Join(JoinOf(Role::kWorker, 1), kControlVersion, At(2), At(1)));
    for (NodeId each = 0; each < kWorkers + kServers + 5; ++each) {
      (void)job.Heartbeat(each, {}, At(1));
      (void)job.AcknowledgePlacement(each, {.epoch = 2}, At(1));
      calls.push_back(job.ArriveAtBarrier(each, {barrier(), below(4), below(4)}, At(2), At(1)));
      calls.push_back(job.Declare(each, PartOf(name(), below(4)), At(2), At(1)));
      calls.push_back(job.Leave(each, absl::OkStatus(), At(2), At(1)));
      (void)job.ViewOf(each);
    }
    (void)job.BarrierEvents();
    (void)job.Waits();
    job.Advance(At(3));
    std::set<CallId> answered;
    for (const Job::Completion& done : job.TakeCompletions()) answered.insert(done.call_id);
    for (const CallId call : calls) {
      ASSERT_EQ(answered.count(call), 1u) << "seed " << seed;
    }
  }
}

// One worker: a program of calls. A call whose answer is lost is made again.
struct Program {
  struct Call {
    enum class Kind { kDeclare, kBarrier, kBoundary, kRetire, kLeave } kind;
    std::string name;
  };
  size_t next = 0;
  std::optional<CallId> waiting;
  uint64_t declarations = 1;
  uint64_t arrivals = 1;
  bool is_lost = false;
  bool has_come = false;  // at the barrier that is its next call
  NodeId node = 0;
  bool is_candidate = false;
  bool is_late = false;  // it came while the job ran
  // The lists that a late one declares before it goes on, and the position in the first of them.
  std::deque<std::vector<std::string>> to_declare;
  size_t first = 0;
};

using Kind = Program::Call::Kind;
const std::vector<Program::Call> kCalls = {
    {Kind::kDeclare, "a"}, {Kind::kBarrier, "x"}, {Kind::kDeclare, "b"}, {Kind::kBarrier, "x"},
    {Kind::kBoundary, ""}, {Kind::kRetire, "a"},  {Kind::kBarrier, "y"}, {Kind::kBoundary, ""},
    {Kind::kDeclare, "a"}, {Kind::kBarrier, "x"}, {Kind::kBoundary, ""}, {Kind::kBarrier, "x"},
    {Kind::kBoundary, ""}, {Kind::kDeclare, "c"}, {Kind::kBoundary, ""}, {Kind::kLeave, ""}};

// Returns the names that calls before this one have declared.
std::vector<std::string> NamesBefore(size_t next) {
  std::set<std::string> names;
  for (size_t i = 0; i < next; ++i) {
    if (kCalls[i].kind == Kind::kDeclare) names.insert(kCalls[i].name);
  }
  return {names.begin(), names.end()};
}

// Returns those of them that no call retires, or has retired, before it declares the name anew.
std::vector<std::string> LivingNames(size_t next) {
  std::vector<std::string> names = NamesBefore(next);
  if (next <= 8) std::erase(names, "a");
  return names;
}

class CrashingRun {
 public:
  CrashingRun(uint64_t seed, int min_workers, bool shortens, uint32_t replay_steps = 0,
              int returns = 0, int first_workers = kWorkers)
      : random_(seed),
        min_workers_(min_workers),
        replay_steps_(replay_steps),
        first_workers_(first_workers),
        returns_(returns),
        programs_(static_cast<size_t>(first_workers)) {
    for (size_t i = 0; i < programs_.size(); ++i) programs_[i].node = static_cast<NodeId>(i + 1);
    if (shortens) log_.most = 3;
    job_.emplace(Options(min_workers, replay_steps, first_workers), At(0), &log_);
    for (Rank rank = 0; rank < first_workers; ++rank) {
      job_->Join(JoinOf(Role::kWorker, rank), kControlVersion, At(1e9), At(0));
    }
    for (Rank rank = 0; rank < kServers; ++rank) {
      job_->Join(JoinOf(Role::kServer, rank), kControlVersion, At(1e9), At(0));
    }
    (void)job_->TakeCompletions();
  }

  // Runs to the end; with no more than so many crashes and lost answers of each.
  void RunWith(int crashes) {
    for (int turn = 0; turn < 20000 && !IsOver(); ++turn) {
      const size_t dice = random_() % 100;
      if (dice < 4 && crashes > 0) {
        --crashes;
        Crash();
      } else if (dice < 6 && min_workers_ > 0 && turn > 20) {
        LoseOne();
      } else if (dice < 8 && replay_steps_ > 0) {
        LoseServer();
      } else if (dice < 10 && replay_steps_ > 0) {
        ServerAsks();
      } else if (dice < 12 && crashes > 0) {
        --crashes;
        BreakConnection(random_() % programs_.size());
      } else if (dice < 16 && returns_ > 0) {
        ComeBack();
      } else if (dice < 30) {
        Install();
      } else if (dice < 60) {
        Deliver(random_() % 8 == 0 && crashes > 0);
      } else {
        Step(random_() % programs_.size());
      }
      CheckSlots();
      if (::testing::Test::HasFailure()) return;
    }
    ASSERT_TRUE(IsOver()) << "the programs do not end";
    EXPECT_EQ(job_->state(), Job::State::kDone) << job_->failure();
    taken_in += taken_in_;
  }
  std::vector<std::string> Tensors() const {
    std::vector<std::string> names;
    for (const SharedDelta& delta : job_->declarations().deltas()) {
      for (const TensorDeclaration& tensor : delta->tensors) names.push_back(tensor.name);
    }
    return names;
  }
  size_t num_records() const { return log_.records.size(); }
  static inline size_t taken_in = 0;  // by all runs

 private:
  bool IsOver() const {
    for (const Program& program : programs_) {
      if (!program.is_lost && !program.is_candidate && program.next < kCalls.size()) return false;
    }
    return true;
  }
  void Crash() {
    const Membership before = *job_->table().membership();
    const PlacementVersion version = job_->declarations().version();
    const std::vector<Rank> leaving = job_->LeavingRanks();
    const std::vector<std::string> tensors = Tensors();
    log_.records.push_back(ToRecord(JobResumed()));
    log_.is_of_barriers.push_back(false);
    job_.emplace(Options(min_workers_, replay_steps_, first_workers_), At(0), &log_);
    job_->Resume(log_.Events(), At(0));
    EXPECT_EQ(*job_->table().membership(), before);
    EXPECT_EQ(job_->declarations().version(), version);
    EXPECT_EQ(job_->LeavingRanks(), leaving);
    EXPECT_EQ(Tensors(), tensors);
    kept_.clear();
    for (Program& program : programs_) {
      program.waiting.reset();
      if (random_() % 2 == 0) program.first = 0;
    }
    for (auto& [join_id, asked] : asking_) asked.reset();
  }
  // Every slot belongs to a server that is there, unless there is none, and since an epoch that has
  // been.
  void CheckSlots() {
    const Membership& now = *job_->table().membership();
    std::set<NodeId> present;
    for (const NodeInfo& server : now.servers) present.insert(server.id);
    for (Rank rank = 0; rank < kServers; ++rank) {
      const auto home = static_cast<NodeId>(first_workers_ + rank + 1);
      EXPECT_NE(present.count(home), now.moved.count(home));
    }
    EXPECT_LE(now.servers.size(), static_cast<size_t>(kServers));
    for (const auto& [home, slots] : now.moved) {
      EXPECT_LE(home, static_cast<NodeId>(first_workers_ + kServers));
      for (const SlotOwner& owner : slots) {
        EXPECT_EQ(present.count(owner.server), present.empty() ? 0u : 1u);
        EXPECT_TRUE(owner.since > 1 && owner.since <= now.epoch);
      }
    }
  }
  void LoseServer() {
    const std::vector<NodeInfo>& here = job_->table().membership()->servers;
    if (here.empty()) return;
    const NodeId gone = here[random_() % here.size()].id;
    if (random_() % 4 == 0) {
      job_->Leave(gone, absl::OkStatus(), At(1e9), At(0));
    } else {
      job_->Lost(gone, "went");
    }
  }
  // A new server asks, or one again whose call was broken.
  void ServerAsks() {
    const auto broken =
        std::ranges::find_if(asking_, [](const auto& one) { return !one.second.has_value(); });
    const uint64_t join_id = broken == asking_.end() ? next_join_id_++ : broken->first;
    asking_[join_id] = job_->Join(NewServer(join_id), kControlVersion, At(1e9), At(0));
  }
  // The call is made again, before or after it is noticed that the first one's caller is gone.
  void BreakConnection(size_t worker) {
    Program& program = programs_[worker];
    if (program.is_lost || !program.waiting.has_value()) return;
    const CallId broken = *program.waiting;
    program.waiting.reset();
    if (random_() % 2 == 0) Step(worker);
    job_->Cancel(broken);
  }
  void LoseOne() {
    std::vector<size_t> here;
    size_t present = 0;
    for (size_t i = 0; i < programs_.size(); ++i) {
      if (programs_[i].is_lost) continue;
      here.push_back(i);
      if (!programs_[i].is_candidate) ++present;
    }
    const size_t gone = here[random_() % here.size()];
    if (programs_[gone].is_candidate) return LoseCandidate(&programs_[gone]);
    if (present <= static_cast<size_t>(min_workers_)) return;
    // Whoever has left cannot be lost.
    if (programs_[gone].next >= kCalls.size()) return;
    const NodeId node = programs_[gone].node;
    job_->Lost(node, "went");
    if (job_->table().Find(node)->evicted.ok()) return;
    programs_[gone].is_lost = true;
    programs_[gone].waiting.reset();
  }
  void LoseCandidate(Program* program) {
    // It may have been taken in, and not have the answer yet.
    const MembershipTable::Member* const member = job_->table().Find(program->node);
    if (member == nullptr || !member->is_candidate) return;
    if (random_() % 2 == 0) {
      job_->Lost(program->node, "went");
    } else {
      job_->Leave(program->node, absl::OkStatus(), At(1e9), At(0));
    }
    EXPECT_EQ(job_->table().Find(program->node), nullptr);
    program->is_lost = true;
    program->waiting.reset();
  }
  // A worker takes a vacant rank, if there is one.
  void ComeBack() {
    if (job_->state() != Job::State::kRunning || job_->table().VacantWorkerRank(-1) < 0) return;
    if (!job_->LeavingRanks().empty()) return;
    size_t least = kCalls.size();
    for (const Program& other : programs_) {
      if (!other.is_lost && !other.is_candidate) least = std::min(least, other.next);
    }
    if (NamesBefore(least).empty()) return;
    --returns_;
    JoinRequest request = JoinOf(Role::kWorker, -1);
    request.join_id = next_join_id_++;
    const CallId call = job_->Join(request, kControlVersion, At(1e9), At(0));
    for (const Job::Completion& done : job_->TakeCompletions()) {
      if (done.call_id != call) {
        kept_.push_back(done);
        continue;
      }
      ASSERT_TRUE(done.status.ok()) << done.status;
      ASSERT_TRUE(done.join.is_candidate);
      Program& program = programs_.emplace_back();
      program.node = done.join.node;
      program.is_candidate = true;
      program.is_late = true;
      // It may declare what all others have, and what they are done with; but it has all that it
      // may have to retire with them.
      DrawLists(NamesBefore(least), &program);
      program.to_declare.push_back({"a"});
    }
  }
  // A few lists of some of these names, in any order.
  void DrawLists(std::vector<std::string> names, Program* program) {
    for (size_t lists = random_() % 3; lists > 0 && !names.empty(); --lists) {
      std::shuffle(names.begin(), names.end(), random_);
      const auto some = static_cast<ptrdiff_t>(random_() % names.size() + 1);
      program->to_declare.emplace_back(names.begin(), names.begin() + some);
    }
  }
  void Install() {
    const std::vector<NodeInfo> servers = job_->table().membership()->servers;
    for (const NodeInfo& server : servers) {
      (void)job_->AcknowledgePlacement(server.id, job_->declarations().version(), At(0));
      const Epoch epoch = job_->table().membership()->epoch;
      if (random_() % 2 == 0) (void)job_->AcknowledgePlacement(server.id, {epoch, 0}, At(0));
    }
  }
  // Hands out the answers, or loses them.
  void Deliver(bool loses) {
    std::vector<Job::Completion> all = std::exchange(kept_, {});
    for (Job::Completion& done : job_->TakeCompletions()) all.push_back(std::move(done));
    for (const Job::Completion& done : all) {
      for (auto next = asking_.begin(); next != asking_.end();) {
        const auto one = next++;
        if (one->second != done.call_id) continue;
        one->second.reset();
        if (loses) continue;
        // One that was lost in the meantime is told so, and one that is late that the job is done.
        const bool is_told =
            done.status.ok() || IsEvicted(done.status) || job_->state() == Job::State::kDone;
        EXPECT_TRUE(is_told) << done.status;
        if (done.status.ok()) {
          const auto [known, is_first] = joined_.emplace(one->first, done.join.node);
          EXPECT_EQ(known->second, done.join.node) << "it has joined twice";
        }
        asking_.erase(one);
      }
      for (size_t i = 0; i < programs_.size(); ++i) {
        Program& program = programs_[i];
        if (program.waiting != done.call_id) continue;
        program.waiting.reset();
        if (loses || absl::IsCancelled(done.status)) continue;
        OnAnswer(i, done);
      }
    }
  }
  void OnAnswer(size_t worker, const Job::Completion& done) {
    Program& program = programs_[worker];
    // A job that is done needs no candidate.
    if (IsUnneeded(done.status) && program.is_candidate) {
      program.is_lost = true;
      return;
    }
    if (program.is_candidate || !program.to_declare.empty()) return OnLateAnswer(&program, done);
    const Program::Call& call = kCalls[program.next];
    ASSERT_TRUE(done.status.ok()) << "worker " << worker << ", call " << program.next << ": "
                                  << done.status;
    if (call.kind == Kind::kDeclare) {
      if (done.declared.wanted_from.has_value()) return;  // the list goes with every call
      const auto [known, is_first] = declared_.emplace(program.next, done.declared.version);
      EXPECT_EQ(known->second, done.declared.version) << "call " << program.next;
      ++program.declarations;
    } else if (call.kind == Kind::kBarrier || call.kind == Kind::kBoundary) {
      // Nobody passes before all who are present have come.
      for (const Program& other : programs_) {
        if (other.is_lost || other.is_candidate) continue;
        EXPECT_GE(other.next + (other.has_come ? 1 : 0), program.next + 1);
      }
      const auto [known, is_first] = met_.emplace(program.next, done.met);
      EXPECT_EQ(known->second, done.met) << "call " << program.next;
      ++program.arrivals;
    }
    program.has_come = false;
    ++program.next;
  }
  // Expects that this version has added one of the tensors.
  void ExpectAdds(const PlacementVersion& version, const std::vector<std::string>& names) {
    ASSERT_TRUE(version.catalogue >= 1 && version <= job_->declarations().version());
    const CatalogueDelta& delta = *job_->declarations().deltas()[version.catalogue - 1];
    EXPECT_EQ(delta.version, version);
    EXPECT_TRUE(std::ranges::any_of(delta.tensors, [&](const TensorDeclaration& tensor) {
      return std::ranges::find(names, tensor.name) != names.end();
    }));
  }
  // The answer to a candidate, or to a newcomer that declares what the others had before.
  void OnLateAnswer(Program* program, const Job::Completion& done) {
    ASSERT_TRUE(done.status.ok()) << "node " << program->node << ": " << done.status;
    if (!program->has_come) {
      program->first = done.declared.wanted_from.value_or(0);
      if (done.declared.wanted_from.has_value()) return;
      ExpectAdds(done.declared.version, program->to_declare.front());
      ++program->declarations;
      program->to_declare.pop_front();
      return;
    }
    // All servers let it in.
    ASSERT_NE(done.met.epoch, 0u);
    EXPECT_FALSE(done.met.newcomers.empty());
    program->has_come = program->is_candidate = false;
    ++program->arrivals;
    ++taken_in_;
    // The others are at that boundary, or past it.
    for (size_t i = 0; i < kCalls.size(); ++i) {
      const auto met = met_.find(i);
      const bool is_this = met != met_.end() && met->second.epoch == done.met.epoch;
      const bool is_there = std::ranges::any_of(programs_, [&](const Program& other) {
        return !other.is_lost && !other.is_candidate && other.has_come && other.next == i &&
               kCalls[i].kind == Kind::kBoundary && met == met_.end();
      });
      if (!is_this && !is_there) continue;
      const auto [known, is_first] = met_.emplace(i, done.met);
      EXPECT_EQ(known->second, done.met);
      program->next = i + 1;
      DrawLists(LivingNames(program->next), program);
      return;
    }
    ADD_FAILURE() << "nobody else was at the boundary";
  }
  // Makes the next call of a candidate, or of a newcomer that declares what the others have.
  bool StepLate(Program* program) {
    if (!program->to_declare.empty()) {
      const size_t count = random_() % 2 == 0 ? 1 : SIZE_MAX;
      program->waiting = job_->Declare(program->node,
                                       PartOf(program->to_declare.front(), program->declarations,
                                              std::exchange(program->first, 0), count),
                                       At(1e9), At(0));
      return true;
    }
    if (!program->is_candidate) return false;
    program->has_come = true;
    program->waiting = job_->ArriveAtBarrier(
        program->node, {kBoundary, program->arrivals, program->arrivals}, At(1e9), At(0));
    return true;
  }
  void Step(size_t worker) {
    Program& program = programs_[worker];
    if (program.is_lost || program.waiting.has_value() || program.next >= kCalls.size()) return;
    if (StepLate(&program)) return;
    const Program::Call& call = kCalls[program.next];
    const NodeId node = program.node;
    switch (call.kind) {
      case Kind::kBoundary:
        program.has_come = true;
        program.waiting = job_->ArriveAtBarrier(
            node, {kBoundary, program.arrivals, program.arrivals}, At(1e9), At(0));
        break;
      case Kind::kDeclare: {
        // A late one may declare what is there with what is new, by which all have another list.
        std::vector<std::string> names = {call.name};
        const bool has_more = program.is_late && program.next > 2 && node % 2 == 0;
        if (has_more) names.insert(names.begin(), "b");
        program.waiting = job_->Declare(node, PartOf(names, program.declarations), At(1e9), At(0));
        break;
      }
      case Kind::kBarrier:
        program.has_come = true;
        program.waiting = job_->ArriveAtBarrier(
            node, {call.name, program.arrivals, program.arrivals}, At(1e9), At(0));
        break;
      case Kind::kRetire:
        ASSERT_TRUE(job_->Retire(node, {0}, At(0)).ok());
        ++program.next;
        break;
      case Kind::kLeave:
        program.waiting = job_->Leave(node, absl::OkStatus(), At(1e9), At(0));
        break;
    }
  }

  std::mt19937_64 random_;
  const int min_workers_;
  const uint32_t replay_steps_;
  const int first_workers_;
  int returns_;                                       // so many more workers may come back
  std::map<uint64_t, std::optional<CallId>> asking_;  // servers that join, by their numbers
  std::map<uint64_t, NodeId> joined_;
  uint64_t next_join_id_ = 1000;
  MemoryLog log_;
  std::optional<Job> job_;
  std::vector<Program> programs_;
  std::map<size_t, PlacementVersion> declared_;
  std::map<size_t, Met> met_;
  size_t taken_in_ = 0;
  std::vector<Job::Completion> kept_;
};

TEST(JobCrashSearch, ProgramsEndAsWithoutACrash) {
  CrashingRun calm(1, 0, false);
  calm.RunWith(0);
  const std::vector<std::string> tensors = calm.Tensors();
  EXPECT_THAT(tensors, ElementsAre("b", "a", "c"));
  for (uint64_t seed = 1; seed <= 3000 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    CrashingRun run(seed, 0, false);
    run.RunWith(20);
    EXPECT_EQ(run.Tensors(), tensors);
  }
}

TEST(JobCrashSearch, AShortenedLogIsAsGood) {
  for (uint64_t seed = 1; seed <= 2000 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    CrashingRun run(seed, 0, true);
    run.RunWith(20);
  }
}

TEST(JobCrashSearch, ServersMayBeLostAndJoinBeside) {
  for (uint64_t seed = 1; seed <= 3000 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    CrashingRun run(seed, static_cast<int>(seed % 3) / 2, seed % 2 == 0, 32);
    run.RunWith(20);
  }
}

TEST(JobCrashSearch, WorkersMayBeLostBeside) {
  for (uint64_t seed = 1; seed <= 3000 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    CrashingRun run(seed, 1, seed % 2 == 0);
    run.RunWith(20);
  }
}

TEST(JobCrashSearch, WorkersMayComeBackBeside) {
  CrashingRun::taken_in = 0;
  for (uint64_t seed = 1; seed <= 3000 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    CrashingRun run(seed, 1, seed % 2 == 0, seed % 3 == 0 ? 32 : 0, /*returns=*/4);
    run.RunWith(20);
  }
  EXPECT_GT(CrashingRun::taken_in, 300u);
}

TEST(JobCrashSearch, MoreWorkersMayComeThanTheJobBeganWith) {
  CrashingRun::taken_in = 0;
  for (uint64_t seed = 1; seed <= 3000 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    CrashingRun run(seed, 1, seed % 2 == 0, seed % 3 == 0 ? 32 : 0, /*returns=*/4,
                    /*first_workers=*/2);
    run.RunWith(20);
  }
  EXPECT_GT(CrashingRun::taken_in, 300u);
}

}  // namespace
}  // namespace bdn
