#include "common/wire/headers.h"

#include "gtest/gtest.h"

namespace bdn {
namespace {

constexpr Key kKey = Key::Of(7, 2);

// A request as it came over the wire: stamped, and with all that its type may have.
FrameHeader Request(FrameType type) {
  FrameHeader header;
  if (type == FrameType::kPush) {
    header = PushHeader(kKey, 12, 9);
    header.codec = 4;
    header.flags = kFlagAbsent;
    header.weight = 3;
    header.learning_rate = 0.5f;
    header.program_steps = 8;
    header.priority = -3;
  } else {
    header = StateHeader(
        type, {.part = StatePart::kMoment1, .key = kKey, .num_elements = 9, .element_offset = 5},
        12, 6);
  }
  StampHeader({.sender = 3, .epoch = 2, .catalogue_version = 4}, &header);
  return header;
}

TEST(HeadersTest, AStampSaysWhoSendsAndNothingElse) {
  FrameHeader stamped = PushHeader(kKey, 12, 9);
  StampHeader({.sender = 3, .epoch = 2, .catalogue_version = 4}, &stamped);
  FrameHeader expected = PushHeader(kKey, 12, 9);
  expected.sender = 3;
  expected.epoch = 2;
  expected.catalogue_version = 4;
  EXPECT_EQ(stamped, expected);
}

TEST(HeadersTest, ARequestAboutStateNamesPartSegmentAndNumber) {
  const FrameHeader init = Request(FrameType::kInit);
  EXPECT_EQ(init.type, FrameType::kInit);
  EXPECT_EQ(init.part, StatePart::kMoment1);
  EXPECT_EQ(init.key, kKey);
  EXPECT_EQ(init.step, 12u);
  EXPECT_EQ(init.num_elements, 9u);
  EXPECT_EQ(init.element_offset, 5u);
  EXPECT_EQ(init.request, 6u);
}

TEST(HeadersTest, AProbeOfAPushOrABroadcastAsksForItsStepAlone) {
  for (const FrameHeader& request :
       {Request(FrameType::kPush), BroadcastHeader(FrameType::kInit, kKey, 12, 9)}) {
    FrameHeader expected;
    expected.type = FrameType::kProbe;
    expected.key = kKey;
    expected.step = 12;
    expected.num_elements = 9;
    EXPECT_EQ(ProbeFor(request), expected);
  }
}

TEST(HeadersTest, AProbeDoesWithoutTheResultWhereItsPushDoes) {
  FrameHeader push = Request(FrameType::kPush);
  EXPECT_EQ(ProbeFor(push)->flags, 0);
  push.flags = kFlagAbsent | kFlagUnwanted;
  EXPECT_EQ(ProbeFor(push)->flags, kFlagUnwanted);
}

TEST(HeadersTest, AFetchIsItsOwnProbe) {
  const FrameHeader of_state = Request(FrameType::kFetch);
  EXPECT_EQ(ProbeFor(of_state), of_state);
  const FrameHeader of_broadcast = BroadcastHeader(FrameType::kFetch, kKey, 12, 9);
  EXPECT_EQ(ProbeFor(of_broadcast), of_broadcast);
}

TEST(HeadersTest, NothingAsksAfterTheInitOfAPart) {
  EXPECT_EQ(ProbeFor(Request(FrameType::kInit)), std::nullopt);
}

TEST(HeadersTest, AnAnswerRepeatsWhatTellsItsRequestFromOthers) {
  for (const FrameType type :
       {FrameType::kReply, FrameType::kError, FrameType::kWaiting, FrameType::kValue}) {
    FrameHeader expected;
    expected.type = type;
    expected.key = kKey;
    expected.step = 12;
    expected.num_elements = 9;
    expected.request = 6;
    if (type == FrameType::kReply) expected.weight = 0;
    if (type == FrameType::kValue) {
      expected.part = StatePart::kMoment1;
      expected.element_offset = 5;
    }
    EXPECT_EQ(AnswerTo(Request(FrameType::kFetch), type), expected) << FrameTypeName(type);
  }
}

// Whatever is asked, what the builders make of it passes the header's own check.
TEST(HeadersTest, EveryHeaderIsOneThatAReceiverTakes) {
  std::vector<FrameHeader> headers = {HelloHeader(3)};
  for (const FrameHeader& request :
       {Request(FrameType::kPush), Request(FrameType::kInit), Request(FrameType::kFetch),
        BroadcastHeader(FrameType::kInit, kKey, 12, 9),
        BroadcastHeader(FrameType::kFetch, kKey, 12, 9), HelloHeader(3)}) {
    headers.push_back(request);
    for (const FrameType type :
         {FrameType::kReply, FrameType::kError, FrameType::kWaiting, FrameType::kValue}) {
      headers.push_back(AnswerTo(request, type));
    }
    if (const auto probe = ProbeFor(request)) headers.push_back(*probe);
  }
  for (const FrameHeader& header : headers) {
    const auto decoded = DecodeHeader(EncodeHeader(header));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, header);
  }
}

}  // namespace
}  // namespace bdn
