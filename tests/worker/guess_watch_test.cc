#include "worker/pipeline/guess_watch.h"

#include "gtest/gtest.h"

namespace bdn {
namespace {

constexpr size_t kFew = GuessWatch::kByChance;
constexpr size_t kMany = kFew + 1;

TEST(GuessWatch, AsksAfterThreeStepsWithGuessesAndNotBefore) {
  for (const size_t guessed : {size_t{1}, kFew, kMany, size_t{5000}}) {
    GuessWatch watch;
    for (const Step step : {7, 8}) {
      watch.Note(step, guessed);
      EXPECT_FALSE(watch.WantsUncompressed());
    }
    watch.Note(9, 0);
    EXPECT_FALSE(watch.WantsUncompressed());
    watch.Note(10, guessed);
    EXPECT_TRUE(watch.WantsUncompressed());
    watch.Note(11, 0);
    EXPECT_TRUE(watch.WantsUncompressed()) << "until all have agreed";
    watch.NoteUncompressed();
    EXPECT_FALSE(watch.WantsUncompressed());
  }
}

TEST(GuessWatch, ForgetsStepsWithFewGuesses) {
  GuessWatch watch;
  constexpr Step kApart = GuessWatch::kWithin / 2;
  for (Step step = 1; step < 100 * kApart; step += kApart) watch.Note(step, kFew);
  EXPECT_FALSE(watch.WantsUncompressed());
  watch.Note(99 * kApart + 10, kFew);
  EXPECT_TRUE(watch.WantsUncompressed()) << "the third within a hundred steps";
}

TEST(GuessWatch, NeverForgetsAStepWithMany) {
  GuessWatch watch;
  watch.Note(1000, kMany);
  watch.Note(2000000, kMany);
  watch.Note(3000000, kFew);
  EXPECT_TRUE(watch.WantsUncompressed());
}

}  // namespace
}  // namespace bdn
