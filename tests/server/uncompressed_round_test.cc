#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/shard_fixture.h"

// Keys that go uncompressed from a step on, as workers or the server's own guard ask for it.

namespace bdn::testing {
namespace {

using ::testing::HasSubstr;

class UncompressedRoundTest : public ShardFixture {
 protected:
  ShardOptions OptionsOfShard() override { return {.self = kServerNode, .quality = &watch_}; }
  void PushPlain(Rank rank, Step step, const Floats& values) {
    KeyOptions plain = options_;
    plain.push = "none";
    Frame push = MakePush(kKey, step, rank, values, plain);
    push.header.learning_rate = rate_;
    Send(push);
  }
  void PushAsking(Rank rank, Step step, const Floats& values) {
    Frame push = MakePush(kKey, step, rank, values, options_);
    push.header.learning_rate = rate_;
    push.header.flags = kFlagUncompressed;
    Send(push);
  }
  bool ToldUncompressed(Rank rank) { return (Reply(rank).header.flags & kFlagUncompressed) != 0; }

  QualityWatch watch_{.options = {.every = 1, .guard = QualityGuard::kFallBack}, .table = {}};
};

TEST_F(UncompressedRoundTest, EverybodyIsToldAndTheNextStepIsSo) {
  Start(2, {.push = "ef(onebit)", .pull = "ef(onebit)"});
  Push(0, 1, {1, 1, 1, 1});
  PushAsking(1, 1, {3, 3, 3, 3});
  EXPECT_TRUE(ToldUncompressed(0));
  EXPECT_TRUE(ToldUncompressed(1));
  EXPECT_EQ(Result(0), (Floats{2, 2, 2, 2})) << "of this step as declared";
  PushPlain(0, 2, {1, 2, 3, 4});
  PushPlain(1, 2, {1, 2, 3, 8});
  EXPECT_TRUE(ToldUncompressed(0)) << "for who has missed it";
  options_.pull = "none";
  EXPECT_EQ(Result(1), (Floats{1, 2, 3, 6}));
}

TEST_F(UncompressedRoundTest, WhoGoesOnCompressingFailsTheRound) {
  Start(2, {.push = "ef(onebit)", .pull = "none"});
  PushAsking(0, 1, {1, 1, 1, 1});
  Push(1, 1, {1, 1, 1, 1});
  Push(0, 2, {1, 1, 1, 1});
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("where none was declared"));
}

TEST_F(UncompressedRoundTest, OfAKeyWithoutAMemoryNobodyMayAsk) {
  Start(1, {.push = "onebit", .pull = "none"});
  PushAsking(0, 1, {1, 1, 1, 1});
  EXPECT_FALSE(ToldUncompressed(0));
  Push(0, 2, {1, 1, 1, 1});
  EXPECT_EQ(Result(0), (Floats{1, 1, 1, 1}));
}

TEST_F(UncompressedRoundTest, WhoeverFindsGuessesInRepliesMayAsk) {
  const std::string sketch = "exactsketch(cells=2)";
  Start(2, {.push = sketch, .pull = sketch});
  Push(0, 1, {1, 0, 0, 0});
  PushAsking(1, 1, {3, 0, 0, 4});
  EXPECT_TRUE(ToldUncompressed(0));
  EXPECT_TRUE(ToldUncompressed(1));
  EXPECT_EQ(Result(0), (Floats{2, 0, 0, 2})) << "of this step as declared";
  PushPlain(0, 2, {1, 2, 3, 4});
  PushPlain(1, 2, {1, 2, 3, 8});
  options_.pull = "none";
  EXPECT_EQ(Result(1), (Floats{1, 2, 3, 6}));
}

TEST_F(UncompressedRoundTest, ARoundThatIsNotFiniteTellsItToo) {
  Start(2, {.push = "ef(onebit)", .pull = "none"});
  PushAsking(0, 1, {1, 1, 1, 1});
  PushFlagged(1, 1, kFlagNonFinite);
  EXPECT_EQ(Reply(0).header.flags, kFlagNonFinite | kFlagUncompressed);
  EXPECT_TRUE(Reply(0).payload.empty());
}

TEST_F(UncompressedRoundTest, WhoDoesWithoutTheResultIsToldAsWell) {
  Start(2, {.push = "ef(onebit)", .pull = "none"});
  PushFlagged(1, 1, kFlagAbsent | kFlagUnwanted);
  PushAsking(0, 1, {1, 1, 1, 1});
  EXPECT_EQ(Reply(1).header.flags, kFlagUnwanted | kFlagUncompressed);
  EXPECT_TRUE(Reply(1).payload.empty());
}

// Each of 64 numbers is sent as the norm of all or its opposite: each step adds more than it takes
// away.
TEST_F(UncompressedRoundTest, TheServersOwnGuardDecidesItForItsReplies) {
  const KeyOptions options{
      .push = "none", .pull = "ef(dither(levels=0,norm=l2))", .segments = {64}};
  Start(1, options);
  const Floats values(64, 1.0f);
  Step step = 0;
  do {
    Push(0, ++step, values);
    ASSERT_LT(step, 100u) << "it never noticed";
  } while (!ToldUncompressed(0));
  EXPECT_GE(step, static_cast<Step>(LinkMonitor::kLeastOver));
  EXPECT_EQ(watch_.table.Tensors()[0].figures.guard, "fallen back");
  Push(0, step + 1, values);
  options_.pull = "none";
  (void)Result(0);  // What was owed, in full.
  Push(0, step + 2, values);
  EXPECT_EQ(Result(0), values);
}

TEST_F(UncompressedRoundTest, AGuardThatWarnsChangesNothing) {
  watch_.options.guard = QualityGuard::kWarn;
  Start(1, {.push = "none", .pull = "ef(dither(levels=0,norm=l2))", .segments = {64}});
  for (Step step = 1; step <= 20; ++step) {
    Push(0, step, Floats(64, 1.0f));
    EXPECT_FALSE(ToldUncompressed(0));
  }
  EXPECT_EQ(watch_.table.Tensors()[0].figures.guard, "warned");
}

}  // namespace
}  // namespace bdn::testing
