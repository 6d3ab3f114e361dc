#include "worker/pipeline/stages.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/shard_rig.h"
#include "worker/pipeline/device_stages.h"

// The arithmetic of values on their way (proto/wire_format.md, "Values"); what an exchange makes of
// it is key_exchange_test.cc's.

namespace bdn::testing {
namespace {

using ::testing::ElementsAre;

constexpr Key kKey = Key::Of(1, 0);

class StagesTest : public ::testing::Test {
 protected:
  StagesTest() { exchange_.step = 1; }

  void Make(const KeyOptions& options, float momentum = 0) {
    key_.entry = MakeEntry(kKey, options);
    key_.entry.momentum = momentum;
    key_.tensor_names = {"t"};
    key_.link = MakeKeyLink(key_.entry, "t").value();
    exchange_.segments.resize(1);
  }
  Frame Encode(std::vector<float>* data) {
    ExchangeSegment& segment = exchange_.segments[0];
    segment.filled = segment.present = true;
    segment.data = {data->data(), DType::kFloat32, data->size()};
    EncodePush({.run_seed = 1, .rank = 0, .pool = &pool_}, key_, &memory_, &exchange_);
    return exchange_.push;
  }
  void Decode(const std::vector<float>& values) {
    Frame reply = MakePush(kKey, exchange_.step, 0, values);
    reply.header.type = FrameType::kReply;
    ASSERT_TRUE(CheckReply(key_, exchange_, reply).ok());
    DecodeReply(key_, reply, &memory_, &exchange_);
  }

  BufferPool pool_;
  DeclaredKey key_;
  LinkMemory memory_;
  Exchange exchange_;
};

TEST_F(StagesTest, APushIsInUnscaledUnitsAndAResultInTheCallers) {
  Make({});
  std::vector<float> data = {8, 16, 24, 32};
  exchange_.weight = 2;
  exchange_.segments[0].loss_scale = 8;
  EXPECT_THAT(ValuesOf(Encode(&data)), ElementsAre(2, 4, 6, 8));
  Decode({1, 2, 3, 4});
  EXPECT_THAT(data, ElementsAre(8, 16, 24, 32));
}

TEST_F(StagesTest, TheHeaderCarriesWhatTheServerNeedsOfTheExchange) {
  Make({});
  std::vector<float> data = {1, 2, 3, 4};
  exchange_.weight = 3;
  exchange_.learning_rate = 0.5f;
  exchange_.program_steps = 8;
  const FrameHeader header = Encode(&data).header;
  EXPECT_EQ(header.program_steps, 8u);
  EXPECT_EQ(header.weight, 3);
  EXPECT_EQ(header.learning_rate, 0.5f);
  EXPECT_EQ(header.num_elements, 4u);
  EXPECT_EQ(header.step, 1u);
}

TEST_F(StagesTest, MomentumWithoutFeedbackKeepsNoResidual) {
  Make({}, /*momentum=*/0.5f);
  std::vector<float> data = {2, 4, 6, 8};
  // m = a * g, p = a * g + mu * m.
  EXPECT_THAT(ValuesOf(Encode(&data)), ElementsAre(3, 6, 9, 12));
  EXPECT_THAT(memory_.momentum, ElementsAre(2, 4, 6, 8));
  exchange_.step = 2;
  EXPECT_THAT(ValuesOf(Encode(&data)), ElementsAre(3.5f, 7, 10.5f, 14));
}

TEST_F(StagesTest, WhatTheCodecLeavesOutGoesToWhoAsksForIt) {
  Make({.push = "onebit"});
  std::vector<float> left_out(4, 99.0f);
  exchange_.segments[0].left_out = left_out.data();
  std::vector<float> data = {1, -2, 3, -6};
  Encode(&data);
  EXPECT_THAT(left_out, ElementsAre(-2, 1, 0, -3));
  EXPECT_TRUE(memory_.residual.empty());
}

TEST_F(StagesTest, AnUndoneStepLeavesTheMemoryAsItWas) {
  Make({.push = "ef(onebit,correction=lr)"}, /*momentum=*/0.5f);
  const std::vector<float> residual = {1, 0, -1, 0}, momentum = {0, 2, 0, 2};
  memory_.residual = residual;
  memory_.momentum = momentum;
  memory_.previous_learning_rate = 0.25f;
  exchange_.learning_rate = 0.5f;
  std::vector<float> data = {4, -4, 8, -8};
  Encode(&data);
  EXPECT_NE(memory_.residual, residual);
  UndoPush(key_, &memory_, &exchange_);
  EXPECT_EQ(memory_.residual, residual);
  EXPECT_EQ(memory_.momentum, momentum);
  EXPECT_EQ(memory_.previous_learning_rate, 0.25f);
  UndoPush(key_, &memory_, &exchange_);  // only once
  EXPECT_EQ(memory_.residual, residual);
}

TEST_F(StagesTest, AReplyWithAFlagCarriesNoPayload) {
  Make({});
  Frame reply = MakePush(kKey, 1, 0, {1, 2, 3, 4});
  reply.header.flags = kFlagAbsent;
  EXPECT_EQ(CheckReply(key_, exchange_, reply).code(), absl::StatusCode::kInternal);
}

TEST_F(StagesTest, AReplyLacksItsPayloadOnlyWhereThePushDoesWithoutIt) {
  Make({});
  Frame reply;
  reply.header.type = FrameType::kReply;
  reply.header.flags = kFlagUnwanted;
  exchange_.push.header.flags = kFlagAbsent;
  EXPECT_EQ(CheckReply(key_, exchange_, reply).code(), absl::StatusCode::kInternal);
  exchange_.push.header.flags = kFlagAbsent | kFlagUnwanted;
  EXPECT_EQ(CheckReply(key_, exchange_, reply), absl::OkStatus());
}

TEST_F(StagesTest, RunOnADeviceWhereItsKernelsCanCountTheElements) {
  Make({});
  key_.entry.elements = DeviceCodec::kMostElements - 1;
  EXPECT_TRUE(RunsOnDevice(key_));
  key_.entry.elements = DeviceCodec::kMostElements;
  EXPECT_FALSE(RunsOnDevice(key_));
}

TEST_F(StagesTest, LacksAReplicaOnlyWhereRepliesBuildOnOne) {
  Make({.pull = "delta(int8)", .segments = {32}, .rule = "sgd"});
  Frame reply;
  reply.header.base_step = 4;
  EXPECT_TRUE(LacksReplica(key_, memory_, reply));
  memory_.replica->step = 4;
  EXPECT_FALSE(LacksReplica(key_, memory_, reply));
  memory_.replica->step.reset();
  reply.header.flags = kFlagAbsent;
  EXPECT_FALSE(LacksReplica(key_, memory_, reply));
  Make({});
  reply.header.flags = 0;
  EXPECT_FALSE(LacksReplica(key_, memory_, reply));
}

}  // namespace
}  // namespace bdn::testing
