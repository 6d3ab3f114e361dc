#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/host.pb.h"
#include "tests/support/host_rig.h"
#include "worker/error_fields.h"
#include "worker/host/host_address.h"
#include "worker/host/host_channel.h"
#include "worker/host/host_gather.h"
#include "worker/host/host_messages.h"
#include "worker/host/host_rounds.h"
#include "worker/host/peer_lease.h"

namespace bdn::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

absl::Time At(int seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// ---- Rounds

HostPush PushOf(Step step, uint64_t ticket = 0) { return {.ticket = ticket, .step = step}; }

class HostRoundsTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::optional<HostRound>> Add(int process, HostPush push) {
    return rounds_.Add(process, kTensor, "w", std::move(push));
  }
  static constexpr uint32_t kTensor = 7;
  HostRounds rounds_{3, /*first=*/10};
};

TEST_F(HostRoundsTest, ARoundIsCompleteWithTheLastOfItsPushesInWhateverOrder) {
  EXPECT_FALSE(rounds_.IsOpen(kTensor));
  EXPECT_FALSE(Add(2, PushOf(1, 22))->has_value());
  EXPECT_TRUE(rounds_.IsOpen(kTensor));
  EXPECT_THAT(rounds_.Missing(kTensor), ElementsAre(0, 1));
  EXPECT_FALSE(Add(0, PushOf(1, 20))->has_value());
  const auto round = Add(1, PushOf(1, 21));
  ASSERT_TRUE(round.ok() && round->has_value());
  EXPECT_EQ((*round)->tensor, kTensor);
  EXPECT_EQ((*round)->step, 1u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ((*round)->pushes[i]->ticket, 20u + i);
  EXPECT_FALSE(rounds_.IsOpen(kTensor));
  EXPECT_EQ(rounds_.step(kTensor), 1u);
  EXPECT_FALSE(Add(0, PushOf(2))->has_value());
}

TEST_F(HostRoundsTest, APushIsTheSumOfThosePresentWithTheWeightOfAll) {
  const float data[2] = {1, 2};
  HostPush push = PushOf(1);
  push.data = {data, DType::kFloat32, 2};
  push.weight = 3;
  push.loss_scale = 2;
  push.priority = 5;
  push.learning_rate = 0.5f;
  ASSERT_TRUE(Add(1, push).ok());
  HostPush absent = PushOf(1);
  absent.absent = true;
  absent.priority = 9;
  absent.learning_rate = 0.5f;
  push.program_steps = 6;
  ASSERT_TRUE(Add(0, absent).ok());
  push.weight = 0.5f;
  push.loss_scale = 1;
  push.wants_left_out = true;
  const auto round = Add(2, push);
  ASSERT_TRUE(round.ok() && round->has_value());
  const PushRequest request = (*round)->Request();
  EXPECT_EQ(request.weight, 4.5f);
  EXPECT_EQ(request.priority, 9);
  EXPECT_EQ(request.learning_rate, 0.5f);
  EXPECT_EQ(request.program_steps, 6u) << "of those that know it";
  EXPECT_FALSE(request.absent);
  ASSERT_THAT(*request.sources, SizeIs(2));
  EXPECT_EQ(request.sources->at(0).scale, 1.5f);
  EXPECT_EQ(request.sources->at(1).scale, 0.5f);
  EXPECT_TRUE((*round)->wants_left_out());
  EXPECT_EQ((*round)->ShareOf(1), 3 / 4.5f);
}

TEST_F(HostRoundsTest, WhereNobodyHasAGradientTheHostIsAbsent) {
  std::optional<HostRound> round;
  for (int process = 0; process < 3; ++process) {
    HostPush push = PushOf(1);
    push.absent = true;
    push.weight = 0;
    auto added = Add(process, push);
    ASSERT_TRUE(added.ok());
    round = *std::move(added);
  }
  EXPECT_TRUE(round->Request().absent);
  EXPECT_THAT(*round->Request().sources, IsEmpty());
  EXPECT_EQ(round->ShareOf(0), 0.0f) << "no division by a weight of 0";
}

TEST_F(HostRoundsTest, WhatDoesNotFitIsRefusedAndChangesNothing) {
  ASSERT_TRUE(Add(0, PushOf(1)).ok());
  EXPECT_THAT(Message(Add(1, PushOf(2)).status()),
              HasSubstr("worker 11 pushed step 2 where its host stands at step 0"));
  EXPECT_THAT(Message(Add(0, PushOf(1)).status()),
              HasSubstr("worker 10 pushed the same step twice"));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const auto& change : std::vector<std::function<void(HostPush*)>>{
           [](HostPush* push) { push->weight = -1; }, [](HostPush* push) { push->weight = NAN; },
           [](HostPush* push) { push->loss_scale = 0; },
           [](HostPush* push) { push->loss_scale = kInfinity; },
           [](HostPush* push) { push->weight = 1e38f, push->loss_scale = 1e-38f; },
           [](HostPush* push) { push->learning_rate = NAN; }}) {
    HostPush push = PushOf(1);
    change(&push);
    EXPECT_TRUE(absl::IsInvalidArgument(Add(1, push).status()));
  }
  EXPECT_THAT(rounds_.Missing(kTensor), ElementsAre(1, 2));
}

TEST_F(HostRoundsTest, PushesOfDifferentStepsOfTheProgramAreNotSummed) {
  ASSERT_TRUE(Add(1, PushOf(1)).ok());  // does not know it
  HostPush five = PushOf(1), six = PushOf(1);
  five.program_steps = 6;
  six.program_steps = 7;
  six.absent = true;
  ASSERT_TRUE(Add(2, five).ok());
  const absl::Status status = Add(0, six).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(Message(status),
              HasSubstr("tensor 'w' step 1: rank 12 pushed it after 5 steps of its "
                        "program and rank 10 after 6"));
  EXPECT_THAT(rounds_.Missing(kTensor), ElementsAre(0));
}

TEST_F(HostRoundsTest, ARoundWhosePushesDoNotAgreeNamesTwoOfThemAndIsTakenBack) {
  HostPush other = PushOf(1);
  other.learning_rate = 0.25f;
  ASSERT_TRUE(Add(2, other).ok());
  ASSERT_TRUE(Add(0, PushOf(1)).ok());
  const auto round = Add(1, PushOf(1));
  ASSERT_TRUE(round.ok() && round->has_value());
  const absl::Status agrees = (*round)->CheckAgrees("w", 10);
  EXPECT_TRUE(absl::IsInvalidArgument(agrees));
  EXPECT_THAT(
      Message(agrees),
      HasSubstr("tensor 'w' step 1: worker 10 (local rank 0) pushed with learning rate 0, and "
                "worker 12 (local rank 2) with 0.25"));
  EXPECT_EQ((*round)->Describe(10),
            "worker 10: weight 1, learning rate 0; worker 11: weight 1, learning rate 0; "
            "worker 12: weight 1, learning rate 0.25");
  EXPECT_EQ(rounds_.step(kTensor), 1u);
  EXPECT_TRUE(rounds_.TakeBack(**round));
  EXPECT_FALSE(rounds_.TakeBack(**round)) << "once";
  EXPECT_EQ(rounds_.step(kTensor), 0u);
  for (int process = 0; process < 2; ++process) ASSERT_TRUE(Add(process, PushOf(1)).ok());
  const auto again = Add(2, PushOf(1));
  ASSERT_TRUE(again.ok() && again->has_value());
  EXPECT_TRUE((*again)->CheckAgrees("w", 10).ok());
  ASSERT_TRUE(Add(1, PushOf(2)).ok());
  EXPECT_FALSE(rounds_.TakeBack(**again)) << "the next step has begun";
}

TEST_F(HostRoundsTest, StepsGoOnFromWhereTheyAreSet) {
  ASSERT_TRUE(rounds_.SetStep(kTensor, 41).ok());
  EXPECT_FALSE(Add(0, PushOf(1)).ok());
  ASSERT_TRUE(Add(0, PushOf(42)).ok());
  EXPECT_TRUE(rounds_.SetStep(kTensor, 41).ok()) << "as another process says it";
  EXPECT_TRUE(absl::IsFailedPrecondition(rounds_.SetStep(kTensor, 50)));
  EXPECT_TRUE(absl::IsInvalidArgument(rounds_.SetStep(kTensor, 40)));
  EXPECT_TRUE(absl::IsInvalidArgument(rounds_.SetStep(8, kMaxStep + 1)));
}

TEST_F(HostRoundsTest, WhoLeavesEndsTheRoundsThatWaitForIt) {
  ASSERT_TRUE(Add(0, PushOf(1)).ok());
  ASSERT_TRUE(rounds_.Add(2, 8, "v", PushOf(1)).ok());
  EXPECT_THAT(rounds_.OnLeaving(2), SizeIs(1));
  EXPECT_FALSE(rounds_.IsOpen(kTensor));
  EXPECT_TRUE(rounds_.IsOpen(8)) << "it has pushed that";
  EXPECT_TRUE(rounds_.Add(0, 8, "v", PushOf(1)).ok());
  const absl::Status status = Add(1, PushOf(1)).status();
  EXPECT_TRUE(absl::IsAborted(status));
  EXPECT_THAT(Message(status), HasSubstr("worker 12 is leaving"));
  EXPECT_THAT(rounds_.TakeAll(), SizeIs(1));
  EXPECT_FALSE(rounds_.IsOpen(8));
}

// ---- Whether the other end is alive

TEST(PeerLease, EndsOnceNothingHasComeForSoLong) {
  PeerLease lease;
  EXPECT_FALSE(lease.IsOver(At(1000))) << "before the welcome";
  lease.Begin(absl::Seconds(5), At(1000));
  EXPECT_FALSE(lease.IsOver(At(1004)));
  lease.Heard(At(1004));
  EXPECT_EQ(lease.end(), At(1009));
  EXPECT_TRUE(lease.IsOver(At(1009)));
  EXPECT_EQ(lease.SilentFor(At(1010)), absl::Seconds(6));
  lease.End();
  EXPECT_FALSE(lease.IsOver(At(5000)));
}

// The clock jumps, as after SIGSTOP and SIGCONT, or a pause of the machine.
TEST(PeerLease, HasItsTimeAgainAfterAPauseOfWhoWatchesIt) {
  PeerLease lease;
  lease.Begin(absl::Seconds(50), At(0));
  LifeSigns signs(absl::Seconds(10), absl::Seconds(50), At(0));
  for (const int now : {5, 10, 15, 20, 600, 605, 610, 615, 620, 625}) {
    lease.WasHeldUp(signs.OnAwake(At(now)));
    EXPECT_FALSE(lease.IsOver(At(now))) << now;
  }
  lease.WasHeldUp(signs.OnAwake(At(630)));
  EXPECT_TRUE(lease.IsOver(At(630)));
}

TEST(LifeSigns, AreDueOnceAnInterval) {
  LifeSigns signs(absl::Seconds(10), absl::Seconds(50), At(0));
  EXPECT_TRUE(signs.IsDue(At(0)));
  EXPECT_FALSE(signs.IsDue(At(9)));
  EXPECT_TRUE(signs.IsDue(At(10)));
  EXPECT_TRUE(signs.IsDue(At(35)));
  EXPECT_FALSE(signs.IsDue(At(36)));
  signs.OnAwake(At(36));
  EXPECT_EQ(signs.NextTime(), At(41)) << "a tenth of the lease, to notice pauses";
}

// ---- Calls made together

TEST(HostGather, TheLastToComeBringsAllOfThem) {
  HostGather gather(2, /*first=*/4);
  EXPECT_FALSE(gather.Arrive("barrier 'b'", {1, 100, At(9)})->has_value());
  EXPECT_TRUE(absl::IsInvalidArgument(gather.Arrive("barrier 'b'", {1, 101, At(9)}).status()));
  const auto all = gather.Arrive("barrier 'b'", {0, 200, At(9)});
  ASSERT_TRUE(all.ok() && all->has_value());
  EXPECT_EQ((*all)->at(0).call, 200u);
  EXPECT_EQ((*all)->at(1).call, 100u);
  EXPECT_EQ(gather.NextDeadline(), absl::InfiniteFuture());
  // Nobody of them is there any more: the same name is another call.
  EXPECT_FALSE(gather.Arrive("barrier 'b'", {1, 102, At(9)})->has_value());
  const auto late = gather.Expire(At(9));
  ASSERT_THAT(late, SizeIs(1));
  EXPECT_EQ(Message(late[0].status), "barrier 'b': waiting for worker 4");
  EXPECT_FALSE(late[0].was_leaving);
}

TEST(HostGather, TheNthOfEachBelongsToTheNthOfTheOthers) {
  HostGather gather(2, 0);
  EXPECT_FALSE(gather.ArriveNext("broadcast", {0, 1, At(9)})->has_value());
  EXPECT_FALSE(gather.ArriveNext("broadcast", {0, 2, At(9)})->has_value());
  EXPECT_FALSE(gather.ArriveNext("declaration", {1, 3, At(9)})->has_value());
  const auto first = gather.ArriveNext("broadcast", {1, 4, At(9)});
  ASSERT_TRUE(first.ok() && first->has_value());
  EXPECT_EQ((*first)->at(0).call, 1u);
}

TEST(HostGather, WhoseTimeIsOverHasNotCome) {
  HostGather gather(2, 0);
  ASSERT_TRUE(gather.ArriveNext("broadcast", {0, 1, At(5)}).ok());
  EXPECT_EQ(gather.NextDeadline(), At(5));
  EXPECT_THAT(gather.Expire(At(4)), IsEmpty());
  const auto ended = gather.Expire(At(5));
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(ended[0].status));
  EXPECT_THAT(Message(ended[0].status), HasSubstr("broadcast 1: waiting for worker 1"));
  // It comes again, to the same.
  ASSERT_TRUE(gather.ArriveNext("broadcast", {1, 2, At(9)}).ok());
  const auto all = gather.ArriveNext("broadcast", {0, 3, At(9)});
  EXPECT_TRUE(all.ok() && all->has_value());
}

TEST(HostGather, WhoLeavesIsNotWaitedForButWhereAllLeave) {
  HostGather gather(3, 0);
  ASSERT_TRUE(gather.Arrive("barrier 'b'", {0, 1, At(9)}).ok());
  ASSERT_TRUE(gather.Arrive(kLeaving, {1, 2, At(9)}).ok());
  const auto ended = gather.OnLeaving(1);
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_TRUE(absl::IsAborted(ended[0].status));
  EXPECT_TRUE(absl::IsAborted(gather.Arrive("barrier 'c'", {2, 3, At(9)}).status()));
  const auto late = gather.Expire(At(9));
  ASSERT_THAT(late, SizeIs(1));
  EXPECT_EQ(Message(late[0].status), "leaving: waiting for worker 0, worker 2");
  EXPECT_TRUE(late[0].was_leaving);
  ASSERT_TRUE(gather.Arrive(kLeaving, {1, 4, At(9)}).ok());
  EXPECT_THAT(gather.TakeAll(Aborted("over")), SizeIs(1));
}

// ---- The channel

class HostChannelTest : public ::testing::Test {
 protected:
  HostChannelTest() {
    auto [a, b] = SocketPair();
    arena_->Enable();
    process_ = std::make_unique<HostChannel>(std::move(a), arena_, EncodeSegmentToDaemon);
    daemon_ = std::make_unique<HostChannel>(std::move(b), std::make_shared<ShmArena>(),
                                            EncodeSegmentToProcess);
  }
  static bandoneon::host::ToDaemon Taken(uint64_t id) {
    bandoneon::host::ToDaemon message;
    message.set_taken(id);
    return message;
  }
  // The next message, segments taken on the way.
  std::optional<bandoneon::host::ToDaemon> Next() {
    for (;;) {
      auto bytes = daemon_->Receive();
      if (!bytes.ok() || !bytes->has_value()) return std::nullopt;
      bandoneon::host::ToDaemon message;
      EXPECT_TRUE(message.ParseFromString(**bytes));
      if (!message.has_segment()) return message;
      EXPECT_TRUE(daemon_->AddSegment(message.segment().index(), message.segment().bytes()).ok());
    }
  }

  const std::shared_ptr<ShmArena> arena_ = std::make_shared<ShmArena>();
  std::unique_ptr<HostChannel> process_;
  std::unique_ptr<HostChannel> daemon_;
};

// The next message of the other end, which is on its way.
template <typename Message>
Message Await(HostChannel& channel) {
  for (;;) {
    pollfd readable = {channel.socket(), POLLIN, 0};
    (void)poll(&readable, 1, -1);
    const auto bytes = channel.Receive();
    Message message;
    if (!bytes.ok()) {
      ADD_FAILURE() << bytes.status();
      return message;
    }
    if (!bytes->has_value()) continue;
    EXPECT_TRUE(message.ParseFromString(**bytes));
    return message;
  }
}

TEST_F(HostChannelTest, MessagesComeWholeAndInOrderWhateverTheSocketTakes) {
  uint64_t sent = 0, received = 0;
  bandoneon::host::ToDaemon large;
  large.mutable_call()->set_barrier(std::string(3 << 20, 'x'));
  ASSERT_TRUE(process_->Send(large));
  EXPECT_TRUE(process_->has_waiting()) << "a socket's buffer takes all of it";
  for (; sent < 1000; ++sent) ASSERT_TRUE(process_->Send(Taken(sent)));
  bool has_large = false;
  while (received < sent) {
    const auto message = Next();
    if (!message.has_value()) {
      ASSERT_TRUE(process_->Flush());
      continue;
    }
    if (message->has_call()) {
      EXPECT_EQ(message->call().barrier().size(), 3u << 20);
      has_large = true;
      continue;
    }
    EXPECT_TRUE(has_large);
    EXPECT_EQ(message->taken(), received++);
  }
  EXPECT_FALSE(process_->has_waiting());
}

TEST_F(HostChannelTest, BytesAreReadWhereTheOtherEndHasThem) {
  std::byte* const block = arena_->Allocate(100);
  std::memset(block, 7, 100);
  const auto place = process_->Find({block, 100});
  ASSERT_TRUE(place.has_value());
  ASSERT_TRUE(process_->Send(Taken(1)));
  ASSERT_TRUE(Next().has_value());
  const auto bytes = daemon_->Resolve(*place, 100);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(std::memcmp(bytes->span.data(), block, 100), 0);
  EXPECT_NE(bytes->span.data(), block) << "a mapping of its own";
  std::memset(block, 9, 100);
  EXPECT_EQ(bytes->span[99], std::byte{9});
  std::vector<std::byte> elsewhere(8);
  EXPECT_FALSE(process_->Find(elsewhere).has_value());
}

TEST_F(HostChannelTest, PlacesThatAreNoneAreRefused) {
  ASSERT_NE(arena_->Allocate(100), nullptr);
  ASSERT_TRUE(process_->Send(Taken(1)));
  ASSERT_TRUE(Next().has_value());
  const uint64_t size = arena_->segment(0)->size();
  EXPECT_TRUE(daemon_->Resolve({0, size - 8, 8}, 8).ok());
  for (const HostPlace wrong : {HostPlace{1, 0, 8},
                                {0, size, 8},
                                {0, size - 8, 16},
                                {0, 4, 8},
                                {~0u, 0, 8},
                                {0, ~uint64_t{7}, 8},
                                {0, size - 16, ~uint64_t{0}}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(daemon_->Resolve(wrong, wrong.bytes).status()))
        << wrong.segment << " " << wrong.offset << " " << wrong.bytes;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(daemon_->Resolve({0, 0, 8}, 16).status()));
}

// Sends these bytes, and a descriptor if there is one, as they are.
void SendRaw(int socket, const std::string& text, int fd = -1) {
  iovec bytes = {const_cast<char*>(text.data()), text.size()};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  ASSERT_EQ(sendmsg(socket, &message, 0), static_cast<ssize_t>(text.size()));
}

TEST_F(HostChannelTest, SegmentsThatAreNoneAreRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(daemon_->AddSegment(0, 4096))) << "without a descriptor";
  const auto memory = SharedMemory::Create("test", 4096);
  ASSERT_TRUE(memory.ok());
  const auto descriptor_comes = [&](int fd) {
    SendRaw(process_->socket(), std::string(5, '\0').replace(0, 1, "\x01"), fd);
    ASSERT_TRUE(daemon_->Receive().ok());
  };
  descriptor_comes((*memory)->fd());
  EXPECT_TRUE(absl::IsInvalidArgument(daemon_->AddSegment(1, 4096))) << "not the next";
  descriptor_comes((*memory)->fd());
  EXPECT_TRUE(absl::IsInvalidArgument(daemon_->AddSegment(0, 8192))) << "larger than it is";
  descriptor_comes(process_->socket());
  EXPECT_TRUE(absl::IsInvalidArgument(daemon_->AddSegment(0, 4096))) << "no sealed memory";
  descriptor_comes((*memory)->fd());
  EXPECT_TRUE(daemon_->AddSegment(0, 4096).ok());
}

TEST_F(HostChannelTest, AnEndAndAMessageThatIsTooLongAreTold) {
  SendRaw(process_->socket(), std::string("\xff\xff\xff\xff", 4));
  EXPECT_TRUE(absl::IsInvalidArgument(daemon_->Receive().status()));
  auto [a, b] = SocketPair();
  HostChannel channel(std::move(a), arena_, EncodeSegmentToDaemon);
  b = FileDescriptor();
  EXPECT_TRUE(absl::IsUnavailable(channel.Receive().status()));
  EXPECT_FALSE(channel.Send(Taken(1)));
}

TEST(HostMessages, AStatusTravelsWithItsFacts) {
  const absl::Status status =
      WithFields(DeadlineExceeded("late"),
                 {.tensor = "w", .step = "3", .stage = "assemble", .waiting_for = "worker 1"});
  bandoneon::host::Status message;
  Write(status, &message);
  EXPECT_EQ(Read(message), status);
  EXPECT_EQ(GetErrorField(Read(message), "waiting_for"), "worker 1");
  Write(absl::OkStatus(), &message);
  EXPECT_TRUE(Read(message).ok());
  message.set_code(4000);
  EXPECT_TRUE(absl::IsUnknown(Read(message)));
}

TEST(HostMessages, ACallAboutStateTravels) {
  const std::vector<uint32_t> tensors = {4, 9};
  const StateCall calls[] = {
      {.tensor = 4, .link_part = LinkState::kLearningRate},
      {.what = StateCall::What::kSet,
       .where = StateCall::Where::kServer,
       .tensor = 4,
       .server_part = StatePart::kMoment1,
       .step = 12},
      {.what = StateCall::What::kSetCounters,
       .where = StateCall::Where::kServer,
       .tensor = 4,
       .counters = {7, 0.5f}},
      {.what = StateCall::What::kSetRule,
       .where = StateCall::Where::kServer,
       .tensors = tensors,
       .rule = "sgd"},
  };
  for (const StateCall& call : calls) {
    bandoneon::host::StateCall message;
    Write(call, &message);
    const absl::StatusOr<StateCall> read = Read(message);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->what, call.what);
    EXPECT_EQ(read->where, call.where);
    EXPECT_TRUE(std::ranges::equal(read->subjects(), call.subjects()));
    EXPECT_EQ(read->link_part, call.link_part);
    EXPECT_EQ(read->server_part, call.server_part);
    EXPECT_EQ(read->step, call.step);
    EXPECT_EQ(read->counters, call.counters);
    EXPECT_EQ(read->rule, call.rule);
  }
}

TEST(HostMessages, ACallAboutStateWhoseNumbersNameNothingIsRefused) {
  const auto refuse = [](const auto& change) {
    bandoneon::host::StateCall message;
    Write(StateCall{.tensor = 4}, &message);
    ASSERT_TRUE(Read(message).ok());
    change(&message);
    EXPECT_TRUE(absl::IsInvalidArgument(Read(message).status()));
  };
  refuse([](auto* m) { m->set_what(9); });
  refuse([](auto* m) { m->set_where(2); });
  refuse([](auto* m) { m->set_part(4); });
  refuse([](auto* m) { m->set_where(1), m->set_part(8); });
  refuse([](auto* m) { m->clear_tensors(); });
  refuse([](auto* m) { m->add_tensors(5); });
}

TEST(HostMessages, WhoIsPresentTravels) {
  for (const Presence& presence : {Presence{4, 0}, Presence{1, 0}, Presence{2, 2}}) {
    bandoneon::host::Presence message;
    Write(presence, &message);
    const auto read = Read(message, 2, 4);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, presence);
  }
}

TEST(HostMessages, APresenceThatCannotBeIsRefused) {
  const auto refuse = [](uint32_t size, int32_t first, const std::string& text) {
    bandoneon::host::Presence message;
    message.set_size(size);
    message.set_first_rank(first);
    const absl::Status status = Read(message, 2, 4).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(status.message(), text);
  };
  refuse(0, 0, "0 workers from rank 0 on are present, of 4 in the job");
  refuse(5, 0, "5 workers from rank 0 on are present, of 4 in the job");
  refuse(3, 2, "3 workers from rank 2 on are present, of 4 in the job");
  refuse(4, -1, "4 workers from rank -1 on are present, of 4 in the job");
  refuse(~0u, 2, "4294967295 workers from rank 2 on are present, of 4 in the job");
  refuse(1, std::numeric_limits<int32_t>::max(),
         "1 workers from rank 2147483647 on are present, of 4 in the job");
  refuse(1, 3, "the first rank that is present is 3, and this worker's is 2");
}

// Attaches a process to a daemon that answers its hello with these messages, and returns how it
// ends.
absl::Status AttachTo(const std::vector<bandoneon::host::ToProcess>& answers) {
  auto [theirs, ours] = SocketPair();
  HostChannel daemon(std::move(ours), std::make_shared<ShmArena>(), EncodeSegmentToProcess);
  std::thread answering([&] {
    (void)Await<bandoneon::host::ToDaemon>(daemon);
    for (const auto& message : answers) EXPECT_TRUE(daemon.Send(message));
  });
  const SteadyClock clock;
  Registry telemetry;
  const absl::Status status =
      HostClient::Attach({.address = "unix:@test"}, std::move(theirs), &clock, &telemetry).status();
  answering.join();
  return status;
}

TEST(DaemonChannel, AWelcomeOrAPresenceThatCannotBeEndsTheConnection) {
  using Message = bandoneon::host::ToProcess;
  const auto welcome = [](int rank, uint32_t size, uint32_t present, int first) {
    Message message;
    message.mutable_welcome()->set_rank(rank);
    message.mutable_welcome()->set_size(size);
    message.mutable_welcome()->set_heartbeat_ms(1000);
    message.mutable_welcome()->set_lease_ms(60000);
    message.mutable_welcome()->mutable_presence()->set_size(present);
    message.mutable_welcome()->mutable_presence()->set_first_rank(first);
    if (size > 0 && size < 10) message.mutable_welcome()->add_processes(size);
    return message;
  };
  const auto presence = [](uint32_t size, int first) {
    Message message;
    message.mutable_presence()->set_size(size);
    message.mutable_presence()->set_first_rank(first);
    return message;
  };
  const auto ends = [](const std::vector<Message>& messages, const std::string& text) {
    const absl::Status status = AttachTo(messages);
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  ends({welcome(4, 4, 4, 0)}, "a welcome as worker 4 of 4");
  ends({welcome(0, 0, 0, 0)}, "a welcome as worker 0 of 0");
  ends({welcome(0, ~0u, 1, 0)}, "a welcome as worker 0 of 4294967295");
  ends({welcome(-1, 4, 4, 0)}, "and this worker's is -1");
  Message other = welcome(1, 4, 4, 0);
  other.mutable_welcome()->add_processes(1);
  ends({other}, "a welcome to 2 workers of 5 processes in all, where there are 4");
  other.mutable_welcome()->set_processes(0, 3);
  other.mutable_welcome()->add_processes(0);
  ends({other}, "a welcome to 3 workers of 4 processes in all, where there are 4");
  ends({welcome(1, 4, 5, 0)}, "5 workers from rank 0 on are present, of 4 in the job");
  ends({welcome(1, 4, 4, 0), welcome(1, 4, 4, 0)}, "a second welcome");
  ends({welcome(1, 4, 4, 0), presence(4, 0), presence(2, 2)}, "and this worker's is 1");
  ends({presence(4, 0)}, "a message of who is present before a welcome");
}

// It has no local rank: what it says reaches no table.
TEST(HostServer, CutsAProcessOffThatSpeaksWithoutAHello) {
  HostRig rig({1});
  for (const bool pushes : {true, false}) {
    auto [theirs, ours] = SocketPair();
    rig.daemon(0).Adopt(std::move(ours));
    HostChannel process(std::move(theirs), std::make_shared<ShmArena>(), EncodeSegmentToDaemon);
    bandoneon::host::ToDaemon message;
    if (pushes) {
      message.mutable_pushes()->add_pushes()->set_absent(true);
    } else {
      message.mutable_call()->set_barrier("b");
    }
    ASSERT_TRUE(process.Send(message));
    pollfd readable = {process.socket(), POLLIN, 0};
    (void)poll(&readable, 1, -1);
    EXPECT_TRUE(absl::IsUnavailable(process.Receive().status()));
  }
  EXPECT_TRUE(rig.client(0).Barrier("b", absl::Minutes(1)).ok());
}

TEST(HostVersion, ADaemonRefusesAProcessOfAnother) {
  HostRig rig({1});
  auto [theirs, ours] = SocketPair();
  rig.daemon(0).Adopt(std::move(ours));
  HostChannel process(std::move(theirs), std::make_shared<ShmArena>(), EncodeSegmentToDaemon);
  bandoneon::host::ToDaemon hello;
  hello.mutable_hello()->set_version(kHostVersion - 1);
  ASSERT_TRUE(process.Send(hello));
  const absl::Status refused = Read(Await<bandoneon::host::ToProcess>(process).welcome().refused());
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_EQ(refused.message(),
            absl::StrFormat("this host's daemon speaks version %d, the process %d: use one build",
                            kHostVersion, kHostVersion - 1));
}

// The daemon of the version before says it so.
TEST(HostVersion, AProcessSaysThatItsDaemonIsOfAnother) {
  auto [theirs, ours] = SocketPair();
  HostChannel daemon(std::move(ours), std::make_shared<ShmArena>(), EncodeSegmentToProcess);
  std::thread answers([&] {
    const auto hello = Await<bandoneon::host::ToDaemon>(daemon).hello();
    EXPECT_EQ(hello.version(), kHostVersion);
    bandoneon::host::ToProcess message;
    Write(FailedPrecondition("this host's daemon speaks version 4, the process %d: use one build",
                             hello.version()),
          message.mutable_welcome()->mutable_refused());
    EXPECT_TRUE(daemon.Send(message));
  });
  const SteadyClock clock;
  Registry telemetry;
  const absl::Status status =
      HostClient::Attach({.address = "unix:@test"}, std::move(theirs), &clock, &telemetry).status();
  answers.join();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("attaching to unix:@test"),
                    HasSubstr("speaks version 4, the process"), HasSubstr("use one build")));
}

TEST(HostAddressTest, IsANameOrAPath) {
  EXPECT_EQ(ParseHostAddress("unix:@job")->path, std::string("\0job", 4));
  EXPECT_EQ(ParseHostAddress("unix:/run/job")->path, "/run/job");
  for (const std::string& wrong :
       {std::string(), std::string("unix:"), std::string("unix:@"), std::string("unix:/"),
        std::string("unix:job"), std::string("/run/job"), "unix:@" + std::string(200, 'x'),
        std::string("unix:@a\0b", 9)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseHostAddress(wrong).status())) << wrong;
  }
}

}  // namespace
}  // namespace bdn::testing
