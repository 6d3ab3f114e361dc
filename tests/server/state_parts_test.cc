#include "server/state_parts.h"

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/wire/message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/shard_rig.h"

namespace bdn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Floats = std::vector<float>;

std::shared_ptr<const KeyPlan> PlanOf(const KeyOptions& options) {
  return MakePlan(Key::Of(7, 0), options);
}

Floats FloatsIn(const Buffer& payload) {
  Floats values(payload.size() / sizeof(float));
  DecodeFloats(payload.span(), values);
  return values;
}

std::vector<StatePart> PartsOf(const KeyOptions& options) {
  std::vector<StatePart> parts;
  for (int part = 0; part <= static_cast<int>(kLastStatePart); ++part) {
    const auto state_part = static_cast<StatePart>(part);
    const auto plan = PlanOf(options);
    if (HasPart(*plan, MakeStateParts(*plan), state_part)) parts.push_back(state_part);
  }
  return parts;
}

TEST(StatePartsTest, WhichAKeyHasFollowsFromItsRuleAndItsPull) {
  using enum StatePart;
  EXPECT_THAT(PartsOf({.rule = "mean"}), ElementsAre(kCounters));
  EXPECT_THAT(PartsOf({.pull = "ef(onebit)"}), ElementsAre(kResidual, kCounters));
  EXPECT_THAT(PartsOf({.rule = "sgd(momentum=0.9)"}),
              ElementsAre(kWeights, kCounters, kMoment0, kRule));
  EXPECT_THAT(PartsOf({.pull = "delta(int4)", .rule = "adamw"}),
              ElementsAre(kWeights, kReplica, kCounters, kMoment0, kMoment1, kRule));
  EXPECT_THAT(PartsOf({.pull = "sign", .rule = "sign_momentum"}),
              ElementsAre(kWeights, kCounters, kMoment0));
}

Buffer Text(std::string_view text) { return Buffer::CopyOf(std::as_bytes(std::span(text))); }

TEST(StatePartsTest, ARuleThatIsSetIsOfTheDeclaredKindAndToldInItsCanonicalForm) {
  const auto plan = PlanOf({.segments = {2, 3}, .rule = "adamw(beta1=0.95)"});
  StateParts parts = MakeStateParts(*plan);
  const auto told = [&] {
    const Buffer text = EncodePart(*plan, StatePart::kRule, 0, parts);
    return std::string(reinterpret_cast<const char*>(text.data()), text.size());
  };
  EXPECT_EQ(told(), "adamw(beta1=0.95)");
  const auto set = [&](std::string_view text) {
    return SetPart(*plan, StatePart::kRule, 1, Text(text).span(), &parts);
  };
  ASSERT_TRUE(set("adamw(beta1=0.85,decay=0.01)").ok());
  EXPECT_EQ(told(), "adamw(beta1=0.85)");
  for (const auto& [text, why] :
       {std::pair{"sgd(momentum=0.9)", "where adamw"},
        std::pair{"adamw(beta1=1)", "from 0 to below 1"}, std::pair{"", "expected a rule"}}) {
    const absl::Status status = set(text);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_EQ(told(), "adamw(beta1=0.85)");
  }
}

TEST(StatePartsTest, MomentsOfARuleThatHadThemAreKeptWhileAnotherHasNone) {
  const auto plan = PlanOf({.segments = {2}, .rule = "sgd"});
  StateParts parts = MakeStateParts(*plan);
  EXPECT_FALSE(HasPart(*plan, parts, StatePart::kMoment0));
  const auto set = [&](std::string_view text) {
    return SetPart(*plan, StatePart::kRule, 0, Text(text).span(), &parts).ok();
  };
  ASSERT_TRUE(set("sgd(momentum=0.5)"));
  ASSERT_TRUE(HasPart(*plan, parts, StatePart::kMoment0));
  ASSERT_TRUE(
      SetPart(*plan, StatePart::kMoment0, 0, EncodeFloats(Floats{7, 8}).span(), &parts).ok());
  ASSERT_TRUE(set("sgd"));
  EXPECT_THAT(FloatsIn(EncodePart(*plan, StatePart::kMoment0, 0, parts)), ElementsAre(7, 8));
}

TEST(StatePartsTest, ASegmentsPartComesBackAsItWasSetAndTheOthersStayZero) {
  const auto plan = PlanOf({.segments = {2, 3}, .rule = "adamw"});
  for (const StatePart part : {StatePart::kWeights, StatePart::kMoment0, StatePart::kMoment1}) {
    StateParts parts = MakeStateParts(*plan);
    ASSERT_TRUE(SetPart(*plan, part, 1, EncodeFloats(Floats{7, 8, 9}).span(), &parts).ok());
    EXPECT_THAT(FloatsIn(EncodePart(*plan, part, 0, parts)), ElementsAre(0, 0));
    EXPECT_THAT(FloatsIn(EncodePart(*plan, part, 1, parts)), ElementsAre(7, 8, 9));
  }
}

TEST(StatePartsTest, WeightsBecomeTheReplicaAsWell) {
  const auto plan = PlanOf({.pull = "delta(int4)", .segments = {2}, .rule = "sgd"});
  StateParts parts = MakeStateParts(*plan);
  ASSERT_TRUE(
      SetPart(*plan, StatePart::kWeights, 0, EncodeFloats(Floats{7, 8}).span(), &parts).ok());
  EXPECT_THAT(parts.replica, ElementsAre(7, 8));
  EXPECT_TRUE(parts.segments[0].has_weights);
}

TEST(StatePartsTest, WhatIsNotOfTheSegmentOrNotFiniteChangesNothing) {
  const auto plan = PlanOf({.segments = {2}, .rule = "sgd"});
  StateParts parts = MakeStateParts(*plan);
  const StateParts before = parts;
  const auto refused = [&](StatePart part, const Floats& values, const std::string& why) {
    const absl::Status status = SetPart(*plan, part, 0, EncodeFloats(values).span(), &parts);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_EQ(parts, before);
  };
  refused(StatePart::kWeights, {1}, "4 bytes for 2 elements");
  refused(StatePart::kWeights, {1, std::numeric_limits<float>::infinity()}, "element 1 is inf");
  refused(StatePart::kCounters, {1}, "counters: 4 bytes");
}

}  // namespace
}  // namespace bdn::testing
