#include "common/transport/fabric/fabric_window.h"

#include <cstring>

#include "gtest/gtest.h"
#include "tests/transport/transport_fixture.h"

namespace bdn {
namespace {

constexpr uint32_t kBlock = 4096;
constexpr uint32_t kBlocks = 16;
constexpr uint64_t kToken = 77;
constexpr uint32_t kFirst = 3u << 20 | 5u << 14;

// Tests over libfabric's provider shm, which jobs may not choose. It addresses a window by its
// place in memory, so that these tests can write as a peer does.
class FabricWindowTest : public ::testing::Test {
 protected:
  FabricWindowTest() : endpoint_(*FabricEndpoint::Open({.provider = "shm"})) {
    window_ = *FabricWindow::Make(*endpoint_,
                                  {.block_bytes = kBlock,
                                   .num_blocks = kBlocks,
                                   .immediate = kFirst,
                                   .token = kToken,
                                   .max_payload_bytes = 40000,
                                   .copied = &copied_,
                                   .released = [this] { ++told_; }},
                                  retired_);
  }

  std::byte* At(uint32_t block) {
    return reinterpret_cast<std::byte*>(window_->grant().base) + block * kBlock;
  }
  void Write(uint32_t block, const Frame& frame, FabricPrefix prefix) {
    const auto head = EncodeFabricPrefix(prefix);
    const auto header = EncodeHeader(frame.header);
    std::memcpy(At(block), head.data(), head.size());
    std::memcpy(At(block) + head.size(), header.data(), header.size());
    std::memcpy(At(block) + kFabricHeadBytes, frame.payload.data(), frame.payload.size());
  }
  void Write(uint32_t block, const Frame& frame) {
    Write(block, frame,
          {.number = FabricNumber(kFirst), .token = kToken, .payload_bytes = frame.payload.size()});
  }

  using Arrival = FabricWindow::Arrival;
  std::unique_ptr<FabricEndpoint> endpoint_;
  std::shared_ptr<RetiredAddresses> retired_ = std::make_shared<RetiredAddresses>();
  TransportCounter copied_;
  int told_ = 0;
  std::shared_ptr<FabricWindow> window_;
};

TEST_F(FabricWindowTest, AFrameIsReadWhereItWasWritten) {
  const Frame expected = FrameOf(1, 6000);
  Write(2, expected);
  Frame frame;
  ASSERT_EQ(window_->Arrive(2, &frame), Arrival::kFrame);
  ExpectSameFrame(frame, expected);
  EXPECT_EQ(frame.payload.data(), At(2) + kFabricHeadBytes);
  EXPECT_TRUE(frame.is_lent);
  EXPECT_EQ(copied_.Read(), 0u);
  EXPECT_TRUE(window_->TakeReleased().empty());
  frame = Frame();
  EXPECT_EQ(window_->TakeReleased(), std::vector<uint32_t>{2});
}

TEST_F(FabricWindowTest, ABlockIsNoFrameTwice) {
  Write(0, FrameOf(1, 100));
  Frame frame;
  ASSERT_EQ(window_->Arrive(0, &frame), Arrival::kFrame);
  Frame again;
  EXPECT_EQ(window_->Arrive(0, &again), Arrival::kMalformed);  // it is still read
  frame = Frame();
  EXPECT_EQ(window_->Arrive(0, &again), Arrival::kMalformed);  // and then it is nothing
}

TEST_F(FabricWindowTest, WhatIsNotThePeersIsDropped) {
  const Frame frame = FrameOf(1, 100);
  const FabricPrefix right{.number = FabricNumber(kFirst), .token = kToken, .payload_bytes = 100};
  FabricPrefix token = right, number = right, kind = right;
  token.token = 78;
  number.number += 1;
  kind.kind = FabricPrefix::Kind::kWantCredits;
  kind.payload_bytes = 0;
  Frame arrived;
  for (const FabricPrefix& wrong : {token, number, kind}) {
    Write(1, frame, wrong);
    EXPECT_EQ(window_->Arrive(1, &arrived), Arrival::kMalformed);
  }
  EXPECT_EQ(window_->Arrive(3, &arrived), Arrival::kMalformed);        // nothing was written there
  EXPECT_EQ(window_->Arrive(kBlocks, &arrived), Arrival::kMalformed);  // outside
  EXPECT_EQ(window_->Arrive(~0u, &arrived), Arrival::kMalformed);
  Write(1, frame, right);
  EXPECT_EQ(window_->Arrive(1, &arrived), Arrival::kFrame);
}

TEST_F(FabricWindowTest, AFrameThatIsNotWhatItSaysGivesItsBlocksBack) {
  Frame frame = FrameOf(1, 5000);
  frame.header.payload_bytes = 4999;
  Write(4, frame);
  Frame arrived;
  EXPECT_EQ(window_->Arrive(4, &arrived), Arrival::kMalformed);
  EXPECT_EQ(window_->TakeReleased(), std::vector<uint32_t>{4});
}

TEST_F(FabricWindowTest, WhoLeavesTheRulesIsBroken) {
  Frame held;
  Write(6, FrameOf(1, 100));
  ASSERT_EQ(window_->Arrive(6, &held), Arrival::kFrame);
  Frame arrived;
  const auto arrive = [&](uint32_t block, uint64_t payload_bytes) {
    Write(block, FrameOf(2, 10),
          {.number = FabricNumber(kFirst), .token = kToken, .payload_bytes = payload_bytes});
    return window_->Arrive(block, &arrived);
  };
  EXPECT_EQ(arrive(14, 3 * kBlock), Arrival::kBroken);  // beyond the end
  EXPECT_EQ(arrive(5, kBlock), Arrival::kBroken);       // over what is read
  EXPECT_EQ(arrive(0, 40001), Arrival::kBroken);        // too long
  EXPECT_EQ(arrive(0, ~uint64_t{0} - 4), Arrival::kBroken);
}

TEST_F(FabricWindowTest, CopiesWhatWouldHoldMoreThanItLends) {
  std::vector<Frame> held(kBlocks);
  for (uint32_t block = 0; block < kBlocks; ++block) {
    Write(block, FrameOf(block, 1000));
    ASSERT_EQ(window_->Arrive(block, &held[block]), Arrival::kFrame);
    EXPECT_EQ(held[block].is_lent, block < 12) << block;
    ExpectSameFrame(held[block], FrameOf(block, 1000));
  }
  EXPECT_EQ(copied_.Read(), 4000u);
  EXPECT_EQ(window_->TakeReleased().size(), 4u);
}

TEST_F(FabricWindowTest, TellsOfBlocksByBatchesOrWhenTheyAreWanted) {
  Frame frame;
  const auto pass = [&](uint32_t block) {
    Write(block, FrameOf(1, 10));
    ASSERT_EQ(window_->Arrive(block, &frame), Arrival::kFrame);
    frame = Frame();
  };
  pass(0);
  EXPECT_EQ(told_, 0);
  pass(1);
  EXPECT_EQ(told_, 1);
  pass(2);
  EXPECT_EQ(told_, 1);  // until it was taken
  EXPECT_EQ(window_->TakeReleased().size(), 3u);
  window_->Want();
  EXPECT_EQ(told_, 1);
  pass(3);
  EXPECT_EQ(told_, 2);
  EXPECT_EQ(window_->TakeReleased().size(), 1u);
  pass(4);
  EXPECT_EQ(told_, 2);
  window_->Want();
  EXPECT_EQ(told_, 3);
}

TEST_F(FabricWindowTest, WhatCameIsReadAfterItIsRevoked) {
  Write(0, FrameOf(1, 5000));
  Frame frame;
  ASSERT_EQ(window_->Arrive(0, &frame), Arrival::kFrame);
  window_->Revoke();
  window_.reset();
  endpoint_.reset();
  ExpectSameFrame(frame, FrameOf(1, 5000));
}

TEST(FabricPeerWindowTest, GivesEachBlockToOneFrame) {
  FabricPeerWindow window(
      {.key = 9, .base = 1000, .block_bytes = kBlock, .num_blocks = 8, .immediate = kFirst});
  const auto first = window.Take(kBlock + 1);
  const auto second = window.Take(6 * kBlock);
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_EQ(first->block, 0u);
  EXPECT_EQ(second->block, 2u);
  EXPECT_EQ(second->address, 1000 + 2 * kBlock);
  EXPECT_EQ(second->immediate, kFirst + 2);
  EXPECT_FALSE(window.Take(1).has_value());
  EXPECT_FALSE(window.Give(1));  // no frame begins there
  EXPECT_FALSE(window.Give(8));
  EXPECT_FALSE(window.Give(~0u));
  EXPECT_TRUE(window.Give(0));
  EXPECT_FALSE(window.Give(0));  // a second time
  EXPECT_TRUE(window.Take(2 * kBlock).has_value());
}

}  // namespace
}  // namespace bdn
