#include "worker/pipeline/key_exchange.h"

#include <cmath>
#include <limits>

#include "common/base/status.h"
#include "common/wire/headers.h"
#include "common/wire/message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/shard_rig.h"

namespace bdn::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Key kKey = Key::Of(1, 0);

DeclaredKey Declare(const KeyOptions& options) {
  DeclaredKey key{.entry = MakeEntry(kKey, options), .server = kServerNode, .catalogue_version = 1};
  for (size_t i = 0; i < options.segments.size(); ++i) {
    key.tensor_names.push_back("t" + std::to_string(i));
  }
  key.link = MakeKeyLink(key.entry, key.tensor_names[0]).value();
  return key;
}

// One key and the tensors of its caller: deposits, encodes and answers by hand.
class KeyExchangeTest : public ::testing::Test {
 protected:
  void Make(const KeyOptions& options) {
    options_ = options;
    exchange_ = std::make_unique<KeyExchange>(Declare(options));
  }
  void Deposit(size_t segment, Step step, std::vector<float>* data, int32_t priority = 0) {
    PushRequest request;
    request.priority = priority;
    if (data != nullptr) {
      request.data = {data->data(), DType::kFloat32, data->size()};
    } else {
      request.absent = true;
    }
    exchange_->Deposit(segment, 0, options_.segments[segment], step, /*ticket=*/segment + 1,
                       request);
  }
  // A whole exchange up to its push.
  RequestTable::Request Encode() {
    EXPECT_TRUE(exchange_->Claim());
    return exchange_->Encode({.run_seed = 1, .rank = 0, .pool = &pool_}).value();
  }
  // The end of its last request, which is known.
  KeyExchange::Next OnAnswer(absl::StatusOr<Frame> answer) {
    return exchange_->OnAnswer({std::move(answer)});
  }
  // Returns a server's reply to `push` with these values.
  Frame ReplyTo(const RequestTable::Request& push, const std::vector<float>& values) {
    KeyOptions as_pull = options_;
    as_pull.push = options_.pull;
    Frame reply = MakePush(kKey, push.frame.header.step, 0, values, as_pull);
    FrameHeader header = AnswerTo(push.frame.header, FrameType::kReply);
    header.codec = reply.header.codec;
    return MakeFrame(header, reply.payload);
  }
  Frame BareReplyTo(const RequestTable::Request& push, uint8_t flags) {
    FrameHeader header = AnswerTo(push.frame.header, FrameType::kReply);
    header.flags = flags;
    return Frame{header, {}};
  }
  std::vector<float> Residual() {
    std::vector<float> residual(options_.segments[0]);
    EXPECT_TRUE(exchange_->CopyState(LinkState::kResidual, 0, residual).ok());
    return residual;
  }

  BufferPool pool_;
  KeyOptions options_;
  std::unique_ptr<KeyExchange> exchange_;
};

TEST_F(KeyExchangeTest, GoesFromADepositToItsResult) {
  Make({});
  std::vector<float> data = {1, 2, 3, 4};
  Deposit(0, 1, &data);
  const auto push = Encode();
  EXPECT_EQ(push.server, kServerNode);
  EXPECT_EQ(push.frame.header.type, FrameType::kPush);
  EXPECT_EQ(ValuesOf(push.frame), data);
  const auto next = OnAnswer(ReplyTo(push, {5, 6, 7, 8}));
  EXPECT_FALSE(next.request.has_value());
  EXPECT_TRUE(next.status.ok()) << next.status;
  EXPECT_THAT(data, ElementsAre(5, 6, 7, 8));
  EXPECT_EQ(exchange_->Finish()->step, 1u);
  EXPECT_TRUE(exchange_->is_idle());
}

TEST_F(KeyExchangeTest, APushIsAsUrgentAsTheMostUrgentOfItsTensors) {
  Make({.segments = {2, 2}});
  std::vector<float> a = {1, 1};
  std::vector<float> b = {2, 2};
  Deposit(0, 1, &a, -7);
  Deposit(1, 1, &b, -5);
  EXPECT_EQ(Encode().frame.header.priority, -5);
  exchange_->Finish();
  Deposit(1, 2, nullptr, std::numeric_limits<int32_t>::min());
  Deposit(0, 2, nullptr, -7);
  EXPECT_EQ(Encode().frame.header.priority, -7) << "and one that is absent, too";
}

TEST_F(KeyExchangeTest, AnExchangeIsClaimedOnceItIsCompleteAndOneAtATime) {
  Make({.segments = {2, 2}});
  std::vector<float> a = {1, 1};
  std::vector<float> b = {2, 2};
  Deposit(0, 1, &a);
  EXPECT_FALSE(exchange_->Claim());
  Deposit(1, 1, &b);
  Deposit(0, 2, &a);
  EXPECT_TRUE(exchange_->is_last_ready());
  Deposit(1, 2, &b);
  EXPECT_FALSE(exchange_->is_last_ready());
  EXPECT_TRUE(exchange_->Claim());
  EXPECT_EQ(exchange_->claimed().step, 1u);
  EXPECT_FALSE(exchange_->Claim());
  exchange_->Finish();
  EXPECT_TRUE(exchange_->Claim());
  EXPECT_EQ(exchange_->claimed().step, 2u);
}

TEST_F(KeyExchangeTest, RefusesAWeightThatItsGroupDoesNotHave) {
  Make({.segments = {2, 2}});
  std::vector<float> a = {1, 1};
  Deposit(0, 1, &a);
  PushRequest other;
  other.weight = 2;
  const absl::Status status = exchange_->CheckFits("t1", 1, other);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'t1': weight 2"));
  EXPECT_TRUE(exchange_->CheckFits("t1", 2, other).ok());
  PushRequest later;
  later.program_steps = 9;
  EXPECT_THAT(std::string(exchange_->CheckFits("t1", 1, later).message()),
              HasSubstr("'t1': program_steps 9, where others of its fused group have 0"));
}

TEST_F(KeyExchangeTest, SendsAHeaderAloneWhereNobodyHasAGradient) {
  Make({.push = "ef(onebit)"});
  Deposit(0, 1, nullptr);
  const auto push = Encode();
  EXPECT_EQ(push.frame.header.flags, kFlagAbsent | kFlagUnwanted);
  EXPECT_TRUE(push.frame.payload.empty());
  EXPECT_TRUE(OnAnswer(BareReplyTo(push, kFlagAbsent)).status.ok());
  EXPECT_TRUE(exchange_->Finish()->segments[0].absent_everywhere);
}

TEST_F(KeyExchangeTest, AGradientThatIsNotFiniteLeavesTheMemoryAlone) {
  Make({.push = "ef(onebit)"});
  std::vector<float> data = {1, INFINITY, 3, 4};
  Deposit(0, 1, &data);
  const auto push = Encode();
  EXPECT_EQ(push.frame.header.flags, kFlagNonFinite);
  EXPECT_TRUE(OnAnswer(BareReplyTo(push, kFlagNonFinite)).status.ok());
  EXPECT_TRUE(exchange_->Finish()->nonfinite);
  EXPECT_THAT(data, Each(::testing::IsNan()));
  EXPECT_THAT(Residual(), Each(0.0f));
}

TEST_F(KeyExchangeTest, TakesItsMemoryBackWhenTheRoundCameToNothing) {
  for (const bool by_error : {true, false}) {
    Make({.push = "ef(onebit)"});
    std::vector<float> data = {1, 2, 3, 6};
    Deposit(0, 1, &data);
    const auto push = Encode();
    const auto answer = by_error ? absl::StatusOr<Frame>(Aborted("because"))
                                 : absl::StatusOr<Frame>(BareReplyTo(push, kFlagNonFinite));
    EXPECT_EQ(OnAnswer(answer).status.ok(), !by_error);
    exchange_->Finish();
    EXPECT_THAT(Residual(), Each(0.0f)) << by_error;
  }
}

// Whether a push was counted is known only once the server says so: the callers do not wait for it.
TEST_F(KeyExchangeTest, AsksOnWithoutItsCallersUntilTheServerHasSaidWhetherItCounted) {
  for (const bool counted : {true, false}) {
    Make({.push = "ef(onebit)"});
    std::vector<float> data = {1, 2, 3, 6};
    Deposit(0, 1, &data);
    const auto push = Encode();
    for (const bool is_first : {true, false}) {
      const auto next = exchange_->OnAnswer({absl::UnknownError("no answer in 30m"), true});
      ASSERT_TRUE(next.request.has_value());
      EXPECT_EQ(next.request->frame.header, push.frame.header);
      EXPECT_EQ(next.request->frame.payload.data(), push.frame.payload.data());
      EXPECT_TRUE(next.request->is_patient);
      EXPECT_TRUE(absl::IsUnknown(next.status));
      EXPECT_EQ(exchange_->GiveBack(), is_first);
    }
    data = {7, 7, 7, 7};  // its caller's again
    const auto answer = counted ? absl::StatusOr<Frame>(ReplyTo(push, {5, 5, 5, 5}))
                                : absl::StatusOr<Frame>(Aborted("the round failed"));
    EXPECT_EQ(OnAnswer(answer).status.ok(), counted);
    exchange_->Finish();
    EXPECT_THAT(data, Each(7.0f));
    if (counted) {
      EXPECT_THAT(Residual(), ElementsAre(-2, -1, 0, 3));
    } else {
      EXPECT_THAT(Residual(), ElementsAre(1, 2, 3, 6));  // all of it is owed
    }
  }
}

TEST_F(KeyExchangeTest, AnErrorWhoseCodeIsUnknownIsAnEndLikeAnyOther) {
  Make({.push = "ef(onebit)"});
  std::vector<float> data = {1, 2, 3, 6};
  Deposit(0, 1, &data);
  Encode();
  const auto next = OnAnswer(absl::UnknownError("by somebody else"));
  EXPECT_FALSE(next.request.has_value());
  EXPECT_TRUE(absl::IsUnknown(next.status));
  exchange_->Finish();
  EXPECT_THAT(Residual(), Each(0.0f));
}

TEST_F(KeyExchangeTest, KeepsItsMemoryWhereTheServerHasCountedThePush) {
  Make({.push = "ef(onebit)"});
  std::vector<float> data = {1, 2, 3, 6};
  Deposit(0, 1, &data);
  const auto push = Encode();
  Frame reply = ReplyTo(push, {1, 1, 1, 1});
  reply.header.codec = 99;
  const auto next = OnAnswer(reply);
  EXPECT_EQ(next.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(next.status.message()), HasSubstr("codec 99, where none was declared"));
  exchange_->Finish();
  EXPECT_THAT(Residual(), ElementsAre(-2, -1, 0, 3));
}

TEST_F(KeyExchangeTest, AsksAgainForADamagedReplyAndGivesUpInTheEnd) {
  Make({});
  std::vector<float> data = {1, 2, 3, 4};
  Deposit(0, 1, &data);
  const auto push = Encode();
  Frame damaged = ReplyTo(push, {5, 6, 7, 8});
  damaged.payload = Buffer::CopyOf(damaged.payload.span());
  damaged.payload.data()[0] ^= std::byte{1};
  KeyExchange::Next next = OnAnswer(damaged);
  int asked = 0;
  for (; next.request.has_value() && asked < 100; ++asked) {
    EXPECT_EQ(next.request->frame.header, push.frame.header);
    next = OnAnswer(damaged);
  }
  EXPECT_EQ(asked, 7);
  EXPECT_EQ(next.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(data, ElementsAre(1, 2, 3, 4));
}

TEST_F(KeyExchangeTest, FetchesTheReplicaThatAReplyBuildsOn) {
  Make({.pull = "delta(int8)", .segments = {32, 32}, .rule = "sgd"});
  std::vector<float> a(32, 1.0f);
  std::vector<float> b(32, 2.0f);
  Deposit(0, 1, &a);
  Deposit(1, 1, &b);
  const auto push = Encode();
  Frame reply = ReplyTo(push, std::vector<float>(64, 0.5f));
  reply.header.base_step = 7;
  KeyExchange::Next next = OnAnswer(reply);
  for (size_t segment = 0; segment < 2; ++segment) {
    ASSERT_TRUE(next.request.has_value());
    const FrameHeader& fetch = next.request->frame.header;
    EXPECT_EQ(fetch.type, FrameType::kFetch);
    EXPECT_EQ(fetch.part, StatePart::kReplica);
    EXPECT_EQ(fetch.element_offset, 32 * segment);
    EXPECT_EQ(fetch.request, segment + 1);
    FrameHeader value = AnswerTo(fetch, FrameType::kValue);
    value.base_step = 1;
    const std::vector<float> weights(32, 10.0f + static_cast<float>(segment));
    next = OnAnswer(MakeFrame(value, EncodeFloats(weights)));
  }
  EXPECT_FALSE(next.request.has_value());
  EXPECT_TRUE(next.status.ok()) << next.status;
  EXPECT_THAT(a, Each(10.0f));
  EXPECT_THAT(b, Each(11.0f));
}

// In groups, too: one segment that has data is enough.
TEST_F(KeyExchangeTest, DoesWithoutTheResultExactlyWhereNoSegmentHasDataForIt) {
  std::vector<float> data = {1, 2};
  Make({.segments = {2, 2}});
  for (const bool has_data : {false, true}) {
    for (const size_t segment : {size_t{0}, size_t{1}}) {
      PushRequest request;
      request.absent = true;
      if (has_data && segment == 1) request.data = {data.data(), DType::kFloat32, data.size()};
      exchange_->Deposit(segment, 0, 2, has_data ? 2 : 1, /*ticket=*/segment + 1, request);
    }
    EXPECT_EQ(Encode().frame.header.flags, has_data ? kFlagAbsent : kFlagAbsent | kFlagUnwanted);
    exchange_->Finish();
  }
}

TEST_F(KeyExchangeTest, AResultThatIsUnwantedLeavesTheReplicaToTheNextReplyThatIsWanted) {
  Make({.pull = "delta(int8)", .segments = {32}, .rule = "sgd"});
  exchange_->AdoptReplica(0, 3, std::vector<float>(32, 1.0f));
  Deposit(0, 4, nullptr);
  const auto unwanted = Encode();
  const auto end = OnAnswer(BareReplyTo(unwanted, kFlagUnwanted));
  EXPECT_FALSE(end.request.has_value());
  EXPECT_TRUE(end.status.ok()) << end.status;
  EXPECT_FALSE(exchange_->Finish()->segments[0].absent_everywhere);
  std::vector<float> replica(32);
  EXPECT_TRUE(exchange_->CopyState(LinkState::kReplica, 0, replica).ok());
  EXPECT_THAT(replica, Each(1.0f));

  std::vector<float> data(32, 1.0f);
  Deposit(0, 5, &data);
  Frame reply = ReplyTo(Encode(), std::vector<float>(32, 0.5f));
  reply.header.base_step = 4;
  const auto next = OnAnswer(reply);
  ASSERT_TRUE(next.request.has_value());
  EXPECT_EQ(next.request->frame.header.type, FrameType::kFetch);
}

TEST_F(KeyExchangeTest, AReplicaIsInForceOnceAllSegmentsAreOfOneStep) {
  Make({.pull = "delta(int8)", .segments = {32, 32}, .rule = "sgd"});
  const std::vector<float> weights(32, 1.0f);
  exchange_->AdoptReplica(0, 3, weights);
  exchange_->AdoptReplica(1, 4, weights);  // the other is of an earlier step
  std::vector<float> a(32, 1.0f);
  std::vector<float> b(32, 2.0f);
  Deposit(0, 5, &a);
  Deposit(1, 5, &b);
  const auto push = Encode();
  Frame reply = ReplyTo(push, std::vector<float>(64, 0.5f));
  reply.header.base_step = 4;
  EXPECT_TRUE(OnAnswer(reply).request.has_value());  // a fetch
  exchange_->Finish();
  exchange_->AdoptReplica(0, 6, weights);
  exchange_->AdoptReplica(1, 6, weights);
  Deposit(0, 7, &a);
  Deposit(1, 7, &b);
  Frame second = ReplyTo(Encode(), std::vector<float>(64, 0.5f));
  second.header.base_step = 6;
  const auto next = OnAnswer(second);
  EXPECT_FALSE(next.request.has_value());
  EXPECT_TRUE(next.status.ok()) << next.status;
  EXPECT_THAT(a, Each(1.5f));
}

TEST_F(KeyExchangeTest, AStateThatWasSetIsWhatTheNextPushAdds) {
  Make({.push = "ef(onebit)"});
  EXPECT_TRUE(exchange_->SetState(LinkState::kResidual, 0, std::vector<float>{1, -1, 1, -1}).ok());
  std::vector<float> data = {0, 0, 0, 0};
  Deposit(0, 1, &data);
  const auto push = Encode();
  EXPECT_THAT(ValuesOf(push.frame, {.pull = "onebit"}), ElementsAre(1, -1, 1, -1));
}

}  // namespace
}  // namespace bdn::testing
