#include "worker/pipeline/request_table.h"

#include "common/base/status.h"
#include "common/wire/headers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/shard_rig.h"
#include "worker/error_fields.h"

namespace bdn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr Key kKey = Key::Of(3, 0);

// The actions that the table has asked of its caller so far.
struct Log {
  void operator()(RequestTable::Actions actions) {
    reconnects += actions.reconnects.size();
    for (RequestTable::Outgoing& out : actions.sends) {
      EXPECT_EQ(out.server, kServerNode);
      if (out.request != 0) last_request = out.request;
      sent.push_back(std::move(out.frame));
    }
    for (RequestTable::Answer& answer : actions.answers) {
      is_unknown.push_back(answer.outcome.is_unknown);
      completed.push_back({answer.step, std::move(answer.outcome.frame)});
    }
  }
  FrameType LastSent() const { return sent.empty() ? FrameType{} : sent.back().header.type; }

  std::vector<Frame> sent;
  uint64_t last_request = 0;
  size_t reconnects = 0;
  std::vector<std::pair<Step, absl::StatusOr<Frame>>> completed;
  std::vector<bool> is_unknown;  // of these
};

class RequestTableTest : public ::testing::Test {
 protected:
  RequestTableTest() {
    log_(requests_.SetMembership(MakeMembership(2), now_));
    Answer(FrameType::kHello, 0);
    log_.sent.clear();
  }
  static RequestTable::Options Options() {
    return {.self = WorkerNode(0),
            .rank = 0,
            .job_id = "job",
            .probe_interval = absl::Seconds(1),
            .timeout = absl::Minutes(1)};
  }
  void Submit(RequestTable::Request request) {
    auto actions = requests_.Submit(std::move(request), now_);
    ASSERT_TRUE(actions.ok()) << actions.status();
    log_(*std::move(actions));
  }
  void Ask(Step step, FrameType type = FrameType::kPush, bool of_exchange = false) {
    Frame frame = MakePush(kKey, step, 0, {1, 2, 3, 4});
    frame.header.type = type;
    if (type != FrameType::kPush) frame.header.codec = 0;
    if (type == FrameType::kFetch) frame = Frame{frame.header, {}};
    Submit({.frame = frame,
            .server = kServerNode,
            .tensor = "w",
            .root = 1,
            .of_exchange = of_exchange});
  }
  void Sent() { EXPECT_TRUE(requests_.OnSent(kKey, log_.last_request, now_)); }
  void Answer(FrameType type, Step step, Buffer payload = {}) {
    FrameHeader header;
    header.type = type;
    header.sender = kServerNode;
    header.key = type == FrameType::kHello ? Key{} : kKey;
    header.step = step;
    header.num_elements = type == FrameType::kHello ? 0 : 4;
    header.epoch = epoch_;
    log_(requests_.OnFrame(kServerNode, MakeFrame(header, std::move(payload)), now_));
  }
  static FrameHeader AboutState(FrameType type, uint32_t request, Step step = 1) {
    return StateHeader(
        type, {.part = StatePart::kMoment0, .key = kKey, .num_elements = 4, .element_offset = 2},
        step, request);
  }
  void AskAboutState(FrameType type, uint32_t request, Step step = 1) {
    const Frame frame{AboutState(type, request, step), {}};
    Submit({.frame = frame, .server = kServerNode, .tensor = "w", .root = 0});
  }
  void AnswerAboutState(FrameType type, uint32_t request, Step step = 1) {
    FrameHeader header = AnswerTo(AboutState(FrameType::kFetch, request, step), type);
    header.sender = kServerNode;
    Buffer payload;
    if (type == FrameType::kError) payload = EncodeError(absl::NotFoundError("because"));
    log_(requests_.OnFrame(kServerNode, MakeFrame(header, std::move(payload)), now_));
  }
  void Fail(Step step, absl::StatusCode code) {
    Answer(FrameType::kError, step, EncodeError(absl::Status(code, "because")));
  }
  void Wait(absl::Duration time) {
    now_ += time;
    if (requests_.NextTick() <= now_) log_(requests_.OnTick(now_));
  }

  absl::Time now_ = absl::UnixEpoch();
  Epoch epoch_ = 1;  // of the server
  Log log_;
  RequestTable requests_{Options()};
};

TEST_F(RequestTableTest, CompletesARequestWithItsReplyOnce) {
  Ask(1);
  ASSERT_THAT(log_.sent, SizeIs(1));
  EXPECT_EQ(log_.sent[0].header.epoch, 1u);
  Answer(FrameType::kReply, 1);
  Answer(FrameType::kReply, 1);
  ASSERT_THAT(log_.completed, SizeIs(1));
  EXPECT_TRUE(log_.completed[0].second.ok());
  EXPECT_EQ(requests_.stats().frames_dropped, 1u);
}

TEST_F(RequestTableTest, HasOneOpenRequestAKey) {
  Ask(1);
  const Frame second = MakePush(kKey, 2, 0, {1, 2, 3, 4});
  EXPECT_EQ(requests_.Submit({.frame = second, .server = kServerNode}, now_).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(RequestTableTest, DropsAnswersToOtherSteps) {
  Ask(5);
  Answer(FrameType::kReply, 4);
  Fail(4, absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(log_.completed, SizeIs(0));
  EXPECT_EQ(requests_.stats().frames_dropped, 2u);
}

TEST_F(RequestTableTest, ProbesOnlyAfterThePayloadWentOut) {
  Ask(1);
  Wait(absl::Seconds(30));
  EXPECT_THAT(log_.sent, SizeIs(1));
  Sent();
  Wait(absl::Seconds(1));
  EXPECT_EQ(log_.LastSent(), FrameType::kProbe);
  EXPECT_EQ(log_.sent.back().payload.size(), 0u);
}

TEST_F(RequestTableTest, ProbesLessAndLessOften) {
  Ask(1);
  Sent();
  for (int i = 0; i < 50; ++i) {
    Wait(absl::Seconds(1));
    if (log_.LastSent() == FrameType::kProbe) Answer(FrameType::kWaiting, 1, EncodeRanks({1}));
  }
  EXPECT_GE(requests_.stats().probes_sent, 4u);
  EXPECT_LE(requests_.stats().probes_sent, 9u);
}

TEST_F(RequestTableTest, AsksForEachRequestWhenItIsDueInTheOrderInWhichTheyWereSent) {
  constexpr uint32_t kKeys = 100;
  for (uint32_t i = kKeys; i > 0; --i) {
    const Frame push = MakePush(Key::Of(i, 0), 1, 0, {1, 2, 3, 4});
    Submit({.frame = push, .server = kServerNode, .tensor = "w"});
    EXPECT_TRUE(requests_.OnSent(Key::Of(i, 0), log_.last_request, now_));
    now_ += absl::Milliseconds(1);
  }
  log_(requests_.OnTick(now_));
  log_.sent.clear();
  const absl::Time first = absl::UnixEpoch() + absl::Seconds(1);
  for (uint32_t i = 0; i < kKeys; ++i) {
    ASSERT_EQ(requests_.NextTick(), first + absl::Milliseconds(i));
    now_ = requests_.NextTick();
    log_(requests_.OnTick(now_));
    ASSERT_THAT(log_.sent, SizeIs(i + 1));
    EXPECT_EQ(log_.LastSent(), FrameType::kProbe);
    EXPECT_EQ(log_.sent.back().header.key, Key::Of(kKeys - i, 0));
  }
}

TEST_F(RequestTableTest, AsksForNothingWhileTheServersResultsComeButNotForEver) {
  Ask(1);
  Sent();
  int put_off = 0;
  while (log_.LastSent() != FrameType::kProbe) {
    ASSERT_LT(++put_off, 20);
    Answer(FrameType::kReply, 7);  // a result of another request
    Wait(absl::Seconds(1));
  }
  EXPECT_EQ(put_off, 9) << "eight were put off";
}

TEST_F(RequestTableTest, AsksAtOnceWhereOnlyItsAnswersToProbesCome) {
  Ask(1);
  Sent();
  Answer(FrameType::kWaiting, 1, EncodeRanks({1}));
  Wait(absl::Seconds(1));
  EXPECT_EQ(log_.LastSent(), FrameType::kProbe);
}

TEST_F(RequestTableTest, SendsTheSameBytesAgainWhenTheServerLacksThem) {
  Ask(1);
  Sent();
  Answer(FrameType::kWaiting, 1, EncodeRanks({1}));
  EXPECT_THAT(log_.sent, SizeIs(1));
  Answer(FrameType::kWaiting, 1, EncodeRanks({0, 1}));
  ASSERT_THAT(log_.sent, SizeIs(2));
  EXPECT_EQ(log_.sent[1].payload.data(), log_.sent[0].payload.data());
}

TEST_F(RequestTableTest, SendsAgainAtOnceWhatWasDamagedButNotForEver) {
  Ask(1);
  for (int i = 0; i < 20 && log_.completed.empty(); ++i) {
    Fail(1, absl::StatusCode::kDataLoss);
    Wait(absl::ZeroDuration());
  }
  ASSERT_THAT(log_.completed, SizeIs(1));
  EXPECT_EQ(log_.completed[0].second.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(log_.sent, SizeIs(8));
}

TEST_F(RequestTableTest, SendsAgainUnderTheNewEpochWhenTheOldOneHasEnded) {
  Ask(1);
  Fail(1, absl::StatusCode::kFailedPrecondition);
  log_(requests_.SetMembership(MakeMembership(2, /*epoch=*/2), now_));
  ASSERT_THAT(log_.sent, SizeIs(2));
  EXPECT_EQ(log_.sent[1].header.epoch, 2u);
  Answer(FrameType::kReply, 1);
  EXPECT_TRUE(log_.completed[0].second.ok());
}

TEST_F(RequestTableTest, GreetsAgainWhenTheServerHasForgottenIt) {
  Ask(1);
  Fail(1, absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(log_.LastSent(), FrameType::kHello);
  Answer(FrameType::kHello, 0);
  EXPECT_EQ(log_.LastSent(), FrameType::kPush);
}

TEST_F(RequestTableTest, AWaitForWorkersGoesOnForAsLongAsItsServerSaysSo) {
  Ask(7);
  Sent();
  for (int i = 0; i < 10; ++i) {  // ten minutes, of a timeout of one
    Answer(FrameType::kWaiting, 7, EncodeRanks({1}));
    Wait(absl::Seconds(59));
    EXPECT_EQ(requests_.WaitingFor(kKey), "worker 1");
  }
  ASSERT_THAT(log_.completed, SizeIs(0));
  Answer(FrameType::kReply, 7);
  ASSERT_THAT(log_.completed, SizeIs(1));
  EXPECT_TRUE(log_.completed[0].second.ok());
}

TEST_F(RequestTableTest, SoDoesTheWaitForABroadcastsRoot) {
  Ask(7, FrameType::kFetch);
  Sent();
  for (int i = 0; i < 10; ++i) {
    Answer(FrameType::kWaiting, 7, EncodeRanks({}));
    Wait(absl::Seconds(59));
    EXPECT_EQ(requests_.WaitingFor(kKey), "worker 1");
  }
  EXPECT_THAT(log_.completed, SizeIs(0));
}

TEST_F(RequestTableTest, EndsWhereItsServerOwesTheAnswerAndNamesIt) {
  for (const bool has_spoken : {false, true}) {
    log_ = {};
    Ask(7);
    Sent();
    if (has_spoken) {  // it waited for another, and is silent since
      Wait(absl::Seconds(30));
      Answer(FrameType::kWaiting, 7, EncodeRanks({1}));
      Wait(absl::Seconds(59));
      EXPECT_THAT(log_.completed, SizeIs(0));
    }
    Wait(absl::Minutes(2));
    ASSERT_THAT(log_.completed, SizeIs(1));
    const absl::Status status = log_.completed[0].second.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(GetErrorField(status, "tensor"), "w");
    EXPECT_EQ(GetErrorField(status, "step"), "7");
    EXPECT_EQ(GetErrorField(status, "waiting_for"), "server 0");
    Answer(FrameType::kHello, 0);  // it had to be greeted anew
  }
}

// It has not got what it is to sum: that somebody else is missing as well is no excuse.
TEST_F(RequestTableTest, EndsWhereTheServerGoesOnLosingThePush) {
  Ask(7);
  for (int i = 0; i < 10 && log_.completed.empty(); ++i) {
    Sent();
    Answer(FrameType::kWaiting, 7, EncodeRanks({0, 1}));
    Wait(absl::Seconds(10));
  }
  ASSERT_THAT(log_.completed, SizeIs(1));
  EXPECT_EQ(GetErrorField(log_.completed[0].second.status(), "waiting_for"), "server 0");
}

TEST_F(RequestTableTest, AsksBeforeTheTimeoutIsOverHoweverShortItIs) {
  RequestTable::Options options = Options();
  options.timeout = absl::Milliseconds(100);  // a tenth of the interval of probes
  requests_ = RequestTable(options);
  log_(requests_.SetMembership(MakeMembership(2), now_));
  Answer(FrameType::kHello, 0);
  Ask(7);
  Sent();
  for (int i = 0; i < 100; ++i) {
    const size_t sent = log_.sent.size();
    Wait(absl::Milliseconds(10));
    if (log_.sent.size() > sent) Answer(FrameType::kWaiting, 7, EncodeRanks({1}));
  }
  EXPECT_THAT(log_.completed, SizeIs(0));
  EXPECT_GT(requests_.stats().probes_sent, 10u);
}

TEST_F(RequestTableTest, AnExchangeThatEndsWithoutAnAnswerHasACodeOfItsOwn) {
  Ask(7, FrameType::kPush, /*of_exchange=*/true);
  Sent();
  Answer(FrameType::kWaiting, 7, EncodeRanks({1}));
  Wait(absl::Minutes(2));
  ASSERT_THAT(log_.completed, SizeIs(1));
  const absl::Status status = log_.completed[0].second.status();
  EXPECT_THAT(log_.is_unknown, ElementsAre(true));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(GetErrorField(status, "tensor"), "w");
  EXPECT_EQ(GetErrorField(status, "step"), "7");
  EXPECT_EQ(GetErrorField(status, "stage"), "exchange");
  EXPECT_EQ(GetErrorField(status, "waiting_for"), "server 0");
}

// Callers tell by it that they do not know what has become of their push.
TEST_F(RequestTableTest, NobodyElseGivesThatCode) {
  Ask(1, FrameType::kPush, /*of_exchange=*/true);
  Fail(1, absl::StatusCode::kUnknown);
  Ask(2, FrameType::kPush, /*of_exchange=*/true);
  log_(requests_.Fail(absl::UnknownError("by the scheduler")));
  ASSERT_THAT(log_.completed, SizeIs(2));
  EXPECT_THAT(log_.is_unknown, ElementsAre(false, false));
  EXPECT_EQ(log_.completed[0].second.status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(log_.completed[1].second.status().code(), absl::StatusCode::kInternal);
}

TEST_F(RequestTableTest, SendsAgainLessAndLessOftenAndGivesUp) {
  for (const auto code : {absl::StatusCode::kUnavailable, absl::StatusCode::kFailedPrecondition}) {
    log_ = {};
    Ask(1);
    const absl::Time begin = now_;
    for (int i = 0; i < 100 && log_.completed.empty(); ++i) {
      Fail(1, code);
      while (log_.completed.empty() && log_.sent.size() < static_cast<size_t>(i) + 2) {
        Wait(absl::Milliseconds(20));
      }
    }
    ASSERT_THAT(log_.completed, SizeIs(1));
    EXPECT_THAT(log_.sent, SizeIs(12));
    EXPECT_GT(now_ - begin, absl::Seconds(20));
    EXPECT_THAT(std::string(log_.completed[0].second.status().message()),
                HasSubstr("sent 12 times in vain: server 0: because"));
  }
}

TEST_F(RequestTableTest, APatientRequestIsSentAgainUntilItsDeadline) {
  Frame frame = MakePush(kKey, 1, 0, {1, 2, 3, 4});
  Submit({.frame = frame, .server = kServerNode, .of_exchange = true, .is_patient = true});
  for (int i = 0; i < 50; ++i) {
    Fail(1, i % 2 == 0 ? absl::StatusCode::kDataLoss : absl::StatusCode::kUnavailable);
    Wait(absl::Milliseconds(500));
  }
  EXPECT_THAT(log_.completed, SizeIs(0));
  EXPECT_LT(log_.sent.size(), 25u);
  Wait(absl::Minutes(1));
  EXPECT_THAT(log_.completed, SizeIs(1));
}

TEST_F(RequestTableTest, ConnectsAnewToAServerThatHasFallenSilent) {
  Ask(1);
  Sent();
  while (log_.reconnects == 0) {
    ASSERT_LT(now_, absl::UnixEpoch() + absl::Seconds(20));
    Wait(absl::Milliseconds(100));
  }
  EXPECT_EQ(requests_.stats().probes_sent, 3u);
  EXPECT_EQ(requests_.stats().reconnects, 1u);
  Wait(absl::ZeroDuration());
  EXPECT_EQ(log_.LastSent(), FrameType::kHello);
  Answer(FrameType::kHello, 0);
  EXPECT_EQ(log_.LastSent(), FrameType::kPush);
}

TEST_F(RequestTableTest, AServerThatSaysAnythingIsNotSilent) {
  Ask(1);
  Sent();
  for (int i = 0; i < 500; ++i) {
    Wait(absl::Milliseconds(100));
    if (i % 10 == 0) Answer(FrameType::kWaiting, 1, EncodeRanks({1}));
  }
  EXPECT_EQ(log_.reconnects, 0u);
}

TEST_F(RequestTableTest, SaysForHowLongAServerDoesNotAnswer) {
  Ask(1);
  Sent();
  EXPECT_THAT(requests_.Unheard(now_), SizeIs(0));
  for (int i = 0; i < 300; ++i) Wait(absl::Milliseconds(100));
  const auto unheard = requests_.Unheard(now_);
  ASSERT_THAT(unheard, SizeIs(1));
  EXPECT_EQ(unheard[0].node, kServerNode);
  EXPECT_GT(unheard[0].wait, absl::Seconds(10));
  EXPECT_LE(unheard[0].wait, absl::Seconds(30));
  Answer(FrameType::kHello, 0);
  EXPECT_THAT(requests_.Unheard(now_), SizeIs(0)) << "it has answered";
}

TEST_F(RequestTableTest, AProcessThatStoodStillDoesNotBlameTheServer) {
  Ask(1);
  Sent();
  Wait(absl::Seconds(1));
  for (int i = 0; i < 2; ++i) {
    Wait(absl::Minutes(5));
    for (const NodeWait& each : requests_.Unheard(now_)) EXPECT_LT(each.wait, absl::Seconds(9));
  }
}

TEST_F(RequestTableTest, AServerThatIsNotAskedIsNotUnheard) {
  Ask(1);
  Sent();
  for (int i = 0; i < 100; ++i) Wait(absl::Milliseconds(100));
  Answer(FrameType::kReply, 1);
  for (int i = 0; i < 500; ++i) Wait(absl::Milliseconds(100));
  EXPECT_THAT(requests_.Unheard(now_), SizeIs(0));
}

TEST_F(RequestTableTest, ConnectsAnewLessAndLessOften) {
  Ask(1);
  Sent();
  for (int i = 0; i < 550; ++i) Wait(absl::Milliseconds(100));
  EXPECT_GE(log_.reconnects, 2u);
  EXPECT_LE(log_.reconnects, 4u);
}

// Until a hello is answered nothing else may be said.
TEST_F(RequestTableTest, ProbesNobodyBeforeItsHelloIsAnswered) {
  Ask(1);
  Sent();
  Fail(1, absl::StatusCode::kUnauthenticated);
  log_.sent.clear();
  for (int i = 0; i < 20; ++i) Wait(absl::Milliseconds(100));
  for (const Frame& frame : log_.sent) EXPECT_EQ(frame.header.type, FrameType::kHello);
}

TEST_F(RequestTableTest, TheEndOfAnEarlierRequestsFrameIsNotThisOnes) {
  Ask(1);
  const uint64_t first = log_.last_request;
  Answer(FrameType::kReply, 1);
  Ask(1);
  EXPECT_FALSE(requests_.OnSent(kKey, first, now_));
  EXPECT_FALSE(requests_.OnSent(kKey, 0, now_));  // a probe's
  Wait(absl::Seconds(30));
  EXPECT_EQ(requests_.stats().probes_sent, 0u);
  Sent();
}

TEST_F(RequestTableTest, NamesTheServerWhenNothingWasHeard) {
  Ask(1);
  EXPECT_EQ(requests_.WaitingFor(kKey), "server 0");
  EXPECT_EQ(requests_.WaitingFor(Key::Of(9, 9)), "");
}

TEST_F(RequestTableTest, AFetchIsAskedAgainAndNamesTheRoot) {
  Ask(1, FrameType::kFetch);
  Sent();
  Wait(absl::Seconds(1));
  EXPECT_EQ(log_.LastSent(), FrameType::kFetch);
  EXPECT_EQ(requests_.WaitingFor(kKey), "worker 1");
  Answer(FrameType::kReply, 1);
  EXPECT_THAT(log_.completed, SizeIs(0));
  Answer(FrameType::kValue, 1);
  EXPECT_THAT(log_.completed, SizeIs(1));
}

TEST_F(RequestTableTest, DropsAnswersToAnEarlierRequestOfTheSameStep) {
  AskAboutState(FrameType::kInit, 2);
  AnswerAboutState(FrameType::kReply, 1);
  AnswerAboutState(FrameType::kError, 1);
  EXPECT_THAT(log_.completed, SizeIs(0));
  AnswerAboutState(FrameType::kReply, 2);
  EXPECT_THAT(log_.completed, SizeIs(1));

  AskAboutState(FrameType::kFetch, 3);
  AnswerAboutState(FrameType::kValue, 1);
  AnswerAboutState(FrameType::kError, 2);
  AnswerAboutState(FrameType::kError, 0);
  EXPECT_THAT(log_.completed, SizeIs(1));
  AnswerAboutState(FrameType::kValue, 3);
  EXPECT_THAT(log_.completed, SizeIs(2));
  EXPECT_EQ(requests_.stats().frames_dropped, 5u);
}

// A request about state may be of step 0, as a hello is.
TEST_F(RequestTableTest, AnErrorAboutStateIsNotTakenForARefusedGreeting) {
  AskAboutState(FrameType::kFetch, 1, 0);
  Fail(0, absl::StatusCode::kUnauthenticated);
  ASSERT_EQ(log_.LastSent(), FrameType::kHello);
  AnswerAboutState(FrameType::kError, 1, 0);
  ASSERT_THAT(log_.completed, SizeIs(1));
  EXPECT_EQ(log_.completed[0].second.status().code(), absl::StatusCode::kNotFound);
  Ask(1);
  EXPECT_THAT(log_.completed, SizeIs(1));
}

TEST_F(RequestTableTest, AnInitOfADenseKeyIsSentAgainWhereOthersAreProbed) {
  AskAboutState(FrameType::kInit, 1);
  Sent();
  Wait(absl::Seconds(1));
  ASSERT_THAT(log_.sent, SizeIs(2));
  EXPECT_EQ(log_.sent[1].header, log_.sent[0].header);
  EXPECT_EQ(requests_.stats().probes_sent, 0u);
}

TEST_F(RequestTableTest, AFetchAsksAgainForTheSame) {
  AskAboutState(FrameType::kFetch, 1);
  Sent();
  Wait(absl::Seconds(1));
  ASSERT_THAT(log_.sent, SizeIs(2));
  EXPECT_EQ(log_.sent[1].header, log_.sent[0].header);
}

TEST_F(RequestTableTest, AWithdrawnRequestMakesRoomForTheNext) {
  Ask(1, FrameType::kFetch);
  requests_.Withdraw(kKey, 2);  // another one
  EXPECT_TRUE(requests_.IsOpen(kKey));
  requests_.Withdraw(kKey, 1);
  EXPECT_FALSE(requests_.IsOpen(kKey));
  Ask(1);
  EXPECT_THAT(log_.completed, SizeIs(0));
}

TEST_F(RequestTableTest, ADamagedValueIsFetchedAgain) {
  Ask(1, FrameType::kFetch);
  FrameHeader header;
  header.type = FrameType::kValue;
  header.sender = kServerNode;
  header.key = kKey;
  header.step = 1;
  header.num_elements = 4;
  Frame value = MakeFrame(header, Buffer::Allocate(4));
  value.header.payload_crc ^= 1;
  log_(requests_.OnFrame(kServerNode, value, now_));
  EXPECT_THAT(log_.completed, SizeIs(0));
  Wait(absl::ZeroDuration());
  EXPECT_THAT(log_.sent, SizeIs(2));
}

TEST_F(RequestTableTest, AFailureEndsEveryRequestOfTodayAndTomorrow) {
  Ask(1);
  log_(requests_.Fail(Aborted("worker 1 was lost")));
  ASSERT_THAT(log_.completed, SizeIs(1));
  EXPECT_THAT(std::string(log_.completed[0].second.status().message()),
              HasSubstr("worker 1 was lost"));
  Ask(2);
  ASSERT_THAT(log_.completed, SizeIs(2));
}

TEST_F(RequestTableTest, AFetchEndsWhereItsRootWasLostAndHasGivenNothing) {
  Ask(1, FrameType::kFetch);  // of rank 1's value
  log_(requests_.SetMembership(MembershipOf({0, 2}, /*epoch=*/2), now_));
  Answer(FrameType::kWaiting, 1, EncodeRanks({}));
  EXPECT_THAT(log_.completed, SizeIs(0))
      << "said in the epoch before, in which the root could send";
  epoch_ = 2;
  Answer(FrameType::kWaiting, 1, EncodeRanks({2}));
  EXPECT_THAT(log_.completed, SizeIs(0)) << "the root has given it, and it waits for rank 2";
  Answer(FrameType::kWaiting, 1, EncodeRanks({}));
  ASSERT_THAT(log_.completed, SizeIs(1));
  const absl::Status status = log_.completed[0].second.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the job goes on without worker 1, which was to give the value"));
}

TEST_F(RequestTableTest, AFetchWhoseRootIsPresentWaitsAfterAnotherWasLost) {
  Ask(1, FrameType::kFetch);
  epoch_ = 2;
  log_(requests_.SetMembership(MembershipOf({0, 1, 3}, /*epoch=*/2), now_));
  Answer(FrameType::kWaiting, 1, EncodeRanks({}));
  EXPECT_THAT(log_.completed, SizeIs(0));
}

TEST_F(RequestTableTest, AServerThatKnowsThisWorkerNoMoreLeavesTheVerdictToTheScheduler) {
  Ask(1);
  Answer(FrameType::kError, 0, EncodeError(absl::UnauthenticatedError("say hello first")));
  Fail(0, absl::StatusCode::kPermissionDenied);  // it answers the hello so
  EXPECT_THAT(log_.completed, SizeIs(0)) << "it had admitted this worker once";
  EXPECT_TRUE(requests_.failed().ok());
  log_.sent.clear();
  Wait(absl::Seconds(1));
  EXPECT_EQ(log_.LastSent(), FrameType::kHello) << "it asks again meanwhile";
  log_(requests_.Fail(Evicted("the job goes on without worker 0")));
  ASSERT_THAT(log_.completed, SizeIs(1));
  EXPECT_TRUE(IsEvicted(log_.completed[0].second.status())) << "with the facts of its request";
  EXPECT_EQ(GetErrorField(log_.completed[0].second.status(), "tensor"), "w");
}

TEST_F(RequestTableTest, IgnoresAForgedSender) {
  Ask(1);
  FrameHeader header;
  header.type = FrameType::kReply;
  header.sender = WorkerNode(1);
  header.key = kKey;
  header.step = 1;
  header.num_elements = 4;
  log_(requests_.OnFrame(kServerNode, Frame{header, {}}, now_));
  EXPECT_THAT(log_.completed, SizeIs(0));
}

TEST(RequestTableHello, GreetsFirstAndSendsRequestsAfterTheAnswer) {
  Log log;
  RequestTable table({.self = WorkerNode(0), .job_id = "job"});
  const absl::Time now = absl::UnixEpoch();
  log(table.SetMembership(MakeMembership(1), now));
  ASSERT_EQ(log.LastSent(), FrameType::kHello);
  EXPECT_EQ(DecodeHello(log.sent[0].payload.span())->job_id, "job");
  auto actions =
      table.Submit({.frame = MakePush(kKey, 1, 0, {1, 2, 3, 4}), .server = kServerNode}, now);
  ASSERT_TRUE(actions.ok());
  log(*std::move(actions));
  EXPECT_THAT(log.sent, SizeIs(1));
  log(table.OnTick(now + absl::Seconds(1)));
  EXPECT_THAT(log.sent, SizeIs(2));  // the greeting again
  FrameHeader hello;
  hello.sender = kServerNode;
  log(table.OnFrame(kServerNode, Frame{hello, {}}, now));
  EXPECT_EQ(log.LastSent(), FrameType::kPush);
}

TEST(RequestTableHello, ARefusedGreetingFailsEverythingWithTheReason) {
  Log log;
  RequestTable table({.self = WorkerNode(0), .job_id = "job"});
  log(table.SetMembership(MakeMembership(1), absl::UnixEpoch()));
  FrameHeader header;
  header.type = FrameType::kError;
  header.sender = kServerNode;
  log(table.OnFrame(kServerNode, MakeFrame(header, EncodeError(PermissionDenied("another job"))),
                    absl::UnixEpoch()));
  auto actions = table.Submit({.frame = MakePush(kKey, 1, 0, {1, 2, 3, 4}), .server = kServerNode},
                              absl::UnixEpoch());
  ASSERT_TRUE(actions.ok());
  log(*std::move(actions));
  ASSERT_THAT(log.completed, SizeIs(1));
  EXPECT_THAT(std::string(log.completed[0].second.status().message()), HasSubstr("another job"));
}

}  // namespace
}  // namespace bdn::testing
