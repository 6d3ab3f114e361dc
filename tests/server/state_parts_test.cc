#include "server/state_parts.h"

#include <limits>

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
    if (HasPart(*PlanOf(options), state_part)) parts.push_back(state_part);
  }
  return parts;
}

TEST(StatePartsTest, WhichAKeyHasFollowsFromItsRuleAndItsPull) {
  using enum StatePart;
  EXPECT_THAT(PartsOf({.rule = "mean"}), ElementsAre(kCounters));
  EXPECT_THAT(PartsOf({.pull = "ef(onebit)"}), ElementsAre(kResidual, kCounters));
  EXPECT_THAT(PartsOf({.rule = "sgd(momentum=0.9)"}), ElementsAre(kWeights, kCounters, kMoment0));
  EXPECT_THAT(PartsOf({.pull = "delta(int4)", .rule = "adamw"}),
              ElementsAre(kWeights, kReplica, kCounters, kMoment0, kMoment1));
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
